//! Tracks what each thread of a process is doing, to attribute the blocks that it allocates.
//!
//! The innermost context wins: a node of the backward graph, an optimizer range or a Python frame.
//! The result names the evidence. The end of a node is not visible (see
//! `TensorMeaning::BackwardNode`). Threads of the autograd engine only run nodes; on other threads
//! that call the engine, the Python frames show whether a node still runs.

mod frames;
mod numbers;
mod origins;
mod packages;
mod ranges;

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::allocators::names::{LibraryKey, ModuleKey, NameTable, RangeKey, SiteKey};
use crate::decode::{NodeLayout, NodeWords, StackRef, TensorChange, TensorEvent};
use crate::input::holdings::OwnerModule;
use crate::stack::PythonStack;
use crate::stack::native::NativeStack;
use crate::words::{Ordinal, Tid};

use self::frames::Doing;
use self::numbers::{NodeNumbers, Numbered};
use self::origins::{OriginKey, Origins, StackOrigin};
pub use self::ranges::STEP;
use self::ranges::{Steps, ThreadRanges};

/// Maximum number of threads tracked. The least recently active one is dropped first.
const THREADS: usize = 4096;
/// Maximum number of graph-building threads tracked.
const BUILDERS: usize = 64;
/// Maximum number of CUDA graphs captured at once.
const CAPTURES: usize = 64;
/// Maximum number of node sequence numbers kept, over all threads.
const NUMBERS: usize = 1 << 21;

/// Phase of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Inside the call of a module.
    Forward,
    /// Inside the backward pass, including recomputation.
    Backward,
    /// Inside an optimizer's `step` or `zero_grad`.
    Optimizer,
    /// Outside of these: the model itself, its inputs, a loss function.
    Outside,
    /// The thread's activity is unknown.
    NotKnown,
    /// Allocated before the attach.
    BeforeAttach,
    /// Allocated while no events were traced.
    Untraced,
}

impl Phase {
    /// All phases, in the order of their indices.
    pub const ALL: [Self; 7] = [
        Self::Forward,
        Self::Backward,
        Self::Optimizer,
        Self::Outside,
        Self::NotKnown,
        Self::BeforeAttach,
        Self::Untraced,
    ];
}

/// Evidence for the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseEvidence {
    /// A node of the backward graph was running in the thread.
    Node,
    /// An optimizer range was open in the thread.
    Range,
    /// The Python frames.
    Frames,
    /// No node, range or frame indicates a phase.
    Nothing,
}

/// Attribution of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// Phase of the training step.
    pub phase: Phase,
    /// Evidence for the phase.
    pub by: PhaseEvidence,
    /// The block holds values recomputed in the backward pass: activation checkpointing.
    pub recomputed: bool,
    /// The process was capturing a CUDA graph, so the block belongs to the graph.
    pub captured: bool,
    /// Call site in the program.
    pub site: SiteKey,
    /// Library line called from the call site.
    pub library: LibraryKey,
    /// Module that allocated.
    pub module: ModuleKey,
    /// Innermost range of the program around the allocation.
    pub range: Option<RangeKey>,
    /// Thread that opened the range.
    pub range_of: Option<Tid>,
    /// Number of the stack.
    pub stack: Option<u64>,
    /// Training steps done before the allocation.
    pub step: u64,
}

/// A running node of the backward graph.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct RunningNode {
    /// Where a program thread created the node.
    origin: Option<OriginKey>,
    /// Thread that created the node.
    builder: Option<Tid>,
    /// Where a node running in this thread created the node, during recomputation.
    own: Option<OriginKey>,
    /// The node is known to run inside the previous one.
    nested: bool,
    /// Start of the node, as an event count.
    moment: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ThreadActivity {
    ranges: ThreadRanges,
    /// The node that started last.
    node: Option<RunningNode>,
    /// The last node that called Python. Other nodes may run inside it.
    outer: Option<RunningNode>,
    /// A thread of the program: a node has ended when Python continues.
    of_program: bool,
    numbers: NodeNumbers,
    /// Where the thread last allocated.
    last: Option<OriginKey>,
    moment: u64,
}

impl ThreadActivity {
    /// Returns where the node that allocates on this stack was created.
    ///
    /// Nested nodes are visible on the Python stack: the outer node called Python, which called the
    /// engine. A later block without Python frames belongs to the outer node again.
    fn made(&mut self, stack: StackRef, origin: Option<&StackOrigin>) -> Option<OriginKey> {
        let node = self.node.as_mut()?;
        match origin {
            Some(origin) if origin.below_engine && !self.of_program => {
                node.nested = true;
                node.own.or(node.origin)
            }
            Some(_) => {
                self.outer = Some(*node);
                node.origin
            }
            None if node.nested && stack.is_without_python() => self.outer.and_then(|outer| outer.origin),
            None => node.origin,
        }
    }
}

/// Threads of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Threads {
    all: HashMap<Tid, ThreadActivity, RandomState>,
    builders: Vec<Tid>,
    kept_numbers: usize,
    /// Position of the sequence number in a node; `None` until the words of a node prove it.
    node_layout: Option<NodeLayout>,
    origins: Origins,
    steps: Steps,
    /// CUDA graphs that are being captured.
    captures: Vec<u64>,
    /// Event counter that orders the events of a thread.
    moment: u64,
    ambiguous: u64,
}

impl Threads {
    /// Learns a Python stack. Must be called before the events that refer to it.
    pub(super) fn learn(&mut self, id: u64, stack: &PythonStack, names: &mut NameTable) {
        self.origins.learn(id, stack, names);
    }

    /// Learns the native stack of a thread without Python frames.
    pub(super) fn learn_native(&mut self, id: u64, stack: &NativeStack, names: &mut NameTable) {
        self.origins.learn_native(id, stack, names);
    }

    /// Returns the row of the module that owns a tensor.
    pub(super) fn owner_module(&mut self, owner: &OwnerModule, names: &mut NameTable) -> ModuleKey {
        self.origins.owner_module(owner, names)
    }

    /// Applies one event.
    pub(super) fn apply(&mut self, event: &TensorEvent, names: &mut NameTable) {
        let tid = event.tid;
        match &event.what {
            TensorChange::RangeBegins(name) if ThreadRanges::is_of_optimizer(name) => {
                let (thread, steps) = self.thread_and_steps(tid);
                let moment = thread.moment;
                thread.ranges.begin_optimizer(name, moment, steps);
            }
            TensorChange::RangeBegins(name) => {
                let range = names.range(name);
                self.thread(tid).ranges.begin_range(range, event.time_ns);
            }
            TensorChange::RangeEnds => {
                let (thread, steps) = self.thread_and_steps(tid);
                thread.ranges.end(steps);
            }
            TensorChange::NvtxPush(name) => {
                let range = names.range(name);
                self.thread(tid).ranges.push(range, event.time_ns);
            }
            TensorChange::NvtxPop => self.thread(tid).ranges.pop(),
            TensorChange::NodeBegins { words } => {
                let sequence = words.and_then(|words| self.sequence(words));
                self.begin_node(tid, sequence);
            }
            TensorChange::SequenceNumber(number) => self.number(tid, *number, event.stack),
            TensorChange::CaptureBegins(graph) => {
                self.captures.retain(|other| other != graph);
                self.captures.truncate(CAPTURES - 1);
                self.captures.push(*graph);
            }
            TensorChange::CaptureEnds(graph) => self.captures.retain(|other| other != graph),
            _ => {}
        }
    }

    /// Forgets what all threads are doing, except their ranges, which are traced at every level.
    pub(super) fn forget(&mut self) {
        for thread in self.all.values_mut() {
            let (ranges, moment) = (std::mem::take(&mut thread.ranges), thread.moment);
            *thread = ThreadActivity { ranges, moment, ..ThreadActivity::default() };
        }
        self.all.retain(|_, thread| thread.ranges.is_open());
        self.builders.clear();
        self.captures.clear();
        self.kept_numbers = 0;
    }

    /// Removes a thread that exited.
    pub(super) fn end(&mut self, tid: Tid) {
        if let Some(thread) = self.all.remove(&tid) {
            self.kept_numbers = self.kept_numbers.saturating_sub(thread.numbers.len());
            self.builders.retain(|builder| *builder != tid);
        }
    }

    /// Returns the number of training steps done: the ended `Optimizer.step` ranges of the
    /// optimizer with the most.
    pub fn steps(&self) -> u64 {
        self.steps.process()
    }

    /// Returns the steps of each optimizer by the name in its ranges. Optimizers of one class count
    /// together.
    pub fn steps_by_optimizer(&self) -> Vec<(&str, u64)> {
        self.steps.by_optimizer()
    }

    /// Returns the number of backward nodes that several threads in different modules may have
    /// created. Their module is unknown.
    pub const fn ambiguous_nodes(&self) -> u64 {
        self.ambiguous
    }

    /// Attributes a block that this thread allocates on this stack.
    pub(super) fn attribute(&mut self, tid: Tid, stack: StackRef) -> Attribution {
        let (captured, step) = (!self.captures.is_empty(), self.steps.process());
        let (id, key) = match stack {
            StackRef::Known(id) => (Some(id), self.origins.of_stack(id)),
            StackRef::Native(id) => (Some(id), None),
            _ => (None, None),
        };
        let origin = key.map(|key| self.origins.get(key));
        let thread = self.thread(tid);
        if let Some(origin) = &origin {
            thread.of_program |= origin.from_the_start;
            if origin.without_optimizer {
                thread.ranges.close_optimizers();
            }
        }
        let (phase, by) = phase(thread, stack, origin.as_ref());
        let in_node =
            by == PhaseEvidence::Node || (phase == Phase::Backward && origin.is_some_and(|origin| origin.in_engine));
        let made = if in_node { thread.made(stack, origin.as_ref()) } else { None };
        let builder = if in_node { thread.node.and_then(|node| node.builder) } else { None };
        let recomputed = phase == Phase::Backward
            && origin.is_some_and(|origin| matches!(origin.doing, Doing::Forward | Doing::Recomputation));
        let range = thread.ranges.range().map(|range| (range, tid));
        if let Some(key) = key.filter(|_| !in_node || recomputed) {
            thread.last = Some(key);
            if matches!(phase, Phase::Forward | Phase::Outside) || recomputed {
                thread.numbers.settle(key);
            }
        }
        let of_node = made.map(|key| self.origins.get(key));
        let range = range.or_else(|| Some((self.all.get(&builder?)?.ranges.range()?, builder?)));
        let (range, range_of) = range.unzip();
        let has_node = in_node && self.all.get(&tid).is_some_and(|thread| thread.node.is_some());
        let module = match origin.map(|origin| origin.module) {
            Some(own) if own.is_module() => own,
            _ if has_node => of_node.map_or(ModuleKey::NOT_KNOWN, |of_node| of_node.module),
            Some(own) => own,
            None if stack.is_without_python() => ModuleKey::NONE,
            None => ModuleKey::NOT_KNOWN,
        };
        let (site, library) = match (&origin, &of_node) {
            (Some(origin), _) => (origin.site, origin.library),
            (None, Some(of_node)) if stack.is_without_python() => (of_node.backward_site, of_node.library),
            (None, _) => {
                let native = self.origins.native_site(stack);
                (native.unwrap_or(SiteKey::without_frames(stack)), LibraryKey::NONE)
            }
        };
        Attribution { phase, by, recomputed, captured, site, library, module, range, range_of, stack: id, step }
    }

    /// Frees a block with this attribution and allocation time. If its range is still open, returns
    /// the bytes allocated and freed on the block's device since the range was opened.
    pub(super) fn give_back(&mut self, whose: &Attribution, granted_ns: u64, block: (Ordinal, u64)) -> Option<u64> {
        let (range, thread) = (whose.range?, self.all.get_mut(&whose.range_of?)?);
        thread.ranges.give_back(range, granted_ns, block)
    }

    /// Returns the sequence number of a node from its words.
    ///
    /// Words that do not prove their layout are read with the layout that is proven. Before there
    /// is one, the first word is the number if a thread has created a node of that number.
    fn sequence(&mut self, words: NodeWords) -> Option<u64> {
        self.node_layout = words.layout().or(self.node_layout);
        let [first, _] = words.0;
        let numbers = || self.builders.iter().filter_map(|tid| Some(&self.all.get(tid)?.numbers));
        let layout = self.node_layout.unwrap_or_else(|| {
            let is_given = numbers().any(|numbers| numbers.get(first).is_some());
            if is_given { NodeLayout::First } else { NodeLayout::Second }
        });
        words.sequence(layout)
    }

    fn begin_node(&mut self, tid: Tid, sequence: Option<u64>) {
        let moment = self.thread(tid).moment;
        let before = self.all.get(&tid).and_then(|thread| thread.node);
        let running = match (sequence, before) {
            (Some(number), _) => self.running(tid, number),
            // Nodes that accumulate gradients have no sequence number. The engine's queue runs them
            // first (their number is the highest: torch's
            // csrc/autograd/functions/accumulate_grad.h), so they run right after the node that
            // produced their gradient.
            (None, Some(before)) => before,
            (None, None) => RunningNode::default(),
        };
        self.thread(tid).node = Some(RunningNode { moment, ..running });
    }

    /// Looks up the node of this sequence number that runs in this thread.
    ///
    /// Sequence numbers are per thread. A node created by a node runs nested in the same engine
    /// thread, which the Python stack shows at its first allocation. All others were created by a
    /// program thread, nearly always the only one that builds graphs. If several threads have a
    /// node of this number that has not run and their modules differ, the creator is left unknown.
    fn running(&mut self, tid: Tid, number: u64) -> RunningNode {
        let own = self.all.get(&tid).and_then(|thread| thread.numbers.get(number)).filter(|node| node.by_node);
        let mut running = RunningNode { own: own.and_then(|node| node.origin), ..RunningNode::default() };
        let builder = self.builder_of(number);
        if let Some((tid, thread)) = builder.and_then(|tid| Some((tid, self.all.get_mut(&tid)?))) {
            let last = thread.last.filter(|_| thread.numbers.is_waiting(number));
            running.origin = thread.numbers.get(number).and_then(|node| node.origin).or(last);
            running.builder = Some(tid);
            thread.numbers.ran(number);
        }
        running
    }

    fn builder_of(&mut self, number: u64) -> Option<Tid> {
        let mut found: Option<(Tid, Numbered)> = None;
        let mut differ = false;
        for tid in &self.builders {
            let node = self.all.get(tid).and_then(|thread| thread.numbers.get(number)).filter(|node| !node.by_node);
            match (node, found) {
                (None, _) => {}
                (Some(node), Some((_, other))) if node.ran == other.ran => {
                    let module = |node: Numbered| node.origin.map(|origin| self.origins.get(origin).module);
                    differ |= module(node) != module(other);
                }
                (Some(node), Some((_, other))) if node.ran && !other.ran => {}
                (Some(node), _) => {
                    differ = false;
                    found = Some((*tid, node));
                }
            }
        }
        self.ambiguous += u64::from(differ);
        found.filter(|_| !differ).map(|(tid, _)| tid)
    }

    fn number(&mut self, tid: Tid, number: u64, stack: StackRef) {
        let key = match stack {
            StackRef::Known(id) => self.origins.of_stack(id),
            _ => None,
        };
        let from_the_start = key.is_some_and(|key| self.origins.get(key).from_the_start);
        let is_native = stack.is_without_python();
        if !self.builders.contains(&tid) {
            if self.builders.len() >= BUILDERS {
                let gone = self.builders.remove(0);
                let numbers = self.all.get_mut(&gone).map(|thread| std::mem::take(&mut thread.numbers));
                self.kept_numbers = self.kept_numbers.saturating_sub(numbers.map_or(0, |numbers| numbers.len()));
            }
            self.builders.push(tid);
        }
        let room = NUMBERS - self.kept_numbers.min(NUMBERS);
        let thread = self.thread(tid);
        // An engine thread creates nodes only while it runs one.
        thread.of_program |= from_the_start || (is_native && thread.node.is_none());
        let by_node = thread.node.is_some() && !thread.of_program;
        let before = thread.numbers.len();
        thread.numbers.push(number, Numbered { origin: key, by_node, ran: false }, before + room);
        let after = thread.numbers.len();
        self.kept_numbers = (self.kept_numbers + after).saturating_sub(before);
    }

    fn thread(&mut self, tid: Tid) -> &mut ThreadActivity {
        self.thread_and_steps(tid).0
    }

    fn thread_and_steps(&mut self, tid: Tid) -> (&mut ThreadActivity, &mut Steps) {
        if self.all.len() >= THREADS && !self.all.contains_key(&tid) {
            let idle = self.all.iter().min_by_key(|(tid, thread)| (thread.moment, **tid)).map(|(tid, _)| *tid);
            if let Some(idle) = idle {
                self.end(idle);
            }
        }
        self.moment += 1;
        let thread = self.all.entry(tid).or_default();
        thread.moment = self.moment;
        (thread, &mut self.steps)
    }
}

/// Returns the phase of a block and the evidence for it.
fn phase(thread: &ThreadActivity, stack: StackRef, origin: Option<&StackOrigin>) -> (Phase, PhaseEvidence) {
    let optimizer = thread.ranges.optimizer();
    if let Some(node) = thread.node.filter(|_| !thread.of_program) {
        let is_within = optimizer.is_some_and(|begun| begun > node.moment);
        return if is_within {
            (Phase::Optimizer, PhaseEvidence::Range)
        } else {
            (Phase::Backward, PhaseEvidence::Node)
        };
    }
    let doing = origin.map(|origin| origin.doing);
    match (doing, optimizer) {
        (Some(Doing::Forward), _) => (Phase::Forward, PhaseEvidence::Frames),
        (Some(Doing::Backward | Doing::Recomputation), _) => (Phase::Backward, PhaseEvidence::Frames),
        (Some(Doing::Closure), _) => (Phase::Outside, PhaseEvidence::Frames),
        (_, Some(_)) => (Phase::Optimizer, PhaseEvidence::Range),
        (Some(Doing::Optimizer), None) => (Phase::Optimizer, PhaseEvidence::Frames),
        (Some(Doing::Nothing), None) => (Phase::Outside, PhaseEvidence::Nothing),
        (None, None) if stack.is_without_python() => (Phase::Outside, PhaseEvidence::Nothing),
        (None, None) => (Phase::NotKnown, PhaseEvidence::Nothing),
    }
}

#[cfg(test)]
mod tests;
