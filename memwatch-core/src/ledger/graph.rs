//! Memory of CUDA graphs: allocations at fixed addresses that take physical memory only when the graph runs.
//!
//! What a graph holds is estimated, and in no GPU's live bytes: the driver backs the nodes of a graph at its first launch, keeps that
//! for as long as an executable is left or until it is trimmed, and may share it between graphs (CUDA programming guide, "Graph Memory
//! Nodes"). What a graph allocates and does not free itself stays until it is freed by a call.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::decode::Stream;
use crate::words::Tid;

use super::totals::DeviceRef;

/// A stream of one process: the default stream of a thread is the thread's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StreamKey {
    /// The default stream of the thread.
    OfThread(Tid),
    /// Any other.
    Shared(Stream),
}

impl StreamKey {
    /// The stream that a thread means.
    pub const fn new(stream: Stream, tid: Tid) -> Self {
        match stream {
            Stream::OfThread => Self::OfThread(tid),
            other => Self::Shared(other),
        }
    }
}

/// The estimated bytes of a graph have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where.
    pub device: DeviceRef,
    /// Until now.
    pub before_bytes: u64,
    /// From now on.
    pub after_bytes: u64,
}

/// A graph is given an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGrant {
    /// Where its memory will be when it runs.
    pub address: u64,
    /// And how much.
    pub bytes: u64,
    /// The return of the call: `CLOCK_BOOTTIME`, nanoseconds.
    pub granted_ns: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Node {
    bytes: u64,
    /// The return of the call that made it.
    granted_ns: u64,
    freed_by_graph: bool,
    /// The last launch has allocated it, and nobody has freed it.
    outstanding: bool,
}

impl Node {
    const fn new(grant: NodeGrant) -> Self {
        Self { bytes: grant.bytes, granted_ns: grant.granted_ns, freed_by_graph: false, outstanding: false }
    }
}

type GraphId = u64;

/// A graph made ready to run, with the nodes it had then.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Executable {
    graph: GraphId,
    made_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Graph {
    alive: bool,
    executables: u32,
    device: DeviceRef,
    nodes: BTreeMap<u64, Node>,
    backed_bytes: u64,
}

impl Graph {
    fn new(device: DeviceRef) -> Self {
        Self { alive: true, executables: 0, device, nodes: BTreeMap::new(), backed_bytes: 0 }
    }

    fn back(&mut self, bytes: u64) -> Option<Change> {
        let before_bytes = std::mem::replace(&mut self.backed_bytes, bytes);
        (before_bytes != bytes).then_some(Change { device: self.device, before_bytes, after_bytes: bytes })
    }

    /// Only what is still allocated keeps its memory.
    fn shrink(&mut self) -> Option<Change> {
        let outstanding = self.nodes.values().filter(|node| node.outstanding).map(|node| node.bytes);
        let bytes = outstanding.fold(0, u64::saturating_add).min(self.backed_bytes);
        self.back(bytes)
    }
}

/// All graphs of one process that have to do with memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Graphs {
    graphs: BTreeMap<GraphId, Graph>,
    nodes: HashMap<u64, GraphId>,
    handles: HashMap<u64, GraphId>,
    executables: HashMap<u64, Executable>,
    capturing: HashMap<StreamKey, Graph>,
    next_id: GraphId,
}

impl Graphs {
    /// Entries in all tables.
    pub(super) fn listed(&self) -> usize {
        let nodes = self.graphs.values().chain(self.capturing.values()).map(|graph| graph.nodes.len());
        let tables = self.graphs.len() + self.nodes.len() + self.handles.len() + self.executables.len();
        tables + self.capturing.len() + nodes.sum::<usize>()
    }

    /// Whether what is asked of a stream goes into a graph.
    pub fn is_capturing(&self, stream: StreamKey) -> bool {
        self.capturing.contains_key(&stream)
    }

    /// Whether there are executables with allocations in them: their launches matter.
    pub fn has_executables(&self) -> bool {
        let mut graphs = self.executables.values().filter_map(|executable| self.graphs.get(&executable.graph));
        graphs.any(|graph| !graph.nodes.is_empty())
    }

    /// Whether an address is a graph's.
    pub fn holds(&self, address: u64) -> bool {
        self.nodes.contains_key(&address) || self.capturing.values().any(|graph| graph.nodes.contains_key(&address))
    }

    /// Whether a free that was entered at this time is of a graph's node: an earlier one is of whoever lived there before.
    pub fn is_freed(&self, address: u64, entered_ns: u64) -> bool {
        let graph = self.nodes.get(&address).and_then(|id| self.graphs.get(id));
        let mut graphs = graph.into_iter().chain(self.capturing.values());
        graphs.any(|graph| graph.nodes.get(&address).is_some_and(|node| node.granted_ns <= entered_ns))
    }

    /// Another allocation has an address that was thought a graph's: the graph is gone.
    pub fn evict(&mut self, address: u64) -> Option<Change> {
        let id = self.nodes.remove(&address)?;
        let graph = self.graphs.get_mut(&id)?;
        graph.nodes.remove(&address);
        // Whether there was memory behind this node is not known, only that the others have no more than they asked for.
        let bytes = graph.nodes.values().fold(0_u64, |sum, node| sum.saturating_add(node.bytes));
        graph.back(graph.backed_bytes.min(bytes))
    }

    /// Whether what a launch has allocated at an address has not been freed.
    pub fn is_outstanding(&self, address: u64) -> bool {
        let graph = self.nodes.get(&address).and_then(|id| self.graphs.get(id));
        graph.and_then(|graph| graph.nodes.get(&address)).is_some_and(|node| node.outstanding)
    }

    /// `cuStreamBeginCapture`.
    pub fn begin_capture(&mut self, stream: StreamKey, device: DeviceRef) {
        self.capturing.insert(stream, Graph::new(device));
    }

    /// `cuStreamEndCapture`; without a graph the capture was without result.
    pub fn end_capture(&mut self, stream: StreamKey, handle: u64) {
        let Some(captured) = self.capturing.remove(&stream) else { return };
        if handle != 0 && !captured.nodes.is_empty() {
            let id = self.name(handle, captured.device);
            self.nodes.extend(captured.nodes.keys().map(|address| (*address, id)));
            self.graphs.insert(id, captured);
        }
    }

    fn name(&mut self, handle: u64, device: DeviceRef) -> GraphId {
        self.next_id += 1;
        self.graphs.insert(self.next_id, Graph::new(device));
        self.handles.insert(handle, self.next_id);
        self.next_id
    }

    /// An allocation asked of a capturing stream.
    pub fn capture_allocation(&mut self, stream: StreamKey, grant: NodeGrant) {
        if let Some(graph) = self.capturing.get_mut(&stream) {
            graph.nodes.insert(grant.address, Node::new(grant));
        }
    }

    /// A free asked of a capturing stream.
    pub fn capture_free(&mut self, stream: StreamKey, address: u64) {
        if let Some(node) = self.capturing.get_mut(&stream).and_then(|graph| graph.nodes.get_mut(&address)) {
            node.freed_by_graph = true;
        } else {
            self.mark_freed(address);
        }
    }

    fn mark_freed(&mut self, address: u64) {
        let graph = self.nodes.get(&address).and_then(|id| self.graphs.get_mut(id));
        if let Some(node) = graph.and_then(|graph| graph.nodes.get_mut(&address)) {
            node.freed_by_graph = true;
        }
    }

    /// `cuGraphAddMemAllocNode`, or `cuGraphAddNode` of that kind.
    pub fn add_allocation(&mut self, handle: u64, grant: NodeGrant, device: DeviceRef) {
        let id = self.handles.get(&handle).copied().unwrap_or_else(|| self.name(handle, device));
        if let Some(graph) = self.graphs.get_mut(&id) {
            graph.nodes.insert(grant.address, Node::new(grant));
            self.nodes.insert(grant.address, id);
        }
    }

    /// `cuGraphAddMemFreeNode`, or `cuGraphAddNode` of that kind: whichever graph frees it, it is freed when that runs.
    pub fn add_free(&mut self, address: u64) {
        self.mark_freed(address);
    }

    /// `cuGraphInstantiate…`, at a time.
    pub fn instantiate(&mut self, executable: u64, handle: u64, made_ns: u64) {
        let Some(id) = self.handles.get(&handle) else { return };
        if let Some(graph) = self.graphs.get_mut(id) {
            graph.executables += 1;
            self.executables.insert(executable, Executable { graph: *id, made_ns });
        }
    }

    /// `cuGraphLaunch`: every node of the executable gets its memory.
    pub fn launch(&mut self, executable: u64) -> Option<Change> {
        let Executable { graph, made_ns } = *self.executables.get(&executable)?;
        let graph = self.graphs.get_mut(&graph)?;
        let mut bytes = 0_u64;
        for node in graph.nodes.values_mut().filter(|node| node.granted_ns <= made_ns) {
            bytes = bytes.saturating_add(node.bytes);
            node.outstanding = !node.freed_by_graph;
        }
        graph.back(bytes.max(graph.backed_bytes))
    }

    /// `cuGraphExecDestroy`.
    pub fn destroy_executable(&mut self, executable: u64) -> Option<Change> {
        let id = self.executables.remove(&executable)?.graph;
        let graph = self.graphs.get_mut(&id)?;
        graph.executables = graph.executables.saturating_sub(1);
        self.settle(id)
    }

    /// `cuGraphDestroy`: its executables live on.
    pub fn destroy(&mut self, handle: u64) -> Option<Change> {
        let id = self.handles.remove(&handle)?;
        self.graphs.get_mut(&id)?.alive = false;
        self.settle(id)
    }

    /// A call frees what a launch has allocated.
    pub fn free(&mut self, address: u64) -> Option<Change> {
        let id = *self.nodes.get(&address)?;
        self.graphs.get_mut(&id)?.nodes.get_mut(&address)?.outstanding = false;
        self.settle(id)
    }

    /// `cuDeviceGraphMemTrim`.
    pub fn trim(&mut self, device: DeviceRef) -> Vec<Change> {
        self.graphs.values_mut().filter(|graph| graph.device == device).filter_map(Graph::shrink).collect()
    }

    fn settle(&mut self, id: GraphId) -> Option<Change> {
        let graph = self.graphs.get_mut(&id)?;
        if graph.executables > 0 {
            return None;
        }
        let change = graph.shrink();
        if !graph.alive {
            // Of a graph that is gone, only what is still allocated has its address.
            for (address, _) in graph.nodes.extract_if(.., |_, node| !node.outstanding) {
                self.nodes.remove(&address);
            }
            if graph.nodes.is_empty() {
                self.graphs.remove(&id);
            }
        }
        change
    }

    /// Bytes that graphs allocate at fixed addresses when they run.
    pub fn node_bytes(&self) -> u64 {
        let nodes = self.graphs.values().flat_map(|graph| graph.nodes.values());
        nodes.fold(0, |sum, node| sum.saturating_add(node.bytes))
    }
}

#[cfg(test)]
#[path = "tests/graph.rs"]
mod tests;
