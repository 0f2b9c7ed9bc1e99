//! The best way to each object: from the root that lasts longest, of those the shortest.
//!
//! Roots are taken in ranks, and each rank is followed to its end before the next one begins, so that a path stays the same from one reading to the next
//! for as long as its root lives: globals of the program, frames of its own code from the outermost inward, and libraries only for what nothing else
//! leads to.

use std::collections::VecDeque;

use super::classes::Kind;
use super::edges::{Edge, Label};
use super::frames::{RunningFrames, is_library_file};
use super::heap::Heap;
use super::layout::MODULE_DICT;
use super::notebook::{SHELL, is_machinery};
use super::objects::Entry;
use super::path_text::text;
use crate::memory::{Memory, PATHS_SPENT, at};

/// Steps of a path that are followed: what is further is a chain of its own making.
const MOST_STEPS: usize = 4096;

/// How an object was first reached.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The place of what refers to it; none where it is begun at.
    from: Option<u32>,
    label: Label,
    slot: u64,
}

/// A reference on a path: where it stands, and what it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where the address stands.
    pub slot: u64,
    /// The object.
    pub object: u64,
}

/// A way to an object.
#[derive(Clone, Debug)]
pub struct Path {
    /// As Python would write it, as far as it can.
    pub text: String,
    /// Its references, from the object outward.
    pub links: Vec<Link>,
    /// It leads through a traceback.
    pub is_through_traceback: bool,
    /// The tensor whose autograd graph it leads through, where it does: the first one, by its place.
    pub graph_of: Option<u32>,
}

/// How good the way to an object is; the smaller, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The rank of its root.
    pub root: u8,
    /// How many references lead to it.
    length: u32,
}

/// How much a search goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breadth {
    /// Also what libraries have.
    pub of_libraries: bool,
    /// Objects of each root at most.
    pub objects_per_root: usize,
}

/// How each object was first reached.
#[derive(Debug)]
pub struct Paths {
    steps: Vec<Option<Step>>,
    references: Vec<u32>,
    /// The rank of the root of each.
    ranks: Vec<u8>,
    /// The rank that is followed now.
    rank: u8,
    /// Tracebacks that were reached and not followed yet: what the frames behind them had is the program's own only until nothing else leads to it.
    tracebacks: Vec<u32>,
    /// Places that are no way: modules, and the dicts of their globals.
    is_closed: Vec<bool>,
    /// Places at which paths begin though nothing leads to them; empty while there are none.
    is_begun: Vec<bool>,
    is_cut: bool,
}

impl Paths {
    /// Looks through all that can be reached. `earlier` are the frames that ran when the reading began.
    pub fn search(heap: &Heap<'_, impl Memory>, earlier: &RunningFrames) -> Self {
        Self::search_within(heap, earlier, Breadth { of_libraries: true, objects_per_root: usize::MAX })
    }

    /// Looks through some of it.
    pub fn search_within(heap: &Heap<'_, impl Memory>, earlier: &RunningFrames, breadth: Breadth) -> Self {
        let count = heap.len();
        let mut paths = Self {
            steps: vec![None; count],
            references: vec![0; count],
            ranks: vec![0; count],
            rank: 0,
            tracebacks: Vec::new(),
            is_closed: vec![false; count],
            is_begun: Vec::new(),
            is_cut: false,
        };
        for (rank, edges) in roots(heap, earlier, &mut paths.is_closed) {
            if rank > ranks::MACHINERY {
                paths.follow_tracebacks(heap, breadth.objects_per_root);
                if !breadth.of_libraries {
                    return paths;
                }
            }
            paths.rank = rank;
            let mut queue = VecDeque::new();
            paths.put(None, &edges, &mut queue);
            paths.spread(heap, &mut queue, breadth.objects_per_root);
        }
        paths.follow_tracebacks(heap, breadth.objects_per_root);
        paths
    }

    fn follow_tracebacks(&mut self, heap: &Heap<'_, impl Memory>, most: usize) {
        let mut queue: VecDeque<_> = std::mem::take(&mut self.tracebacks).into();
        self.rank = ranks::TRACEBACK;
        self.spread_through(heap, &mut queue, most, true);
    }

    fn spread(&mut self, heap: &Heap<'_, impl Memory>, queue: &mut VecDeque<u32>, most: usize) {
        self.spread_through(heap, queue, most, false);
    }

    fn spread_through(
        &mut self,
        heap: &Heap<'_, impl Memory>,
        queue: &mut VecDeque<u32>,
        most: usize,
        follows_tracebacks: bool,
    ) {
        let mut edges = Vec::new();
        let mut left = most;
        while let Some(place) = queue.pop_front() {
            if left == 0 || heap.objects().memory.spent() >= PATHS_SPENT {
                self.is_cut = true;
                break;
            }
            left -= 1;
            if heap.is_moving() && !heap.is_same(place) {
                continue;
            }
            if !follows_tracebacks && heap.class(place).is_some_and(|class| class.kind == Kind::Traceback) {
                self.tracebacks.push(place);
                continue;
            }
            edges.clear();
            heap.put_edges(place, &mut edges);
            self.put(Some(place), &edges, queue);
        }
    }

    fn put(&mut self, from: Option<u32>, edges: &[Edge], queue: &mut VecDeque<u32>) {
        for edge in edges {
            let target = edge.target as usize;
            if target >= self.steps.len() {
                self.grow(target + 1);
            }
            if self.is_closed[target] {
                continue;
            }
            self.references[target] = self.references[target].saturating_add(1);
            if self.steps[target].is_none() && !self.is_begun.get(target).copied().unwrap_or(false) {
                self.steps[target] = Some(Step { from, label: edge.label, slot: edge.slot });
                self.ranks[target] = self.rank;
                queue.push_back(edge.target);
            }
        }
    }

    /// Makes room for objects that came later.
    fn grow(&mut self, count: usize) {
        self.steps.resize(count, None);
        self.references.resize(count, 0);
        self.ranks.resize(count, 0);
        self.is_closed.resize(count, false);
    }

    /// How good the way to an object is; none where it was not reached.
    pub fn rank(&self, place: u32) -> Option<Rank> {
        let mut step = self.steps.get(place as usize).copied().flatten()?;
        let mut length = 1;
        while let Some(next) = step.from.and_then(|from| self.steps.get(from as usize).copied().flatten()) {
            (step, length) = (next, length + 1);
            if length as usize > MOST_STEPS {
                break;
            }
        }
        Some(Rank { root: *self.ranks.get(place as usize)?, length })
    }

    /// Follows on from objects that nodes of an autograd graph keep: each with the place of the tensor whose graph it is, and where its address stands.
    /// Returned are the places that were reached by that.
    pub fn follow_kept(&mut self, heap: &Heap<'_, impl Memory>, kept: &[(u32, u32, u64)]) -> Vec<u32> {
        let mut queue = VecDeque::new();
        let before: Vec<bool> = self.steps.iter().map(Option::is_some).collect();
        for (object, owner, slot) in kept {
            self.rank = self.ranks.get(*owner as usize).copied().unwrap_or(u8::MAX);
            let edge = Edge { label: Label::Graph, target: *object, slot: *slot };
            self.put(Some(*owner), &[edge], &mut queue);
        }
        self.spread_through(heap, &mut queue, usize::MAX, true);
        let is_new = |place: &u32| {
            let place = *place as usize;
            self.steps[place].is_some() && !before.get(place).copied().unwrap_or(false)
        };
        (0..u32::try_from(self.steps.len()).unwrap_or(u32::MAX)).filter(is_new).collect()
    }

    /// The tensor whose autograd graph the way to an object leads through, by its place: the first one.
    pub fn graph_of(&self, place: u32) -> Option<u32> {
        let mut graph_of = None;
        let mut current = Some(place);
        for _ in 0..MOST_STEPS {
            let Some(step) = current.and_then(|place| self.steps.get(place as usize).copied().flatten()) else { break };
            if step.label == Label::Graph {
                graph_of = step.from;
            }
            current = step.from;
        }
        graph_of
    }

    /// Whether the time was over before all was looked through.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether an object was reached.
    pub fn is_reached(&self, place: u32) -> bool {
        self.steps.get(place as usize).is_some_and(Option::is_some)
    }

    /// How many references to an object were found on all ways.
    pub fn references(&self, place: u32) -> u32 {
        self.references.get(place as usize).copied().unwrap_or(0)
    }

    /// Follows on from objects that nothing leads to: what only they refer to is reached then, by paths that begin at them.
    pub fn begin_at(&mut self, heap: &Heap<'_, impl Memory>, places: impl IntoIterator<Item = u32>) {
        let mut queue: VecDeque<_> = places.into_iter().collect();
        self.is_begun = vec![false; heap.len()];
        for place in &queue {
            self.is_begun[*place as usize] = true;
        }
        self.rank = u8::MAX;
        self.spread_through(heap, &mut queue, usize::MAX, true);
    }

    /// The way to the object of a place, if one was found.
    pub fn path(&self, heap: &Heap<'_, impl Memory>, place: u32) -> Option<Path> {
        let (mut labels, mut links, mut traceback, mut graph_of) = (Vec::new(), Vec::new(), None, None);
        let mut current = Some(place);
        while let Some(place) = current {
            let Some(step) = self.steps.get(place as usize).copied().flatten() else { break };
            if heap.class(place).is_some_and(|class| class.kind == Kind::Traceback) {
                traceback = Some(labels.len());
            }
            if step.label == Label::Graph {
                graph_of = step.from;
            }
            labels.push(step.label);
            links.push(Link { slot: step.slot, object: heap.address(place)? });
            current = step.from;
            if labels.len() > MOST_STEPS {
                return None;
            }
        }
        labels.reverse();
        let begin = current.and_then(|place| heap.class(place)).map(|class| class.short_name().to_owned());
        let first_traceback = traceback.map(|behind| labels.len() - 1 - behind);
        (!labels.is_empty()).then(|| Path {
            text: text(heap, begin, &labels, first_traceback),
            links,
            is_through_traceback: traceback.is_some(),
            graph_of,
        })
    }
}

/// A reference as Python writes it behind the object that has it: `._local_tensor`, `[3]`.
pub fn reference_text(heap: &Heap<'_, impl Memory>, label: Label) -> String {
    text(heap, None, &[label], None)
}

/// The ranks of roots: the smaller, the longer they last and the more they say to whoever wrote the program.
mod ranks {
    /// Globals of the program.
    pub(super) const GLOBAL: u8 = 0;
    /// Frames of its own code that ran when the reading began, and what came since.
    pub(super) const STANDING_FRAME: u8 = 1;
    pub(super) const FRAME: u8 = 2;
    /// What IPython keeps in the program's globals.
    pub(super) const MACHINERY: u8 = 3;
    pub(super) const LIBRARY_STANDING_FRAME: u8 = 4;
    pub(super) const LIBRARY_GLOBAL: u8 = 5;
    pub(super) const LIBRARY_FRAME: u8 = 6;
    /// States of threads.
    pub(super) const THREAD: u8 = 7;
    /// Frames that have ended, of which a traceback is left.
    pub(super) const TRACEBACK: u8 = 8;
}

/// All roots, the best first; each frame is a rank of its own. Modules and their dicts are closed.
fn roots(heap: &Heap<'_, impl Memory>, earlier: &RunningFrames, is_closed: &mut Vec<bool>) -> Vec<(u8, Vec<Edge>)> {
    let mut roots = globals(heap, is_closed);
    for frame in heap.run_frames(earlier) {
        let rank = match (frame.is_own, frame.is_standing) {
            (true, true) => ranks::STANDING_FRAME,
            (true, false) => ranks::FRAME,
            (false, true) => ranks::LIBRARY_STANDING_FRAME,
            (false, false) => ranks::LIBRARY_FRAME,
        };
        roots.push((rank, heap.frame_edges(frame.address)));
    }
    roots.push((ranks::THREAD, heap.state_edges()));
    // Frames of one rank stay in their order.
    roots.sort_by_key(|(rank, _)| *rank);
    roots
}

/// The globals of the program's own modules, `__main__` first, what IPython has put there, and those of libraries.
fn globals(heap: &Heap<'_, impl Memory>, is_closed: &mut Vec<bool>) -> Vec<(u8, Vec<Edge>)> {
    let objects = heap.objects();
    let (mut main, mut own, mut machinery, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut close = |object: u64| {
        if let Some(place) = heap.place(object) {
            let place = place as usize;
            if place >= is_closed.len() {
                is_closed.resize(place + 1, false);
            }
            is_closed[place] = true;
        }
    };
    for interpreter in heap.interpreters() {
        let modules = || objects.memory.u64(at(*interpreter, objects.layout.modules)?);
        let Some(modules) = modules() else { continue };
        close(modules);
        for module in objects.entries(modules).unwrap_or_default() {
            if heap.class_of(module.value).is_none_or(|class| class.kind != Kind::Module) {
                continue;
            }
            let Some(dict) = at(module.value, MODULE_DICT).and_then(|at| objects.memory.u64(at)) else { continue };
            close(module.value);
            close(dict);
            let mut entries = objects.entries(dict).unwrap_or_default();
            let name = objects.text(module.key);
            let label = |entry: &Entry| Label::Global { module: module.key, name: entry.key };
            let edge = |entry: &Entry| heap.edge(label(entry), entry.value, entry.slot);
            let part = match name.as_deref() {
                Some("__main__") => {
                    let text = |entry: &Entry| objects.text(entry.key).unwrap_or_default();
                    if entries.iter().any(|entry| text(entry) == SHELL) {
                        machinery.extend(
                            entries.extract_if(.., |entry| is_machinery(&text(entry))).filter_map(|entry| edge(&entry)),
                        );
                    }
                    &mut main
                }
                _ if is_own(heap, &entries) => &mut own,
                _ => &mut others,
            };
            part.extend(entries.iter().filter_map(edge));
        }
    }
    main.extend(own);
    vec![(ranks::GLOBAL, main), (ranks::MACHINERY, machinery), (ranks::LIBRARY_GLOBAL, others)]
}

/// Whether the globals are of a module of the program: its file is not where libraries lie.
fn is_own(heap: &Heap<'_, impl Memory>, globals: &[Entry]) -> bool {
    let objects = heap.objects();
    let file = globals.iter().find(|entry| objects.text(entry.key).as_deref() == Some("__file__"));
    let file = file.and_then(|entry| objects.text(entry.value));
    file.is_some_and(|file| !is_library_file(&file))
}
