//! Estimates the overhead of tracing a process: counts its records and multiplies them by measured
//! costs per event.
//!
//! The kernel could count the runs of memwatch's programs itself (`BPF_ENABLE_STATS`). However,
//! that needs cap_sys_admin (`bpf_enable_stats` in kernel/bpf/syscall.c), counts for all programs
//! of the machine, counts by program and not by process, and excludes the trap, which is most of
//! the cost.

use std::num::NonZeroU64;

use memwatch_common::loss::Loss;
use memwatch_common::record::RingRecord;
use memwatch_common::tensor::{FLAG_NO_PYTHON, FLAG_RETURN, FLAG_STACK_OVER_BUDGET, FLAG_STACK_UNREADABLE};
use serde::{Deserialize, Serialize};

/// Cost of a counting probe on the machine where the costs below were measured, in nanoseconds. On
/// other machines, all costs are scaled by the cost of a counting probe there.
const TRAP_NS: u64 = 400;
/// Cost of a driver call with both its probes: docs/project/overhead.md, per family.
const CALL_NS: u64 = 1_250;
/// Cost of a tensor allocation or free: docs/project/overhead.md, "Predicted overhead". A probe at the
/// end of a function makes the kernel trap twice, which cost half as much again in an earlier
/// measurement.
const EVENT_NS: u64 = 1_060;
const RETURN_NS: u64 = 1_550;
/// Cost of walking Python frames, per walk and per frame. The sum is the value in docs/project/overhead.md,
/// "Where an event's time goes", where every other event has a walk.
const WALK_NS: u64 = 250;
const FRAME_NS: u64 = 25;
/// Minimum time over which a rate is computed, nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Estimated overhead of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Number of times the process was interrupted for a record.
    pub events: u64,
    /// Total overhead since the process is watched, nanoseconds.
    pub total_ns: u64,
    /// Recent overhead per second, or the mean over the whole life of an exited process, in
    /// nanoseconds; `None` if no time has passed.
    pub ns_per_second: Option<u64>,
    /// Number of Python stacks left out to limit the overhead.
    pub stacks_left_out: u64,
}

/// Number of records of one process by kind, from which the overhead is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverheadCounts {
    calls: u64,
    events: u64,
    returns: u64,
    walks: u64,
    /// Number of frames walked. Each walk counts with the average stack depth at its time, so that
    /// later stacks do not change its cost.
    walked_frames: u64,
    left_out: u64,
    /// Number of frames of all stacks received, and number of these stacks.
    frames: (u64, u64),
    /// Start of the current window, and the overhead by then, in nanoseconds.
    window: Option<(u64, u64)>,
    /// Overhead per second in the last window.
    ns_per_second: Option<u64>,
    ticked_ns: u64,
}

impl OverheadCounts {
    /// Counts a driver call.
    pub const fn count_call(&mut self) {
        self.calls += 1;
    }

    /// Counts a PyTorch event.
    pub fn count_event(&mut self, record: &RingRecord) {
        let RingRecord::Tensor(tensor) = record else {
            self.events += 1;
            return;
        };
        if tensor.flags & FLAG_RETURN == 0 {
            self.events += 1;
        } else {
            self.returns += 1;
        }
        let was_walked = tensor.stack != 0 || tensor.flags & (FLAG_NO_PYTHON | FLAG_STACK_UNREADABLE) != 0;
        if was_walked {
            self.walks += 1;
            self.walked_frames = self.walked_frames.saturating_add(self.frames.0 / self.frames.1.max(1));
        }
        self.left_out += u64::from(tensor.flags & FLAG_STACK_OVER_BUDGET != 0);
    }

    /// Counts a received stack of this many frames. Stacks that are not received are assumed to
    /// have the average depth.
    pub fn count_stack(&mut self, frames: usize) {
        let frames = u64::try_from(frames).unwrap_or(u64::MAX);
        self.frames = (self.frames.0.saturating_add(frames), self.frames.1 + 1);
    }

    /// Counts lost records, which cost as much as received ones.
    pub const fn lose(&mut self, loss: Loss, count: u64) {
        match loss {
            Loss::RingFull => self.calls = self.calls.saturating_add(count),
            Loss::TensorEventLost => self.events = self.events.saturating_add(count),
            _ => {}
        }
    }

    /// Advances to `now_ns`. The process is watched since `since_ns`. `cycle_ns` is the interval of
    /// its sampling windows, if it has any.
    pub fn tick(&mut self, now_ns: u64, since_ns: u64, cycle_ns: Option<u64>) {
        self.ticked_ns = self.ticked_ns.max(now_ns);
        let (begun_ns, before_ns) = self.window.unwrap_or((since_ns, 0));
        let elapsed_ns = now_ns.saturating_sub(begun_ns);
        // A rate over less than a cycle would cover only a sampling window or only a pause.
        if elapsed_ns >= WINDOW_NS.max(cycle_ns.unwrap_or(0)) {
            let cost_ns = self.cost_ns();
            self.ns_per_second = per_second(cost_ns.saturating_sub(before_ns), elapsed_ns);
            self.window = Some((now_ns, cost_ns));
        }
    }

    /// Returns the overhead so far; `None` if no record of the process was seen. `trap_ns` is the
    /// cost of a counting probe on this machine, if known. For an exited process the rate is the
    /// mean over its whole life.
    pub fn cost(&self, (since_ns, ended_ns): (u64, Option<u64>), trap_ns: Option<NonZeroU64>) -> Option<Cost> {
        let here = |cost_ns| of_here(cost_ns, trap_ns);
        let events = self.calls + self.events + self.returns;
        let total_ns = self.cost_ns();
        let mean = || per_second(total_ns, ended_ns.unwrap_or(self.ticked_ns).saturating_sub(since_ns));
        let ns_per_second = self.ns_per_second.filter(|_| ended_ns.is_none()).or_else(mean);
        let (total_ns, ns_per_second) = (here(total_ns), ns_per_second.map(here));
        (events > 0).then_some(Cost { events, total_ns, ns_per_second, stacks_left_out: self.left_out })
    }

    fn cost_ns(&self) -> u64 {
        let prices = [
            (self.calls, CALL_NS),
            (self.events, EVENT_NS),
            (self.returns, RETURN_NS),
            (self.walks, WALK_NS),
            (self.walked_frames, FRAME_NS),
        ];
        let cost: u128 = prices.into_iter().map(|(count, price_ns)| u128::from(count) * u128::from(price_ns)).sum();
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// Returns the cost of a driver call to its program, in nanoseconds, on a machine where a counting
/// probe costs `trap_ns`.
pub fn call_ns(trap_ns: NonZeroU64) -> u64 {
    of_here(CALL_NS, Some(trap_ns))
}

/// Scales a cost to a machine where a counting probe costs `trap_ns`.
fn of_here(cost_ns: u64, trap_ns: Option<NonZeroU64>) -> u64 {
    let trap_ns = trap_ns.map_or(TRAP_NS, NonZeroU64::get);
    u64::try_from(u128::from(cost_ns) * u128::from(trap_ns) / u128::from(TRAP_NS)).unwrap_or(u64::MAX)
}

fn per_second(cost_ns: u64, elapsed_ns: u64) -> Option<u64> {
    let rate = (u128::from(cost_ns) * u128::from(SECOND_NS)).checked_div(u128::from(elapsed_ns))?;
    u64::try_from(rate).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwatch_common::tensor::TensorRecord;

    fn event(flags: u8, stack: u64) -> RingRecord {
        RingRecord::Tensor(TensorRecord { flags, stack, ..TensorRecord::default() })
    }

    #[test]
    fn overhead_rate_covers_the_last_second_or_an_ended_process_lifetime() {
        let mut overhead = OverheadCounts::default();
        assert_eq!(overhead.cost((0, None), None), None, "nothing was seen");
        (0..1000).for_each(|_| overhead.count_call());
        overhead.tick(SECOND_NS, 0, None);
        let rate = |overhead: &OverheadCounts, ended_ns| {
            overhead.cost((0, ended_ns), None).and_then(|cost| cost.ns_per_second)
        };
        assert_eq!(rate(&overhead, None), Some(1000 * CALL_NS));
        overhead.tick(SECOND_NS + SECOND_NS / 2, 0, None);
        assert_eq!(rate(&overhead, None), Some(1000 * CALL_NS), "half a second is too short to say");
        overhead.tick(4 * SECOND_NS, 0, None);
        assert_eq!(rate(&overhead, None), Some(0), "it rests");
        assert_eq!(rate(&overhead, Some(4 * SECOND_NS)), Some(250 * CALL_NS));
    }

    #[test]
    fn overhead_scales_with_the_measured_probe_cost() {
        let mut overhead = OverheadCounts::default();
        (0..1000).for_each(|_| overhead.count_call());
        overhead.tick(SECOND_NS, 0, None);
        let of = |trap_ns| overhead.cost((0, None), NonZeroU64::new(trap_ns)).expect("there were calls");
        let twice = of(2 * TRAP_NS);
        assert_eq!((twice.total_ns, twice.ns_per_second), (2000 * CALL_NS, Some(2000 * CALL_NS)));
        assert_eq!(of(0), of(TRAP_NS), "not known");
    }

    #[test]
    fn in_windows_the_rate_is_of_a_window_with_what_is_not_traced_after_it() {
        let mut overhead = OverheadCounts::default();
        overhead.tick(SECOND_NS, 0, None);
        let cycle_ns = Some(5 * SECOND_NS);
        (0..1000).for_each(|_| overhead.count_call());
        overhead.tick(2 * SECOND_NS, 0, cycle_ns);
        let rate = |overhead: &OverheadCounts| overhead.cost((0, None), None).and_then(|cost| cost.ns_per_second);
        assert_eq!(rate(&overhead), Some(0), "the window alone is no rate");
        overhead.tick(6 * SECOND_NS, 0, cycle_ns);
        assert_eq!(rate(&overhead), Some(200 * CALL_NS));
    }

    #[test]
    fn a_flat_stack_makes_no_walk_before_it_cheaper() {
        let mut overhead = OverheadCounts::default();
        overhead.count_stack(100);
        (0..1000).for_each(|_| overhead.count_event(&event(0, 7)));
        overhead.tick(SECOND_NS, 0, None);
        overhead.count_stack(0);
        overhead.tick(2 * SECOND_NS, 0, None);
        assert_eq!(overhead.cost((0, None), None).and_then(|cost| cost.ns_per_second), Some(0));
    }

    #[test]
    fn stacks_cost_by_their_depth_and_those_left_out_only_the_event() {
        let mut overhead = OverheadCounts::default();
        overhead.count_stack(10);
        overhead.count_stack(20);
        overhead.count_event(&event(0, 7));
        overhead.count_event(&event(FLAG_RETURN | FLAG_NO_PYTHON, 0));
        overhead.count_event(&event(FLAG_STACK_OVER_BUDGET, 0));
        overhead.lose(Loss::TensorEventLost, 2);
        overhead.lose(Loss::StackLost, 2);
        let cost = overhead.cost((0, None), None).expect("there were events");
        assert_eq!((cost.events, cost.stacks_left_out), (5, 1));
        assert_eq!(cost.total_ns, 4 * EVENT_NS + RETURN_NS + 2 * WALK_NS + 30 * FRAME_NS);
        assert_eq!(cost.ns_per_second, None, "no time has passed");
    }
}
