//! What watching takes of a process's time: its records are counted, and each has a price that was measured. An estimate.
//!
//! The kernel could count the runs of memwatch's programs itself (`BPF_ENABLE_STATS`), but for cap_sys_admin only (`bpf_enable_stats` of Linux's
//! kernel/bpf/syscall.c), for all programs of the machine, by program and not by process, and without the trap, most of the price.

use std::num::NonZeroU64;

use memwatch_common::loss::Loss;
use memwatch_common::record::Record;
use memwatch_common::tensor::{FLAG_NO_PYTHON, FLAG_RETURN, FLAG_STACK_OVER_BUDGET, FLAG_STACK_UNREADABLE};
use serde::{Deserialize, Serialize};

/// What a probe that only counts cost where the prices below were measured; where it costs something else they are taken to be as much dearer or
/// cheaper.
const TRAP_NS: u64 = 400;
/// A call of the driver with both its probes: docs/overhead.md, per family.
const CALL_NS: u64 = 1_250;
/// A tensor that comes or goes: docs/overhead.md, "The price of a level". At the end of a function the kernel traps twice, which was half as
/// much again by an earlier measurement.
const EVENT_NS: u64 = 1_060;
const RETURN_NS: u64 = 1_550;
/// A walk along Python frames, and each frame of it: together what docs/overhead.md has in "Where an event's time goes" where every other event has one.
const WALK_NS: u64 = 250;
const FRAME_NS: u64 = 25;
/// A rate is taken over at least this time, nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// An estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// How often the process was interrupted for a record.
    pub events: u64,
    /// How long in all since it was watched, nanoseconds.
    pub total_ns: u64,
    /// How much of each second lately, or of its whole life once it has ended; `None` where no time has passed.
    pub ns_per_second: Option<u64>,
    /// How many Python stacks were left out to keep it fast.
    pub stacks_left_out: u64,
}

/// The records of one process, and what they have cost it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overhead {
    calls: u64,
    events: u64,
    returns: u64,
    walks: u64,
    /// Frames that were walked, as deep as stacks were on average by then: what was spent stays spent.
    walked_frames: u64,
    left_out: u64,
    /// Frames of all stacks that were sent, and their number.
    frames: (u64, u64),
    /// When the present window began, and the cost by then.
    window: Option<(u64, u64)>,
    /// Over the last window.
    ns_per_second: Option<u64>,
    ticked_ns: u64,
}

impl Overhead {
    /// A call of the driver.
    pub const fn count_call(&mut self) {
        self.calls += 1;
    }

    /// An event of PyTorch.
    pub fn count_event(&mut self, record: &Record) {
        let Record::Tensor(tensor) = record else {
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

    /// A stack of so many frames was sent: others are taken to be as deep.
    pub fn count_stack(&mut self, frames: usize) {
        let frames = u64::try_from(frames).unwrap_or(u64::MAX);
        self.frames = (self.frames.0.saturating_add(frames), self.frames.1 + 1);
    }

    /// What did not arrive has cost as much.
    pub const fn lose(&mut self, loss: Loss, count: u64) {
        match loss {
            Loss::RingFull => self.calls = self.calls.saturating_add(count),
            Loss::TensorEventLost => self.events = self.events.saturating_add(count),
            _ => {}
        }
    }

    /// Time has come to `now_ns`; the process is watched since `since_ns`, in windows that begin every `cycle_ns` if it is in any.
    pub fn tick(&mut self, now_ns: u64, since_ns: u64, cycle_ns: Option<u64>) {
        self.ticked_ns = self.ticked_ns.max(now_ns);
        let (begun_ns, before_ns) = self.window.unwrap_or((since_ns, 0));
        let elapsed_ns = now_ns.saturating_sub(begun_ns);
        // A rate over less than a cycle would be that of a window, or of what lies between two.
        if elapsed_ns >= WINDOW_NS.max(cycle_ns.unwrap_or(0)) {
            let cost_ns = self.cost_ns();
            self.ns_per_second = per_second(cost_ns.saturating_sub(before_ns), elapsed_ns);
            self.window = Some((now_ns, cost_ns));
        }
    }

    /// So far, on a machine where a probe that only counts costs so much, if that is known; `None` where nothing of the process was seen. Of one that
    /// has ended the rate is that of its whole life.
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

/// What a call of the driver costs its program where a probe that only counts costs `trap_ns`, nanoseconds.
pub fn call_ns(trap_ns: NonZeroU64) -> u64 {
    of_here(CALL_NS, Some(trap_ns))
}

/// What costs so much at the prices above, where a probe costs `trap_ns`.
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

    fn event(flags: u8, stack: u64) -> Record {
        Record::Tensor(TensorRecord { flags, stack, ..TensorRecord::default() })
    }

    #[test]
    fn the_rate_is_of_the_last_second_and_of_an_ended_process_of_its_whole_life() {
        let mut overhead = Overhead::default();
        assert_eq!(overhead.cost((0, None), None), None, "nothing was seen");
        (0..1000).for_each(|_| overhead.count_call());
        overhead.tick(SECOND_NS, 0, None);
        let rate =
            |overhead: &Overhead, ended_ns| overhead.cost((0, ended_ns), None).and_then(|cost| cost.ns_per_second);
        assert_eq!(rate(&overhead, None), Some(1000 * CALL_NS));
        overhead.tick(SECOND_NS + SECOND_NS / 2, 0, None);
        assert_eq!(rate(&overhead, None), Some(1000 * CALL_NS), "half a second is too short to say");
        overhead.tick(4 * SECOND_NS, 0, None);
        assert_eq!(rate(&overhead, None), Some(0), "it rests");
        assert_eq!(rate(&overhead, Some(4 * SECOND_NS)), Some(250 * CALL_NS));
    }

    #[test]
    fn where_a_probe_costs_twice_as_much_so_does_everything() {
        let mut overhead = Overhead::default();
        (0..1000).for_each(|_| overhead.count_call());
        overhead.tick(SECOND_NS, 0, None);
        let of = |trap_ns| overhead.cost((0, None), NonZeroU64::new(trap_ns)).expect("there were calls");
        let twice = of(2 * TRAP_NS);
        assert_eq!((twice.total_ns, twice.ns_per_second), (2000 * CALL_NS, Some(2000 * CALL_NS)));
        assert_eq!(of(0), of(TRAP_NS), "not known");
    }

    #[test]
    fn in_windows_the_rate_is_of_a_window_with_what_is_not_traced_after_it() {
        let mut overhead = Overhead::default();
        overhead.tick(SECOND_NS, 0, None);
        let cycle_ns = Some(5 * SECOND_NS);
        (0..1000).for_each(|_| overhead.count_call());
        overhead.tick(2 * SECOND_NS, 0, cycle_ns);
        let rate = |overhead: &Overhead| overhead.cost((0, None), None).and_then(|cost| cost.ns_per_second);
        assert_eq!(rate(&overhead), Some(0), "the window alone is no rate");
        overhead.tick(6 * SECOND_NS, 0, cycle_ns);
        assert_eq!(rate(&overhead), Some(200 * CALL_NS));
    }

    #[test]
    fn a_flat_stack_makes_no_walk_before_it_cheaper() {
        let mut overhead = Overhead::default();
        overhead.count_stack(100);
        (0..1000).for_each(|_| overhead.count_event(&event(0, 7)));
        overhead.tick(SECOND_NS, 0, None);
        overhead.count_stack(0);
        overhead.tick(2 * SECOND_NS, 0, None);
        assert_eq!(overhead.cost((0, None), None).and_then(|cost| cost.ns_per_second), Some(0));
    }

    #[test]
    fn stacks_cost_by_their_depth_and_those_left_out_only_the_event() {
        let mut overhead = Overhead::default();
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
