//! All objects of a process that its garbage collector knows: where they are, and of which classes. What they refer to is in `edges`.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::classes::{Class, Classes};
use super::collector::{self, LINK, LINKS_BYTES, MOST_INTERPRETERS};
use super::layout::{Layout, TYPE};
use super::objects::Objects;
use crate::memory::{Memory, SEARCH_SPENT, at};

/// `Py_TPFLAGS_HAVE_GC` (Include/object.h).
const HAS_LINKS: u64 = 1 << 14;
/// Objects that are taken in after the lists were read.
const MOST_LATE: usize = 1 << 20;
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
    late: RefCell<LateObjects>,
    takes_late: Cell<bool>,
    /// The numbers of a notebook's cells, by the files that stand for them.
    pub(super) cells: OnceCell<HashMap<String, i64, FixedState>>,
    is_partial: bool,
    is_cut: bool,
}

/// Objects that came while the lists were read, or after that: where a reference leads to one, it is taken in.
#[derive(Debug, Default)]
struct LateObjects {
    addresses: Vec<u64>,
    numbers: Vec<u32>,
    /// `None` of what is no object.
    places: HashMap<u64, Option<u32>, FixedState>,
}

fn four_words(memory: &impl Memory, address: u64) -> Option<[u64; 4]> {
    let bytes = memory.array::<32>(at(address, 0)?)?;
    let mut words = [0; 4];
    words.iter_mut().zip(bytes.as_chunks::<8>().0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    Some(words)
}

/// Where a list of the collector ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListEnd {
    /// At its head, as it should.
    Head,
    /// At an object that was met already.
    Known,
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
            late: RefCell::default(),
            takes_late: Cell::new(false),
            cells: OnceCell::new(),
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
            if heap.follow(*head, NEXT, most_objects) != Some(ListEnd::Head) {
                // What is behind the place where it broke is reached from the other end. Where both ways meet, nothing but what came meanwhile is missing.
                heap.is_partial |= heap.follow(*head, PREVIOUS, most_objects).is_none() || heap.is_cut;
            }
        }
        (!heads.is_empty()).then_some(heap)
    }

    /// Takes the objects of a list, along its links of one direction; `None` where it leads to no object, because it changes while it is read, or is too
    /// long.
    fn follow(&mut self, head: u64, direction: u32, most_objects: usize) -> Option<ListEnd> {
        let memory = self.objects.memory;
        let mut links = memory.u64(at(head, direction)?)? & LINK;
        let mut last = (0, 0);
        while links != head {
            let object = at(links, LINKS_BYTES)?;
            let [next, previous, _, class] = four_words(memory, links)?;
            if self.addresses.len() >= most_objects || memory.spent() >= SEARCH_SPENT {
                self.is_cut = true;
                return None;
            }
            let Place::Vacant(place) = self.places.entry(object) else { return Some(ListEnd::Known) };
            // Neighbours are often of one class.
            let number = if class == last.0 { last.1 } else { self.classes.number(memory, class)? };
            last = (class, number);
            place.insert(u32::try_from(self.addresses.len()).ok()?);
            self.addresses.push(object);
            self.numbers.push(number);
            links = if direction == NEXT { next } else { previous } & LINK;
        }
        Some(ListEnd::Head)
    }

    /// Takes in objects that are not in the lists yet, from now on: for a second look at a program that goes on. What is no object is asked again.
    pub fn take_late(&self) {
        self.takes_late.set(true);
        self.late.borrow_mut().places.retain(|_, place| place.is_some());
    }

    /// Whether it is a second look, in which what was met earlier may have changed.
    pub(super) fn is_moving(&self) -> bool {
        self.takes_late.get()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.addresses.len() + self.late.borrow().addresses.len()
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
        match self.places.get(&object) {
            Some(place) => Some(*place),
            None if self.takes_late.get() => self.late_place(object),
            None => None,
        }
    }

    fn late_place(&self, object: u64) -> Option<u32> {
        if let Some(place) = self.late.borrow().places.get(&object) {
            return *place;
        }
        let number = self.late_number(object);
        let mut late = self.late.borrow_mut();
        let number = number.filter(|_| late.addresses.len() < MOST_LATE);
        let place = number.and_then(|_| u32::try_from(self.addresses.len() + late.addresses.len()).ok());
        if let Some(number) = number {
            late.addresses.push(object);
            late.numbers.push(number);
        }
        late.places.insert(object, place);
        place
    }

    /// The class of an object that is in none of the lists: one that is known already, and the object is linked into a list now.
    fn late_number(&self, object: u64) -> Option<u32> {
        let memory = self.objects.memory;
        let links = object.checked_sub(LINKS_BYTES.into()).filter(|_| object.is_multiple_of(8))?;
        let [next, previous, _, class] = four_words(memory, at(links, 0)?)?;
        let number = self.classes.known(class)?;
        let has_links = self.classes.get(number)?.flags & HAS_LINKS != 0 && next & LINK != 0 && previous & LINK != 0;
        has_links.then_some(number)
    }

    /// Whether the object of a place is what it was when it was met.
    pub fn is_same(&self, place: u32) -> bool {
        let is_same = || {
            let class = self.objects.memory.u64(at(self.address(place)?, TYPE)?)?;
            Some(self.class(place)?.address == class)
        };
        is_same() == Some(true)
    }

    /// The object of a place.
    pub fn address(&self, place: u32) -> Option<u64> {
        let place = place as usize;
        match place.checked_sub(self.addresses.len()) {
            None => self.addresses.get(place).copied(),
            Some(late) => self.late.borrow().addresses.get(late).copied(),
        }
    }

    /// The class of the object of a place.
    pub fn class(&self, place: u32) -> Option<Rc<Class>> {
        let place = place as usize;
        let number = match place.checked_sub(self.addresses.len()) {
            None => self.numbers.get(place).copied(),
            Some(late) => self.late.borrow().numbers.get(late).copied(),
        };
        self.classes.get(number?)
    }

    /// All objects of the lists with their classes, in their order: the youngest generation first.
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
