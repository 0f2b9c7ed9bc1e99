//! Graphs with memory, as the simulated program creates and runs them. Its graph calls do not
//! overlap each other.

use super::{DEVICES, Deed, SimulatedWorld, Space, ThingKind};
use crate::test_calls::*;

/// `CU_STREAM_PER_THREAD`.
const OF_THREAD: u64 = 2;

/// Allocation of a graph, reported node by node.
#[derive(Clone, Copy)]
struct GraphAllocation {
    address: u64,
    bytes: u64,
    /// Whether the graph itself frees it.
    freed_inside: bool,
    /// Whether the kernel half has seen it granted and not freed.
    in_allocation_map: bool,
    memory: NodeMemory,
}

/// Memory at the address of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeMemory {
    Nothing,
    /// The graph was launched, and the memory was freed since.
    Unused,
    /// The graph was launched, and the memory was not freed.
    Allocated,
}

pub(super) struct SimulatedGraph {
    handle: u64,
    alive: bool,
    /// Executable graph. A graph with memory has at most one at a time (CUDA programming guide).
    executable: Option<u64>,
    /// Number of nodes when the executable was created. The executable does not have later ones.
    ready: usize,
    device: u32,
    nodes: Vec<GraphAllocation>,
}

pub(super) struct Capture {
    stream: u64,
    thread: usize,
    device: u32,
    nodes: Vec<GraphAllocation>,
}

impl SimulatedGraph {
    /// Removes nodes after a change. Without an executable the graph keeps only allocated memory;
    /// if it is destroyed as well, it keeps only those nodes. With an executable it keeps all its
    /// addresses.
    fn settle(&mut self) {
        if self.executable.is_none() {
            self.shrink();
            if !self.alive {
                self.nodes.retain(|node| node.memory == NodeMemory::Allocated);
            }
        }
    }

    fn shrink(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.memory == NodeMemory::Unused) {
            node.memory = NodeMemory::Nothing;
        }
    }
}

fn nth<T: Copy>(all: &[T], pick: usize) -> Option<T> {
    all.get(pick % all.len().max(1)).copied()
}

impl SimulatedWorld {
    pub(super) fn is_in_a_graph(&self, address: u64) -> bool {
        let captured = self.captures.iter().flat_map(|capture| &capture.nodes);
        self.graphs.iter().flat_map(|graph| &graph.nodes).chain(captured).any(|node| node.address == address)
    }

    pub(super) fn is_capturing(&self, stream: u64, thread: usize) -> bool {
        let own = |capture: &Capture| capture.stream == stream && (stream != OF_THREAD || capture.thread == thread);
        self.captures.iter().any(own)
    }

    pub(super) fn bytes_of_graphs(&self) -> Vec<(u32, u64)> {
        let backed = |graph: &SimulatedGraph| {
            graph.nodes.iter().filter(|node| node.memory != NodeMemory::Nothing).map(|node| node.bytes).sum()
        };
        let held = self.graphs.iter().map(|graph| (graph.device, backed(graph)));
        held.filter(|(_, bytes)| *bytes > 0).collect()
    }

    pub(super) fn bytes_of_nodes(&self) -> u64 {
        self.graphs.iter().flat_map(|graph| &graph.nodes).map(|node| node.bytes).sum()
    }

    pub(super) fn has_graph_memory(&self) -> bool {
        self.graphs.iter().any(|graph| graph.executable.is_some())
    }

    /// Returns address and bytes of allocations on a capturing stream that were not freed.
    pub(super) fn captured_nodes(&self) -> impl Iterator<Item = (u64, u64)> {
        let captured = self.captures.iter().flat_map(|capture| &capture.nodes);
        let nodes = self.graphs.iter().flat_map(|graph| &graph.nodes).chain(captured);
        nodes.filter(|node| node.in_allocation_map).map(|node| (node.address, node.bytes))
    }

    pub(super) fn change_graphs(&mut self, thread: usize, pick: usize, bytes: u64) {
        let (choice, pick) = (pick % 16, pick / 16);
        let call = match choice {
            0 => self.begin_capture(thread, pick),
            1 | 2 => self.capture_allocation(thread, pick, bytes),
            3 => self.capture_free(thread, pick),
            4 => self.end_capture(thread, pick),
            5 | 6 => self.add_allocation(thread, pick, bytes),
            7 => self.add_free(pick),
            8 | 9 => self.instantiate(),
            10 | 11 => self.launch(pick),
            12 => self.destroy_executable(pick),
            13 => self.destroy_graph(pick),
            14 => self.free_node(pick, bytes),
            _ => {
                let device = u32::from(pick % DEVICES as usize == 1);
                self.graphs.iter_mut().filter(|graph| graph.device == device).for_each(SimulatedGraph::shrink);
                Some(device_graph_mem_trim(device))
            }
        };
        if let Some(call) = call {
            self.instant(thread, call);
        }
    }

    fn begin_capture(&mut self, thread: usize, pick: usize) -> Option<TestCall> {
        let stream = self.idle_stream(thread, pick).filter(|stream| *stream != 0)?;
        let in_use = self.threads.iter().filter_map(|thread| thread.running.as_ref()).any(|running| {
            matches!(running.deed, Deed::Make(ThingKind::Pooled { stream: own, .. }, _) if own == stream && own != OF_THREAD)
        });
        let created = self.streams.iter().find(|own| own.handle == stream && own.alive).map(|own| own.device);
        let device = created.or_else(|| self.current_context(thread).map(|context| context.device))?;
        if in_use {
            return None;
        }
        self.captures.push(Capture { stream, thread, device, nodes: Vec::new() });
        Some(stream_begin_capture(stream))
    }

    /// Returns a capture that the thread can access.
    fn capture(&self, thread: usize, pick: usize) -> Option<usize> {
        let named = |capture: &Capture| capture.stream != OF_THREAD || capture.thread == thread;
        let captures: Vec<usize> = (0..self.captures.len()).filter(|index| named(&self.captures[*index])).collect();
        nth(&captures, pick)
    }

    fn node(&mut self, bytes: u64, in_allocation_map: bool) -> Option<GraphAllocation> {
        let address = self.free_key(Space::Address)?;
        Some(GraphAllocation { address, bytes, freed_inside: false, in_allocation_map, memory: NodeMemory::Nothing })
    }

    fn capture_allocation(&mut self, thread: usize, pick: usize, bytes: u64) -> Option<TestCall> {
        let capture = self.capture(thread, pick)?;
        let node = self.node(bytes, true)?;
        self.captures[capture].nodes.push(node);
        Some(mem_alloc_async_on(node.address, bytes, self.captures[capture].stream))
    }

    fn capture_free(&mut self, thread: usize, pick: usize) -> Option<TestCall> {
        let capture = self.capture(thread, pick)?;
        let Capture { stream, nodes, .. } = &mut self.captures[capture];
        let node = nodes.iter_mut().find(|node| !node.freed_inside)?;
        (node.freed_inside, node.in_allocation_map) = (true, false);
        Some(mem_free_async_on(node.address, *stream))
    }

    fn end_capture(&mut self, thread: usize, pick: usize) -> Option<TestCall> {
        let capture = self.capture(thread, pick)?;
        let handle = self.free_graph_handle()?;
        let Capture { stream, device, nodes, .. } = self.captures.remove(capture);
        if pick.is_multiple_of(5) {
            return Some(stream_end_capture(stream, 0).failing(INVALID_VALUE));
        }
        self.graphs.push(SimulatedGraph { handle, alive: true, executable: None, ready: 0, device, nodes });
        Some(stream_end_capture(stream, handle))
    }

    fn free_graph_handle(&self) -> Option<u64> {
        let taken = |handle: u64| self.graphs.iter().any(|graph| graph.handle == handle && graph.alive);
        (0x6a..=0x6d).find(|handle| !taken(*handle))
    }

    /// Returns the graphs without an executable.
    fn open_graphs(&self) -> Vec<usize> {
        let is_open = |graph: &SimulatedGraph| graph.alive && graph.executable.is_none();
        (0..self.graphs.len()).filter(|graph| is_open(&self.graphs[*graph])).collect()
    }

    /// Creates a graph. No record reports this call.
    fn create_graph(&mut self, thread: usize) -> Option<usize> {
        let handle = self.free_graph_handle()?;
        let device = self.current_context(thread)?.device;
        self.graphs.push(SimulatedGraph { handle, alive: true, executable: None, ready: 0, device, nodes: Vec::new() });
        Some(self.graphs.len() - 1)
    }

    fn add_allocation(&mut self, thread: usize, pick: usize, bytes: u64) -> Option<TestCall> {
        let alive: Vec<usize> = (0..self.graphs.len()).filter(|graph| self.graphs[*graph].alive).collect();
        let known = nth(&alive, pick / 2).filter(|_| pick.is_multiple_of(2));
        let graph = known.or_else(|| self.create_graph(thread))?;
        let node = self.node(bytes, false)?;
        let graph = &mut self.graphs[graph];
        graph.nodes.push(node);
        Some(graph_add_mem_alloc_node(graph.handle, node.address, bytes, graph.device))
    }

    fn add_free(&mut self, pick: usize) -> Option<TestCall> {
        let graph = nth(&self.open_graphs(), pick)?;
        let graph = &mut self.graphs[graph];
        let node = graph.nodes.iter_mut().find(|node| !node.freed_inside && node.memory != NodeMemory::Allocated)?;
        node.freed_inside = true;
        Some(graph_add_mem_free_node(graph.handle, node.address))
    }

    fn instantiate(&mut self) -> Option<TestCall> {
        let taken = |handle: u64| self.graphs.iter().any(|graph| graph.executable == Some(handle));
        let executable = (0x7a..=0x7d).find(|handle| !taken(*handle))?;
        // The kernel half does not record executables without memory.
        let graph = self.open_graphs().into_iter().find(|graph| !self.graphs[*graph].nodes.is_empty())?;
        self.graphs[graph].executable = Some(executable);
        self.graphs[graph].ready = self.graphs[graph].nodes.len();
        Some(graph_instantiate(executable, self.graphs[graph].handle))
    }

    fn executable(&self, pick: usize) -> Option<(usize, u64)> {
        let ready = (0..self.graphs.len()).filter_map(|graph| Some((graph, self.graphs[graph].executable?)));
        nth(&ready.collect::<Vec<_>>(), pick)
    }

    fn launch(&mut self, pick: usize) -> Option<TestCall> {
        let (graph, executable) = self.executable(pick)?;
        let ready = self.graphs[graph].ready;
        for node in &mut self.graphs[graph].nodes[..ready] {
            node.memory = if node.freed_inside { NodeMemory::Unused } else { NodeMemory::Allocated };
        }
        Some(graph_launch(executable))
    }

    fn destroy_executable(&mut self, pick: usize) -> Option<TestCall> {
        let (graph, executable) = self.executable(pick)?;
        self.graphs[graph].executable = None;
        self.graphs[graph].settle();
        Some(graph_exec_destroy(executable))
    }

    fn destroy_graph(&mut self, pick: usize) -> Option<TestCall> {
        let alive = (0..self.graphs.len()).filter(|graph| self.graphs[*graph].alive);
        let graph = nth(&alive.collect::<Vec<_>>(), pick)?;
        let graph = &mut self.graphs[graph];
        graph.alive = false;
        graph.settle();
        Some(graph_destroy(graph.handle))
    }

    fn free_node(&mut self, pick: usize, bytes: u64) -> Option<TestCall> {
        let is_allocated = |node: &GraphAllocation| node.memory == NodeMemory::Allocated;
        let outstanding = |graph: &usize| self.graphs[*graph].nodes.iter().any(is_allocated);
        let graph = nth(&(0..self.graphs.len()).filter(outstanding).collect::<Vec<_>>(), pick)?;
        let graph = &mut self.graphs[graph];
        let node = graph.nodes.iter_mut().find(|node| is_allocated(node))?;
        (node.memory, node.in_allocation_map) = (NodeMemory::Unused, false);
        let address = node.address;
        graph.settle();
        Some(if bytes.is_multiple_of(2) { mem_free(address) } else { mem_free_async(address) })
    }
}
