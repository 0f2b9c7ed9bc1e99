//! What a watch is to be.

use std::path::PathBuf;
use std::time::Duration;

use super::survival::SurvivalPlace;
use crate::backends::readings::DeviceLibrary;
use crate::frameworks::pytorch::TensorRequest;
use crate::sources::containers::RuntimeSockets;
use crate::sources::kernel::load::LoadOptions;
use crate::watch::recording::TapeOptions;
use crate::watch::selection::Selection;

/// What to watch, and how.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct SessionOptions {
    /// These processes and their children; empty for every process of the machine.
    pub(crate) targets: Vec<u32>,
    /// A command will be started later and become a target.
    pub(crate) expects_command: bool,
    /// Where this machine's agent listens, if it runs.
    pub(crate) agent_socket: Option<PathBuf>,
    /// Further driver library files.
    pub(crate) libraries: Vec<PathBuf>,
    /// Which library reads the devices.
    pub(crate) device_library: DeviceLibrary,
    /// Where runtimes are asked for names.
    pub(crate) sockets: RuntimeSockets,
    /// Size of the ring buffer in bytes.
    pub(crate) ring_bytes: u32,
    /// Use classic uprobes even where `uprobe_multi` works.
    pub(crate) classic_uprobes: bool,
    /// Read devices rarely while nobody uses one and nobody asks.
    pub(crate) rests_without_processes: bool,
    /// Look for new libraries now and then, even where the kernel reports them.
    pub(crate) polls_libraries: bool,
    /// Let the kernel half log.
    pub(crate) diagnostics: bool,
    /// What of PyTorch is watched.
    pub(crate) tensors: TensorRequest,
    /// And only in processes of this selection, where everybody is watched.
    pub(crate) named: Option<Selection>,
    /// A screen shows what a line on standard error would say, and would destroy.
    pub(crate) is_screen: bool,
    /// How often it is read what processes with PyTorch hold; of the ones that are older than the watch it is once.
    pub(crate) holdings_every: Option<Duration>,
    /// How often what PyTorch's allocators have counted is read, of every process and by a thread of its own, where nothing of it is traced.
    pub(crate) counters_every: Option<Duration>,
    /// Its modules and stages are logged.
    pub(crate) logs_tensors: bool,
    /// Everything is recorded here.
    pub(crate) tape: Option<TapeOptions>,
    /// The watch outlives its process here.
    pub(crate) survival: Option<SurvivalPlace>,
}

impl SessionOptions {
    /// How the kernel half is set up for it.
    pub(super) const fn load(&self, everybody: bool) -> LoadOptions {
        LoadOptions {
            all_processes: everybody,
            ring_bytes: self.ring_bytes,
            classic_uprobes: self.classic_uprobes,
            diagnostics: self.diagnostics,
        }
    }
}
