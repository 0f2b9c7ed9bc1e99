//! memwatch on the simulated GPU: real uprobes, real PyTorch, and the simulator's own ledger to
//! compare with.
//!
//! A test creates a [`SimulatedGpu`], starts jobs on it and a [`RunningWatch`] of them, and compares memwatch's
//! reports with what the job reports ([`TorchJob`]) or with the simulator's ledger
//! ([`ledger::Ledger`]). Everything that a test starts ends with it. A test that cannot run here is
//! ignored: see [`harness`].

pub mod agent;
pub mod certificates;
pub mod containerd;
pub mod contract;
pub mod enclosure;
pub mod groups;
pub mod harness;
pub mod http;
pub mod kernel_maps;
pub mod ledger;
pub mod mounts;
pub mod network;
pub mod oracle;
pub mod places;
pub mod pools;
pub mod prometheus;
pub mod readers;
pub mod real_drivers;
pub mod report;
pub mod requests;
pub mod rootfs;
pub mod scenarios;
pub mod slurm;
pub mod statistics;

mod docker;
mod gpu;
mod later;
mod newer_system;
mod program;
mod torch_job;
mod wait;
mod watch;
mod workload;

pub use docker::{Docker, Engine};
pub use memwatch_tests_macros::test;

pub use gpu::{FrameworkRelease, PrologueShape, SimulatedGpu};
pub use later::Later;
pub use program::{RunningProgram, forget_peak, peak_resident_bytes, resident_bytes};
pub use torch_job::{TorchAllocator, TorchJob};
pub use wait::{TIMEOUT, stop, until};
pub use watch::{CommandOutcome, RunningWatch};
pub use workload::SimulatedWorkload;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// Memory that the simulator charges for a context, unless set otherwise.
pub const CONTEXT_BYTES: u64 = 518 * MIB;
