//! Determines the size of a C++ object independently of the heap: its deleting destructor ends by
//! passing the size to `operator delete` (Itanium C++ ABI, 2.6.2 and 5.2.5: the second vtable
//! entry).

use super::rtti::CppClass;
use crate::memory::{MemoryAccess, at, heap_bytes};

/// Maximum bytes of a destructor's code that are scanned.
const MOST_CODE_BYTES: usize = 1024;
/// Bounds of an object's size in bytes. The largest nodes of PyTorch 2.15 have about 2,000.
const LEAST_BYTES: u32 = 16;
const MOST_BYTES: u32 = 8192;
/// Size in bytes that is assumed if it cannot be determined.
const UNKNOWN_BYTES: u64 = 512;

/// Determines the sizes of objects.
#[derive(Debug)]
pub(super) struct Sizes<'a, M> {
    pub(super) memory: &'a M,
}

impl<M: MemoryAccess> Sizes<'_, M> {
    /// Returns the size of an object in bytes, from its destructor or else from its glibc heap
    /// chunk.
    pub(super) fn of(&self, object: u64, class: &CppClass) -> u64 {
        let of_class = *class.bytes.get_or_init(|| destructor_bytes(self.memory, class.table));
        let of_piece = || heap_bytes(self.memory, object).filter(|bytes| (16..=4096).contains(bytes));
        of_class.map(u64::from).or_else(of_piece).unwrap_or(UNKNOWN_BYTES)
    }
}

fn destructor_bytes(memory: &impl MemoryAccess, table: u64) -> Option<u32> {
    let code = memory.u64(at(table, 8)?)?;
    // The next page may not be mapped.
    let mut bytes = memory.bytes(code, (4096 - code % 4096).min(MOST_CODE_BYTES as u64), MOST_CODE_BYTES)?;
    if let Some(rest) = MOST_CODE_BYTES.checked_sub(bytes.len()).filter(|rest| *rest > 0) {
        bytes.extend(memory.bytes(code + bytes.len() as u64, rest as u64, rest).unwrap_or_default());
    }
    deleted_bytes(&bytes)
}

/// Finds the first x86-64 `mov esi, size` that is followed only by register restores and a jump.
fn deleted_bytes(code: &[u8]) -> Option<u32> {
    const MOVE: u8 = 0xbe;
    (0..code.len()).find_map(|start| {
        let rest = code.get(start..)?.strip_prefix(&[MOVE])?;
        let (size, behind) = rest.split_first_chunk()?;
        let size = u32::from_le_bytes(*size);
        let is_size = (LEAST_BYTES..=MOST_BYTES).contains(&size) && size.is_multiple_of(8);
        (is_size && ends_by_jump(behind)).then_some(size)
    })
}

fn ends_by_jump(mut code: &[u8]) -> bool {
    const JUMP: u8 = 0xe9;
    loop {
        code = match *code {
            [JUMP, ..] => return true,
            // pop rbx, rbp · pop r12 to r15 · leave.
            [0x5b | 0x5d | 0xc9, ref rest @ ..]
            | [0x41, 0x5c..=0x5f, ref rest @ ..]
            // mov rdi, register · add rsp, constant.
            | [0x48 | 0x4c, 0x89, 0xc7..=0xff, ref rest @ ..]
            | [0x48, 0x83, 0xc4, _, ref rest @ ..]
            | [0x48, 0x81, 0xc4, _, _, _, _, ref rest @ ..] => rest,
            _ => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleting_destructor_says_the_size_of_its_object() {
        // mov rdi, rbx; mov esi, 0x360; pop rbx; pop rbp; pop r12; jmp.
        let end = [0x48, 0x89, 0xdf, 0xbe, 0x60, 0x03, 0, 0, 0x5b, 0x5d, 0x41, 0x5c, 0xe9, 1, 2, 3, 4];
        assert_eq!(deleted_bytes(&end), Some(0x360));
        // A member that is deleted before: mov esi, 0x38; call; jmp.
        let member = [0xbe, 0x38, 0, 0, 0, 0xe8, 1, 2, 3, 4, 0xe9, 1, 2, 3, 4];
        assert_eq!(deleted_bytes(&[&member[..], &end].concat()), Some(0x360));
        assert_eq!(deleted_bytes(&member), None);
        for cut in 0..end.len() - 4 {
            assert_eq!(deleted_bytes(&end[..cut]), None, "{cut}");
        }
        assert_eq!(deleted_bytes(&[0xbe, 0x61, 0x03, 0, 0, 0xe9, 1, 2, 3, 4]), None, "no object has such a size");
    }
}
