//! Ioctls to the kernel driver as inputs.

use memwatch_common::rm::{FLAG_ARGUMENT_UNREADABLE, FLAG_PARAMS_UNREADABLE, PARAMS_OFFSET, PAYLOAD_BYTES, RmRecord};
use serde::{Deserialize, Serialize};

use crate::words::{Tgid, Tid};

/// A returned ioctl to the kernel driver: the contents of an [`RmRecord`], as stored in recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RmCall {
    /// Calling process.
    pub tgid: Tgid,
    /// Calling thread.
    pub tid: Tid,
    /// `FLAG_*` bits of [`memwatch_common::rm`].
    pub flags: u8,
    /// Ioctl number.
    pub nr: u8,
    /// Size of the argument, bytes.
    pub size: u16,
    /// Return value of the ioctl.
    pub answer: i32,
    /// Entry time: `CLOCK_BOOTTIME`, nanoseconds.
    pub entered_ns: u64,
    /// Return time: `CLOCK_BOOTTIME`, nanoseconds.
    pub returned_ns: u64,
    /// Driver function in flight on the thread.
    pub inside: Option<Inside>,
    /// Requested bytes of a memory allocation.
    pub asked_bytes: u64,
    /// Identifier of the native stack; 0 for none.
    pub stack: u64,
    /// Copied argument bytes, without trailing zeros.
    pub payload: Vec<u8>,
}

/// A driver function call in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Inside {
    /// Probe table row of the function.
    pub probe: u16,
    /// Entry time: `CLOCK_BOOTTIME`, nanoseconds.
    pub entered_ns: u64,
}

/// Returns the length of copied argument bytes without the zeros at their end.
pub(crate) fn used_bytes(payload: &[u8]) -> usize {
    payload.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

impl From<&RmRecord> for RmCall {
    fn from(record: &RmRecord) -> Self {
        let inside = Inside { probe: record.probe, entered_ns: record.call_entered_ns };
        Self {
            tgid: Tgid(record.tgid),
            tid: Tid(record.tid),
            flags: record.flags,
            nr: record.nr,
            size: record.size,
            answer: record.answer,
            entered_ns: record.entered_ns,
            returned_ns: record.returned_ns,
            inside: (record.call_entered_ns != 0).then_some(inside),
            asked_bytes: record.asked_bytes,
            stack: record.stack,
            payload: record.payload[..used_bytes(&record.payload)].to_vec(),
        }
    }
}

impl RmCall {
    /// Returns four bytes of the argument; bytes that were not read are zero.
    pub fn word(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes(offset))
    }

    /// Returns eight bytes of the argument.
    pub fn long(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes(offset))
    }

    /// Returns four bytes of an allocation's own parameters.
    pub fn param(&self, offset: usize) -> u32 {
        self.word(PARAMS_OFFSET + offset)
    }

    /// Returns eight bytes of an allocation's own parameters.
    pub fn long_param(&self, offset: usize) -> u64 {
        self.long(PARAMS_OFFSET + offset)
    }

    /// Returns `N` copied bytes from an offset.
    pub fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        debug_assert!(offset + N <= PAYLOAD_BYTES);
        core::array::from_fn(|index| self.payload.get(offset + index).copied().unwrap_or(0))
    }

    /// Returns whether the argument and the parameters could be read.
    pub const fn is_read(&self) -> bool {
        self.flags & (FLAG_ARGUMENT_UNREADABLE | FLAG_PARAMS_UNREADABLE) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwatch_common::record::RecordKind;

    #[test]
    fn a_record_is_kept_without_the_zeros_at_its_end_and_reads_as_it_was() {
        let mut payload = [0; PAYLOAD_BYTES];
        payload[8..12].copy_from_slice(&0x5c00_0003_u32.to_le_bytes());
        payload[PARAMS_OFFSET + 64..PARAMS_OFFSET + 72].copy_from_slice(&(6_u64 << 20).to_le_bytes());
        let record = RmRecord {
            kind: RecordKind::Rm as u8,
            flags: 0,
            nr: 0x2b,
            reserved: 0,
            size: 48,
            probe: 29,
            tgid: 7,
            tid: 8,
            answer: 0,
            owner: 0,
            entered_ns: 10,
            returned_ns: 20,
            call_entered_ns: 5,
            asked_bytes: 1 << 20,
            stack: 0,
            payload,
        };
        let call = RmCall::from(&record);
        assert_eq!((call.word(8), call.long_param(64), call.long(16)), (0x5c00_0003, 6 << 20, 0));
        assert!(call.payload.len() < PAYLOAD_BYTES && call.is_read());
        assert_eq!(call.inside, Some(Inside { probe: 29, entered_ns: 5 }));
        assert_eq!(RmCall::from(&RmRecord { call_entered_ns: 0, ..record }).inside, None);
    }
}
