//! Fields at the same place in the records of all versions: enough to read another version's
//! records in a ring.

use super::{CallRecord, ProcessEvent, ProcessRecord, RecordKind};
use crate::native::NativeRecord;
use crate::rm::RmRecord;
use crate::tensor::{StackRecord, StatisticsRecord, TensorRecord, TextRecord};

/// Offset of the tgid in a record, depending on its kind. These numbers never change, because other
/// versions read records by them.
const AFTER_A_WORD: usize = 4;
const AFTER_TWO_WORDS: usize = 8;
/// Offset of a call's entry time and of a process event's time.
const TIME: usize = 16;

const _: () = {
    assert!(core::mem::offset_of!(CallRecord, tgid) == AFTER_TWO_WORDS);
    assert!(core::mem::offset_of!(TensorRecord, tgid) == AFTER_TWO_WORDS);
    assert!(core::mem::offset_of!(TextRecord, tgid) == AFTER_TWO_WORDS);
    assert!(core::mem::offset_of!(RmRecord, tgid) == AFTER_TWO_WORDS);
    assert!(core::mem::offset_of!(ProcessRecord, tgid) == AFTER_A_WORD);
    assert!(core::mem::offset_of!(StackRecord, tgid) == AFTER_A_WORD);
    assert!(core::mem::offset_of!(StatisticsRecord, tgid) == AFTER_A_WORD);
    assert!(core::mem::offset_of!(NativeRecord, tgid) == AFTER_A_WORD);
    assert!(core::mem::offset_of!(CallRecord, entered_ns) == TIME);
    assert!(core::mem::offset_of!(ProcessRecord, time_ns) == TIME);
};

/// Fields of a record that any version can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonFields {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// The process event, if the record reports one.
    pub event: Option<ProcessEvent>,
    /// Time of a call's entry or of a process event: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: Option<u64>,
}

impl CommonFields {
    /// Reads the common fields; `None` if this version does not know the kind or the record is too
    /// short.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let kind = RecordKind::from_number(*bytes.first()?)?;
        let (tgid_at, is_timed) = match kind {
            RecordKind::Call => (AFTER_TWO_WORDS, true),
            RecordKind::Process => (AFTER_A_WORD, true),
            RecordKind::Tensor | RecordKind::Text | RecordKind::Rm => (AFTER_TWO_WORDS, false),
            RecordKind::Stack | RecordKind::Statistics | RecordKind::Native => (AFTER_A_WORD, false),
        };
        let tgid = u32::from_ne_bytes(*bytes.get(tgid_at..)?.first_chunk()?);
        let time_ns = if is_timed { Some(u64::from_ne_bytes(*bytes.get(TIME..)?.first_chunk()?)) } else { None };
        let event = if kind == RecordKind::Process { ProcessEvent::from_number(*bytes.get(1)?) } else { None };
        Some(Self { kind, tgid, event, time_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(kind: u8) -> [u8; 32] {
        let mut bytes = core::array::from_fn(|index| u8::try_from(index).expect("it is short"));
        bytes[0] = kind;
        bytes
    }

    #[test]
    fn common_fields_have_the_pid_of_every_kind_and_the_time_of_calls() {
        let early = u32::from_ne_bytes([4, 5, 6, 7]);
        let late = u32::from_ne_bytes([8, 9, 10, 11]);
        let time = Some(u64::from_ne_bytes([16, 17, 18, 19, 20, 21, 22, 23]));
        for (kind, tgid, time_ns) in [
            (1, late, time),
            (2, early, time),
            (3, late, None),
            (4, late, None),
            (5, early, None),
            (6, early, None),
            (7, early, None),
            (8, late, None),
        ] {
            let common = CommonFields::from_bytes(&numbered(kind)).expect("it is long enough");
            assert_eq!((common.kind as u8, common.tgid, common.time_ns), (kind, tgid, time_ns));
        }
        let mut exit = numbered(2);
        exit[1] = 3;
        assert_eq!(CommonFields::from_bytes(&exit).and_then(|common| common.event), Some(ProcessEvent::Exit));
    }

    #[test]
    fn common_fields_of_short_or_unknown_records_are_none() {
        for kind in [0, 9, 255] {
            assert_eq!(CommonFields::from_bytes(&numbered(kind)), None);
        }
        assert_eq!(CommonFields::from_bytes(&[]), None);
        for kind in 1..=8 {
            assert_eq!(CommonFields::from_bytes(&numbered(kind)[..7]), None);
        }
        assert_eq!(CommonFields::from_bytes(&numbered(1)[..20]), None);
    }
}
