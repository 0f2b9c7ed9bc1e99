//! Reads a long range of a file in pieces.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Size of a piece.
const PIECE_BYTES: usize = 1 << 20;
/// Maximum length of a range. A longer one would be a hole in a sparse file. The largest libraries
/// have 2.5 GB.
const MOST_BYTES: u64 = 4 << 30;

/// Passes a range of a file to `look` in pieces, each with its offset in the range. `look` returns
/// how many bytes at the end of the piece it needs again.
pub(crate) fn in_pieces(
    file: &File,
    (start, length): (u64, u64),
    mut look: impl FnMut(u64, &[u8]) -> usize,
) -> io::Result<()> {
    if length > MOST_BYTES || start.checked_add(length).is_none() {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut buffer = vec![0; PIECE_BYTES];
    let (mut offset, mut kept) = (0, 0);
    while offset < length {
        let room = (buffer.len() - kept) as u64;
        let more = usize::try_from(room.min(length - offset)).map_err(io::Error::other)?;
        file.read_exact_at(&mut buffer[kept..kept + more], start + offset)?;
        let filled = kept + more;
        let again = look(offset - kept as u64, &buffer[..filled]).min(filled).min(PIECE_BYTES / 2);
        buffer.copy_within(filled - again..filled, 0);
        kept = again;
        offset += more as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::in_pieces;

    #[test]
    fn file_pieces_overlap_so_that_boundary_bytes_are_seen_whole() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        file.write_all(&bytes).expect("written");
        let mut next = 1_u32;
        in_pieces(&file, (4, bytes.len() as u64 - 4), |offset, piece| {
            for (index, word) in piece.as_chunks::<4>().0.iter().enumerate() {
                let word = u32::from_le_bytes(*word);
                assert_eq!(u64::from(word), 1 + (offset + index as u64 * 4) / 4);
                next = next.max(word + 1);
            }
            24
        })
        .expect("read");
        assert_eq!(next, 3_000_000);
    }
}
