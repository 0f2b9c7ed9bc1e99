//! Finds the objects of an engine by their classes: in the variables of running methods, else among
//! all objects.
//!
//! vLLM moves its objects to the permanent generation of the collector (`gc.freeze`), which the
//! collector's lists include.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use super::objects::{EngineObjects, LearnedFields};
use super::{EngineMemory, MOST_BYTES, MOST_KEPT_BYTES};
use crate::memory::{MemoryAccess, at};
use crate::pass::Pass;
use crate::python::classes::{ObjectKind, resolution_order};
use crate::python::frames::first_variables;
use crate::python::heap::Heap;
use crate::python::modules::ClassName;

/// Maximum number of objects that are searched.
const MOST_OBJECTS: usize = 10_000_000;
/// Maximum number of objects of the right class that are tried.
const MOST_TRIED: usize = 64;
/// `ob_ref` of a cell.
const CELL_CONTENT: u32 = 16;

/// Objects that lead to what is searched for.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineHolder {
    /// Class of the object, or a class that its class inherits from.
    pub(super) class: ClassName,
    /// Attributes from the object on, outermost first.
    pub(super) path: &'static [&'static str],
}

/// Objects among which a scheduler is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchBreadth {
    /// Variables of running methods: takes milliseconds.
    Frames,
    /// All objects, if no running method has it: takes up to a second.
    All,
}

/// Calls `take` with each holder and the object that it leads to, until it returns `true`. Returns whether a
/// class of the holders is loaded.
pub(super) fn search<M: MemoryAccess>(
    process: EngineMemory<'_, M>,
    (holders, breadth): (&[EngineHolder], SearchBreadth),
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> bool {
    let pass = Pass::new(process.memory, MOST_BYTES).keeping(MOST_KEPT_BYTES);
    let learned = LearnedFields::default();
    let objects = EngineObjects::new(&pass, process, &learned);
    let names: Vec<ClassName> = holders.iter().map(|holder| holder.class).collect();
    let classes = pass.sparsely(|| objects.objects.classes(&names));
    if classes.iter().all(Option::is_none) {
        return false;
    }
    let mut walk =
        HolderWalk { objects: &objects, holders, classes, kinds: HashMap::default(), tried: HashSet::default() };
    let in_frames = first_variables(process.memory, process.layout);
    let mut is_taken = |object: u64| walk.lead(object).is_some_and(|(holder, found)| take(holder, found));
    if pass.sparsely(|| in_frames.into_iter().any(&mut is_taken)) {
        return true;
    }
    if breadth == SearchBreadth::Frames {
        return true;
    }
    let Some(heap) = Heap::read(&pass, process.layout, MOST_OBJECTS) else { return true };
    let of_class = heap.iter().filter(|(_, class)| walk.holder(class.address).is_some()).map(|(object, _)| object);
    let candidates: Vec<u64> = of_class.take(MOST_TRIED).collect();
    for object in candidates {
        if walk.lead(object).is_some_and(|(holder, found)| take(holder, found)) {
            break;
        }
    }
    true
}

/// Follows objects that hold what is searched for.
struct HolderWalk<'a, M> {
    objects: &'a EngineObjects<'a, M>,
    holders: &'a [EngineHolder],
    /// Addresses of the holders' classes.
    classes: Vec<Option<u64>>,
    /// Index of the holder by class.
    kinds: HashMap<u64, Option<usize>, FixedState>,
    tried: HashSet<u64, FixedState>,
}

impl<M: MemoryAccess> HolderWalk<'_, M> {
    /// Returns the index of the holder that instances of a class are.
    fn holder(&mut self, class: u64) -> Option<usize> {
        if let Some(known) = self.kinds.get(&class) {
            return *known;
        }
        let order = resolution_order(self.objects.pass, class).unwrap_or_default();
        let is_one = |holder: &Option<u64>| holder.is_some_and(|holder| order.contains(&holder));
        let holder = self.classes.iter().position(is_one);
        self.kinds.insert(class, holder);
        holder
    }

    /// Returns a holder and the object that it leads to, if this object is a holder and was not tried
    /// before.
    fn lead(&mut self, object: u64) -> Option<(u64, u64)> {
        let mut object = object;
        if self.objects.class(object)?.kind == ObjectKind::Cell {
            // The variable is shared with a function inside the method.
            object = self.objects.pass.u64(at(object, CELL_CONTENT)?)?;
        }
        let holder = self.holder(self.objects.class(object)?.address)?;
        if !self.tried.insert(object) {
            return None;
        }
        let mut path = self.holders[holder].path.iter();
        Some((object, path.try_fold(object, |object, name| self.objects.optional(object, name))?))
    }
}
