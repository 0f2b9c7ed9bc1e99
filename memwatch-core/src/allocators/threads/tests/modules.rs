//! Attribution of blocks to modules.

use super::*;

fn module_of(story: &mut ThreadStory, frames: &[&str]) -> String {
    let whose = story.allocates(MAIN, frames);
    story.module(whose)
}

#[test]
fn a_module_is_the_innermost_module_by_its_name_in_the_model() {
    let mut story = ThreadStory::default();
    let deep = ["nn Linear 0x20 layers.0.fc1", "nn Block 0x30 layers.0", "nn Net 0x10 -", "train.py <module>:3"];
    assert_eq!(module_of(&mut story, &deep), "Net:layers.0.fc1:Linear");
    assert_eq!(module_of(&mut story, &deep[1..]), "Net:layers.0:Block");
    assert_eq!(module_of(&mut story, &deep[2..]), "Net::Net");
    assert_eq!(module_of(&mut story, &["nn Linear 0x40 ?", "nn Net 0x10 -"]), "Net:?:Linear");
    assert_eq!(module_of(&mut story, &LOSS), "None");
}

#[test]
fn a_part_called_by_itself_keeps_its_name() {
    let mut story = ThreadStory::default();
    module_of(&mut story, &["nn Linear 0x20 layers.0.fc1", "nn Block 0x30 layers.0", "nn Net 0x10 -"]);
    assert_eq!(module_of(&mut story, &["nn Linear 0x20 fc1", "nn Block 0x30 -"]), "Net:layers.0.fc1:Linear");
    assert_eq!(module_of(&mut story, &["nn Linear 0x21 fc2", "nn Block 0x30 -"]), "Net:layers.0.fc2:Linear");
    assert_eq!(module_of(&mut story, &["nn Block 0x30 -"]), "Net:layers.0:Block");
}

#[test]
fn module_names_distinguish_models_of_one_class_up_to_a_bound() {
    let mut story = ThreadStory::default();
    assert_eq!(module_of(&mut story, &["nn Linear 0x20 fc", "nn Net 0x10 -"]), "Net:fc:Linear");
    assert_eq!(module_of(&mut story, &["nn Linear 0x40 fc", "nn Net 0x30 -"]), "Net#2:fc:Linear");
    assert_eq!(module_of(&mut story, &["nn Linear 0x20 fc", "nn Net 0x10 -"]), "Net:fc:Linear");
    for address in 0..1000 {
        module_of(&mut story, &[&format!("nn MSELoss {address:x}000 -")]);
    }
    assert_eq!(module_of(&mut story, &["nn MSELoss 0xffff000 -"]), "MSELoss#32::MSELoss");
}

#[test]
fn wrappers_do_not_change_the_names_of_what_they_wrap() {
    let mut story = ThreadStory::default();
    let wrapped = ["nn Linear 0x20 module.fc", "nn Net 0x10 module", "nn DistributedDataParallel 0x8 -"];
    assert_eq!(module_of(&mut story, &wrapped), "Net:fc:Linear");
    assert_eq!(module_of(&mut story, &wrapped[1..]), "Net::Net");
    assert_eq!(module_of(&mut story, &wrapped[2..]), "Net::DistributedDataParallel");
    assert_eq!(module_of(&mut story, &["nn Linear 0x20 fc", "nn Net 0x10 -"]), "Net:fc:Linear");
}

#[test]
fn module_wrapper_seen_first_belongs_to_the_model_it_wraps() {
    let mut story = ThreadStory::default();
    let gathers = ["nn FullyShardedDataParallel 0x8 - around Net 0x10", "train.py <module>:8"];
    assert_eq!(module_of(&mut story, &gathers), "Net::FullyShardedDataParallel");
    let calls = ["nn Net 0x10 _fsdp_wrapped_module", "nn FullyShardedDataParallel 0x8 - around Net 0x10"];
    assert_eq!(module_of(&mut story, &calls), "Net::Net");
    let both = ["nn FullyShardedDataParallel 0x28 module around Net 0x30", "nn DistributedDataParallel 0x20 -"];
    assert_eq!(module_of(&mut story, &both), "Net#2::FullyShardedDataParallel");
}

#[test]
fn compiled_module_belongs_to_its_original_module() {
    let mut story = ThreadStory::default();
    let compiled = ["nn GraphModule 0x20 ?", "nn OptimizedModule 0x8 - around Net 0x10"];
    assert_eq!(module_of(&mut story, &compiled), "Net::OptimizedModule");
    // A GraphModule of the program itself is part of its model, or the model.
    assert_eq!(module_of(&mut story, &["nn GraphModule 0x30 traced", "nn Net 0x10 -"]), "Net:traced:GraphModule");
    assert_eq!(module_of(&mut story, &["nn GraphModule 0x40 -"]), "GraphModule::GraphModule");
}

#[test]
fn a_modules_address_may_become_anothers() {
    let mut story = ThreadStory::default();
    assert_eq!(module_of(&mut story, &["nn Linear 0x20 fc", "nn Net 0x10 -"]), "Net:fc:Linear");
    assert_eq!(module_of(&mut story, &["nn Conv2d 0x20 stem", "nn Net 0x10 -"]), "Net:stem:Conv2d");
    assert_eq!(module_of(&mut story, &["nn Linear 0x20 head", "nn Net 0x10 -"]), "Net:head:Linear");
}

const FIRST: [&str; 3] = ["nn Linear 0x20 first", "nn Net 0x10 -", "train.py <module>:8"];
const SECOND: [&str; 3] = ["nn Linear 0x21 second", "nn Net 0x10 -", "train.py <module>:8"];
const OF_FIRST: &str = "Net:first:Linear";
const OF_SECOND: &str = "Net:second:Linear";

fn backward(story: &mut ThreadStory, number: u64) -> String {
    story.node(ENGINE, Some(number)).native(ENGINE).1
}

#[test]
fn backward_node_belongs_to_the_module_of_the_stack_that_made_it() {
    let mut story = ThreadStory::default();
    let (first, second) = (story.stack(&FIRST), story.stack(&SECOND));
    for (number, stack) in [(0, first), (1, first), (2, second)] {
        story.event_on(MAIN, TensorChange::SequenceNumber(number), stack);
    }
    story.allocates(MAIN, &LOSS);
    assert_eq!([2, 1, 0].map(|number| backward(&mut story, number)), [OF_SECOND, OF_FIRST, OF_FIRST]);
}

#[test]
fn without_a_stack_a_node_belongs_to_the_module_that_allocates_next() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [0, 1]).allocates(MAIN, &FIRST);
    story.numbers(MAIN, [2]).allocates(MAIN, &SECOND);
    story.numbers(MAIN, [3]).allocates(MAIN, &ENGINE_CALL);
    assert_eq!([3, 2, 1, 0].map(|number| backward(&mut story, number)), [OF_SECOND, OF_SECOND, OF_FIRST, OF_FIRST]);
    assert_eq!(backward(&mut story, 9), "NotKnown");
}

#[test]
fn gradient_accumulation_belongs_to_the_module_of_the_previous_node() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [0]).allocates(MAIN, &FIRST);
    story.node(ENGINE, Some(0)).node(ENGINE, None);
    assert_eq!(story.native(ENGINE), (Phase::Backward, OF_FIRST.to_owned()));
}

#[test]
fn a_graph_that_is_kept_can_run_twice() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [0]).allocates(MAIN, &FIRST);
    assert_eq!([0, 0].map(|number| backward(&mut story, number)), [OF_FIRST, OF_FIRST]);
}

#[test]
fn recomputation_belongs_to_its_module_in_the_backward_phase() {
    let mut story = ThreadStory::default();
    let forward = ["nn Linear 0x20 layers.0.fc1", "nn Block 0x30 layers.0", "nn Net 0x10 -", "train.py <module>:3"];
    story.allocates(MAIN, &forward);
    story.numbers(MAIN, [0]).allocates(MAIN, &SECOND);
    story.node(ENGINE, Some(0));
    let again = ["nn Linear 0x20 fc1", "nn Block 0x30 -", "torch/utils/checkpoint.py CheckpointFunction.backward:290"];
    let whose = story.allocates(ENGINE, &again);
    assert_eq!((whose.phase, whose.by, whose.recomputed), (Phase::Backward, PhaseEvidence::Node, true));
    assert_eq!(story.module(whose), "Net:layers.0.fc1:Linear");
}

const AGAIN: [&str; 3] =
    ["nn Linear 0x21 second", "nn Net 0x10 -", "torch/utils/checkpoint.py CheckpointFunction.backward:290"];
const WITHIN: [&str; 2] =
    ["torch/autograd/graph.py _engine_run_backward:829", "torch/utils/checkpoint.py CheckpointFunction.backward:310"];

#[test]
fn nodes_made_by_a_recomputation_run_within_the_node_that_made_them() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [0, 1]).allocates(MAIN, &FIRST);
    story.node(ENGINE, Some(1)).numbers(ENGINE, [0]).allocates(ENGINE, &AGAIN);
    let within = story.node(ENGINE, Some(0)).allocates(ENGINE, &WITHIN);
    assert_eq!(story.module(within), OF_SECOND, "the engine's own number 0");
    assert_eq!(story.native(ENGINE).1, OF_FIRST, "it is over: the outer node goes on");
    assert_eq!(backward(&mut story, 0), OF_FIRST, "the program's number 0");
}

#[test]
fn nodes_made_by_a_recomputation_may_never_run() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [0, 1, 2]).allocates(MAIN, &FIRST);
    story.node(ENGINE, Some(2)).numbers(ENGINE, [0, 1]).allocates(ENGINE, &AGAIN);
    assert_eq!([1, 0].map(|number| backward(&mut story, number)), [OF_FIRST, OF_FIRST]);
}

#[test]
fn backward_node_of_two_graph_threads_is_the_one_not_yet_run() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [0, 1]).allocates(MAIN, &FIRST);
    backward(&mut story, 0);
    let stack = story.stack(&SECOND);
    story.numbers(OTHER, [0, 1]).threads.attribute(OTHER, stack);
    assert_eq!(backward(&mut story, 0), OF_SECOND);
    assert_eq!((backward(&mut story, 1).as_str(), story.threads.ambiguous_nodes()), ("NotKnown", 1));
}

#[test]
fn a_threads_id_may_become_anothers() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [100, 101]).allocates(MAIN, &FIRST);
    story.threads.end(MAIN);
    story.numbers(MAIN, [0]).allocates(MAIN, &SECOND);
    assert_eq!((backward(&mut story, 0).as_str(), backward(&mut story, 101).as_str()), (OF_SECOND, "NotKnown"));
}

const LOW_POINTER: u64 = 0x4979_a9b0;

/// Returns a story in which a thread has made nodes 0 and 1 in the first module and node 2 in the
/// second.
fn three_nodes() -> ThreadStory {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [0, 1]).allocates(MAIN, &FIRST);
    story.numbers(MAIN, [2]).allocates(MAIN, &SECOND);
    story
}

fn backward_of(story: &mut ThreadStory, words: [u64; 2]) -> String {
    story.event(ENGINE, TensorChange::NodeBegins { words: Some(NodeWords(words)) }).native(ENGINE).1
}

#[test]
fn low_heap_pointer_is_not_taken_for_a_sequence_number() {
    let mut story = three_nodes();
    let before_any_proof = backward_of(&mut story, [LOW_POINTER, 2]);
    // The node accumulates a gradient.
    let without_number = backward_of(&mut story, [LOW_POINTER + 64, u64::MAX]);
    assert_eq!([before_any_proof, without_number], [OF_SECOND, OF_SECOND]);
    assert_eq!(backward_of(&mut story, [LOW_POINTER + 128, 1]), OF_FIRST);
}

#[test]
fn proven_node_layout_applies_to_ambiguous_words() {
    let first = LOW_POINTER;
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [first]).allocates(MAIN, &FIRST);
    story.numbers(MAIN, [first + 1]).allocates(MAIN, &SECOND);
    let words = [[first + 1, 7], [u64::MAX, 1], [first, 8]];
    assert_eq!(words.map(|words| backward_of(&mut story, words)), [OF_SECOND, OF_SECOND, OF_FIRST]);
}

#[test]
fn sequence_number_of_a_known_thread_is_used_before_any_layout_proof() {
    let mut story = ThreadStory::default();
    story.numbers(MAIN, [LOW_POINTER]).allocates(MAIN, &FIRST);
    assert_eq!(backward_of(&mut story, [LOW_POINTER, 9]), OF_FIRST);
}
