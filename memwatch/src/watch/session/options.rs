//! Session options.

use std::path::PathBuf;
use std::time::Duration;

use super::survival::SurvivalPlace;
use crate::backends::readings::DeviceLibrary;
use crate::frameworks::watch::TensorRequest;
use crate::sources::containers::RuntimeSockets;
use crate::sources::kernel::load::LoadOptions;
use crate::watch::recording::RecorderOptions;
use crate::watch::selection::Selection;

/// Options of a session.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct SessionOptions {
    /// Target processes, watched with their children. Empty for every process of the machine.
    pub(crate) targets: Vec<u32>,
    /// A command will be started and become a target.
    pub(crate) expects_command: bool,
    /// Socket of this machine's agent, if one runs.
    pub(crate) agent_socket: Option<PathBuf>,
    /// Further driver library files.
    pub(crate) libraries: Vec<PathBuf>,
    /// The NVML library.
    pub(crate) device_library: DeviceLibrary,
    /// Sockets of container runtimes.
    pub(crate) sockets: RuntimeSockets,
    /// Size of the ring buffer in bytes.
    pub(crate) ring_bytes: u32,
    /// Use classic uprobes even where `uprobe_multi` works.
    pub(crate) classic_uprobes: bool,
    /// Back off NVML polling while no GPU is in use and no client sends requests.
    pub(crate) rests_without_processes: bool,
    /// Poll for new libraries, even where the kernel reports them.
    pub(crate) polls_libraries: bool,
    /// Enable the kernel half's log.
    pub(crate) diagnostics: bool,
    /// What is traced of PyTorch.
    pub(crate) tensors: TensorRequest,
    /// Selection of the processes in which PyTorch is traced, for a machine-wide session.
    pub(crate) named: Option<Selection>,
    /// A full screen is in use: no lines on standard error.
    pub(crate) is_screen: bool,
    /// How often live objects of PyTorch processes are read. Processes older than the session are
    /// always read once.
    pub(crate) holdings_every: Option<Duration>,
    /// How often PyTorch's counters are read, on separate threads, for every process that is not
    /// traced.
    pub(crate) counters_every: Option<Duration>,
    /// Log modules and phases.
    pub(crate) logs_tensors: bool,
    /// Where to write a recording.
    pub(crate) recorder: Option<RecorderOptions>,
    /// Where to keep the state that a restart resumes from.
    pub(crate) survival: Option<SurvivalPlace>,
}

impl SessionOptions {
    /// Whether every process of the machine is watched.
    pub(super) fn watches_everybody(&self) -> bool {
        self.targets.is_empty() && !self.expects_command
    }

    /// Returns the load options of the kernel half.
    pub(super) const fn load(&self, everybody: bool) -> LoadOptions {
        LoadOptions {
            all_processes: everybody,
            ring_bytes: self.ring_bytes,
            classic_uprobes: self.classic_uprobes,
            diagnostics: self.diagnostics,
        }
    }
}
