//! Lists all objects that a process's garbage collector tracks, with their classes. Their
//! references are in `edges`.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::classes::{PythonClass, PythonClasses};
use super::collector::{self, LINK, LINKS_BYTES, MOST_INTERPRETERS};
use super::layout::{CpythonLayout, TYPE};
use super::objects::Objects;
use super::places::{AddressSet, Places};
use crate::memory::{MemoryAccess, SEARCH_SPENT, at};

/// `Py_TPFLAGS_HAVE_GC` (Include/object.h).
const HAS_LINKS: u64 = 1 << 14;
/// Maximum number of objects added after the lists were read.
const MOST_LATE: usize = 1 << 20;
/// Offsets of the links `_gc_next` and `_gc_prev`.
const NEXT: u32 = 0;
const PREVIOUS: u32 = 8;

/// Objects of a process.
#[derive(Debug)]
pub struct Heap<'a, M> {
    pub(super) objects: Objects<'a, M>,
    pub(super) classes: PythonClasses,
    interpreters: Vec<u64>,
    addresses: Vec<u64>,
    numbers: Vec<u32>,
    places: Places,
    late: RefCell<LateObjects>,
    takes_late: Cell<bool>,
    /// Modules of libraries that earlier searches have seen, with the dicts of their globals.
    pub(super) library_modules: RefCell<HashMap<u64, u64, FixedState>>,
    /// Numbers of a notebook's cells by file.
    pub(super) cells: OnceCell<HashMap<String, i64, FixedState>>,
    is_partial: bool,
    is_cut: bool,
}

/// Objects created while or after the lists were read. They are added when a reference leads to
/// them.
#[derive(Debug, Default)]
struct LateObjects {
    addresses: Vec<u64>,
    numbers: Vec<u32>,
    places: HashMap<u64, u32, FixedState>,
    /// Addresses at which there is no object.
    others: AddressSet,
}

fn four_words(memory: &impl MemoryAccess, address: u64) -> Option<[u64; 4]> {
    let bytes = memory.array::<32>(at(address, 0)?)?;
    let mut words = [0; 4];
    words.iter_mut().zip(bytes.as_chunks::<8>().0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    Some(words)
}

/// Where following a list of the collector ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListEnd {
    /// At its head, as expected.
    Head,
    /// At an object that was seen before.
    Known,
}

impl<'a, M: MemoryAccess> Heap<'a, M> {
    /// Reads the collector's lists, up to a maximum number of objects; `None` if there are no
    /// lists.
    pub fn read(memory: &'a M, layout: &'a CpythonLayout, most_objects: usize) -> Option<Self> {
        let objects = Objects { memory, layout };
        let interpreters = collector::list(
            memory,
            memory.u64(layout.walk.interpreters_head)?,
            layout.walk.interpreter_next,
            MOST_INTERPRETERS,
        );
        let mut heap = Self {
            objects,
            classes: PythonClasses::default(),
            interpreters,
            addresses: Vec::new(),
            numbers: Vec::new(),
            places: Places::default(),
            late: RefCell::default(),
            takes_late: Cell::new(false),
            library_modules: RefCell::default(),
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
        let mut seen = AddressSet::default();
        for head in &heads {
            let most_objects = most_objects.min(u32::MAX as usize);
            if heap.follow((*head, NEXT), most_objects, &mut seen) != Some(ListEnd::Head) {
                // The rest behind the break is reached from the other end. If both directions meet,
                // only objects created meanwhile are missing.
                let end = heap.follow((*head, PREVIOUS), most_objects, &mut seen);
                heap.is_partial |= end.is_none() || heap.is_cut;
            }
        }
        heap.places = Places::new(seen, &heap.addresses);
        (!heads.is_empty()).then_some(heap)
    }

    /// Adds the objects of a list in one direction. Returns `None` if a link does not lead to an
    /// object, because the list is changing, or the list is too long.
    fn follow(&mut self, (head, direction): (u64, u32), most_objects: usize, seen: &mut AddressSet) -> Option<ListEnd> {
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
            if seen.contains(object) {
                return Some(ListEnd::Known);
            }
            // Neighbours often have the same class.
            let number = if class == last.0 { last.1 } else { self.classes.number(memory, class)? };
            last = (class, number);
            seen.insert(object);
            self.addresses.push(object);
            self.numbers.push(number);
            links = if direction == NEXT { next } else { previous } & LINK;
        }
        Some(ListEnd::Head)
    }

    /// From here on, adds objects that are not in the lists when references lead to them, for
    /// another search while the program runs. Addresses that were no objects are checked again.
    pub fn take_late(&self) {
        self.takes_late.set(true);
        self.late.borrow_mut().others.clear();
    }

    /// Returns whether late objects are added, in which case objects seen earlier may have changed.
    pub(super) fn is_moving(&self) -> bool {
        self.takes_late.get()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.addresses.len() + self.late.borrow().addresses.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Returns whether objects may be missing: a list changed while it was read, or has too many
    /// objects.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns whether reading the lists ended early because of a limit.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the index of an object.
    pub fn place(&self, object: u64) -> Option<u32> {
        match self.places.get(object) {
            Some(place) => Some(place),
            None if self.takes_late.get() => self.late_place(object),
            None => None,
        }
    }

    fn late_place(&self, object: u64) -> Option<u32> {
        if self.late.borrow().others.contains(object) {
            return None;
        }
        if let Some(place) = self.late.borrow().places.get(&object) {
            return Some(*place);
        }
        let number = self.late_number(object);
        let mut late = self.late.borrow_mut();
        let place = u32::try_from(self.addresses.len() + late.addresses.len()).ok();
        let Some((number, place)) = number.zip(place).filter(|_| late.addresses.len() < MOST_LATE) else {
            late.others.insert(object);
            return None;
        };
        late.addresses.push(object);
        late.numbers.push(number);
        late.places.insert(object, place);
        Some(place)
    }

    /// Returns the class of an object that is in none of the lists read. It must be a known class,
    /// and the object must be linked into a list.
    fn late_number(&self, object: u64) -> Option<u32> {
        let memory = self.objects.memory;
        let links = object.checked_sub(LINKS_BYTES.into()).filter(|_| object.is_multiple_of(8))?;
        let [next, previous, _, class] = four_words(memory, at(links, 0)?)?;
        let number = self.classes.known(class)?;
        let has_links = self.classes.get(number)?.flags & HAS_LINKS != 0 && next & LINK != 0 && previous & LINK != 0;
        has_links.then_some(number)
    }

    /// Returns whether the object at an index still has the class it was read with.
    pub fn is_same(&self, place: u32) -> bool {
        let is_same = || {
            let class = self.objects.memory.u64(at(self.address(place)?, TYPE)?)?;
            Some(self.class(place)?.address == class)
        };
        is_same() == Some(true)
    }

    /// Returns the indices of the objects in the lists, in the order of their addresses.
    pub(super) fn by_address(&self) -> impl Iterator<Item = u32> {
        self.places.by_address()
    }

    /// Returns the address of the object at an index.
    pub fn address(&self, place: u32) -> Option<u64> {
        let place = place as usize;
        match place.checked_sub(self.addresses.len()) {
            None => self.addresses.get(place).copied(),
            Some(late) => self.late.borrow().addresses.get(late).copied(),
        }
    }

    /// Returns the class of the object at an index.
    pub fn class(&self, place: u32) -> Option<Arc<PythonClass>> {
        let place = place as usize;
        let number = match place.checked_sub(self.addresses.len()) {
            None => self.numbers.get(place).copied(),
            Some(late) => self.late.borrow().numbers.get(late).copied(),
        };
        self.classes.get(number?)
    }

    /// Returns the address of an object's class: the one it was read with, if it is in the lists.
    pub(crate) fn class_address(&self, object: u64) -> Option<u64> {
        let listed = self.place(object).and_then(|place| self.class(place)).map(|class| class.address);
        listed.or_else(|| self.objects.type_of(object))
    }

    /// Returns all objects in the lists with their classes, youngest generation first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Arc<PythonClass>)> {
        self.addresses
            .iter()
            .zip(&self.numbers)
            .filter_map(|(object, number)| Some((*object, self.classes.get(*number)?)))
    }

    /// Returns the class of any object, even if the collector does not track it.
    pub fn class_of(&self, object: u64) -> Option<Arc<PythonClass>> {
        self.classes.at(self.objects.memory, self.objects.type_of(object)?)
    }

    /// Returns access to dicts, attributes and strings.
    pub fn objects(&self) -> &Objects<'a, M> {
        &self.objects
    }

    /// Returns the interpreters of the process.
    pub fn interpreters(&self) -> &[u64] {
        &self.interpreters
    }
}
