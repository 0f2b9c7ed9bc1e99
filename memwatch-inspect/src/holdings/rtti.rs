//! Classifies C++ objects of PyTorch by class name.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use foldhash::fast::FixedState;

use crate::memory::{MemoryAccess, at};
use crate::rtti::class_of_table;

/// Maximum number of cached vtables.
const MOST_TABLES: usize = 1 << 16;

/// Role of a C++ object in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CppKind {
    /// A tensor of any kind.
    Tensor,
    /// The placeholder for an undefined tensor.
    NoTensor,
    Storage,
    /// Autograd metadata of a tensor.
    Meta,
    /// A node of an autograd graph.
    Node,
    /// The node that adds to a tensor's gradient. It is not part of the tensor's graph, and the
    /// tensor does not retain it.
    Accumulate,
    Other,
}

/// A C++ class.
#[derive(Debug)]
pub(super) struct CppClass {
    pub(super) kind: CppKind,
    /// Name without namespaces.
    pub(super) name: String,
    /// Address of the vtable.
    pub(super) table: u64,
    /// Size of the objects, once determined; an inner `None` means unknown.
    pub(super) bytes: OnceCell<Option<u32>>,
}

/// C++ classes of a process.
#[derive(Debug)]
pub(super) struct CppClasses<'a, M> {
    memory: &'a M,
    /// Address ranges of vtables; anywhere if empty.
    ranges: &'a [Range<u64>],
    tables: RefCell<HashMap<u64, Option<Rc<CppClass>>, FixedState>>,
}

impl<'a, M: MemoryAccess> CppClasses<'a, M> {
    pub(super) fn new(memory: &'a M, ranges: &'a [Range<u64>]) -> Self {
        Self { memory, ranges, tables: RefCell::default() }
    }

    /// Returns the class of the object at an address; `None` if there is none.
    pub(super) fn of(&self, object: u64) -> Option<Rc<CppClass>> {
        if !object.is_multiple_of(8) {
            return None;
        }
        let table = self.memory.u64(at(object, 0)?)?;
        let is_possible = table.is_multiple_of(8)
            && table > 0x1_0000
            && (self.ranges.is_empty() || self.ranges.iter().any(|range| range.contains(&table)));
        if !is_possible {
            return None;
        }
        if let Some(class) = self.tables.borrow().get(&table) {
            return class.clone();
        }
        let class = self.read(table).map(Rc::new);
        let mut tables = self.tables.borrow_mut();
        if tables.len() < MOST_TABLES {
            tables.insert(table, class.clone());
        }
        class
    }

    /// Returns the role of the object at an address.
    pub(super) fn kind(&self, object: u64) -> Option<CppKind> {
        Some(self.of(object)?.kind)
    }

    fn read(&self, table: u64) -> Option<CppClass> {
        let mangled = class_of_table(self.memory, table)?;
        let name = last_name(&mangled)?;
        Some(CppClass { kind: kind_of(&mangled, &name), name, table, bytes: OnceCell::new() })
    }
}

fn kind_of(mangled: &str, name: &str) -> CppKind {
    if name == "UndefinedTensorImpl" {
        CppKind::NoTensor
    } else if name.ends_with("TensorImpl") {
        CppKind::Tensor
    } else if name == "StorageImpl" {
        CppKind::Storage
    } else if name == "AutogradMeta" || name == "DifferentiableViewMeta" {
        CppKind::Meta
    } else if name == "AccumulateGrad" {
        CppKind::Accumulate
    } else if mangled.contains("8autograd") {
        CppKind::Node
    } else {
        CppKind::Other
    }
}

/// Returns the last part of a mangled name: `N5torch8autograd9generated14AddmmBackward0E` →
/// `AddmmBackward0`.
fn last_name(mangled: &str) -> Option<String> {
    let mut rest = mangled.strip_prefix('N').unwrap_or(mangled);
    let mut last = None;
    while let Some(digits) = rest.find(|letter: char| !letter.is_ascii_digit()).filter(|digits| *digits > 0) {
        let length: usize = rest[..digits].parse().ok()?;
        last = Some(rest.get(digits..digits.checked_add(length)?)?);
        rest = &rest[digits + length..];
    }
    last.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mangled_name_ends_with_the_class() {
        assert_eq!(last_name("N5torch8autograd9generated14AddmmBackward0E").as_deref(), Some("AddmmBackward0"));
        assert_eq!(last_name("N3c1011StorageImplE").as_deref(), Some("StorageImpl"));
        assert_eq!(last_name("7PyClass").as_deref(), Some("PyClass"));
        for damaged in ["", "N", "N99E", "N3c1999999999999999999999E", "St9exception", "3ä"] {
            assert_eq!(last_name(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn rtti_class_without_a_tensor_is_its_own_kind() {
        let kind = |mangled: &str| kind_of(mangled, &last_name(mangled).expect("a name"));
        assert_eq!(kind("N3c1019UndefinedTensorImplE"), CppKind::NoTensor);
        assert_eq!(kind("N3c1010TensorImplE"), CppKind::Tensor);
        assert_eq!(kind("N5torch8autograd14AccumulateGradE"), CppKind::Accumulate);
        assert_eq!(kind("N5torch8autograd6PyNodeE"), CppKind::Node);
    }
}
