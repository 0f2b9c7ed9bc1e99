//! Threads, event by event.

mod modules;

use super::*;
use crate::allocators::names::{CallSite, ModuleEntry, NativeCode};
use crate::allocators::test_stacks::stack;
use crate::decode::{NodeWords, TensorEvent};
use crate::stack::native::{NativeEnd, NativeFrame, NativeRole};
use crate::words::Tgid;

const MAIN: Tid = Tid(100);
const ENGINE: Tid = Tid(200);
const OTHER: Tid = Tid(300);

/// Word before a node's number up to PyTorch 2.11.
const HIGH_POINTER: u64 = 0x7fff_1234_5670;

const STEP: &str = "Optimizer.step#AdamW.step";

/// A process whose stacks are learnt at their first use.
#[derive(Default)]
struct ThreadStory {
    threads: Threads,
    names: NameTable,
    stacks: Vec<Vec<String>>,
}

impl ThreadStory {
    fn stack(&mut self, frames: &[&str]) -> StackRef {
        let known = self.stacks.iter().position(|other| other == frames);
        let index = known.unwrap_or_else(|| {
            self.stacks.push(frames.iter().map(ToString::to_string).collect());
            self.threads.learn(self.stacks.len() as u64, &stack(frames), &mut self.names);
            self.stacks.len() - 1
        });
        StackRef::Known(index as u64 + 1)
    }

    fn event(&mut self, tid: Tid, what: TensorChange) -> &mut Self {
        self.event_on(tid, what, StackRef::NotAsked)
    }

    fn event_on(&mut self, tid: Tid, what: TensorChange, stack: StackRef) -> &mut Self {
        self.threads.apply(&TensorEvent::made((Tgid(1), tid), 0, stack, what), &mut self.names);
        self
    }

    fn begins(&mut self, tid: Tid, name: &str) -> &mut Self {
        self.event(tid, TensorChange::RangeBegins(name.into()))
    }

    fn ends(&mut self, tid: Tid) -> &mut Self {
        self.event(tid, TensorChange::RangeEnds)
    }

    fn node(&mut self, tid: Tid, sequence: Option<u64>) -> &mut Self {
        let words = Some(NodeWords([HIGH_POINTER, sequence.unwrap_or(u64::MAX)]));
        self.event(tid, TensorChange::NodeBegins { words })
    }

    fn numbers(&mut self, tid: Tid, numbers: impl IntoIterator<Item = u64>) -> &mut Self {
        for number in numbers {
            self.event(tid, TensorChange::SequenceNumber(number));
        }
        self
    }

    fn allocates(&mut self, tid: Tid, frames: &[&str]) -> Attribution {
        let stack = self.stack(frames);
        self.threads.attribute(tid, stack)
    }

    fn phase(&mut self, tid: Tid, frames: &[&str]) -> (Phase, PhaseEvidence) {
        let whose = self.allocates(tid, frames);
        (whose.phase, whose.by)
    }

    /// Returns phase and `class name` of the module for an allocation on a thread without Python.
    fn native(&mut self, tid: Tid) -> (Phase, String) {
        let whose = self.threads.attribute(tid, StackRef::NoPython);
        (whose.phase, self.module(whose))
    }

    fn module(&self, whose: Attribution) -> String {
        match self.names.module_of(whose.module) {
            ModuleEntry::Module(module) => {
                let name = module.name.as_deref().unwrap_or("?");
                format!("{}:{name}:{}", module.model, module.class)
            }
            other => format!("{other:?}"),
        }
    }
}

const LOSS: [&str; 2] = ["torch/nn/functional.py mse_loss:1", "train.py <module>:9"];
const FORWARD: [&str; 3] = ["nn Linear 0x20 fc", "nn Net 0x10 -", "train.py <module>:8"];
const IN_STEP: [&str; 3] =
    ["torch/optim/adamw.py AdamW.step:220", "torch/optim/optimizer.py wrapper:493", "train.py <module>:11"];
const ENGINE_CALL: [&str; 3] =
    ["torch/autograd/graph.py _engine_run_backward:829", "torch/_tensor.py backward:647", "train.py <module>:10"];

#[test]
fn each_part_of_a_step_is_determined_by_its_own_evidence() {
    let mut story = ThreadStory::default();
    assert_eq!(story.phase(MAIN, &FORWARD), (Phase::Forward, PhaseEvidence::Frames));
    assert_eq!(story.phase(MAIN, &LOSS), (Phase::Outside, PhaseEvidence::Nothing));
    assert_eq!(story.phase(MAIN, &ENGINE_CALL), (Phase::Backward, PhaseEvidence::Frames));
    story.node(ENGINE, Some(1));
    assert_eq!(story.native(ENGINE).0, Phase::Backward);
    assert_eq!(story.phase(MAIN, &IN_STEP), (Phase::Optimizer, PhaseEvidence::Frames));
    story.begins(MAIN, STEP);
    assert_eq!(story.phase(MAIN, &IN_STEP), (Phase::Optimizer, PhaseEvidence::Range));
    story.ends(MAIN);
    assert_eq!(story.phase(MAIN, &LOSS), (Phase::Outside, PhaseEvidence::Nothing));
    assert_eq!(story.threads.steps(), 1);
    assert_eq!(story.threads.steps_by_optimizer(), [("AdamW.step", 1)]);
}

#[test]
fn without_a_stack_ranges_and_nodes_still_report() {
    let mut story = ThreadStory::default();
    for missing in [StackRef::NotAsked, StackRef::OverBudget, StackRef::Unreadable, StackRef::Known(99)] {
        let whose = story.threads.attribute(MAIN, missing);
        assert_eq!((whose.phase, whose.module), (Phase::NotKnown, ModuleKey::NOT_KNOWN), "{missing:?}");
        assert_eq!(story.names.site_of(whose.site), story.names.site_of(SiteKey::without_frames(missing)));
    }
    story.begins(MAIN, STEP).node(ENGINE, None);
    assert_eq!(story.threads.attribute(MAIN, StackRef::NotAsked).phase, Phase::Optimizer);
    assert_eq!(story.threads.attribute(ENGINE, StackRef::OverBudget).phase, Phase::Backward);
    assert_eq!(story.native(OTHER), (Phase::Outside, "None".to_owned()));
}

#[test]
fn backward_node_on_the_main_thread_ends_when_python_resumes() {
    let mut story = ThreadStory::default();
    story.allocates(MAIN, &FORWARD);
    story.numbers(MAIN, [7]);
    story.allocates(MAIN, &FORWARD);
    story.node(MAIN, Some(7));
    let within = story.allocates(MAIN, &ENGINE_CALL);
    assert_eq!((within.phase, story.module(within)), (Phase::Backward, "Net:fc:Linear".to_owned()));
    assert_eq!(story.phase(MAIN, &LOSS), (Phase::Outside, PhaseEvidence::Nothing));
    assert_eq!(story.phase(MAIN, &FORWARD), (Phase::Forward, PhaseEvidence::Frames));
}

#[test]
fn an_optimizer_within_the_backward_pass_is_the_optimizer() {
    let mut story = ThreadStory::default();
    let hook = ["torch/optim/sgd.py SGD.step:1", "train.py hook:4"];
    story.node(ENGINE, None).begins(ENGINE, "Optimizer.step#SGD.step");
    assert_eq!(story.phase(ENGINE, &hook), (Phase::Optimizer, PhaseEvidence::Range));
    story.ends(ENGINE).node(ENGINE, None);
    assert_eq!(story.native(ENGINE).0, Phase::Backward);
}

#[test]
fn the_end_of_an_optimizers_range_may_be_lost() {
    let mut story = ThreadStory::default();
    story.begins(MAIN, STEP);
    assert_eq!(story.phase(MAIN, &IN_STEP), (Phase::Optimizer, PhaseEvidence::Range));
    assert_eq!(story.phase(MAIN, &LOSS), (Phase::Outside, PhaseEvidence::Nothing));
    story.begins(MAIN, STEP).ends(MAIN);
    assert_eq!(story.threads.steps(), 1);
}

#[test]
fn phases_are_the_ranges_that_the_program_names() {
    let mut story = ThreadStory::default();
    let name =
        |story: &ThreadStory, whose: Attribution| whose.range.map(|range| story.names.range_of(range).to_string());
    story.event(MAIN, TensorChange::NvtxPush("epoch".into()));
    let whose = story.allocates(MAIN, &LOSS);
    assert_eq!(name(&story, whose).as_deref(), Some("epoch"));
    story.begins(MAIN, "validation").begins(MAIN, STEP);
    let whose = story.allocates(MAIN, &IN_STEP);
    assert_eq!(name(&story, whose).as_deref(), Some("validation"));
    story.numbers(MAIN, [0]).node(ENGINE, Some(0));
    let whose = story.threads.attribute(ENGINE, StackRef::NoPython);
    assert_eq!(name(&story, whose).as_deref(), Some("validation"), "of the thread that made the node");
    story.ends(MAIN).ends(MAIN).event(MAIN, TensorChange::NvtxPop);
    let whose = story.allocates(MAIN, &LOSS);
    assert_eq!(name(&story, whose), None);
}

#[test]
fn thread_without_python_gets_its_backward_line_or_its_native_function() {
    let mut story = ThreadStory::default();
    let frame = |function: &str, library: &str| NativeFrame {
        function: Some(format!("{function}(int)").into()),
        name: Some(function.into()),
        library: library.into(),
        address: 1,
        role: NativeRole::Code,
    };
    let frames = vec![frame("c10::allocate", "/w/libc10.so"), frame("decode", "/srv/decoder")];
    story.threads.learn_native(7, &NativeStack::new(frames, NativeEnd::Complete), &mut story.names);
    let whose = story.threads.attribute(ENGINE, StackRef::Native(7));
    let code = NativeCode { function: "decode".into(), library: "decoder".into() };
    assert_eq!(story.names.site_of(whose.site), &CallSite::Native(code));
    assert_eq!((whose.phase, whose.stack, whose.module), (Phase::Outside, Some(7), ModuleKey::NONE));
    let unknown = story.threads.attribute(ENGINE, StackRef::Native(8));
    assert_eq!(story.names.site_of(unknown.site), &CallSite::NoPython);
    story.allocates(MAIN, &FORWARD);
    story.numbers(MAIN, [0]);
    story.allocates(MAIN, &FORWARD);
    story.node(ENGINE, Some(0));
    let whose = story.threads.attribute(ENGINE, StackRef::Native(7));
    assert!(matches!(story.names.site_of(whose.site), CallSite::BackwardOf(_)));
}

#[test]
fn allocations_during_graph_capture_are_marked_captured() {
    let mut story = ThreadStory::default();
    story.event(MAIN, TensorChange::CaptureBegins(1)).event(MAIN, TensorChange::CaptureBegins(2));
    assert!(story.allocates(MAIN, &FORWARD).captured && story.threads.attribute(ENGINE, StackRef::NoPython).captured);
    story.event(MAIN, TensorChange::CaptureEnds(1)).event(MAIN, TensorChange::CaptureEnds(1));
    assert!(story.allocates(MAIN, &FORWARD).captured, "the other one is still captured");
    story.event(MAIN, TensorChange::CaptureEnds(2));
    assert!(!story.allocates(MAIN, &FORWARD).captured);
}

#[test]
fn ever_new_threads_cost_no_memory_and_their_ends_are_taken_into_account() {
    let mut story = ThreadStory::default();
    for tid in 0..10_000 {
        story.numbers(Tid(tid), [0, 1, 2]).begins(Tid(tid), "x");
    }
    assert!(story.threads.all.len() <= THREADS && story.threads.builders.len() <= BUILDERS);
    assert_eq!(story.threads.kept_numbers, BUILDERS * 3);
    (0..10_000).for_each(|tid| story.threads.end(Tid(tid)));
    assert!(story.threads.all.is_empty() && story.threads.builders.is_empty());
    assert_eq!(story.threads.kept_numbers, 0);
}

#[test]
fn what_a_node_allocates_belongs_to_the_line_that_made_the_node() {
    let mut story = ThreadStory::default();
    let made = story.stack(&FORWARD);
    story.event_on(MAIN, TensorChange::SequenceNumber(5), made).node(ENGINE, Some(5));
    let whose = story.threads.attribute(ENGINE, StackRef::NoPython);
    let CallSite::BackwardOf(line) = story.names.site_of(whose.site) else { panic!("{whose:?}") };
    assert_eq!((&*line.file, line.line), ("train.py", Some(8)));
}
