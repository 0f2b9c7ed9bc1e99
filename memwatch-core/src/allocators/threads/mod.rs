//! What each thread of a process is doing: the owner of a block that is allocated on it now.
//!
//! The innermost thing counts: a node of the backward graph, a range of an optimizer, a frame of Python; and each answer says which of them gave
//! it. A node's end is not seen (see `TensorMeaning::BackwardNode`): the engine's own threads do nothing but run nodes, and on a thread that calls the
//! engine the Python frames say whether it still does.

mod frames;
mod numbers;
mod origins;
mod packages;
mod ranges;

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::allocators::names::{LayerKey, LibraryKey, Names, PhaseKey, SiteKey};
use crate::decode::{NodeLayout, NodeWords, StackRef, TensorChange, TensorEvent};
use crate::input::holdings::OwnerModule;
use crate::stack::PythonStack;
use crate::stack::native::NativeStack;
use crate::words::{Ordinal, Tid};

use self::frames::Doing;
use self::numbers::{Numbered, Numbers};
use self::origins::{Origin, OriginKey, Origins};
pub use self::ranges::STEP;
use self::ranges::{Ranges, Steps};

/// How many threads are known at once; the one that did something longest ago goes first.
const THREADS: usize = 4096;
/// How many threads that build graphs are known at once.
const BUILDERS: usize = 64;
/// How many graphs are captured at once.
const CAPTURES: usize = 64;
/// How many numbers of nodes are kept in all.
const NUMBERS: usize = 1 << 21;

/// What part of a training step a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Within the call of a module.
    Forward,
    /// Within the backward pass; also what it computes again.
    Backward,
    /// Within an optimizer's `step` or `zero_grad`.
    Optimizer,
    /// In none of them: the model itself, its inputs, the loss of a function.
    Outside,
    /// What the thread was doing is not known.
    NotKnown,
    /// Older than the watch.
    BeforeAttach,
    /// Allocated while no event was traced.
    Untraced,
}

impl Stage {
    /// All of them.
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

/// What reported the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Evidence {
    /// A node of the backward graph ran in the thread.
    Node,
    /// A range of an optimizer was open in it.
    Range,
    /// The Python frames.
    Frames,
    /// The absence of all that.
    Nothing,
}

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// The stage.
    pub stage: Stage,
    /// What reported it.
    pub by: Evidence,
    /// It has again what was not kept for the backward pass: activation checkpointing.
    pub recomputed: bool,
    /// A CUDA graph was being captured in the process: the block is the graph's.
    pub captured: bool,
    /// The line.
    pub site: SiteKey,
    /// The line of a library that was called from there.
    pub library: LibraryKey,
    /// The module.
    pub layer: LayerKey,
    /// The program's own range around it.
    pub phase: Option<PhaseKey>,
    /// The thread that has opened that range.
    pub phase_of: Option<Tid>,
    /// The stack's number.
    pub stack: Option<u64>,
    /// How many steps were done.
    pub step: u64,
}

/// A node that runs.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Running {
    /// Where it was made, if a thread of the program's made it.
    origin: Option<OriginKey>,
    /// Which thread.
    builder: Option<Tid>,
    /// Where it was made, if a node did that which ran in the same thread: in a recomputation.
    own: Option<OriginKey>,
    /// It is known to run within the node before.
    nested: bool,
    /// When it began, in moments.
    moment: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Thread {
    ranges: Ranges,
    /// The node that began last.
    node: Option<Running>,
    /// The last one that called Python: others may run within it.
    outer: Option<Running>,
    /// A program's own thread: a node is over when Python goes on.
    of_program: bool,
    numbers: Numbers,
    /// Where it allocated last.
    last: Option<OriginKey>,
    moment: u64,
}

impl Thread {
    /// Where the node was made that allocates on this stack.
    ///
    /// Nodes within a node show on the Python stack: the outer one has called Python, and that the engine. A block without Python after them is the
    /// outer one's again.
    fn made(&mut self, stack: StackRef, origin: Option<&Origin>) -> Option<OriginKey> {
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

/// The threads of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Threads {
    all: HashMap<Tid, Thread, RandomState>,
    builders: Vec<Tid>,
    kept_numbers: usize,
    /// Where nodes have their number; `None` before the words of one proved it.
    node_layout: Option<NodeLayout>,
    origins: Origins,
    steps: Steps,
    /// Graphs whose capture has begun and not ended.
    captures: Vec<u64>,
    /// Counts events: the order of things in a thread.
    moment: u64,
    ambiguous: u64,
}

impl Threads {
    /// Learns what a Python stack is, before the events that name it.
    pub(super) fn learn(&mut self, id: u64, stack: &PythonStack, names: &mut Names) {
        self.origins.learn(id, stack, names);
    }

    /// Learns where a thread without Python is that has this native stack.
    pub(super) fn learn_native(&mut self, id: u64, stack: &NativeStack, names: &mut Names) {
        self.origins.learn_native(id, stack, names);
    }

    /// The row of the module that a tensor belongs to.
    pub(super) fn owner_layer(&mut self, owner: &OwnerModule, names: &mut Names) -> LayerKey {
        self.origins.owner_layer(owner, names)
    }

    /// Takes one event into account.
    pub(super) fn apply(&mut self, event: &TensorEvent, names: &mut Names) {
        let tid = event.tid;
        match &event.what {
            TensorChange::RangeBegins(name) if Ranges::is_of_optimizer(name) => {
                let (thread, steps) = self.thread_and_steps(tid);
                let moment = thread.moment;
                thread.ranges.begin_optimizer(name, moment, steps);
            }
            TensorChange::RangeBegins(name) => {
                let phase = names.phase(name);
                self.thread(tid).ranges.begin_phase(phase, event.time_ns);
            }
            TensorChange::RangeEnds => {
                let (thread, steps) = self.thread_and_steps(tid);
                thread.ranges.end(steps);
            }
            TensorChange::NvtxPush(name) => {
                let phase = names.phase(name);
                self.thread(tid).ranges.push(phase, event.time_ns);
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

    /// What all threads were doing is not known any more, but for their ranges, which are followed at every level.
    pub(super) fn forget(&mut self) {
        for thread in self.all.values_mut() {
            let (ranges, moment) = (std::mem::take(&mut thread.ranges), thread.moment);
            *thread = Thread { ranges, moment, ..Thread::default() };
        }
        self.all.retain(|_, thread| thread.ranges.is_open());
        self.builders.clear();
        self.captures.clear();
        self.kept_numbers = 0;
    }

    /// The thread is no more.
    pub(super) fn end(&mut self, tid: Tid) {
        if let Some(thread) = self.all.remove(&tid) {
            self.kept_numbers = self.kept_numbers.saturating_sub(thread.numbers.len());
            self.builders.retain(|builder| *builder != tid);
        }
    }

    /// How many steps the process has done: ends of `Optimizer.step` ranges, of the optimizer that has most of them.
    pub fn steps(&self) -> u64 {
        self.steps.process()
    }

    /// The same for each optimizer, by the name that its ranges have; those of one class count together.
    pub fn steps_by_optimizer(&self) -> Vec<(&str, u64)> {
        self.steps.by_optimizer()
    }

    /// Nodes of the backward graph that may have been made by one of several threads, in different layers: theirs is not known.
    pub const fn ambiguous_nodes(&self) -> u64 {
        self.ambiguous
    }

    /// The owner of a block that this thread allocates on this stack.
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
        let (stage, by) = stage(thread, stack, origin.as_ref());
        let in_node =
            by == Evidence::Node || (stage == Stage::Backward && origin.is_some_and(|origin| origin.in_engine));
        let made = if in_node { thread.made(stack, origin.as_ref()) } else { None };
        let builder = if in_node { thread.node.and_then(|node| node.builder) } else { None };
        let recomputed = stage == Stage::Backward
            && origin.is_some_and(|origin| matches!(origin.doing, Doing::Forward | Doing::Recomputation));
        let phase = thread.ranges.phase().map(|phase| (phase, tid));
        if let Some(key) = key.filter(|_| !in_node || recomputed) {
            thread.last = Some(key);
            if matches!(stage, Stage::Forward | Stage::Outside) || recomputed {
                thread.numbers.settle(key);
            }
        }
        let of_node = made.map(|key| self.origins.get(key));
        let phase = phase.or_else(|| Some((self.all.get(&builder?)?.ranges.phase()?, builder?)));
        let (phase, phase_of) = phase.unzip();
        let has_node = in_node && self.all.get(&tid).is_some_and(|thread| thread.node.is_some());
        let layer = match origin.map(|origin| origin.layer) {
            Some(own) if own.is_module() => own,
            _ if has_node => of_node.map_or(LayerKey::NOT_KNOWN, |of_node| of_node.layer),
            Some(own) => own,
            None if stack.is_without_python() => LayerKey::NONE,
            None => LayerKey::NOT_KNOWN,
        };
        let (site, library) = match (&origin, &of_node) {
            (Some(origin), _) => (origin.site, origin.library),
            (None, Some(of_node)) if stack.is_without_python() => (of_node.backward_site, of_node.library),
            (None, _) => {
                let native = self.origins.native_site(stack);
                (native.unwrap_or(SiteKey::without_frames(stack)), LibraryKey::NONE)
            }
        };
        Attribution { stage, by, recomputed, captured, site, library, layer, phase, phase_of, stack: id, step }
    }

    /// A block of so many bytes is given back that was granted to this owner at this time. Where the range that it was granted in is still open: what has come
    /// and gone in that since it was opened, on the block's device in bytes.
    pub(super) fn give_back(&mut self, whose: &Attribution, granted_ns: u64, block: (Ordinal, u64)) -> Option<u64> {
        let (phase, thread) = (whose.phase?, self.all.get_mut(&whose.phase_of?)?);
        thread.ranges.give_back(phase, granted_ns, block)
    }

    /// The number of the node with these words.
    ///
    /// Words that prove nothing by themselves are read as the ones that did; before those, the first is the number if a thread has given it.
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
            // The ones that accumulate gradients have no number; the engine's queue runs them before all others (their number is the highest: torch's
            // csrc/autograd/functions/accumulate_grad.h), so right after the node that their gradient comes from.
            (None, Some(before)) => before,
            (None, None) => Running::default(),
        };
        self.thread(tid).node = Some(Running { moment, ..running });
    }

    /// The node of this number that runs in this thread: where it was made, and by which thread.
    ///
    /// Numbers are each thread's own. A node made by a node runs in the same engine's thread, nested in it, which the Python stack shows once it
    /// allocates; all others were made by some thread of the program, nearly always the only one that builds graphs. Where several have such a
    /// number, the node has not run yet, and their layers differ, it is nobody's.
    fn running(&mut self, tid: Tid, number: u64) -> Running {
        let own = self.all.get(&tid).and_then(|thread| thread.numbers.get(number)).filter(|node| node.by_node);
        let mut running = Running { own: own.and_then(|node| node.origin), ..Running::default() };
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
                    let layer = |node: Numbered| node.origin.map(|origin| self.origins.get(origin).layer);
                    differ |= layer(node) != layer(other);
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
        // An engine's thread makes nodes only while it runs one.
        thread.of_program |= from_the_start || (is_native && thread.node.is_none());
        let by_node = thread.node.is_some() && !thread.of_program;
        let before = thread.numbers.len();
        thread.numbers.push(number, Numbered { origin: key, by_node, ran: false }, before + room);
        let after = thread.numbers.len();
        self.kept_numbers = (self.kept_numbers + after).saturating_sub(before);
    }

    fn thread(&mut self, tid: Tid) -> &mut Thread {
        self.thread_and_steps(tid).0
    }

    fn thread_and_steps(&mut self, tid: Tid) -> (&mut Thread, &mut Steps) {
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

/// The stage, and what reports it.
fn stage(thread: &Thread, stack: StackRef, origin: Option<&Origin>) -> (Stage, Evidence) {
    let optimizer = thread.ranges.optimizer();
    if let Some(node) = thread.node.filter(|_| !thread.of_program) {
        let is_within = optimizer.is_some_and(|begun| begun > node.moment);
        return if is_within { (Stage::Optimizer, Evidence::Range) } else { (Stage::Backward, Evidence::Node) };
    }
    let doing = origin.map(|origin| origin.doing);
    match (doing, optimizer) {
        (Some(Doing::Forward), _) => (Stage::Forward, Evidence::Frames),
        (Some(Doing::Backward | Doing::Recomputation), _) => (Stage::Backward, Evidence::Frames),
        (Some(Doing::Closure), _) => (Stage::Outside, Evidence::Frames),
        (_, Some(_)) => (Stage::Optimizer, Evidence::Range),
        (Some(Doing::Optimizer), None) => (Stage::Optimizer, Evidence::Frames),
        (Some(Doing::Nothing), None) => (Stage::Outside, Evidence::Nothing),
        (None, None) if stack.is_without_python() => (Stage::Outside, Evidence::Nothing),
        (None, None) => (Stage::NotKnown, Evidence::Nothing),
    }
}

#[cfg(test)]
mod tests;
