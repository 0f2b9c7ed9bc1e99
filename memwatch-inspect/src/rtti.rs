//! The class of a C++ object, by the Itanium C++ ABI, 2.5.2 and 2.9.4: the word before its table of virtual functions leads to the name.

use crate::memory::{Memory, at};

/// The mangled name of a class without its `_Z…` prefix, such as `N3c1010TensorImplE`; `None` where the object has no such table.
pub(crate) fn class_of(memory: &impl Memory, object: u64) -> Option<String> {
    class_of_table(memory, memory.u64(at(object, 0)?)?)
}

/// The same, of a table of virtual functions.
pub(crate) fn class_of_table(memory: &impl Memory, table: u64) -> Option<String> {
    if !table.is_multiple_of(8) {
        return None;
    }
    let info = memory.u64(at(table, 0)?.checked_sub(8)?)?;
    let name = memory.terminated(memory.u64(at(info, 8)?)?)?;
    // Names of classes that are not unique over libraries begin with a star.
    let name = name.strip_prefix(b"*").unwrap_or(&name);
    let is_name = name.len() > 1 && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    is_name.then(|| String::from_utf8_lossy(name).into_owned())
}
