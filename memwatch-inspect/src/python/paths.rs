//! Finds the best path to each object: from the longest-living root, and among those the shortest.
//!
//! Roots have ranks, and each rank is searched completely before the next. A path thus stays the
//! same between readings as long as its root lives. The order is: globals of the program, frames of
//! its code from the outermost inward, and libraries only for objects that nothing else leads to.

use std::collections::VecDeque;

use super::classes::ObjectKind;
use super::edges::{Edge, EdgeLabel};
use super::frames::{RunningFrames, is_library_file};
use super::heap::Heap;
use super::layout::MODULE_DICT;
use super::notebook::{SHELL, is_machinery};
use super::objects::DictEntry;
use super::path_text::text;
use crate::memory::{MemoryAccess, PATHS_SPENT, at};

/// Maximum length of a path. Longer chains are data structures of their own.
const MOST_STEPS: usize = 4096;

/// How an object was first reached.
#[derive(Clone, Copy, Debug)]
struct PathStep {
    /// Index of the referring object; `None` for a reference from a root.
    from: Option<u32>,
    label: EdgeLabel,
    slot: u64,
}

/// A reference on a path, for checking it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLink {
    /// Address of the word that refers to the object.
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
    steps: Vec<Option<PathStep>>,
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
            if !follows_tracebacks && heap.class(place).is_some_and(|class| class.kind == ObjectKind::Traceback) {
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
                self.steps[target] = Some(PathStep { from, label: edge.label, slot: edge.slot });
                self.ranks[target] = self.rank;
                queue.push_back(edge.target);
            }
        }
    }

    /// Makes room for objects that were added later.
    fn grow(&mut self, count: usize) {
        self.steps.resize(count, None);
        self.references.resize(count, 0);
        self.ranks.resize(count, 0);
        self.is_closed.resize(count, false);
    }

    /// Returns the quality of the path to an object; `None` if it was not reached.
    pub fn rank(&self, place: u32) -> Option<PathRank> {
        let mut step = self.steps.get(place as usize).copied().flatten()?;
        let mut length = 1;
        while let Some(next) = step.from.and_then(|from| self.steps.get(from as usize).copied().flatten()) {
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
        let before: Vec<bool> = self.steps.iter().map(Option::is_some).collect();
        for (object, owner, slot) in kept {
            self.rank = self.ranks.get(*owner as usize).copied().unwrap_or(u8::MAX);
            let edge = Edge { label: EdgeLabel::Graph, target: *object, slot: *slot };
            self.put(Some(*owner), &[edge], &mut queue);
        }
        self.spread_through(heap, &mut queue, usize::MAX, true);
        let is_new = |place: &u32| {
            let place = *place as usize;
            self.steps[place].is_some() && !before.get(place).copied().unwrap_or(false)
        };
        (0..u32::try_from(self.steps.len()).unwrap_or(u32::MAX)).filter(is_new).collect()
    }

    /// Returns the index of the tensor that owns the first autograd graph on the path to an object.
    pub fn graph_of(&self, place: u32) -> Option<u32> {
        let mut graph_of = None;
        let mut current = Some(place);
        for _ in 0..MOST_STEPS {
            let Some(step) = current.and_then(|place| self.steps.get(place as usize).copied().flatten()) else { break };
            if step.label == EdgeLabel::Graph {
                graph_of = step.from;
            }
            current = step.from;
        }
        graph_of
    }

    /// Returns whether the search ended early because of a limit.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns whether an object was reached.
    pub fn is_reached(&self, place: u32) -> bool {
        self.steps.get(place as usize).is_some_and(Option::is_some)
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
        let mut current = Some(place);
        while let Some(place) = current {
            let Some(step) = self.steps.get(place as usize).copied().flatten() else { break };
            if heap.class(place).is_some_and(|class| class.kind == ObjectKind::Traceback) {
                traceback = Some(labels.len());
            }
            if step.label == EdgeLabel::Graph {
                graph_of = step.from;
            }
            labels.push(step.label);
            links.push(PathLink { slot: step.slot, object: heap.address(place)? });
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

/// Returns a reference as Python writes it behind the referring object: `._local_tensor`, `[3]`.
pub fn reference_text(heap: &Heap<'_, impl MemoryAccess>, label: EdgeLabel) -> String {
    text(heap, None, &[label], None)
}

/// Ranks of roots. A lower one lives longer and says more to the program's author.
mod ranks {
    /// Globals of the program.
    pub(super) const GLOBAL: u8 = 0;
    /// Frames of the program's code that ran when the reading began, and later ones.
    pub(super) const STANDING_FRAME: u8 = 1;
    pub(super) const FRAME: u8 = 2;
    /// Variables of IPython in the program's globals.
    pub(super) const MACHINERY: u8 = 3;
    pub(super) const LIBRARY_STANDING_FRAME: u8 = 4;
    pub(super) const LIBRARY_GLOBAL: u8 = 5;
    pub(super) const LIBRARY_FRAME: u8 = 6;
    /// Thread states.
    pub(super) const THREAD: u8 = 7;
    /// Finished frames that a traceback retains.
    pub(super) const TRACEBACK: u8 = 8;
}

/// Returns all roots, best first. Each frame is a rank of its own. Modules and their dicts are
/// closed.
fn roots(
    heap: &Heap<'_, impl MemoryAccess>,
    earlier: &RunningFrames,
    is_closed: &mut Vec<bool>,
) -> Vec<(u8, Vec<Edge>)> {
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
    // The sort is stable, so frames of one rank keep their order.
    roots.sort_by_key(|(rank, _)| *rank);
    roots
}

/// Returns the globals of the program's modules with `__main__` first, IPython's variables, and the
/// globals of libraries.
fn globals(heap: &Heap<'_, impl MemoryAccess>, is_closed: &mut Vec<bool>) -> Vec<(u8, Vec<Edge>)> {
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
            if heap.class_of(module.value).is_none_or(|class| class.kind != ObjectKind::Module) {
                continue;
            }
            let Some(dict) = at(module.value, MODULE_DICT).and_then(|at| objects.memory.u64(at)) else { continue };
            close(module.value);
            close(dict);
            let mut entries = objects.entries(dict).unwrap_or_default();
            let name = objects.text(module.key);
            let label = |entry: &DictEntry| EdgeLabel::Global { module: module.key, name: entry.key };
            let edge = |entry: &DictEntry| heap.edge(label(entry), entry.value, entry.slot);
            let part = match name.as_deref() {
                Some("__main__") => {
                    let text = |entry: &DictEntry| objects.text(entry.key).unwrap_or_default();
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

/// Returns whether these are the globals of a module of the program: its file is not in a library
/// folder.
fn is_own(heap: &Heap<'_, impl MemoryAccess>, globals: &[DictEntry]) -> bool {
    let objects = heap.objects();
    let file = globals.iter().find(|entry| objects.text(entry.key).as_deref() == Some("__file__"));
    let file = file.and_then(|entry| objects.text(entry.value));
    file.is_some_and(|file| !is_library_file(&file))
}
