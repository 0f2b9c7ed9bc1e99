//! The clock of the state: the latest time passed in.

use crate::input::Input;

/// Returns the time to which an input moves the clock before it is applied. The times of calls and
/// events are known once they are decoded.
pub(super) const fn time_of(input: &Input) -> Option<u64> {
    match input {
        Input::AllocatorState(allocator_state) => Some(allocator_state.time_ns),
        Input::Arenas(arenas) => Some(arenas.time_ns),
        Input::Devices(reading) => Some(reading.end_ns),
        Input::Holdings(holdings) => Some(holdings.time_ns),
        Input::KvCache(reading) => Some(reading.time_ns),
        Input::HeldNames(reading) => Some(reading.time_ns),
        Input::MovingAllocatorState(allocator_state) => Some(allocator_state.time_ns),
        Input::Numbers(numbers) => Some(numbers.time_ns),
        Input::Rm(call) => Some(call.returned_ns),
        Input::TensorLevel(choice) => Some(choice.time_ns),
        Input::Tick { time_ns } | Input::TraceWindow { time_ns, .. } => Some(*time_ns),
        _ => None,
    }
}
