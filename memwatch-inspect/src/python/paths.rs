//! Finds the best path to each object: from the longest-living root, and among those the shortest.
//!
//! Roots have ranks, and each rank is searched completely before the next. A path thus stays the
//! same between readings as long as its root lives. The order is: globals of the program, frames of
//! its code from the outermost inward, and libraries only for objects that nothing else leads to.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::classes::ObjectKind;
use super::edges::{Edge, EdgeLabel};
use super::frames::RunningFrames;
use super::heap::Heap;
use super::path_text::text;
use super::references::References;
use super::roots::{ranks, roots};
use crate::memory::{FOLLOWED_SPENT, MemoryAccess, PATHS_SPENT};

/// Number of objects whose references are read one at a time. Few lead to most tensors, and their
/// order is that of the search. For more, reading all references at once is faster.
const MOST_SINGLY: usize = 1 << 12;
/// Maximum length of a path. Longer chains are data structures of their own.
const MOST_STEPS: usize = 4096;

/// How an object was first reached. This is kept for each object, so it has no label: that is read
/// again for the few objects with a path that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathStep {
    /// Index of the referring object, or [`NONE`] for a reference from a root.
    from: u32,
    /// Index among the references that no object has by itself, or [`NONE`].
    given: u32,
}

const NONE: u32 = u32::MAX;
const NOT_REACHED: PathStep = PathStep { from: NONE, given: NONE };

impl PathStep {
    fn from(self) -> Option<u32> {
        (self.from != NONE).then_some(self.from)
    }
}

/// A reference on a path, for checking it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLink {
    /// Address of the word that refers to the object; 0 if it no longer does.
    pub slot: u64,
    /// Address of the object.
    pub object: u64,
}

/// A path to an object.
#[derive(Clone, Debug)]
pub struct Path {
    /// The path in Python syntax, as far as possible.
    pub text: String,
    /// References of the path, from the object to the root.
    pub links: Vec<PathLink>,
    /// The path leads through a traceback.
    pub is_through_traceback: bool,
    /// Index of the tensor that owns the first autograd graph on the path, if any.
    pub graph_of: Option<u32>,
    /// A reference of the path has changed since the search, so the path does not hold.
    pub is_changed: bool,
}

/// Quality of the path to an object; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathRank {
    /// Rank of the path's root.
    pub root: u8,
    /// Number of references on the path.
    length: u32,
}

/// Extent of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breadth {
    /// Also search from roots of libraries.
    pub of_libraries: bool,
    /// Maximum number of objects searched from each root.
    pub objects_per_root: usize,
}

/// Search results: how each object was first reached.
#[derive(Debug)]
pub struct Paths {
    steps: Vec<PathStep>,
    /// References from roots, and those from autograd graphs.
    given: Vec<Edge>,
    /// References of objects on paths that were written, by object and sorted by target.
    labelled: RefCell<HashMap<u32, Vec<Edge>, FixedState>>,
    /// References of all objects, once the search needs them.
    references_of: Rc<References>,
    /// Number of objects whose references were read one at a time.
    read_singly: usize,
    references: Vec<u32>,
    /// Rank of the root of each object.
    ranks: Vec<u8>,
    /// Rank that is being searched.
    rank: u8,
    /// Tracebacks that were reached and not followed yet. Objects of their frames belong to the
    /// program only if nothing else leads to them.
    tracebacks: Vec<u32>,
    /// Objects that paths do not pass through: modules and the dicts of their globals.
    is_closed: Vec<bool>,
    /// Objects at which paths begin although nothing leads to them; empty if there are none.
    is_begun: Vec<bool>,
    is_cut: bool,
}

impl Paths {
    /// Searches everything that can be reached. `earlier` are the frames that ran when the reading
    /// began.
    pub fn search(heap: &Heap<'_, impl MemoryAccess>, earlier: &RunningFrames) -> Self {
        Self::search_within(heap, earlier, Breadth { of_libraries: true, objects_per_root: usize::MAX })
    }

    /// Searches to a given extent.
    pub fn search_within(heap: &Heap<'_, impl MemoryAccess>, earlier: &RunningFrames, breadth: Breadth) -> Self {
        let count = heap.len();
        let mut paths = Self {
            steps: vec![NOT_REACHED; count],
            given: Vec::new(),
            labelled: RefCell::default(),
            references_of: Rc::default(),
            read_singly: 0,
            references: vec![0; count],
            ranks: vec![0; count],
            rank: 0,
            tracebacks: Vec::new(),
            is_closed: vec![false; count],
            is_begun: Vec::new(),
            is_cut: false,
        };
        for (rank, edges) in roots(heap, earlier, breadth.of_libraries, &mut paths.is_closed) {
            if rank > ranks::MACHINERY {
                paths.follow_tracebacks(heap, breadth.objects_per_root);
                if !breadth.of_libraries {
                    return paths;
                }
                if breadth.objects_per_root == usize::MAX {
                    paths.read_references(heap);
                }
            }
            paths.rank = rank;
            let mut queue = VecDeque::new();
            paths.put_given(NONE, &edges, &mut queue);
            if edges.len() > breadth.objects_per_root {
                // A search that does not even see all objects that a root leads to says nothing.
                paths.is_cut = true;
                continue;
            }
            paths.spread(heap, &mut queue, breadth.objects_per_root);
        }
        paths.follow_tracebacks(heap, breadth.objects_per_root);
        paths
    }

    fn follow_tracebacks(&mut self, heap: &Heap<'_, impl MemoryAccess>, most: usize) {
        let mut queue: VecDeque<_> = std::mem::take(&mut self.tracebacks).into();
        self.rank = ranks::TRACEBACK;
        self.spread_through(heap, &mut queue, most, true);
    }

    fn spread(&mut self, heap: &Heap<'_, impl MemoryAccess>, queue: &mut VecDeque<u32>, most: usize) {
        self.spread_through(heap, queue, most, false);
    }

    fn spread_through(
        &mut self,
        heap: &Heap<'_, impl MemoryAccess>,
        queue: &mut VecDeque<u32>,
        most: usize,
        follows_tracebacks: bool,
    ) {
        let mut left = most;
        while let Some(place) = queue.pop_front() {
            if left == 0 || heap.objects().memory.spent() >= FOLLOWED_SPENT {
                self.is_cut = true;
                break;
            }
            left -= 1;
            if most == usize::MAX && self.read_singly >= MOST_SINGLY {
                self.read_references(heap);
            }
            let references_of = Rc::clone(&self.references_of);
            let is_traceback = || heap.class(place).is_some_and(|class| class.kind == ObjectKind::Traceback);
            if !follows_tracebacks && is_traceback() {
                self.tracebacks.push(place);
            } else if let Some(known) = references_of.of(place) {
                self.put(place, known, queue);
            } else if heap.objects().memory.spent() < PATHS_SPENT {
                self.put_read(heap, place, queue);
            } else {
                self.is_cut = true;
            }
        }
    }

    /// Reads the references of all objects at once, if they were not read yet.
    fn read_references(&mut self, heap: &Heap<'_, impl MemoryAccess>) {
        if self.references_of.is_empty() {
            self.references_of = Rc::new(References::read(heap));
            self.is_cut |= self.references_of.is_cut();
        }
    }

    /// Reads an object's references, and takes them.
    fn put_read(&mut self, heap: &Heap<'_, impl MemoryAccess>, place: u32, queue: &mut VecDeque<u32>) {
        self.read_singly += 1;
        if heap.is_moving() && !heap.is_same(place) {
            return;
        }
        let mut edges = Vec::new();
        heap.put_edges(place, &mut edges);
        let targets: Vec<_> = edges.iter().map(|edge| edge.target).collect();
        self.put(place, &targets, queue);
    }

    /// Takes an object's references.
    fn put(&mut self, from: u32, targets: &[u32], queue: &mut VecDeque<u32>) {
        for target in targets {
            self.put_step(*target, PathStep { from, given: NONE }, queue);
        }
    }

    /// Takes references that no object has by itself.
    fn put_given(&mut self, from: u32, edges: &[Edge], queue: &mut VecDeque<u32>) {
        for edge in edges {
            let given = u32::try_from(self.given.len()).unwrap_or(NONE);
            if self.put_step(edge.target, PathStep { from, given }, queue) {
                self.given.push(*edge);
            }
        }
    }

    /// Counts a reference. Returns whether the object is reached by it for the first time.
    fn put_step(&mut self, target: u32, step: PathStep, queue: &mut VecDeque<u32>) -> bool {
        let place = target as usize;
        if place >= self.steps.len() {
            self.grow(place + 1);
        }
        if self.is_closed[place] {
            return false;
        }
        self.references[place] = self.references[place].saturating_add(1);
        let is_first = self.steps[place] == NOT_REACHED && !self.is_begun.get(place).copied().unwrap_or(false);
        if is_first {
            self.steps[place] = step;
            self.ranks[place] = self.rank;
            queue.push_back(target);
        }
        is_first
    }

    /// Makes room for objects that were added later.
    fn grow(&mut self, count: usize) {
        self.steps.resize(count, NOT_REACHED);
        self.references.resize(count, 0);
        self.ranks.resize(count, 0);
        self.is_closed.resize(count, false);
    }

    /// Returns the quality of the path to an object; `None` if it was not reached.
    pub fn rank(&self, place: u32) -> Option<PathRank> {
        let mut step = self.step(place)?;
        let mut length = 1;
        while let Some(next) = step.from().and_then(|from| self.step(from)) {
            (step, length) = (next, length + 1);
            if length as usize > MOST_STEPS {
                break;
            }
        }
        Some(PathRank { root: *self.ranks.get(place as usize)?, length })
    }

    /// Continues the search at objects that nodes of autograd graphs retain, each given with the
    /// index of the graph's tensor and the slot's address. Returns the indices of newly reached
    /// objects.
    pub fn follow_kept(&mut self, heap: &Heap<'_, impl MemoryAccess>, kept: &[(u32, u32, u64)]) -> Vec<u32> {
        let mut queue = VecDeque::new();
        let before: Vec<bool> = self.steps.iter().map(|step| *step != NOT_REACHED).collect();
        for (object, owner, slot) in kept {
            self.rank = self.ranks.get(*owner as usize).copied().unwrap_or(u8::MAX);
            let edge = Edge { label: EdgeLabel::Graph, target: *object, slot: *slot };
            self.put_given(*owner, &[edge], &mut queue);
        }
        self.spread_through(heap, &mut queue, usize::MAX, true);
        let is_new = |place: &u32| self.is_reached(*place) && !before.get(*place as usize).copied().unwrap_or(false);
        (0..u32::try_from(self.steps.len()).unwrap_or(u32::MAX)).filter(is_new).collect()
    }

    /// Returns the index of the tensor that owns the first autograd graph on the path to an object.
    pub fn graph_of(&self, place: u32) -> Option<u32> {
        let mut graph_of = None;
        let mut current = Some(place);
        for _ in 0..MOST_STEPS {
            let Some(step) = current.and_then(|place| self.step(place)) else { break };
            if self.is_of_graph(step) {
                graph_of = step.from();
            }
            current = step.from();
        }
        graph_of
    }

    /// Returns whether the search ended early because of a limit.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns whether an object was reached.
    pub fn is_reached(&self, place: u32) -> bool {
        self.step(place).is_some()
    }

    fn step(&self, place: u32) -> Option<PathStep> {
        self.steps.get(place as usize).copied().filter(|step| *step != NOT_REACHED)
    }

    fn is_of_graph(&self, step: PathStep) -> bool {
        self.given.get(step.given as usize).is_some_and(|edge| edge.label == EdgeLabel::Graph)
    }

    /// Returns the reference by which an object was reached; `None` if it has changed since.
    fn edge(&self, heap: &Heap<'_, impl MemoryAccess>, step: PathStep, place: u32) -> Option<Edge> {
        if let Some(given) = self.given.get(step.given as usize) {
            return Some(*given);
        }
        let mut labelled = self.labelled.borrow_mut();
        let edges = labelled.entry(step.from).or_insert_with(|| {
            let mut edges = Vec::new();
            heap.put_edges(step.from, &mut edges);
            // The sort is stable, so the first reference to an object stays the first.
            edges.sort_by_key(|edge| edge.target);
            edges
        });
        edges.get(edges.partition_point(|edge| edge.target < place)).copied().filter(|edge| edge.target == place)
    }

    /// Returns the number of references to an object that were found.
    pub fn references(&self, place: u32) -> u32 {
        self.references.get(place as usize).copied().unwrap_or(0)
    }

    /// Continues the search at objects that nothing leads to. Objects that only they refer to then
    /// have paths that begin at them.
    pub fn begin_at(&mut self, heap: &Heap<'_, impl MemoryAccess>, places: impl IntoIterator<Item = u32>) {
        let mut queue: VecDeque<_> = places.into_iter().collect();
        self.is_begun = vec![false; heap.len()];
        for place in &queue {
            self.is_begun[*place as usize] = true;
        }
        self.rank = u8::MAX;
        self.spread_through(heap, &mut queue, usize::MAX, true);
    }

    /// Returns the path to an object, if one was found.
    pub fn path(&self, heap: &Heap<'_, impl MemoryAccess>, place: u32) -> Option<Path> {
        let (mut labels, mut links, mut traceback, mut graph_of) = (Vec::new(), Vec::new(), None, None);
        let (mut current, mut is_changed) = (Some(place), false);
        while let Some(place) = current {
            let Some(step) = self.step(place) else { break };
            if heap.class(place).is_some_and(|class| class.kind == ObjectKind::Traceback) {
                traceback = Some(labels.len());
            }
            if self.is_of_graph(step) {
                graph_of = step.from();
            }
            let edge = self.edge(heap, step, place);
            is_changed |= edge.is_none();
            let edge = edge.unwrap_or(Edge { label: EdgeLabel::Member, target: place, slot: 0 });
            labels.push(edge.label);
            links.push(PathLink { slot: edge.slot, object: heap.address(place)? });
            current = step.from();
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
            is_changed,
        })
    }

    /// Returns the path to an object as text, if one was found that has not changed since.
    pub fn path_text(&self, heap: &Heap<'_, impl MemoryAccess>, place: u32) -> Option<String> {
        self.path(heap, place).filter(|path| !path.is_changed).map(|path| path.text)
    }
}

/// Returns a reference as Python writes it behind the referring object: `._local_tensor`, `[3]`.
pub fn reference_text(heap: &Heap<'_, impl MemoryAccess>, label: EdgeLabel) -> String {
    text(heap, None, &[label], None)
}
