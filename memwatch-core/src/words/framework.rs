//! Frameworks with an allocator on top of the driver's, and their names on screens and in JSON.

use memwatch_common::tensor::FrameworkLibrary;
use serde::{Deserialize, Serialize};

/// A framework, or a library that provides memory to other libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// PyTorch.
    PyTorch,
    /// JAX, and any other user of XLA's plug-in.
    Jax,
    /// TensorFlow.
    TensorFlow,
    /// ONNX Runtime.
    OnnxRuntime,
    /// ggml: llama.cpp and related programs.
    Ggml,
    /// RAPIDS Memory Manager: cuDF and related libraries.
    Rmm,
    /// CuPy.
    CuPy,
}

impl Framework {
    /// Lower-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PyTorch => "pytorch",
            Self::Jax => "jax",
            Self::TensorFlow => "tensorflow",
            Self::OnnxRuntime => "onnxruntime",
            Self::Ggml => "ggml",
            Self::Rmm => "rmm",
            Self::CuPy => "cupy",
        }
    }

    /// Display name.
    pub const fn title(self) -> &'static str {
        match self {
            Self::PyTorch => "PyTorch",
            Self::Jax => "JAX",
            Self::TensorFlow => "TensorFlow",
            Self::OnnxRuntime => "ONNX Runtime",
            Self::Ggml => "ggml",
            Self::Rmm => "RMM",
            Self::CuPy => "CuPy",
        }
    }

    /// Returns the framework of a library; `None` for the Python interpreter.
    pub const fn of_library(library: FrameworkLibrary) -> Option<Self> {
        match library {
            FrameworkLibrary::C10
            | FrameworkLibrary::C10Cuda
            | FrameworkLibrary::TorchCpu
            | FrameworkLibrary::TorchCuda
            | FrameworkLibrary::TorchPython => Some(Self::PyTorch),
            FrameworkLibrary::Xla => Some(Self::Jax),
            FrameworkLibrary::TensorFlow => Some(Self::TensorFlow),
            FrameworkLibrary::OnnxRuntime => Some(Self::OnnxRuntime),
            FrameworkLibrary::GgmlBase | FrameworkLibrary::GgmlCuda => Some(Self::Ggml),
            FrameworkLibrary::Rmm => Some(Self::Rmm),
            FrameworkLibrary::CuPy => Some(Self::CuPy),
            FrameworkLibrary::Python => None,
        }
    }
}
