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

/// From where in its argument a function returns a word, or half of one: `mov OFFSET(%rdi),%rax; ret`, after it has looked whether there is one.
pub(super) fn returned(code: &[u8], is_word: bool) -> Option<u32> {
    const RETURN: u8 = 0xc3;
    let opcode: &[u8] = if is_word { &[0x48, 0x8b] } else { &[0x8b] };
    (0..code.len()).find_map(|at| {
        let (offset, rest) = match code[at..].strip_prefix(opcode)? {
            [0x47, offset, rest @ ..] => (u32::from(*offset), rest),
            [0x87, rest @ ..] => {
                let (offset, rest) = rest.split_first_chunk()?;
                (u32::from_le_bytes(*offset), rest)
            }
            _ => return None,
        };
        let is_answer = rest.first() == Some(&RETURN) && offset <= MOST_OFFSET && offset.is_multiple_of(WORD_BYTES);
        is_answer.then_some(offset)
    })
}
