//! Reads attributes of an engine's objects, with a reason for each that is missing.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;
use memwatch_core::input::kv_cache::KvCacheDoubt;

use super::EngineMemory;
use crate::holdings::shapes::TensorShapes;
use crate::memory::{MemoryAccess, at};
use crate::pass::Pass;
use crate::python::classes::{ObjectKind, PythonClass, PythonClasses};
use crate::python::fields::FieldSlot;
use crate::python::layout::{CpythonLayout, SIZE};
use crate::python::numbers::integer;
use crate::python::objects::Objects;

/// `Py_TPFLAGS_LONG_SUBCLASS` (Include/object.h).
const IS_INTEGER: u64 = 1 << 24;
/// `ob_item` of a list.
const LIST_ITEMS: u32 = 24;
/// `used` of a set, after `fill` (Include/cpython/setobject.h).
const SET_USED: u32 = 24;
/// `mask` of a set, before `table`, whose entries have a key and a hash.
const SET_MASK: u32 = 32;
const SET_TABLE: u32 = 40;
/// Maximum number of entries of a set in which a text is searched.
const MOST_ENTRIES: u64 = 1 << 10;
/// Maximum number of items of a list or tuple.
const MOST_ITEMS: u64 = 1 << 20;
/// Maximum number of attributes that are remembered.
const MOST_LEARNED: usize = 1 << 12;

/// What readings of one process have learned about its objects.
#[derive(Debug, Default)]
pub(super) struct LearnedFields {
    classes: PythonClasses,
    fields: RefCell<HashMap<(u64, &'static str), FieldSlot, FixedState>>,
    /// Layout of PyTorch's tensors.
    pub(super) shapes: RefCell<Option<TensorShapes>>,
}

/// Access to the objects of an engine during one reading.
pub(super) struct EngineObjects<'a, M> {
    pub(super) pass: &'a Pass<'a, M>,
    pub(super) objects: Objects<'a, Pass<'a, M>>,
    pub(super) libraries: &'a [Range<u64>],
    pub(super) learned: &'a LearnedFields,
}

impl<'a, M: MemoryAccess> EngineObjects<'a, M> {
    pub(super) fn new(pass: &'a Pass<'a, M>, process: EngineMemory<'a, M>, learned: &'a LearnedFields) -> Self {
        let layout: &CpythonLayout = process.layout;
        Self { pass, objects: Objects { memory: pass, layout }, libraries: process.libraries, learned }
    }

    /// Returns the reason for a failed reading of this part.
    pub(super) fn doubt(&self, part: &'static str) -> KvCacheDoubt {
        if self.pass.is_late() {
            KvCacheDoubt::TooSlow
        } else if self.pass.is_exhausted() {
            KvCacheDoubt::TooLarge
        } else {
            KvCacheDoubt::Layout(part)
        }
    }

    /// Returns the class of an object.
    pub(super) fn class(&self, object: u64) -> Option<Arc<PythonClass>> {
        self.learned.classes.at(self.pass, self.objects.type_of(object)?)
    }

    /// Returns the object in an attribute, if there is one that is not `None`.
    pub(super) fn optional(&self, object: u64, name: &'static str) -> Option<u64> {
        self.any(object, name).filter(|value| !self.is_none(*value))
    }

    /// Returns the object in an attribute.
    ///
    /// # Errors
    /// There is no such attribute.
    pub(super) fn field(&self, object: u64, name: &'static str) -> Result<u64, KvCacheDoubt> {
        self.any(object, name).ok_or_else(|| self.doubt(name))
    }

    fn any(&self, object: u64, name: &'static str) -> Option<u64> {
        let known = self.learned.fields.borrow().get(&(object, name)).copied();
        if let Some(value) = known.and_then(|field| self.objects.value(&field)) {
            return Some(value);
        }
        let field = self.objects.field(&*self.class(object)?, object, name)?;
        let mut fields = self.learned.fields.borrow_mut();
        if fields.len() >= MOST_LEARNED {
            fields.clear();
        }
        fields.insert((object, name), field);
        self.objects.value(&field)
    }

    /// Returns whether an object is `None`.
    pub(super) fn is_none(&self, object: u64) -> bool {
        self.class(object).is_some_and(|class| class.name == "NoneType")
    }

    /// Returns the value of an integer; `None` for any other object.
    pub(super) fn integer(&self, object: u64) -> Option<i64> {
        let class = self.class(object)?;
        (class.flags & IS_INTEGER != 0).then(|| integer(self.pass, self.objects.layout, object))?
    }

    /// Returns the number in an attribute.
    ///
    /// # Errors
    /// There is no such attribute, or it is no integer from 0 on.
    pub(super) fn number(&self, object: u64, name: &'static str) -> Result<u64, KvCacheDoubt> {
        let value = self.integer(self.field(object, name)?).ok_or_else(|| self.doubt(name))?;
        u64::try_from(value).ok().ok_or(KvCacheDoubt::Contradiction(name))
    }

    /// Returns the number of elements of a list, tuple, dict, set or deque; `None` for any other
    /// object.
    pub(super) fn length(&self, object: u64) -> Option<u64> {
        // `ma_used` of a dict is where other containers have their size.
        let offset = match self.class(object)?.kind {
            ObjectKind::List | ObjectKind::Tuple | ObjectKind::Deque | ObjectKind::Dict => SIZE,
            ObjectKind::Set => SET_USED,
            _ => return None,
        };
        self.pass.u64(at(object, offset)?).filter(|length| *length < 1 << 40)
    }

    /// Returns the number of elements of the container in an attribute.
    ///
    /// # Errors
    /// There is no such attribute, or it is no container.
    pub(super) fn length_of(&self, object: u64, name: &'static str) -> Result<u64, KvCacheDoubt> {
        self.length(self.field(object, name)?).ok_or_else(|| self.doubt(name))
    }

    /// Returns whether a small set of strings has this one; `None` for any other object.
    pub(super) fn has_text(&self, set: u64, text: &str) -> Option<bool> {
        if self.class(set)?.kind != ObjectKind::Set {
            return None;
        }
        let entries = self.pass.u64(at(set, SET_MASK)?)?.checked_add(1).filter(|entries| *entries <= MOST_ENTRIES)?;
        let words = self.pass.words(self.pass.u64(at(set, SET_TABLE)?)?, usize::try_from(2 * entries).ok()?)?;
        Some(words.as_chunks::<2>().0.iter().any(|[key, _]| *key != 0 && self.objects.is_text(*key, text)))
    }

    /// Returns the elements of a list or a tuple.
    ///
    /// # Errors
    /// The object is neither, or has more than four million elements.
    pub(super) fn items(&self, object: u64, name: &'static str) -> Result<Vec<u64>, KvCacheDoubt> {
        let read = || {
            let class = self.class(object)?;
            let start = match class.kind {
                ObjectKind::List => self.pass.u64(at(object, LIST_ITEMS)?)?,
                ObjectKind::Tuple => at(object, class.tuple_items()?)?,
                _ => return None,
            };
            let length = self.length(object)?;
            if length == 0 {
                return Some(Ok(Vec::new()));
            }
            if length > MOST_ITEMS {
                return Some(Err(KvCacheDoubt::TooLarge));
            }
            self.pass.words(start, usize::try_from(length).ok()?).map(Ok)
        };
        read().unwrap_or_else(|| Err(self.doubt(name)))
    }

    /// Returns the elements of the list or tuple in an attribute.
    ///
    /// # Errors
    /// There is no such attribute, or its elements cannot be read.
    pub(super) fn items_of(&self, object: u64, name: &'static str) -> Result<Vec<u64>, KvCacheDoubt> {
        self.items(self.field(object, name)?, name)
    }
}
