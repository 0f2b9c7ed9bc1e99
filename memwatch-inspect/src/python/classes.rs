//! Reads the classes of a process, each once, and classifies their instances.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::layout::{HAS_MANAGED_DICT, SIZE, TYPE, TYPE_BASIC_SIZE, TYPE_DICT_OFFSET, TYPE_FLAGS, TYPE_NAME};
use crate::memory::{MemoryAccess, at};

/// `tp_itemsize`, `tp_members`, `tp_base`, `tp_mro` (Include/cpython/object.h).
const TYPE_ITEM_SIZE: u32 = 40;
const TYPE_MEMBERS: u32 = 240;
const TYPE_BASE: u32 = 256;
const TYPE_MRO: u32 = 344;
/// Size in bytes of a `PyMemberDef`, and positions of its type and offset (Include/descrobject.h).
const MEMBER_BYTES: u32 = 40;
const MEMBER_TYPE: u32 = 8;
const MEMBER_OFFSET: u32 = 16;
/// `T_OBJECT_EX` (Include/descrobject.h): the member is a reference, as all Python slots are.
const IS_REFERENCE: u32 = 16;
/// Maximum number of members of a class, and of its bases.
const MOST_MEMBERS: u32 = 512;
const MOST_BASES: usize = 64;
/// Maximum number of classes. PyTorch and transformers together have about 30,000.
const MOST_CLASSES: usize = 1 << 20;

/// How instances of a class store their references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// `dict` and its subclasses.
    Dict,
    /// `list`.
    List,
    /// `tuple`.
    Tuple,
    /// `set` and `frozenset`.
    Set,
    /// `collections.deque`.
    Deque,
    /// A class.
    Class,
    /// A module.
    Module,
    /// A generator, a coroutine or an asynchronous generator.
    Generator,
    /// A frame object, from a traceback or from `sys._getframe`.
    Frame,
    /// A traceback.
    Traceback,
    /// A weak reference, which retains nothing.
    Weak,
    /// A code object.
    Code,
    /// A variable shared by several functions.
    Cell,
    /// A function wrapped by `functools.lru_cache`.
    Cache,
    /// Any other class: references are in the instance's body and its attributes.
    Other,
}

/// Role of a class in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// None.
    None,
    /// `torch.Tensor` and its subclasses.
    Tensor,
    /// `torch.nn.Module` and its subclasses.
    Module,
    /// `torch.optim.Optimizer` and its subclasses.
    Optimizer,
    /// `torch.UntypedStorage` and the storage classes of earlier versions.
    Storage,
}

/// A class.
#[derive(Debug)]
pub struct PythonClass {
    /// Address of the class.
    pub address: u64,
    /// `tp_name`: for classes defined in Python the plain name, for others with the module.
    pub name: String,
    /// `tp_basicsize` in bytes.
    pub basic_bytes: u32,
    /// `tp_itemsize` in bytes.
    pub item_bytes: u32,
    /// `tp_flags`.
    pub flags: u64,
    /// `tp_dictoffset` if it is positive, otherwise 0.
    pub dict_offset: u32,
    /// How instances store their references.
    pub kind: ObjectKind,
    /// Role in PyTorch.
    pub role: Role,
    base: Option<Arc<PythonClass>>,
}

impl PythonClass {
    /// Returns the class and its bases along `tp_base`, nearest first.
    pub fn chain(&self) -> impl Iterator<Item = &PythonClass> {
        std::iter::successors(Some(self), |class| class.base.as_deref())
    }

    /// Returns whether instances may have attributes of their own.
    pub fn has_attributes(&self) -> bool {
        self.dict_offset != 0 || self.flags & HAS_MANAGED_DICT != 0
    }

    /// Returns the offset of a tuple's items, which is the basic size of the class `tuple`. From
    /// 3.14 on, a tuple stores its hash before the items (Include/cpython/tupleobject.h).
    pub fn tuple_items(&self) -> Option<u32> {
        self.chain().find(|class| class.name == "tuple").map(|class| class.basic_bytes)
    }

    /// Returns the name without the module.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// Classes read so far.
#[derive(Debug, Default)]
pub struct PythonClasses {
    numbers: RefCell<HashMap<u64, Option<u32>, FixedState>>,
    all: RefCell<Vec<Arc<PythonClass>>>,
}

impl PythonClasses {
    /// Returns the number of the class at an address; `None` if there is none.
    pub fn number(&self, memory: &impl MemoryAccess, address: u64) -> Option<u32> {
        if let Some(number) = self.numbers.borrow().get(&address) {
            return *number;
        }
        if self.all.borrow().len() >= MOST_CLASSES {
            return None;
        }
        let number = self.read(memory, address);
        self.numbers.borrow_mut().insert(address, number);
        number
    }

    /// Returns the number of a class that was read before.
    pub fn known(&self, address: u64) -> Option<u32> {
        self.numbers.borrow().get(&address).copied().flatten()
    }

    /// Returns the class of a number from [`Self::number`].
    pub fn get(&self, number: u32) -> Option<Arc<PythonClass>> {
        self.all.borrow().get(number as usize).map(Arc::clone)
    }

    /// Returns the class at an address.
    pub fn at(&self, memory: &impl MemoryAccess, address: u64) -> Option<Arc<PythonClass>> {
        self.get(self.number(memory, address)?)
    }

    /// Reads a class and its unknown bases, furthest first and without recursion.
    fn read(&self, memory: &impl MemoryAccess, address: u64) -> Option<u32> {
        let mut chain = vec![address];
        let mut base = None;
        while let Some(above) = memory.u64(at(*chain.last()?, TYPE_BASE)?).filter(|above| *above != 0) {
            let known = self.numbers.borrow().get(&above).copied();
            if let Some(number) = known {
                base = self.get(number?);
                break;
            }
            if chain.len() == MOST_BASES || chain.contains(&above) {
                return None;
            }
            chain.push(above);
        }
        let mut number = None;
        for address in chain.into_iter().rev() {
            let class = Arc::new(read_one(memory, address, base.take())?);
            base = Some(Arc::clone(&class));
            let mut all = self.all.borrow_mut();
            number = u32::try_from(all.len()).ok();
            all.push(class);
            self.numbers.borrow_mut().insert(address, number);
        }
        number
    }
}

fn read_one(memory: &impl MemoryAccess, address: u64, base: Option<Arc<PythonClass>>) -> Option<PythonClass> {
    let field = |offset: u32| memory.u64(at(address, offset)?);
    // A name that exceeds the limit does not matter here and is dropped.
    let name = field(TYPE_NAME).and_then(|name| memory.terminated(name)).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).into_owned();
    let flags = field(TYPE_FLAGS)?;
    let size = |offset: u32| field(offset).and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(0);
    let dict_offset = field(TYPE_DICT_OFFSET).and_then(|offset| u32::try_from(offset).ok());
    let kind = kind_of(&name, flags, base.as_deref());
    let role = role_of(memory, address, &name, base.as_deref());
    Some(PythonClass {
        address,
        basic_bytes: size(TYPE_BASIC_SIZE),
        item_bytes: size(TYPE_ITEM_SIZE),
        flags,
        dict_offset: dict_offset.filter(|offset| *offset < 1 << 16).unwrap_or(0),
        kind,
        role,
        base,
        name,
    })
}

/// Classifies by `tp_flags` (Include/object.h), by the name of a C class, or by the base.
fn kind_of(name: &str, flags: u64, base: Option<&PythonClass>) -> ObjectKind {
    const FLAGS: [(u32, ObjectKind); 4] =
        [(29, ObjectKind::Dict), (25, ObjectKind::List), (26, ObjectKind::Tuple), (31, ObjectKind::Class)];
    if let Some((_, kind)) = FLAGS.iter().find(|(bit, _)| flags >> bit & 1 == 1) {
        return *kind;
    }
    match name {
        "set" | "frozenset" => ObjectKind::Set,
        "collections.deque" => ObjectKind::Deque,
        "module" => ObjectKind::Module,
        "generator" | "coroutine" | "async_generator" => ObjectKind::Generator,
        "frame" => ObjectKind::Frame,
        "traceback" => ObjectKind::Traceback,
        "weakref"
        | "weakref.ReferenceType"
        | "weakproxy"
        | "weakref.ProxyType"
        | "weakcallableproxy"
        | "weakref.CallableProxyType" => ObjectKind::Weak,
        "code" => ObjectKind::Code,
        "cell" => ObjectKind::Cell,
        "functools._lru_cache_wrapper" => ObjectKind::Cache,
        _ => base.map_or(ObjectKind::Other, |base| base.kind),
    }
}

/// Returns the role by the class's own name or that of a class it inherits from. `tp_base` is only
/// the base that determines the layout: for a class with a mixin before `Module`, it is the mixin.
fn role_of(memory: &impl MemoryAccess, address: u64, name: &str, base: Option<&PythonClass>) -> Role {
    let of_base = || base.map(|base| base.role).filter(|role| *role != Role::None);
    role_of_name(name).or_else(of_base).or_else(|| role_by_bases(memory, address)).unwrap_or(Role::None)
}

fn role_of_name(name: &str) -> Option<Role> {
    match name {
        // The second is the name in 2.0 and before.
        "torch._C.TensorBase" | "torch._C._TensorBase" => Some(Role::Tensor),
        "torch._C.StorageBase" => Some(Role::Storage),
        "Module" => Some(Role::Module),
        "Optimizer" => Some(Role::Optimizer),
        _ => None,
    }
}

/// Returns the items' address of a tuple that is not of a subclass: see [`PythonClass::tuple_items`].
pub(super) fn tuple_items(memory: &impl MemoryAccess, tuple: u64) -> Option<u64> {
    let class = memory.u64(at(tuple, TYPE)?)?;
    tuple.checked_add(memory.u64(at(class, TYPE_BASIC_SIZE)?)?)
}

/// Returns a class and all that it inherits from, in the order of `__mro__`.
pub fn resolution_order(memory: &impl MemoryAccess, class: u64) -> Option<Vec<u64>> {
    let order = memory.u64(at(class, TYPE_MRO)?)?;
    let count = usize::try_from(memory.u64(at(order, SIZE)?)?).ok()?.min(MOST_BASES);
    memory.words(tuple_items(memory, order)?, count)
}

fn role_by_bases(memory: &impl MemoryAccess, address: u64) -> Option<Role> {
    resolution_order(memory, address)?.into_iter().find_map(|class| {
        let name = memory.terminated(memory.u64(at(class, TYPE_NAME)?)?)?;
        role_of_name(&String::from_utf8_lossy(&name))
    })
}

/// Returns the name of the member at an offset in instances of a class: a Python slot, or a member
/// that a C class offers.
pub fn member_name(memory: &impl MemoryAccess, class: &PythonClass, offset: u32) -> Option<String> {
    class.chain().take(MOST_BASES).find_map(|class| {
        let table = memory.u64(at(class.address, TYPE_MEMBERS)?)?;
        for index in 0..MOST_MEMBERS {
            let member = at(table, index * MEMBER_BYTES)?;
            let name = memory.u64(member).filter(|name| *name != 0)?;
            if memory.u64(at(member, MEMBER_OFFSET)?)? == u64::from(offset) {
                return String::from_utf8(memory.terminated(name)?).ok();
            }
        }
        None
    })
}

/// Returns the offset in instances of a class of a Python slot, which holds a reference or 0.
pub fn slot_offset(memory: &impl MemoryAccess, class: &PythonClass, name: &str) -> Option<u32> {
    class.chain().take(MOST_BASES).find_map(|class| {
        let table = memory.u64(at(class.address, TYPE_MEMBERS)?)?;
        for index in 0..MOST_MEMBERS {
            let member = at(table, index * MEMBER_BYTES)?;
            let text = memory.u64(member).filter(|name| *name != 0)?;
            let is_reference = memory.u32(at(member, MEMBER_TYPE)?)? == IS_REFERENCE;
            if is_reference && memory.terminated(text)? == name.as_bytes() {
                let offset = u32::try_from(memory.u64(at(member, MEMBER_OFFSET)?)?).ok()?;
                return Some(offset).filter(|offset| *offset < class.basic_bytes);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words from address 0x1000 on: a class `tuple`, a class derived from it, and their names.
    struct Image(Vec<u64>);

    const BASE: u64 = 0x1000;
    const DERIVED: u64 = BASE + 400;
    const NAMES: u64 = BASE + 800;

    impl MemoryAccess for Image {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
            let start = address.checked_sub(BASE).and_then(|start| usize::try_from(start).ok());
            let part = start.and_then(|start| bytes.get(start..start + into.len()));
            part.is_some_and(|part| {
                into.copy_from_slice(part);
                true
            })
        }
    }

    fn image(tuple_bytes: u64) -> Image {
        let mut words = vec![0; 128];
        let mut set = |address: u64, word: u64| words[usize::try_from((address - BASE) / 8).expect("small")] = word;
        for (class, name, bytes) in [(BASE, NAMES, tuple_bytes), (DERIVED, NAMES + 32, tuple_bytes + 8)] {
            set(class + u64::from(TYPE_NAME), name);
            set(class + u64::from(TYPE_BASIC_SIZE), bytes);
        }
        set(DERIVED + u64::from(TYPE_BASE), BASE);
        set(NAMES, u64::from_le_bytes(*b"tuple\0\0\0"));
        set(NAMES + 32, u64::from_le_bytes(*b"Point\0\0\0"));
        // An instance of the class itself.
        set(NAMES + 64 + u64::from(TYPE), BASE);
        Image(words)
    }

    #[test]
    fn the_items_of_a_tuple_begin_where_its_class_ends_in_every_version() {
        for tuple_bytes in [24, 32] {
            let (memory, classes) = (image(tuple_bytes), PythonClasses::default());
            let items = |class| classes.at(&memory, class).and_then(|class| class.tuple_items()).map(u64::from);
            assert_eq!((items(BASE), items(DERIVED)), (Some(tuple_bytes), Some(tuple_bytes)));
            assert_eq!(tuple_items(&memory, NAMES + 64), Some(NAMES + 64 + tuple_bytes));
        }
    }
}
