//! Attribution by code from events: a training step, its losses and its log.

mod durations;
mod seam;

pub(super) use self::seam::ToyPool;

use super::test_stacks::stack;
use super::*;
use crate::allocators::names::{CallSite, ModuleEntry};
use crate::allocators::threads::Phase;
use crate::decode::NodeWords;
use crate::words::Tgid;

const GPU: Ordinal = Ordinal(0);
const MAIN: Tid = Tid(100);
const ENGINE: Tid = Tid(200);
const FORWARD: u64 = 1;
const LOSS: u64 = 2;
const STEP: u64 = 3;

/// A process with one device. Its allocator keeps its own total.
struct TrainingProcess {
    ledger: TensorLedger,
    allocated_bytes: u64,
    now_ns: u64,
}

impl TrainingProcess {
    fn new(before_bytes: u64) -> Self {
        let mut ledger = TensorLedger::default();
        ledger.learn(FORWARD, stack(&["nn Linear 0x20 fc", "nn Net 0x10 -", "train.py <module>:8"]));
        ledger.learn(LOSS, stack(&["train.py <module>:9"]));
        ledger.learn(STEP, stack(&["torch/optim/optimizer.py wrapper:493", "train.py <module>:11"]));
        Self { ledger, allocated_bytes: before_bytes, now_ns: 0 }
    }

    fn event(&mut self, tid: Tid, stack: StackRef, what: TensorChange) -> &mut Self {
        self.now_ns += 10;
        self.ledger.apply(&TensorEvent::made((Tgid(1), tid), self.now_ns, stack, what));
        self
    }

    fn changes(&mut self, (tid, stack): (Tid, StackRef), address: u64, block_bytes: i64) -> &mut Self {
        self.allocated_bytes = self.allocated_bytes.saturating_add_signed(block_bytes);
        let (allocated_bytes, reserved_bytes) = (self.allocated_bytes, 1 << 20);
        let what = TensorChange::Reported { ordinal: GPU, address, block_bytes, allocated_bytes, reserved_bytes };
        self.event(tid, stack, what)
    }

    fn step(&mut self) -> &mut Self {
        let report = StackRef::NotAsked;
        self.event(MAIN, report, TensorChange::SequenceNumber(0))
            .changes((MAIN, StackRef::Known(FORWARD)), 1, 1024)
            .changes((MAIN, StackRef::Known(LOSS)), 2, 512)
            .event(ENGINE, report, TensorChange::NodeBegins { words: Some(NodeWords([0, 1])) })
            .changes((ENGINE, StackRef::NoPython), 3, 2048)
            .changes((ENGINE, report), 1, -1024)
            .event(MAIN, report, TensorChange::RangeBegins("Optimizer.step#AdamW.step".into()))
            .changes((MAIN, StackRef::Known(STEP)), 4, 4096)
            .event(MAIN, report, TensorChange::RangeEnds)
    }

    fn by_phase(&self) -> Vec<(Phase, u64, u64)> {
        let device = &self.ledger.attribution().devices()[&GPU];
        device.phases().map(|(row, sum)| (row.phase, sum.total_bytes, sum.live_bytes)).collect()
    }
}

#[test]
fn a_step_is_divided_into_its_phases_and_adds_up() {
    let mut process = TrainingProcess::new(300);
    process.step();
    let expected = [
        (Phase::Forward, 1024, 0),
        (Phase::Backward, 2048, 2048),
        (Phase::Optimizer, 4096, 4096),
        (Phase::Outside, 512, 512),
        (Phase::BeforeAttach, 0, 300),
    ];
    assert_eq!(process.by_phase(), expected);
    let device = &process.ledger.attribution().devices()[&GPU];
    assert_eq!((device.total().live_bytes, device.unplaced_bytes()), (process.allocated_bytes, 0));
    assert_eq!(process.ledger.threads().steps(), 1);
}

#[test]
fn the_backward_pass_is_charged_to_the_module_and_to_its_line() {
    let mut process = TrainingProcess::new(0);
    process.step();
    let names = process.ledger.names();
    let device = &process.ledger.attribution().devices()[&GPU];
    let module =
        device.modules().find(|(key, _)| matches!(names.module_of(*key), ModuleEntry::Module(_))).expect("a layer").1;
    assert_eq!(module.total_by_phase, [1024, 2048, 0, 0, 0, 0, 0]);
    let of_line = |site: &CallSite| matches!(site, CallSite::BackwardOf(line) if line.line == Some(8));
    let (_, sum) = device.sites().find(|(key, _)| of_line(names.site_of(*key))).expect("the line");
    assert_eq!(sum.live_bytes, 2048);
}

#[test]
fn refused_allocation_keeps_its_phase_and_step() {
    let mut process = TrainingProcess::new(0);
    process.step();
    for wanted_bytes in 0..100 {
        let what = TensorChange::OutOfMemory { ordinal: GPU, wanted_bytes, allocated_bytes: 0, reserved_bytes: 0 };
        process.event(MAIN, StackRef::Known(FORWARD), what);
    }
    let refused = process.ledger.attribution().refused();
    assert_eq!((refused.len(), refused.back().map(|last| last.wanted_bytes)), (16, Some(99)));
    assert!(refused.iter().all(|refusal| refusal.whose.phase == Phase::Forward && refusal.whose.step == 1));
}

#[test]
fn log_writes_a_line_on_module_or_phase_change_only_when_enabled() {
    let mut process = TrainingProcess::new(0);
    process.step();
    assert_eq!(process.ledger.take_log(), (Vec::new(), 0));
    process.ledger.want_log(true);
    process.step();
    let (lines, missing) = process.ledger.take_log();
    let phases: Vec<_> = lines.iter().map(|line| line.phase).collect();
    assert_eq!(phases, [Phase::Forward, Phase::Outside, Phase::Backward, Phase::Optimizer]);
    assert!(lines.iter().all(|line| line.step == 1 && line.cached_bytes == 1 << 20) && missing == 0);
    assert!(lines.iter().all(|line| line.max_allocated_bytes >= line.allocated_bytes));
}

#[test]
fn log_not_drained_drops_its_oldest_lines_and_counts_them() {
    let mut process = TrainingProcess::new(0);
    process.ledger.want_log(true);
    for number in 0..40_000 {
        process.changes((MAIN, StackRef::Known(FORWARD)), number, 1);
        process.changes((MAIN, StackRef::Known(LOSS)), 1 << 32 | number, 1);
    }
    let (lines, missing) = process.ledger.take_log();
    assert_eq!(lines.len() as u64 + missing, 80_000);
    assert!(missing > 0 && process.ledger.take_log().1 == 0);
}
