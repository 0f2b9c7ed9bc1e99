//! Where in an object a word lies, by the code of a small function that returns it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::sources::kernel::resolve::FunctionLocation;

/// What such functions do comes first: then they end, or abort.
const CODE_BYTES: u64 = 128;
/// No object is longer: the largest has 0x200 bytes.
const MOST_OFFSET: u32 = 0x3f8;
const WORD_BYTES: u32 = 8;

/// The beginning of a function; `None` where it cannot be read.
pub(super) fn code_of(file: &File, location: &FunctionLocation) -> Option<Vec<u8>> {
    let mut code = vec![0; usize::try_from(location.size_bytes.min(CODE_BYTES)).ok()?];
    file.read_exact_at(&mut code, location.file_offset).ok()?;
    Some(code)
}

/// Where in its argument lies what a function returns a pointer to: `lea OFFSET(%rdi),%rax; ret`, and nothing before it but `endbr64`.
pub(super) fn pointed_to(code: &[u8]) -> Option<u32> {
    const MARK: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let code = code.strip_prefix(MARK).unwrap_or(code);
    answered(code.strip_prefix(&[0x48, 0x8d])?)
}

/// The offset from `%rdi` in an instruction that fills `%rax`, from behind its opcode on, where the function returns right after it and whole words of an
/// object can be meant.
fn answered(code: &[u8]) -> Option<u32> {
    const RETURN: u8 = 0xc3;
    let (offset, rest) = match code {
        // A byte from 0x80 on is an offset below 0.
        [0x47, offset @ 0..0x80, rest @ ..] => (u32::from(*offset), rest),
        [0x87, rest @ ..] => {
            let (offset, rest) = rest.split_first_chunk()?;
            (u32::from_le_bytes(*offset), rest)
        }
        _ => return None,
    };
    (rest.first() == Some(&RETURN) && offset <= MOST_OFFSET && offset.is_multiple_of(WORD_BYTES)).then_some(offset)
}

/// From where in its argument a function returns a word, or half of one: `mov OFFSET(%rdi),%rax; ret`, after it has looked whether there is one.
pub(super) fn returned(code: &[u8], is_word: bool) -> Option<u32> {
    let opcode: &[u8] = if is_word { &[0x48, 0x8b] } else { &[0x8b] };
    (0..code.len()).find_map(|at| answered(code[at..].strip_prefix(opcode)?))
}
