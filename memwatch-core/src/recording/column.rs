//! Encodes columns of numbers as bytes. Repeated values and constant differences take little space
//! and compress well.

/// A decoded column of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NumberColumn {
    /// One number for all rows.
    Constant(u64),
    /// One number per row.
    Values(Vec<u64>),
}

/// Encoding of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum ColumnEncoding {
    Constant = 0,
    /// Each number as the difference from the previous one.
    Distances = 1,
    /// The width in bytes of the largest number, then the lowest bytes of all numbers, then the
    /// next bytes, and so on. This compresses best if the upper bytes are similar and the lower
    /// ones are not.
    Planes = 2,
}

impl NumberColumn {
    /// Returns the number in a row; 0 beyond the last row.
    pub(super) fn get(&self, row: usize) -> u64 {
        match self {
            Self::Constant(value) => *value,
            Self::Values(values) => values.get(row).copied().unwrap_or(0),
        }
    }
}

/// Appends a column of numbers close to their predecessors.
pub(super) fn write(bytes: &mut Vec<u8>, values: &[u64]) {
    if write_constant(bytes, values) {
        return;
    }
    bytes.push(ColumnEncoding::Distances as u8);
    let mut last = 0_u64;
    for value in values {
        write_number(bytes, folded(value.wrapping_sub(last)));
        last = *value;
    }
}

/// Appends a column of small numbers unrelated to their predecessors.
pub(super) fn write_planes(bytes: &mut Vec<u8>, values: &[u64]) {
    if write_constant(bytes, values) {
        return;
    }
    let largest = values.iter().copied().max().unwrap_or(0);
    let planes = largest.bit_width().div_ceil(8).max(1) as usize;
    bytes.push(ColumnEncoding::Planes as u8);
    bytes.push(planes.to_le_bytes()[0]);
    for plane in 0..planes {
        bytes.extend(values.iter().map(|value| value.to_le_bytes()[plane]));
    }
}

fn write_constant(bytes: &mut Vec<u8>, values: &[u64]) -> bool {
    let first = values.first().copied().unwrap_or(0);
    let is_constant = values.iter().all(|value| *value == first);
    if is_constant {
        bytes.push(ColumnEncoding::Constant as u8);
        write_number(bytes, first);
    }
    is_constant
}

/// Takes a column with this number of rows from the front; `None` if the bytes are not a column.
pub(super) fn read(bytes: &mut &[u8], rows: usize) -> Option<NumberColumn> {
    let (form, rest) = bytes.split_first()?;
    *bytes = rest;
    if *form == ColumnEncoding::Constant as u8 {
        return read_number(bytes).map(NumberColumn::Constant);
    }
    if *form == ColumnEncoding::Planes as u8 {
        return read_planes(bytes, rows);
    }
    // Each number takes at least one byte, so the capacity is limited by the input.
    if *form != ColumnEncoding::Distances as u8 || rows > bytes.len() {
        return None;
    }
    let mut values = Vec::with_capacity(rows);
    let mut last = 0_u64;
    for _ in 0..rows {
        last = last.wrapping_add(unfolded(read_number(bytes)?));
        values.push(last);
    }
    Some(NumberColumn::Values(values))
}

fn read_planes(bytes: &mut &[u8], rows: usize) -> Option<NumberColumn> {
    let (planes, rest) = bytes.split_first()?;
    let planes = usize::from(*planes);
    let length = planes.checked_mul(rows).filter(|_| (1..=8).contains(&planes))?;
    let (taken, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    let mut values = vec![0_u64; rows];
    for (shift, plane) in (0..).step_by(8).zip(taken.chunks_exact(rows.max(1))) {
        values.iter_mut().zip(plane).for_each(|(value, byte)| *value |= u64::from(*byte) << shift);
    }
    Some(NumberColumn::Values(values))
}

/// Appends a number with seven bits per byte, lowest first (LEB128).
pub(super) fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Takes a number from the front; `None` if the bytes end within it, or it is too long.
pub(super) fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Encodes a signed difference as a number that is small if the difference is (zigzag).
pub(super) const fn folded(distance: u64) -> u64 {
    let distance = distance.cast_signed();
    ((distance << 1) ^ (distance >> 63)).cast_unsigned()
}

/// Decodes the result of [`folded`].
pub(super) const fn unfolded(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::{NumberColumn, read, read_number, write, write_number, write_planes};

    fn through(values: &[u64]) -> (usize, Vec<u64>) {
        through_as(write, values)
    }

    fn through_as(form: fn(&mut Vec<u8>, &[u64]), values: &[u64]) -> (usize, Vec<u64>) {
        let mut bytes = Vec::new();
        form(&mut bytes, values);
        let length = bytes.len();
        let mut rest = &bytes[..];
        let column = read(&mut rest, values.len()).expect("what was written is read");
        assert_eq!(rest, b"");
        (length, (0..values.len()).map(|row| column.get(row)).collect())
    }

    #[test]
    fn column_numbers_round_trip_at_all_sizes() {
        let values = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 127, 128, 300, 0];
        assert_eq!(through(&values).1, values);
        assert_eq!(through(&[]).1, <[u64; 0]>::default());
        for values in [&values[..], &[5, 0], &[256, 7, 65_535], &[]] {
            assert_eq!(through_as(write_planes, values).1, values);
        }
        assert_eq!(through_as(write_planes, &[256, 7, 65_535]).0, 2 + 2 * 3);
    }

    #[test]
    fn column_of_equal_values_is_one_value_and_steady_growth_one_byte_each() {
        assert_eq!(through(&[u64::MAX; 1000]).0, 11);
        let steady: Vec<u64> = (0..1000).map(|index| 1_000_000 + index * 32).collect();
        assert!(through(&steady).0 < 1010, "{}", through(&steady).0);
    }

    #[test]
    fn column_decoder_rejects_damaged_bytes_without_allocating() {
        for bytes in [&[][..], &[9, 0], &[1], &[1, 0x80], &[0, 0xff, 0xff], &[2], &[2, 0, 1], &[2, 9, 1], &[2, 1, 1]] {
            assert_eq!(read(&mut &*bytes, 2), None, "{bytes:?}");
        }
        assert_eq!(read(&mut &[1, 2, 3][..], usize::MAX), None);
        assert_eq!(read_number(&mut &[0xff; 20][..]), None, "longer than any number");
        let mut bytes = Vec::new();
        write_number(&mut bytes, u64::MAX);
        assert_eq!((bytes.len(), read_number(&mut &bytes[..])), (10, Some(u64::MAX)));
        assert_eq!(read(&mut &[0, 5][..], 7), Some(NumberColumn::Constant(5)));
    }
}
