//! Maps instructions of Python code objects to lines, with the line tables of CPython 3.9 and
//! later.
//!
//! The tables are untrusted memory: for any contents, the result is a line or `None`.

/// Line table format of a version of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTable {
    /// `co_lnotab` of 3.9: pairs of byte and line increments (Objects/lnotab_notes.txt).
    Increments,
    /// `co_linetable` of 3.10: pairs of an entry's length and its line increment; -128 means no
    /// line (PEP 626).
    Ranges,
    /// `co_linetable` of 3.11 and later: entries of one byte and a variable rest
    /// (Objects/locations.md).
    Locations,
}

impl LineTable {
    /// Returns the line of the instruction at `offset_bytes`, in code that begins at `first_line`.
    ///
    /// `None` if the instruction has no line, the table ends before it, or the result is not a
    /// valid line.
    pub fn line(self, table: &[u8], first_line: u32, offset_bytes: u32) -> Option<u32> {
        let (first_line, offset) = (i64::from(first_line), u64::from(offset_bytes));
        let line = match self {
            Self::Increments => Some(by_increments(table, first_line, offset)),
            Self::Ranges => by_ranges(table, first_line, offset),
            Self::Locations => by_locations(table, first_line, offset),
        };
        line.and_then(|line| u32::try_from(line).ok())
    }

    /// Returns whether a table can belong to a code object of this size: its ranges add up to that
    /// size, or, before 3.10, start within it.
    pub fn is_of(self, table: &[u8], code_bytes: u64) -> bool {
        let pairs = || table.as_chunks::<2>().0.iter().map(|pair| u64::from(pair[0])).sum::<u64>();
        match self {
            Self::Increments => table.len().is_multiple_of(2) && pairs() < code_bytes,
            Self::Ranges => table.len().is_multiple_of(2) && pairs() == code_bytes,
            Self::Locations => {
                let (mut bytes, mut end) = (table.iter().copied(), 0);
                while let Some(head) = bytes.next() {
                    end += 2 * (u64::from(head & 7) + 1);
                    // Only the first byte of an entry has the highest bit set.
                    if head < 0x80 || entry(head >> 3 & 15, &mut bytes).is_none() {
                        return false;
                    }
                }
                end == code_bytes
            }
        }
    }
}

fn by_increments(table: &[u8], first_line: i64, offset: u64) -> i64 {
    let (mut line, mut start) = (first_line, 0);
    for &[bytes, lines] in table.as_chunks::<2>().0 {
        start += u64::from(bytes);
        if start > offset {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

fn by_ranges(table: &[u8], first_line: i64, offset: u64) -> Option<i64> {
    /// Marks an entry without a line.
    const WITHOUT: i8 = -128;
    let (mut line, mut start) = (first_line, 0);
    for &[bytes, lines] in table.as_chunks::<2>().0 {
        let end = start + u64::from(bytes);
        let lines = lines.cast_signed();
        if lines != WITHOUT {
            line += i64::from(lines);
        }
        if (start..end).contains(&offset) {
            return (lines != WITHOUT).then_some(line);
        }
        start = end;
    }
    None
}

fn by_locations(table: &[u8], first_line: i64, offset: u64) -> Option<i64> {
    let (mut line, mut start) = (first_line, 0);
    let mut bytes = table.iter().copied();
    while let Some(head) = bytes.next() {
        let units = u64::from(head & 7) + 1;
        let entry = entry(head >> 3 & 15, &mut bytes)?;
        if let LocationEntry::Lines(lines) = entry {
            line = line.checked_add(lines)?;
        }
        let end = start + 2 * units;
        if (start..end).contains(&offset) {
            return (entry != LocationEntry::WithoutLine).then_some(line);
        }
        start = end;
    }
    None
}

/// A decoded entry of a location table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocationEntry {
    /// Line increment relative to the previous entry.
    Lines(i64),
    /// The instructions have no line.
    WithoutLine,
}

/// Reads the rest of an entry after its first byte; `None` if the table ends too early.
fn entry(code: u8, rest: &mut impl Iterator<Item = u8>) -> Option<LocationEntry> {
    match code {
        // Columns in one byte, same line.
        0..=9 => rest.next().map(|_| LocationEntry::Lines(0)),
        // Columns in two bytes, line increment of 0 to 2.
        10..=12 => rest.nth(1).map(|_| LocationEntry::Lines(i64::from(code) - 10)),
        // No columns.
        13 => signed(rest).map(LocationEntry::Lines),
        // The last line and both columns follow.
        14 => {
            let lines = signed(rest)?;
            let _: [u64; 3] = [unsigned(rest)?, unsigned(rest)?, unsigned(rest)?];
            Some(LocationEntry::Lines(lines))
        }
        _ => Some(LocationEntry::WithoutLine),
    }
}

/// Reads a number with six bits per byte, lowest first; bit 6 means that another byte follows.
fn unsigned(rest: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0u32);
    loop {
        let byte = rest.next()?;
        // A valid number has at most six bytes.
        value |= u64::from(byte & 63).checked_shl(shift)?;
        shift += 6;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
}

/// Reads a number with the sign in the lowest bit.
fn signed(rest: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = unsigned(rest)?;
    let size = i64::try_from(value >> 1).ok()?;
    Some(if value & 1 == 1 { -size } else { size })
}

#[cfg(test)]
mod tests;
