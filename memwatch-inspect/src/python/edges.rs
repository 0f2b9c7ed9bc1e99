//! Lists the references of an object with their labels: item, key, attribute, variable. `path_text`
//! turns labels into text.

use super::classes::{ObjectKind, PythonClass, Role};
use super::heap::Heap;
use super::layout::{MODULE_DICT, SIZE, TYPE_DICT};
use super::objects::DictEntry;
use crate::memory::{MemoryAccess, at};

/// Maximum number of items of a list, a tuple or a set.
const MOST_ITEMS: u64 = 1 << 22;
/// Maximum bytes of an object's body, and maximum number of items behind it.
const MOST_BODY_BYTES: u32 = 2048;
const MOST_BODY_ITEMS: u64 = 4096;
/// Size of an object header: reference count and class.
const HEAD_BYTES: u32 = 16;
/// `ob_item` of a list.
const LIST_ITEMS: u32 = 24;
/// `mask` of a set, before `table`. A table entry has a key and a hash
/// (Include/cpython/setobject.h).
const SET_MASK: u32 = 32;
const SET_TABLE: u32 = 40;
/// `leftblock` and `leftindex` of a deque, and the number of items in a block between its two links
/// (Modules/_collectionsmodule.c).
const DEQUE_BLOCK: u32 = 24;
const DEQUE_INDEX: u32 = 40;
const DEQUE_ITEMS: u64 = 64;
/// `next`, `key` and `result` of an entry of `functools.lru_cache` (Modules/_functoolsmodule.c).
const CACHE_NEXT: u32 = 24;
const CACHE_KEY: u32 = 40;
const CACHE_RESULT: u32 = 48;
/// `cache` of `lru_cache_object`: a dict. Its values are the results themselves if the cache is
/// unbounded.
const CACHE_DICT: u32 = 72;
/// Sizes in bytes of a dict and of a list. Fields of a subclass follow.
const DICT_BYTES: u32 = 48;
const LIST_BYTES: u32 = 40;

/// How one object refers to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeLabel {
    /// An item of a sequence.
    Item(u32),
    /// Value of a key: the address of the key object.
    Key(u64),
    /// A key of a dict.
    KeyItself,
    /// A member of a set.
    Member,
    /// Attribute: the address of the name string.
    Attribute(u64),
    /// A word in the body of an instance.
    Body {
        /// Address of the class.
        class: u64,
        /// Offset in the instance in bytes.
        offset: u32,
    },
    /// Value of a shared variable.
    Cell,
    /// Variable of a frame.
    Variable {
        /// Address of the code object.
        code: u64,
        /// Index among the variables.
        index: u32,
    },
    /// Iterator of a running loop in a frame.
    Loop {
        /// Address of the code object.
        code: u64,
    },
    /// Object retained by a node of a tensor's autograd graph.
    Graph,
    /// Global variable of a module.
    Global {
        /// Address of the module's name string.
        module: u64,
        /// Address of the variable's name string.
        name: u64,
    },
    /// Exception that a thread is handling.
    Handled,
    /// Reference from a thread state.
    Thread,
}

/// A reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// How the object is referred to.
    pub label: EdgeLabel,
    /// Index in the heap of the object referred to.
    pub target: u32,
    /// Address of the word that refers to it.
    pub slot: u64,
}

impl<M: MemoryAccess> Heap<'_, M> {
    /// Returns a reference to an object, if the collector tracks it.
    pub(super) fn edge(&self, label: EdgeLabel, object: u64, slot: u64) -> Option<Edge> {
        Some(Edge { label, target: self.place(object)?, slot })
    }

    /// Appends the references of the object at an index.
    pub fn put_edges(&self, place: u32, edges: &mut Vec<Edge>) {
        if let (Some(object), Some(class)) = (self.address(place), self.class(place)) {
            // References that cannot be read are left out.
            self.put_contents(object, &class, edges);
            if !matches!(class.kind, ObjectKind::Class | ObjectKind::Module | ObjectKind::Weak)
                && class.has_attributes()
            {
                let attributes = self.objects.attributes(object).unwrap_or_default();
                self.put_entries(&attributes, EdgeLabel::Attribute, edges);
            }
        }
    }

    /// Returns the items of a list, each with its slot's address.
    pub fn items(&self, list: u64) -> Option<Vec<(u64, u64)>> {
        let memory = self.objects.memory;
        let (start, count) = (memory.u64(at(list, LIST_ITEMS)?)?, memory.u64(at(list, SIZE)?)?);
        if self.class_of(list)?.kind != ObjectKind::List || count == 0 {
            return Some(Vec::new());
        }
        Some((start..).step_by(8).zip(self.words(start, count, MOST_ITEMS)?).collect())
    }

    fn put_contents(&self, object: u64, class: &PythonClass, edges: &mut Vec<Edge>) -> Option<()> {
        let memory = self.objects.memory;
        let field = |offset: u32| memory.u64(at(object, offset)?);
        match class.kind {
            ObjectKind::Weak | ObjectKind::Code => {}
            ObjectKind::Dict => {
                let table = self.objects.table(object)?;
                self.put_entries(&table.entries, EdgeLabel::Key, edges);
                // The collector tracks no string.
                for entry in table.entries.iter().filter(|_| !table.has_text_keys) {
                    edges.extend(self.edge(EdgeLabel::KeyItself, entry.key, entry.slot.wrapping_sub(8)));
                }
                self.put_body(object, class, DICT_BYTES, edges)?;
            }
            ObjectKind::List => {
                self.put_items(field(LIST_ITEMS)?, field(SIZE)?, edges)?;
                self.put_body(object, class, LIST_BYTES, edges)?;
            }
            ObjectKind::Tuple => self.put_items(at(object, class.tuple_items()?)?, field(SIZE)?, edges)?,
            ObjectKind::Set => self.put_set(field(SET_TABLE)?, field(SET_MASK)?, edges)?,
            ObjectKind::Deque => self.put_deque(object, edges)?,
            ObjectKind::Module => {
                let entries = self.objects.entries(field(MODULE_DICT)?)?;
                self.put_entries(&entries, EdgeLabel::Attribute, edges);
            }
            ObjectKind::Class => {
                let entries = self.objects.entries(field(TYPE_DICT)?)?;
                self.put_entries(&entries, EdgeLabel::Attribute, edges);
            }
            ObjectKind::Cell => edges.extend(self.edge(EdgeLabel::Cell, field(HEAD_BYTES)?, at(object, HEAD_BYTES)?)),
            ObjectKind::Generator => {
                self.put_generator(object, class.basic_bytes, edges);
                self.put_body(object, class, HEAD_BYTES, edges)?;
            }
            ObjectKind::Frame => {
                self.put_frame_object(object, edges);
                self.put_body(object, class, HEAD_BYTES, edges)?;
            }
            ObjectKind::Cache => {
                self.put_body(object, class, HEAD_BYTES, edges);
                self.put_cache(object, edges)?;
            }
            ObjectKind::Traceback | ObjectKind::Other => self.put_body(object, class, HEAD_BYTES, edges)?,
        }
        Some(())
    }

    fn put_entries(&self, entries: &[DictEntry], label: fn(u64) -> EdgeLabel, edges: &mut Vec<Edge>) {
        edges.extend(entries.iter().filter_map(|entry| self.edge(label(entry.key), entry.value, entry.slot)));
    }

    /// Appends the results of `functools.lru_cache`. They are in a dict, or in a circular list of
    /// entries that the collector does not track, which begins at the wrapper.
    fn put_cache(&self, wrapper: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let memory = self.objects.memory;
        let results = memory.u64(at(wrapper, CACHE_DICT)?).and_then(|dict| self.objects.entries(dict));
        self.put_entries(&results.unwrap_or_default(), EdgeLabel::Key, edges);
        let mut entry = memory.u64(at(wrapper, CACHE_NEXT)?)?;
        for _ in 0..MOST_ITEMS {
            if entry == wrapper {
                break;
            }
            let slot = at(entry, CACHE_RESULT)?;
            let key = memory.u64(at(entry, CACHE_KEY)?)?;
            edges.extend(self.edge(EdgeLabel::Key(key), memory.u64(slot)?, slot));
            entry = memory.u64(at(entry, CACHE_NEXT)?)?;
        }
        Some(())
    }

    fn put_items(&self, start: u64, count: u64, edges: &mut Vec<Edge>) -> Option<()> {
        if count == 0 {
            return Some(());
        }
        let words = self.words(start, count, MOST_ITEMS)?;
        for (index, word) in (0u32..).zip(words) {
            edges.extend(self.edge(EdgeLabel::Item(index), word, start + 8 * u64::from(index)));
        }
        Some(())
    }

    fn put_set(&self, table: u64, mask: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let words = self.words(table, mask.checked_add(1)?.checked_mul(2)?, 2 * MOST_ITEMS)?;
        for (slot, pair) in (table..).step_by(16).zip(words.as_chunks::<2>().0) {
            edges.extend(self.edge(EdgeLabel::Member, pair[0], slot));
        }
        Some(())
    }

    fn put_deque(&self, object: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let memory = self.objects.memory;
        let mut block = memory.u64(at(object, DEQUE_BLOCK)?)?;
        let mut index = memory.u64(at(object, DEQUE_INDEX)?)?;
        let count = memory.u64(at(object, SIZE)?)?.min(MOST_ITEMS);
        for number in 0..u32::try_from(count).ok()? {
            if index >= DEQUE_ITEMS {
                (block, index) = (memory.u64(at(block, 8 * 65)?)?, 0);
            }
            let slot = at(block, 8 + 8 * u32::try_from(index).ok()?)?;
            edges.extend(self.edge(EdgeLabel::Item(number), memory.u64(slot)?, slot));
            index += 1;
        }
        Some(())
    }

    /// Appends every word of an object's body from an offset on that is the address of an object.
    /// This covers closures, methods, partials and slots without a table.
    fn put_body(&self, object: u64, class: &PythonClass, from: u32, edges: &mut Vec<Edge>) -> Option<()> {
        let memory = self.objects.memory;
        let mut end = class.basic_bytes.min(MOST_BODY_BYTES);
        // A variable-size instance stores its items behind its body. Generators and frames have
        // items but no count: their code pointer is in its place.
        let has_count = !matches!(class.kind, ObjectKind::Generator | ObjectKind::Frame);
        if class.item_bytes != 0 && class.role == Role::None && has_count {
            let count = memory.u64(at(object, SIZE)?)?.min(MOST_BODY_ITEMS);
            end += u32::try_from(count * u64::from(class.item_bytes.min(16))).ok()?;
        }
        let start = at(object, from)?;
        let count = u64::from(end.saturating_sub(from) / 8);
        for (offset, word) in (from..).step_by(8).zip(self.words(start, count, MOST_ITEMS)?) {
            if offset != class.dict_offset {
                let label = EdgeLabel::Body { class: class.address, offset };
                edges.extend(self.edge(label, word, object + u64::from(offset)));
            }
        }
        Some(())
    }

    fn words(&self, start: u64, count: u64, most: u64) -> Option<Vec<u64>> {
        self.objects.memory.words(start, usize::try_from(count).ok().filter(|_| count <= most)?)
    }
}
