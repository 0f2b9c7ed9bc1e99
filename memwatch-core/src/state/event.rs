//! What happens to the state, as detectors see it.

use crate::decode::{Call, TensorEvent};
use crate::input::allocator_state::{AllocatorNumbers, AllocatorState};
use crate::input::held_names::HeldNames;
use crate::state::State;
use crate::words::Tgid;

/// A change of the state. Detectors see it after it was applied, unless the variant says otherwise.
/// Times are `CLOCK_BOOTTIME` in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Time has passed; what happened at this time is not applied yet.
    Time(u64),
    /// A driver call returned.
    Call(&'a Call),
    /// The ledger of a process was replaced after lost records.
    Resynced {
        /// Process of the ledger.
        tgid: Tgid,
        /// Time of the resync.
        time_ns: u64,
    },
    /// An event of a caching allocator.
    Tensor(&'a TensorEvent),
    /// Counters were read from a process's caching allocators.
    Counters(&'a AllocatorNumbers),
    /// The state of a process's caching allocators was read.
    AllocatorState(&'a AllocatorState),
    /// The kernel driver refused memory to a process. The result is known when the call returns.
    Refused(Tgid),
    /// A process's live objects were read by name.
    HeldNames(&'a HeldNames),
    /// NVML was read.
    Reading,
    /// A process is about to exit or to execute another image: its memory is still there.
    Ends {
        /// The process.
        tgid: Tgid,
        /// Time of the end.
        time_ns: u64,
    },
    /// Ended processes were dropped.
    Forgotten,
    /// A tick, before the live bytes of workloads are updated.
    Tick,
}

/// An analysis that is updated with each event. It does not change the state.
pub trait Detector {
    /// Takes in one event.
    fn on(&mut self, event: &Event<'_>, state: &State);
}
