//! Decodes the inputs of a chunk.

use super::column::{self, NumberColumn};
use super::lane::{self, Lane, LaneKind};
use super::{ChunkFront, MOST_INPUTS};
use crate::input::Input;

/// A complete chunk read from a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Header of the chunk.
    pub front: ChunkFront,
    lanes: Vec<(Lane, Vec<NumberColumn>)>,
    order: Vec<usize>,
    others: Vec<Input>,
}

/// Error for bytes that are not a chunk although their checksum is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoChunk;

impl Chunk {
    /// Decodes an uncompressed chunk.
    pub(super) fn read(front: ChunkFront, mut bytes: &[u8]) -> Result<Self, NoChunk> {
        let inputs = front.inputs.min(MOST_INPUTS) as usize;
        let mut lanes = Vec::new();
        let mut rows_left = Vec::new();
        let count = column::read_number(&mut bytes).filter(|count| *count <= inputs as u64).ok_or(NoChunk)?;
        for _ in 0..count {
            let (lane, rows, columns) = read_lane(&mut bytes, inputs).ok_or(NoChunk)?;
            lanes.push((lane, columns));
            rows_left.push(rows);
        }
        let order = column::read(&mut bytes, inputs).ok_or(NoChunk)?;
        let order: Option<Vec<usize>> = (0..inputs).map(|row| order.get(row).try_into().ok()).collect();
        let order = order.ok_or(NoChunk)?;
        let mut others = 0;
        for index in &order {
            match lanes.get(*index).ok_or(NoChunk)? {
                (Lane { kind: LaneKind::Other, .. }, _) => others += 1,
                _ => rows_left[*index] = rows_left[*index].checked_sub(1).ok_or(NoChunk)?,
            }
        }
        let others = read_others(bytes, others).ok_or(NoChunk)?;
        if rows_left.iter().all(|rows| *rows == 0) { Ok(Self { front, lanes, order, others }) } else { Err(NoChunk) }
    }

    /// Passes the inputs to `take`, in order.
    ///
    /// # Errors
    /// The number of inputs passed before a row that cannot be decoded.
    pub fn for_each(self, mut take: impl FnMut(Input)) -> Result<(), usize> {
        let Self { lanes, order, others, .. } = self;
        let mut others = others.into_iter();
        let mut next_rows = vec![0; lanes.len()];
        let mut time_ns = 0_u64;
        for (done, index) in order.into_iter().enumerate() {
            let (Some((lane, columns)), Some(row)) = (lanes.get(index), next_rows.get_mut(index)) else {
                return Err(done);
            };
            let input = if lane.kind == LaneKind::Other {
                others.next()
            } else {
                let number = |number: usize| columns.get(number).map_or(0, |column| column.get(*row));
                time_ns = time_ns.wrapping_add(column::unfolded(number(0)));
                lane::input(*lane, |index| if index == 0 { time_ns } else { number(index) })
            };
            *row += 1;
            take(input.ok_or(done)?);
        }
        Ok(())
    }
}

fn read_lane(bytes: &mut &[u8], inputs: usize) -> Option<(Lane, usize, Vec<NumberColumn>)> {
    let lane = Lane::from_numbers(column::read_number(bytes)?, column::read_number(bytes)?)?;
    let rows = usize::try_from(column::read_number(bytes)?).ok().filter(|rows| *rows <= inputs)?;
    let columns: Option<Vec<NumberColumn>> = (0..lane.width()).map(|_| column::read(bytes, rows)).collect();
    Some((lane, rows, columns?))
}

/// Reads the inputs that are stored as text, which must end the chunk.
fn read_others(mut bytes: &[u8], count: usize) -> Option<Vec<Input>> {
    let mut others = Vec::new();
    for _ in 0..count {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        others.push(serde_json::from_slice(text).ok()?);
        bytes = rest;
    }
    bytes.is_empty().then_some(others)
}
