//! Finds where objects store attributes of known names, so that they are read again without their
//! names: in a slot of the class (`__slots__`), in values, or in a dict.

use super::classes::{PythonClass, slot_offset};
use super::layout::TYPE;
use super::objects::{AttributeStore, DICT_KEYS, DICT_VALUES, Objects};
use crate::memory::{MemoryAccess, at};

/// A word and its address. The address 0 is no word.
type CheckedWord = (u64, u64);

/// Word of an object that refers to an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSlot {
    /// Address of the word.
    slot: u64,
    /// Words on which the address depends: it is valid as long as they are unchanged.
    checks: [CheckedWord; 4],
}

/// Places of attributes in the instances of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassFields<const COUNT: usize> {
    class: u64,
    places: [FieldPlace; COUNT],
}

/// Place of an attribute in the instances of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldPlace {
    /// Offset in the instance.
    Slot(u32),
    /// Index among the values.
    Value(u32),
}

impl<M: MemoryAccess> Objects<'_, M> {
    /// Finds an attribute of an object of a class; `None` if the object itself has none of this
    /// name.
    pub fn field(&self, class: &PythonClass, object: u64, name: &str) -> Option<FieldSlot> {
        const NONE: CheckedWord = (0, 0);
        let own = (at(object, TYPE)?, class.address);
        if let Some(offset) = slot_offset(self.memory, class, name) {
            return Some(FieldSlot { slot: at(object, offset)?, checks: [own, NONE, NONE, NONE] });
        }
        let (store, word) = self.store(object, class.address)?;
        match store {
            AttributeStore::Values(start) => {
                let slot = at(start, 8 * self.value_index(class.address, name)?)?;
                Some(FieldSlot { slot, checks: [own, word, NONE, NONE] })
            }
            AttributeStore::Dict(dict) => {
                let entry = self.entries(dict)?.into_iter().find(|entry| self.is_text(entry.key, name))?;
                let checked = |offset: u32| Some((at(dict, offset)?, self.memory.u64(at(dict, offset)?)?));
                let (keys, values) = (checked(DICT_KEYS)?, checked(DICT_VALUES)?);
                let last = if values.1 == 0 { (entry.slot.checked_sub(8)?, entry.key) } else { values };
                // Two words lead to the dict and its table, the third to the entry in it.
                Some(FieldSlot { slot: entry.slot, checks: [own, word, keys, last] })
            }
        }
    }

    /// Returns the object to which a field refers; `None` if the field is no longer there, or empty.
    pub fn value(&self, field: &FieldSlot) -> Option<u64> {
        let holds = |(address, word): &CheckedWord| *address == 0 || self.memory.u64(*address) == Some(*word);
        if !field.checks.iter().all(holds) {
            return None;
        }
        self.memory.u64(field.slot).filter(|value| *value != 0)
    }

    /// Finds attributes in the instances of a class; `None` if they are in dicts.
    pub fn class_fields<const COUNT: usize>(
        &self,
        class: &PythonClass,
        names: [&str; COUNT],
    ) -> Option<ClassFields<COUNT>> {
        let place = |name: &str| match slot_offset(self.memory, class, name) {
            Some(offset) => Some(FieldPlace::Slot(offset)),
            None if self.layout.cached_keys == 0 => None,
            None => self.value_index(class.address, name).map(FieldPlace::Value),
        };
        let mut places = [FieldPlace::Slot(0); COUNT];
        for (own, name) in places.iter_mut().zip(names) {
            *own = place(name)?;
        }
        Some(ClassFields { class: class.address, places })
    }

    /// Returns the objects to which the fields of an instance refer, 0 for one without a value;
    /// `None` if this instance has its attributes in a dict, or is of another class.
    pub fn values<const COUNT: usize>(&self, fields: &ClassFields<COUNT>, object: u64) -> Option<[u64; COUNT]> {
        if self.type_of(object)? != fields.class {
            return None;
        }
        let is_value = |place: &FieldPlace| matches!(place, FieldPlace::Value(_));
        let start = if fields.places.iter().any(is_value) {
            let (AttributeStore::Values(start), _) = self.store(object, fields.class)? else { return None };
            start
        } else {
            object
        };
        let mut values = [0; COUNT];
        for (value, place) in values.iter_mut().zip(fields.places) {
            *value = match place {
                FieldPlace::Slot(offset) => self.memory.u64(at(object, offset)?)?,
                FieldPlace::Value(index) => self.memory.u64(at(start, 8 * index)?)?,
            };
        }
        Some(values)
    }

    fn value_index(&self, class: u64, name: &str) -> Option<u32> {
        let keys = self.shared_keys(class)?;
        let index = keys.iter().position(|entry| entry.key != 0 && self.is_text(entry.key, name))?;
        // A class shares at most 30 names with its instances (`SHARED_KEYS_MAX_SIZE`).
        u32::try_from(index).ok().filter(|index| *index < 1 << 10)
    }
}
