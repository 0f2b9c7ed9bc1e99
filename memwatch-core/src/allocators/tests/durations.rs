//! Durations of modules. Each event comes ten nanoseconds after the previous one.

use super::*;

impl TrainingProcess {
    /// Returns the nanoseconds of the only module.
    fn host_duration_ns(&self) -> u64 {
        let names = self.ledger.names();
        let device = &self.ledger.attribution().devices()[&GPU];
        let module = device.modules().find(|(key, _)| matches!(names.module_of(*key), ModuleEntry::Module(_)));
        module.expect("a layer").1.host_duration_ns
    }

    fn in_forward(&mut self, address: u64) -> &mut Self {
        self.changes((MAIN, StackRef::Known(FORWARD)), address, 512)
    }
}

const REPORT: StackRef = StackRef::NotAsked;

#[test]
fn a_module_has_the_time_to_its_threads_next_allocation_within_a_phase() {
    let mut process = TrainingProcess::new(0);
    process.in_forward(1).in_forward(2).in_forward(3);
    assert_eq!(process.host_duration_ns(), 20);
    process.changes((MAIN, StackRef::Known(LOSS)), 4, 512);
    assert_eq!(process.host_duration_ns(), 20, "another stage has begun, nobody knows when");
}

#[test]
fn a_thread_that_waits_for_a_backward_pass_is_not_at_work_for_a_module() {
    let mut process = TrainingProcess::new(0);
    process.in_forward(1).event(ENGINE, REPORT, TensorChange::NodeBegins { words: None }).in_forward(2);
    assert_eq!(process.host_duration_ns(), 0);
}

#[test]
fn in_backward_a_module_has_the_time_to_the_next_node() {
    let mut process = TrainingProcess::new(0);
    process.event(MAIN, REPORT, TensorChange::SequenceNumber(0)).in_forward(1);
    process.event(ENGINE, REPORT, TensorChange::NodeBegins { words: Some(NodeWords([0, 1])) });
    process.changes((ENGINE, StackRef::NoPython), 2, 512).changes((ENGINE, StackRef::NoPython), 3, 512);
    assert_eq!(process.host_duration_ns(), 10);
    process.event(ENGINE, REPORT, TensorChange::NodeBegins { words: None });
    assert_eq!(process.host_duration_ns(), 20);
}

#[test]
fn phase_time_between_steps_or_across_a_loss_is_not_attributed() {
    let mut process = TrainingProcess::new(0);
    process.in_forward(1);
    process.event(MAIN, REPORT, TensorChange::RangeBegins("Optimizer.step#AdamW.step".into()));
    process.event(MAIN, REPORT, TensorChange::RangeEnds).in_forward(2);
    process.ledger.lose(Loss::TensorEventLost, 1);
    process.in_forward(3);
    assert_eq!(process.host_duration_ns(), 0);
}
