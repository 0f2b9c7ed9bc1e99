//! All objects of a process that its garbage collector knows: where they are, and of which classes. What they refer to is in `edges`.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::classes::{Class, Classes};
use super::collector::{self, LINK, LINKS_BYTES};
use super::layout::Layout;
use super::objects::Objects;
use crate::memory::{Memory, SEARCH_SPENT, at};

/// Interpreters of a process that are looked at.
const MOST_INTERPRETERS: usize = 64;
/// The words of a link: `_gc_next` and `_gc_prev`.
const NEXT: u32 = 0;
const PREVIOUS: u32 = 8;

/// The objects of a process.
#[derive(Debug)]
pub struct Heap<'a, M> {
    pub(super) objects: Objects<'a, M>,
    pub(super) classes: Classes,
    interpreters: Vec<u64>,
    addresses: Vec<u64>,
    numbers: Vec<u32>,
    places: HashMap<u64, u32, FixedState>,
    is_partial: bool,
    is_cut: bool,
}

impl<'a, M: Memory> Heap<'a, M> {
    /// Follows the collector's lists, to so many objects at most; `None` where there are no such lists.
    pub fn read(memory: &'a M, layout: &'a Layout, most_objects: usize) -> Option<Self> {
        let objects = Objects { memory, layout };
        let interpreters = collector::list(
            memory,
            memory.u64(layout.walk.interpreters_head)?,
            layout.walk.interpreter_next,
            MOST_INTERPRETERS,
        );
        let mut heap = Self {
            objects,
            classes: Classes::default(),
            interpreters,
            addresses: Vec::new(),
            numbers: Vec::new(),
            places: HashMap::with_hasher(FixedState::default()),
            is_partial: false,
            is_cut: false,
        };
        let heads: Vec<_> = heap
            .interpreters
            .iter()
            .filter_map(|interpreter| collector::generations(memory, *interpreter))
            .flatten()
            .collect();
        for head in &heads {
            let most_objects = most_objects.min(u32::MAX as usize);
            if heap.follow(*head, NEXT, most_objects).is_none() {
                heap.is_partial = true;
                // What is behind the place where it broke is reached from the other end.
                heap.follow(*head, PREVIOUS, most_objects);
            }
        }
        (!heads.is_empty()).then_some(heap)
    }

    /// Takes the objects of a list, along its links of one direction; `None` where it does not lead back to its head, because it changes while it is
    /// read, or is too long.
    fn follow(&mut self, head: u64, direction: u32, most_objects: usize) -> Option<()> {
        let memory = self.objects.memory;
        let mut links = memory.u64(at(head, direction)?)? & LINK;
        while links != head {
            let object = at(links, LINKS_BYTES)?;
            let [next, previous, _, class] = *memory.words(links, 4)?.first_chunk()?;
            if self.addresses.len() >= most_objects || memory.spent() >= SEARCH_SPENT {
                self.is_cut = true;
                return None;
            }
            let Place::Vacant(place) = self.places.entry(object) else { return None };
            let number = self.classes.number(memory, class)?;
            place.insert(u32::try_from(self.addresses.len()).ok()?);
            self.addresses.push(object);
            self.numbers.push(number);
            links = if direction == NEXT { next } else { previous } & LINK;
        }
        Some(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Whether objects may be missing: a list changed while it was read, or has more than are looked at.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Whether there are more than are looked at, or than there is time for.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The place of an object among them.
    pub fn place(&self, object: u64) -> Option<u32> {
        self.places.get(&object).copied()
    }

    /// The object of a place.
    pub fn address(&self, place: u32) -> Option<u64> {
        self.addresses.get(place as usize).copied()
    }

    /// The class of the object of a place.
    pub fn class(&self, place: u32) -> Option<Rc<Class>> {
        self.classes.get(*self.numbers.get(place as usize)?)
    }

    /// All objects with their classes, in the order of the lists: the youngest generation first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Rc<Class>)> {
        self.addresses
            .iter()
            .zip(&self.numbers)
            .filter_map(|(object, number)| Some((*object, self.classes.get(*number)?)))
    }

    /// The class of any object, also of one that the collector does not know.
    pub fn class_of(&self, object: u64) -> Option<Rc<Class>> {
        self.classes.at(self.objects.memory, self.objects.type_of(object)?)
    }

    /// Dicts, attributes and strings.
    pub fn objects(&self) -> &Objects<'a, M> {
        &self.objects
    }

    /// The interpreters of the process.
    pub fn interpreters(&self) -> &[u64] {
        &self.interpreters
    }
}
