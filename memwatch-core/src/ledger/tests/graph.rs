//! Memory of graphs, as stories of calls.

use crate::ledger::tests::{LedgerStory, MIB};
use crate::ledger::totals::AllocationKind;
use crate::test_calls::*;

const STREAM: u64 = 0x51;
const GRAPH: u64 = 0x6a;
const RUN: u64 = 0x7a;

fn begin_capture() -> TestCall {
    call("cuStreamBeginCapture_v2", [STREAM, 0])
}

fn end_capture(graph: u64) -> TestCall {
    call("cuStreamEndCapture", [STREAM, 0x7fff_0000]).out([graph, 0])
}

fn alloc_on(stream: u64, address: u64, bytes: u64) -> TestCall {
    call("cuMemAllocAsync", [0x7fff_0000, bytes, stream]).out([address, 0])
}

fn free_on(stream: u64, address: u64) -> TestCall {
    call("cuMemFreeAsync", [address, stream])
}

fn add_allocation_node(graph: u64, address: u64, bytes: u64) -> TestCall {
    call("cuGraphAddMemAllocNode", [0x7fff_0000, graph, 0, 0, 0x7fff_0100]).out([bytes, address]).peek([
        1,
        pair(1, 0),
        0,
    ])
}

fn instantiate() -> TestCall {
    call("cuGraphInstantiateWithFlags", [0x7fff_0000, GRAPH, 0]).out([RUN, 0])
}

fn launch() -> TestCall {
    call("cuGraphLaunch", [RUN, STREAM])
}

fn held(story: &LedgerStory) -> u64 {
    story.ledger.totals().whole().kind(AllocationKind::Graph).live_bytes
}

#[test]
fn graph_captured_memory_counts_from_its_launch_outside_the_device_sum() {
    let mut story = LedgerStory::on_device_0();
    story.report([begin_capture(), alloc_on(STREAM, 0xd0, 4 * MIB), free_on(STREAM, 0xd0), end_capture(GRAPH)]);
    assert_eq!((held(&story), story.live(), story.ledger.graph_node_bytes()), (0, 0, 4 * MIB));
    assert!(!story.ledger.has_graph_memory());
    assert_eq!(
        story.ledger.take_unnamed().iter().map(|gone| gone.address).collect::<Vec<_>>(),
        [0xd0],
        "the kernel half takes it for an allocation"
    );
    story.report([instantiate()]);
    assert!(story.ledger.has_graph_memory(), "from here on its launches matter");
    story.report([launch(), launch()]);
    assert_eq!((held(&story), story.live()), (4 * MIB, 0));
    story.report([call("cuGraphExecDestroy", [RUN]), call("cuGraphDestroy", [GRAPH])]);
    assert_eq!((held(&story), story.ledger.graph_node_bytes(), story.frees()), (0, 0, (0, 0, 0)));
}

#[test]
fn graph_capture_leaves_other_streams_unaffected() {
    let mut story = LedgerStory::on_device_0();
    story.report([begin_capture(), alloc_on(0x52, 0xd0, MIB), mem_alloc(0xd1, MIB), end_capture(GRAPH)]);
    story.report([alloc_on(STREAM, 0xd2, MIB)]);
    assert_eq!(story.live(), 3 * MIB);
}

#[test]
fn a_node_that_the_graph_does_not_free_stays_until_a_call_frees_it() {
    let mut story = LedgerStory::on_device_0();
    story.report([add_allocation_node(GRAPH, 0xd0, 4 * MIB), add_allocation_node(GRAPH, 0xd1, 2 * MIB)]);
    story.report([call("cuGraphAddMemFreeNode", [0x7fff_0000, GRAPH, 0, 0, 0xd1]), instantiate(), launch()]);
    story.report([call("cuGraphExecDestroy", [RUN]), call("cuGraphDestroy", [GRAPH])]);
    assert_eq!(held(&story), 4 * MIB);
    story.report([mem_free(0xd0)]);
    assert_eq!((held(&story), story.frees()), (0, (0, 0, 0)), "no allocation of the process's own was freed");
}

#[test]
fn nodes_of_any_kind_distinguished_by_their_first_word() {
    let any = |kind: u32, words: [u64; 5], outs: [u64; 2]| {
        let peek = [pair(kind, 0), words[1], words[2], words[3], words[4]];
        call("cuGraphAddNode_v2", [0x7fff_0000, GRAPH, 0, 0, 0, 0x7fff_0100]).out(outs).peek(peek)
    };
    let mut story = LedgerStory::on_device_0();
    story.report([any(10, [0, 0, 1, pair(1, 1), 0], [4 * MIB, 0xd0]), any(0, [0; 5], [7, 7])]);
    story.report([any(11, [0, 0, 0xd0, 0, 0], [9, 9]), instantiate(), launch()]);
    assert_eq!(held(&story), 4 * MIB);
    assert_eq!(story.device(1).kind(AllocationKind::Graph).live_bytes, 4 * MIB, "where its pool properties say");
    story.report([call("cuGraphExecDestroy", [RUN])]);
    assert_eq!(held(&story), 0, "the graph frees it itself");
}

#[test]
fn graph_mem_trim_frees_memory_no_launch_left_allocated() {
    let mut story = LedgerStory::on_device_0();
    story.report([add_allocation_node(GRAPH, 0xd0, 4 * MIB), add_allocation_node(GRAPH, 0xd1, 2 * MIB)]);
    story.report([call("cuGraphAddMemFreeNode", [0x7fff_0000, GRAPH, 0, 0, 0xd1]), instantiate(), launch()]);
    story.report([call("cuDeviceGraphMemTrim", [1])]);
    assert_eq!(held(&story), 6 * MIB, "another device");
    story.report([call("cuDeviceGraphMemTrim", [0])]);
    assert_eq!(held(&story), 4 * MIB);
}

#[test]
fn a_capture_that_fails_leaves_nothing_and_ends() {
    let mut story = LedgerStory::on_device_0();
    story.report([begin_capture(), alloc_on(STREAM, 0xd0, MIB), end_capture(0).failing(900)]);
    story.report([alloc_on(STREAM, 0xd0, MIB)]);
    assert_eq!((story.live(), story.ledger.graph_node_bytes()), (MIB, 0));
}

#[test]
fn graph_address_granted_to_another_allocation_leaves_the_graph() {
    let mut story = LedgerStory::on_device_0();
    story.report([add_allocation_node(GRAPH, 0xd0, 4 * MIB), instantiate(), launch(), mem_alloc(0xd0, MIB)]);
    assert_eq!((held(&story), story.live()), (0, MIB));
    story.report([mem_free(0xd0)]);
    assert_eq!((story.live(), story.frees()), (0, (1, 0, 0)));
}

#[test]
fn a_free_seen_after_its_address_became_a_graphs_is_the_former_tenants() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, MIB), mem_alloc(0xd1, MIB), begin_capture()]);
    story.report([alloc_on(STREAM, 0xd0, 4 * MIB).at(2010, 2020), mem_free(0xd0).thread(102).at(2000, 2030)]);
    story.report([add_allocation_node(GRAPH, 0xd1, 2 * MIB).at(3010, 3020), mem_free(0xd1).at(3000, 3030)]);
    story.report([instantiate(), launch()]);
    assert_eq!((story.live(), held(&story), story.frees()), (0, 2 * MIB, (2, 0, 0)));
}

#[test]
fn destroyed_graph_holds_only_addresses_still_allocated() {
    let mut story = LedgerStory::on_device_0();
    story.report([add_allocation_node(GRAPH, 0xd0, 4 * MIB), add_allocation_node(GRAPH, 0xd1, 2 * MIB)]);
    story.report([call("cuGraphAddMemFreeNode", [0x7fff_0000, GRAPH, 0, 0, 0xd1]), instantiate(), launch()]);
    story.report([call("cuGraphExecDestroy", [RUN]), call("cuGraphDestroy", [GRAPH]), mem_alloc(0xd1, MIB)]);
    assert_eq!((held(&story), story.live(), story.ledger.graph_node_bytes()), (4 * MIB, MIB, 4 * MIB));
}

#[test]
fn graph_free_seen_after_its_address_is_reused_is_not_an_unknown_free() {
    let mut story = LedgerStory::on_device_0();
    story.report([add_allocation_node(GRAPH, 0xd0, 4 * MIB), instantiate(), launch()]);
    story.report([call("cuGraphExecDestroy", [RUN]), call("cuGraphDestroy", [GRAPH])]);
    story.report([mem_alloc(0xd0, MIB).at(2010, 2020), mem_free(0xd0).thread(102).at(2000, 2030)]);
    assert_eq!((held(&story), story.live(), story.frees()), (0, MIB, (0, 0, 0)));
}

#[test]
fn graph_destroy_keeps_allocations_at_addresses_it_never_held() {
    let mut story = LedgerStory::on_device_0();
    story.report([add_allocation_node(GRAPH, 0xd0, 4 * MIB), instantiate(), launch()]);
    story.report([call("cuGraphExecDestroy", [RUN]), add_allocation_node(GRAPH, 0xd1, 2 * MIB)]);
    story.report([mem_alloc(0xd1, MIB).at(2010, 2020), call("cuGraphDestroy", [GRAPH]).at(2000, 2030)]);
    assert_eq!((held(&story), story.live()), (4 * MIB, MIB));
}

#[test]
fn a_node_added_after_a_graph_was_made_ready_is_in_the_next_executable() {
    let mut story = LedgerStory::on_device_0();
    story.report([add_allocation_node(GRAPH, 0xd0, 4 * MIB), instantiate(), add_allocation_node(GRAPH, 0xd1, 2 * MIB)]);
    story.report([launch()]);
    assert_eq!(held(&story), 4 * MIB);
    story.report([call("cuGraphExecDestroy", [RUN]), instantiate(), launch()]);
    assert_eq!(held(&story), 6 * MIB);
}
