//! Memory of CUDA graphs: allocations at fixed addresses that take physical memory only when the
//! graph runs.
//!
//! The memory of a graph is an estimate and not part of any GPU's live bytes. The driver backs the
//! nodes of a graph at its first launch, keeps the memory as long as an executable exists or until
//! a trim, and may share it between graphs (CUDA programming guide, "Graph Memory Nodes"). Memory
//! that a graph allocates and does not free itself remains until a call frees it.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::decode::Stream;
use crate::words::Tid;

use super::totals::DeviceRef;

/// A stream of one process. Each thread has a default stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StreamKey {
    /// The default stream of the thread.
    OfThread(Tid),
    /// Any other stream.
    Shared(Stream),
}

impl StreamKey {
    /// Resolves a stream handle used by a thread.
    pub const fn new(stream: Stream, tid: Tid) -> Self {
        match stream {
            Stream::OfThread => Self::OfThread(tid),
            other => Self::Shared(other),
        }
    }
}

/// A change of a graph's estimated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphBytesChange {
    /// Device of the graph.
    pub device: DeviceRef,
    /// Estimate before the change.
    pub before_bytes: u64,
    /// Estimate after the change.
    pub after_bytes: u64,
}

/// Address assigned to an allocation node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGrant {
    /// Address of the memory while the graph runs.
    pub address: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Return time of the call: `CLOCK_BOOTTIME`, nanoseconds.
    pub granted_ns: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct GraphNode {
    bytes: u64,
    /// Return time of the call that created the node.
    granted_ns: u64,
    freed_by_graph: bool,
    /// Whether the last launch allocated the memory and it has not been freed.
    outstanding: bool,
}

impl GraphNode {
    const fn new(grant: NodeGrant) -> Self {
        Self { bytes: grant.bytes, granted_ns: grant.granted_ns, freed_by_graph: false, outstanding: false }
    }
}

type GraphId = u64;

/// An instantiated graph, with the nodes it had at that time.
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
    nodes: BTreeMap<u64, GraphNode>,
    backed_bytes: u64,
}

impl Graph {
    fn new(device: DeviceRef) -> Self {
        Self { alive: true, executables: 0, device, nodes: BTreeMap::new(), backed_bytes: 0 }
    }

    fn back(&mut self, bytes: u64) -> Option<GraphBytesChange> {
        let before_bytes = std::mem::replace(&mut self.backed_bytes, bytes);
        (before_bytes != bytes).then_some(GraphBytesChange { device: self.device, before_bytes, after_bytes: bytes })
    }

    /// Reduces the backed bytes to those of allocations not yet freed.
    fn shrink(&mut self) -> Option<GraphBytesChange> {
        let outstanding = self.nodes.values().filter(|node| node.outstanding).map(|node| node.bytes);
        let bytes = outstanding.fold(0, u64::saturating_add).min(self.backed_bytes);
        self.back(bytes)
    }
}

/// All graphs of one process that allocate memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CudaGraphs {
    graphs: BTreeMap<GraphId, Graph>,
    nodes: HashMap<u64, GraphId>,
    handles: HashMap<u64, GraphId>,
    executables: HashMap<u64, Executable>,
    capturing: HashMap<StreamKey, Graph>,
    next_id: GraphId,
}

impl CudaGraphs {
    /// Number of entries in all tables.
    pub(super) fn listed(&self) -> usize {
        let nodes = self.graphs.values().chain(self.capturing.values()).map(|graph| graph.nodes.len());
        let tables = self.graphs.len() + self.nodes.len() + self.handles.len() + self.executables.len();
        tables + self.capturing.len() + nodes.sum::<usize>()
    }

    /// Returns whether operations on the stream are captured into a graph.
    pub fn is_capturing(&self, stream: StreamKey) -> bool {
        self.capturing.contains_key(&stream)
    }

    /// Returns whether executables with allocation nodes exist, so that launches have to be traced.
    pub fn has_executables(&self) -> bool {
        let mut graphs = self.executables.values().filter_map(|executable| self.graphs.get(&executable.graph));
        graphs.any(|graph| !graph.nodes.is_empty())
    }

    /// Returns whether an address belongs to a graph.
    pub fn holds(&self, address: u64) -> bool {
        self.nodes.contains_key(&address) || self.capturing.values().any(|graph| graph.nodes.contains_key(&address))
    }

    /// Returns whether a free that entered at this time frees a graph's node. An earlier free
    /// belongs to the previous allocation at the address.
    pub fn is_freed(&self, address: u64, entered_ns: u64) -> bool {
        let graph = self.nodes.get(&address).and_then(|id| self.graphs.get(id));
        let mut graphs = graph.into_iter().chain(self.capturing.values());
        graphs.any(|graph| graph.nodes.get(&address).is_some_and(|node| node.granted_ns <= entered_ns))
    }

    /// Removes the node at an address that another allocation was granted: the node's graph is
    /// gone.
    pub fn evict(&mut self, address: u64) -> Option<GraphBytesChange> {
        let id = self.nodes.remove(&address)?;
        let graph = self.graphs.get_mut(&id)?;
        graph.nodes.remove(&address);
        // Whether this node was backed is unknown; the other nodes are backed by at most the bytes
        // they requested.
        let bytes = graph.nodes.values().fold(0_u64, |sum, node| sum.saturating_add(node.bytes));
        graph.back(graph.backed_bytes.min(bytes))
    }

    /// Returns whether memory that a launch allocated at an address has not been freed.
    pub fn is_outstanding(&self, address: u64) -> bool {
        let graph = self.nodes.get(&address).and_then(|id| self.graphs.get(id));
        graph.and_then(|graph| graph.nodes.get(&address)).is_some_and(|node| node.outstanding)
    }

    /// `cuStreamBeginCapture`.
    pub fn begin_capture(&mut self, stream: StreamKey, device: DeviceRef) {
        self.capturing.insert(stream, Graph::new(device));
    }

    /// `cuStreamEndCapture`; handle 0 means that the capture failed.
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

    /// Adds an allocation on a capturing stream.
    pub fn capture_allocation(&mut self, stream: StreamKey, grant: NodeGrant) {
        if let Some(graph) = self.capturing.get_mut(&stream) {
            graph.nodes.insert(grant.address, GraphNode::new(grant));
        }
    }

    /// Adds a free on a capturing stream.
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

    /// `cuGraphAddMemAllocNode`, or `cuGraphAddNode` with a node of that kind.
    pub fn add_allocation(&mut self, handle: u64, grant: NodeGrant, device: DeviceRef) {
        let id = self.handles.get(&handle).copied().unwrap_or_else(|| self.name(handle, device));
        if let Some(graph) = self.graphs.get_mut(&id) {
            graph.nodes.insert(grant.address, GraphNode::new(grant));
            self.nodes.insert(grant.address, id);
        }
    }

    /// `cuGraphAddMemFreeNode`, or `cuGraphAddNode` with a node of that kind. Any graph may free
    /// the memory; it is freed when that graph runs.
    pub fn add_free(&mut self, address: u64) {
        self.mark_freed(address);
    }

    /// `cuGraphInstantiate…`: records an executable and its creation time.
    pub fn instantiate(&mut self, executable: u64, handle: u64, made_ns: u64) {
        let Some(id) = self.handles.get(&handle) else { return };
        if let Some(graph) = self.graphs.get_mut(id) {
            graph.executables += 1;
            self.executables.insert(executable, Executable { graph: *id, made_ns });
        }
    }

    /// `cuGraphLaunch`: every node of the executable gets its memory.
    pub fn launch(&mut self, executable: u64) -> Option<GraphBytesChange> {
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
    pub fn destroy_executable(&mut self, executable: u64) -> Option<GraphBytesChange> {
        let id = self.executables.remove(&executable)?.graph;
        let graph = self.graphs.get_mut(&id)?;
        graph.executables = graph.executables.saturating_sub(1);
        self.settle(id)
    }

    /// `cuGraphDestroy`: executables of the graph remain.
    pub fn destroy(&mut self, handle: u64) -> Option<GraphBytesChange> {
        let id = self.handles.remove(&handle)?;
        self.graphs.get_mut(&id)?.alive = false;
        self.settle(id)
    }

    /// Frees, by a call, memory that a launch allocated.
    pub fn free(&mut self, address: u64) -> Option<GraphBytesChange> {
        let id = *self.nodes.get(&address)?;
        self.graphs.get_mut(&id)?.nodes.get_mut(&address)?.outstanding = false;
        self.settle(id)
    }

    /// `cuDeviceGraphMemTrim`.
    pub fn trim(&mut self, device: DeviceRef) -> Vec<GraphBytesChange> {
        self.graphs.values_mut().filter(|graph| graph.device == device).filter_map(Graph::shrink).collect()
    }

    fn settle(&mut self, id: GraphId) -> Option<GraphBytesChange> {
        let graph = self.graphs.get_mut(&id)?;
        if graph.executables > 0 {
            return None;
        }
        let change = graph.shrink();
        if !graph.alive {
            // In a destroyed graph, only nodes that are still allocated keep their address.
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
