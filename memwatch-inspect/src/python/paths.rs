//! The shortest way to each object: breadth first, from the variables of running functions and the globals of modules.
//!
//! The program's own come first: libraries are begun at only for what nothing else leads to.

use std::collections::VecDeque;

use super::classes::Kind;
use super::edges::{Edge, Label};
use super::heap::Heap;
use super::layout::MODULE_DICT;
use super::objects::Entry;
use super::path_text::text;
use crate::memory::{Memory, PATHS_SPENT, at};

/// Steps of a path that are followed: what is further is a chain of its own making.
const MOST_STEPS: usize = 4096;
/// Where libraries lie.
const LIBRARIES: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python"];

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
}

/// How each object was first reached.
#[derive(Debug)]
pub struct Paths {
    steps: Vec<Option<Step>>,
    references: Vec<u32>,
    /// Places that are no way: modules, and the dicts of their globals.
    is_closed: Vec<bool>,
    /// Places at which paths begin though nothing leads to them; empty while there are none.
    is_begun: Vec<bool>,
    is_cut: bool,
}

impl Paths {
    /// Looks through all that can be reached.
    pub fn search(heap: &Heap<'_, impl Memory>) -> Self {
        let count = heap.len();
        let mut paths = Self {
            steps: vec![None; count],
            references: vec![0; count],
            is_closed: vec![false; count],
            is_begun: Vec::new(),
            is_cut: false,
        };
        let (own, others) = globals(heap, &mut paths.is_closed);
        let mut queue = VecDeque::new();
        let first: Vec<_> = heap.thread_edges().into_iter().chain(own).collect();
        paths.put(None, &first, &mut queue);
        paths.spread(heap, &mut queue);
        paths.put(None, &others, &mut queue);
        paths.spread(heap, &mut queue);
        paths
    }

    fn spread(&mut self, heap: &Heap<'_, impl Memory>, queue: &mut VecDeque<u32>) {
        let mut edges = Vec::new();
        while let Some(place) = queue.pop_front() {
            if heap.objects().memory.spent() >= PATHS_SPENT {
                self.is_cut = true;
                break;
            }
            edges.clear();
            heap.put_edges(place, &mut edges);
            self.put(Some(place), &edges, queue);
        }
    }

    fn put(&mut self, from: Option<u32>, edges: &[Edge], queue: &mut VecDeque<u32>) {
        for edge in edges {
            let target = edge.target as usize;
            if self.is_closed[target] {
                continue;
            }
            self.references[target] = self.references[target].saturating_add(1);
            if self.steps[target].is_none() && !self.is_begun.get(target).copied().unwrap_or(false) {
                self.steps[target] = Some(Step { from, label: edge.label, slot: edge.slot });
                queue.push_back(edge.target);
            }
        }
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
        self.spread(heap, &mut queue);
    }

    /// The way to the object of a place, if one was found.
    pub fn path(&self, heap: &Heap<'_, impl Memory>, place: u32) -> Option<Path> {
        let (mut labels, mut links, mut is_through_traceback) = (Vec::new(), Vec::new(), false);
        let mut current = Some(place);
        while let Some(place) = current {
            let Some(step) = self.steps.get(place as usize).copied().flatten() else { break };
            labels.push(step.label);
            links.push(Link { slot: step.slot, object: heap.address(place)? });
            is_through_traceback |= heap.class(place).is_some_and(|class| class.kind == Kind::Traceback);
            current = step.from;
            if labels.len() > MOST_STEPS {
                return None;
            }
        }
        labels.reverse();
        let begin = current.and_then(|place| heap.class(place)).map(|class| class.short_name().to_owned());
        (!labels.is_empty()).then(|| Path { text: text(heap, begin, &labels), links, is_through_traceback })
    }
}

/// A reference as Python writes it behind the object that has it: `._local_tensor`, `[3]`.
pub fn reference_text(heap: &Heap<'_, impl Memory>, label: Label) -> String {
    text(heap, None, &[label])
}

/// The globals of the program's own modules, `__main__` first, and those of libraries. Modules and their dicts are closed.
fn globals(heap: &Heap<'_, impl Memory>, is_closed: &mut [bool]) -> (Vec<Edge>, Vec<Edge>) {
    let (objects, mut main, mut own, mut others) = (heap.objects(), Vec::new(), Vec::new(), Vec::new());
    let mut close = |object: u64| {
        if let Some(place) = heap.place(object) {
            is_closed[place as usize] = true;
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
            let entries = objects.entries(dict).unwrap_or_default();
            let name = objects.text(module.key);
            let part = match name.as_deref() {
                Some("__main__") => &mut main,
                _ if is_own(heap, &entries) => &mut own,
                _ => &mut others,
            };
            let label = |entry: &Entry| Label::Global { module: module.key, name: entry.key };
            part.extend(entries.iter().filter_map(|entry| heap.edge(label(entry), entry.value, entry.slot)));
        }
    }
    main.extend(own);
    (main, others)
}

/// Whether the globals are of a module of the program: its file is not where libraries lie.
fn is_own(heap: &Heap<'_, impl Memory>, globals: &[Entry]) -> bool {
    let objects = heap.objects();
    let file = globals.iter().find(|entry| objects.text(entry.key).as_deref() == Some("__file__"));
    let file = file.and_then(|entry| objects.text(entry.value));
    file.is_some_and(|file| LIBRARIES.iter().all(|folder| !file.contains(folder)))
}
