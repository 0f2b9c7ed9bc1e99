//! Build id of an ELF file, which identifies equal builds at any path.

use object::LittleEndian;
use object::elf::{FileHeader64, NT_GNU_BUILD_ID, PT_NOTE, ProgramHeader64};
use object::read::ReadRef;
use object::read::elf::{NoteIterator, ProgramHeader as _};

const LE: LittleEndian = LittleEndian;
/// Maximum size of a note segment.
const MAX_NOTE_BYTES: u64 = 64 << 10;

/// Returns the build id of a file in hexadecimal digits; `None` if it has none.
pub(super) fn build_id<'data>(data: impl ReadRef<'data>, segments: &[ProgramHeader64<LittleEndian>]) -> Option<String> {
    segments.iter().filter(|segment| segment.p_type(LE) == PT_NOTE && segment.p_filesz(LE) <= MAX_NOTE_BYTES).find_map(
        |segment| {
            let bytes = segment.data(LE, data).ok()?;
            let mut notes = NoteIterator::<FileHeader64<LittleEndian>>::new(LE, segment.p_align(LE), bytes).ok()?;
            while let Ok(Some(note)) = notes.next() {
                if note.name() == b"GNU" && note.n_type(LE) == NT_GNU_BUILD_ID {
                    return Some(hexadecimal(note.desc()));
                }
            }
            None
        },
    )
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|&byte| [byte >> 4, byte & 0xf])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}
