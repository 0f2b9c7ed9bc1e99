//! XLA's CUDA plug-in, the library of JAX.

use memwatch_common::tensor::FrameworkLibrary;
use memwatch_core::words::Framework;

use super::bfc::tsl;
use super::descriptor::{FrameworkDescriptor, LibraryName};

const PLUGIN: &str = "xla_cuda_plugin.so";

/// JAX, and any other user of XLA's plug-in.
pub(crate) const DESCRIPTOR: FrameworkDescriptor = FrameworkDescriptor::new(
    Framework::Jax,
    &[tsl::library(PLUGIN, FrameworkLibrary::Xla)],
    &[LibraryName::new(PLUGIN)],
);
