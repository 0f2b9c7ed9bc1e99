//! Reads dicts, attributes and classes of Python objects in another process's memory.

use super::layout::{
    Attributes, CpythonLayout, HAS_MANAGED_DICT, KeysLayout, TYPE, TYPE_BASIC_SIZE, TYPE_DICT_OFFSET, TYPE_FLAGS,
    TYPE_NAME,
};
use super::text::{is_text, text};
use crate::memory::{MemoryAccess, at};

/// Maximum number of dict entries. A large program has about 10,000 modules, and a model has fewer
/// layers.
const MOST_ENTRIES: usize = 1 << 17;

/// `Py_TPFLAGS_INLINE_VALUES`, `Py_TPFLAGS_DICT_SUBCLASS` (Include/object.h).
const HAS_INLINE_VALUES: u64 = 1 << 2;
const IS_DICT: u64 = 1 << 29;

/// `ma_keys` and `ma_values` of a dict.
pub(super) const DICT_KEYS: u32 = 32;
pub(super) const DICT_VALUES: u32 = 40;

/// A dict entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DictEntry {
    /// Address of the key.
    pub key: u64,
    /// Address of the value.
    pub value: u64,
    /// Address of the word that refers to the value.
    pub slot: u64,
}

/// Entries of a dict.
#[derive(Debug)]
pub(super) struct DictTable {
    pub(super) entries: Vec<DictEntry>,
    /// All keys are strings. If not, they may be, too.
    pub(super) has_text_keys: bool,
}

/// Where an object stores its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributeStore {
    /// Address of a dict.
    Dict(u64),
    /// Address of the first value. The names are in the class.
    Values(u64),
}

/// Access to the objects of a process.
#[derive(Debug)]
pub struct Objects<'a, M> {
    /// Memory of the process.
    pub memory: &'a M,
    /// Layout of its Python version.
    pub layout: &'a CpythonLayout,
}

impl<M: MemoryAccess> Objects<'_, M> {
    /// Returns an object's class.
    pub fn type_of(&self, object: u64) -> Option<u64> {
        self.memory.u64(at(object, TYPE)?)
    }

    /// Returns the name of an object's class, without modules.
    pub fn class_name(&self, object: u64) -> Option<String> {
        let name = self.memory.u64(at(self.type_of(object)?, TYPE_NAME)?)?;
        let name = String::from_utf8_lossy(&self.memory.terminated(name)?).into_owned();
        Some(name.rsplit('.').next().unwrap_or(&name).to_owned())
    }

    /// Returns the entries of a dict, in table order; `None` if the object is not a readable dict.
    pub fn entries(&self, dict: u64) -> Option<Vec<DictEntry>> {
        self.table(dict).map(|table| table.entries)
    }

    /// Returns the entries of a dict, and whether all keys are known to be strings.
    pub(super) fn table(&self, dict: u64) -> Option<DictTable> {
        if self.flags(self.type_of(dict)?)? & IS_DICT == 0 {
            return None;
        }
        let keys = self.memory.u64(at(dict, DICT_KEYS)?)?;
        let values = self.memory.u64(at(dict, DICT_VALUES)?)?;
        let mut table = self.keys(keys)?;
        if values != 0 {
            self.put_values(&mut table.entries, self.values_start(values)?)?;
        }
        table.entries.retain(|entry| entry.key != 0 && entry.value != 0);
        Some(table)
    }

    /// Returns the value of a string key.
    pub fn item(&self, dict: u64, name: &str) -> Option<u64> {
        self.named(&self.entries(dict)?, name)
    }

    /// Returns an attribute of the object itself, not of its class.
    pub fn attribute(&self, object: u64, name: &str) -> Option<u64> {
        self.named(&self.attributes(object)?, name)
    }

    /// Returns the attributes of the object itself, by name; `None` if its class allows none, or
    /// they cannot be read.
    pub fn attributes(&self, object: u64) -> Option<Vec<DictEntry>> {
        let class = self.type_of(object)?;
        match self.store(object, class)?.0 {
            AttributeStore::Dict(dict) => self.entries(dict),
            AttributeStore::Values(start) => {
                let mut entries = self.shared_keys(class)?;
                self.put_values(&mut entries, start)?;
                entries.retain(|entry| entry.key != 0 && entry.value != 0);
                Some(entries)
            }
        }
    }

    /// Returns where an object of a class stores its attributes, and the word that determines it,
    /// with its address.
    pub(super) fn store(&self, object: u64, class: u64) -> Option<(AttributeStore, (u64, u64))> {
        let flags = self.flags(class)?;
        if self.layout.attributes == Attributes::Offset || flags & HAS_MANAGED_DICT == 0 {
            let offset = self.memory.u64(at(class, TYPE_DICT_OFFSET)?)?;
            // A negative offset counts from the end of a variable-size object, which a module is
            // not.
            let offset = u32::try_from(offset).ok().filter(|offset| (1..1 << 16).contains(offset))?;
            let place = at(object, offset)?;
            let dict = self.memory.u64(place)?;
            return Some((AttributeStore::Dict(dict), (place, dict)));
        }
        let place = at(object, 0)?.checked_sub(24)?;
        let dict = self.memory.u64(place)?;
        let values = match self.layout.attributes {
            Attributes::Tagged if dict & 1 == 1 => dict.wrapping_add(1),
            _ if dict != 0 => return Some((AttributeStore::Dict(dict), (place, dict))),
            Attributes::Two => {
                let place = at(object, 0)?.checked_sub(32)?;
                let values = self.memory.u64(place)?;
                return Some((AttributeStore::Values(self.values_start(values)?), (place, values)));
            }
            Attributes::Inline if flags & HAS_INLINE_VALUES != 0 => self.inline_values(object, class)?,
            _ => return None,
        };
        Some((AttributeStore::Values(self.values_start(values)?), (place, dict)))
    }

    /// Returns the names of the attributes that instances of a class may store in values, in the
    /// order of the values.
    pub(super) fn shared_keys(&self, class: u64) -> Option<Vec<DictEntry>> {
        Some(self.keys(self.memory.u64(at(class, self.layout.cached_keys)?)?)?.entries)
    }

    /// Reads the string at an address.
    pub fn text(&self, address: u64) -> Option<String> {
        text(self.memory, self.layout.text, address)
    }

    /// Returns whether the object at an address is this string.
    pub fn is_text(&self, address: u64, expected: &str) -> bool {
        is_text(self.memory, self.layout.text, address, expected)
    }

    fn named(&self, entries: &[DictEntry], name: &str) -> Option<u64> {
        entries.iter().find(|entry| self.is_text(entry.key, name)).map(|entry| entry.value)
    }

    fn flags(&self, class: u64) -> Option<u64> {
        self.memory.u64(at(class, TYPE_FLAGS)?)
    }

    /// Returns the address of the values stored behind an object, if they are in use.
    fn inline_values(&self, object: u64, class: u64) -> Option<u64> {
        /// `valid` of `struct _dictvalues`.
        const IS_VALID: u32 = 3;
        let size = self.memory.u64(at(class, TYPE_BASIC_SIZE)?)?;
        let values = at(object, u32::try_from(size).ok()?)?;
        let [is_valid] = self.memory.array::<1>(at(values, IS_VALID)?)?;
        (is_valid == 1).then_some(values)
    }

    /// Returns the first value's address. Since 3.13, four bytes of sizes and padding precede the
    /// values.
    fn values_start(&self, values: u64) -> Option<u64> {
        at(values, if self.layout.attributes == Attributes::Inline { 8 } else { 0 })
    }

    fn put_values(&self, entries: &mut [DictEntry], start: u64) -> Option<()> {
        let values = self.memory.bytes(start, 8 * entries.len() as u64, 8 * MOST_ENTRIES)?;
        for (index, (entry, bytes)) in entries.iter_mut().zip(values.as_chunks::<8>().0).enumerate() {
            entry.value = u64::from_le_bytes(*bytes);
            entry.slot = start + 8 * index as u64;
        }
        Some(())
    }

    /// Reads the key table at an address, with the values that it contains (Objects/dictobject.c,
    /// Include/internal/pycore_dict.h).
    fn keys(&self, address: u64) -> Option<DictTable> {
        let head = self.memory.array::<40>(at(address, 0)?)?;
        let word = |index: usize| u64::from_le_bytes(*head.as_chunks::<8>().0.get(index).expect("five words"));
        let (first, words, count, has_text_keys) = match self.layout.keys {
            KeysLayout::Sized => {
                let size = word(1);
                let width = match size {
                    0..=0xff => 1,
                    0x100..=0xffff => 2,
                    0x1_0000..=0xffff_ffff => 4,
                    _ => return None,
                };
                (40 + size * width, 3, word(4), false)
            }
            KeysLayout::Logarithms => {
                // Kind 0 (`DICT_KEYS_GENERAL`) has keys of any class, with their hashes.
                let (index_bytes, has_text_keys) = (head[9], head[10] != 0);
                let first = 32 + 1u64.checked_shl(index_bytes.into())?;
                (first, if has_text_keys { 2 } else { 3 }, word(3), has_text_keys)
            }
        };
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST_ENTRIES)?;
        let first = at(address, u32::try_from(first).ok()?)?;
        let bytes = self.memory.bytes(first, 8 * words * count as u64, 8 * 3 * MOST_ENTRIES)?;
        let stride = 8 * usize::try_from(words).ok()?;
        let entry = |(index, bytes): (usize, &[u8])| {
            // In the wider entries, the hash precedes key and value.
            let pair = bytes.as_chunks::<8>().0.last_chunk::<2>().expect("two words or three");
            let slot = first + (stride * (index + 1) - 8) as u64;
            DictEntry { key: u64::from_le_bytes(pair[0]), value: u64::from_le_bytes(pair[1]), slot }
        };
        Some(DictTable { entries: bytes.chunks_exact(stride).enumerate().map(entry).collect(), has_text_keys })
    }
}
