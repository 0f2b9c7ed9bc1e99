//! Class names of C++ objects by the Itanium C++ ABI, 2.5.2 and 2.9.4: the word before the vtable
//! leads to the name.

use crate::memory::{MemoryAccess, at};

/// Returns the mangled class name without its `_Z…` prefix, such as `N3c1010TensorImplE`; `None` if
/// the object has no vtable.
pub(crate) fn class_of(memory: &impl MemoryAccess, object: u64) -> Option<String> {
    class_of_table(memory, memory.u64(at(object, 0)?)?)
}

/// Returns the mangled class name of a vtable.
pub(crate) fn class_of_table(memory: &impl MemoryAccess, table: u64) -> Option<String> {
    if !table.is_multiple_of(8) {
        return None;
    }
    let info = memory.u64(at(table, 0)?.checked_sub(8)?)?;
    let name = memory.terminated(memory.u64(at(info, 8)?)?)?;
    // Class names that are not unique across libraries begin with a star.
    let name = name.strip_prefix(b"*").unwrap_or(&name);
    let is_name = name.len() > 1 && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    is_name.then(|| String::from_utf8_lossy(name).into_owned())
}

/// Demangles a name that consists of classes in namespaces: `N5torch4cuda5ClassE` →
/// `torch::cuda::Class`. Returns any other name unchanged.
pub(crate) fn readable(mangled: &str) -> String {
    parts(mangled.strip_prefix('N').and_then(|name| name.strip_suffix('E')).unwrap_or(mangled))
        .map_or_else(|| mangled.to_owned(), |parts| parts.join("::"))
}

/// Splits a mangled name. Each part is preceded by its length.
fn parts(mut rest: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let end = digits.checked_add(rest.get(..digits)?.parse().ok()?)?;
        parts.push(rest.get(digits..end)?);
        rest = &rest[end..];
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_in_namespaces_is_written_as_in_the_source() {
        let class = "N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE";
        let expected = "c10::cuda::CUDACachingAllocator::CudaMallocAsync::CudaMallocAsyncAllocator";
        assert_eq!(readable(class), expected);
        assert_eq!(readable("7PyClass"), "PyClass");
        for other in ["", "N", "NSt6vectorE", "N99E", "N3c1E", "N3c1999999999999999999999E", "St9exception"] {
            assert_eq!(readable(other), other);
        }
    }
}
