//! Decodes the offset of an object's field from the machine code of its getter.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::sources::kernel::resolve::FunctionLocation;

/// A getter reads its field first and then returns or aborts, so the first bytes suffice.
const CODE_BYTES: u64 = 128;
/// Largest accepted field offset. The largest known object has 0x200 bytes.
const MOST_OFFSET: u32 = 0x3f8;
const WORD_BYTES: u32 = 8;

/// Reads the first bytes of a function; `None` if they cannot be read.
pub(super) fn code_of(file: &File, location: &FunctionLocation) -> Option<Vec<u8>> {
    let mut code = vec![0; usize::try_from(location.size_bytes.min(CODE_BYTES)).ok()?];
    file.read_exact_at(&mut code, location.file_offset).ok()?;
    Some(code)
}

/// Decodes a getter that returns a pointer to a field, `lea OFFSET(%rdi),%rax; ret`, and returns
/// the field's offset. Only `endbr64` may precede the `lea`.
pub(super) fn pointed_to(code: &[u8]) -> Option<u32> {
    const MARK: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let code = code.strip_prefix(MARK).unwrap_or(code);
    answered(code.strip_prefix(&[0x48, 0x8d])?)
}

/// Decodes the operand bytes of an instruction that loads `%rax` from `OFFSET(%rdi)`, starting
/// after the opcode, and returns the offset. `ret` must follow, and the offset must be word-aligned
/// and at most [`MOST_OFFSET`].
fn answered(code: &[u8]) -> Option<u32> {
    const RETURN: u8 = 0xc3;
    let (offset, rest) = match code {
        // A displacement byte of 0x80 or more is a negative offset.
        [0x47, offset @ 0..0x80, rest @ ..] => (u32::from(*offset), rest),
        [0x87, rest @ ..] => {
            let (offset, rest) = rest.split_first_chunk()?;
            (u32::from_le_bytes(*offset), rest)
        }
        _ => return None,
    };
    (rest.first() == Some(&RETURN) && offset <= MOST_OFFSET && offset.is_multiple_of(WORD_BYTES)).then_some(offset)
}

/// Decodes a getter that returns a word, or half a word, and returns the field's offset: `mov
/// OFFSET(%rdi),%rax; ret`, usually after a null check of the argument.
pub(super) fn returned(code: &[u8], is_word: bool) -> Option<u32> {
    let opcode: &[u8] = if is_word { &[0x48, 0x8b] } else { &[0x8b] };
    (0..code.len()).find_map(|at| answered(code[at..].strip_prefix(opcode)?))
}
