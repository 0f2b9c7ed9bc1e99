//! A record off the ring: bytes of another program's making, as far as its arguments and memory go.

use memwatch_common::probes;
use memwatch_common::record::{CALL_RECORD_BYTES, PROCESS_RECORD_BYTES, Record};
use memwatch_core::decode::{Action, DecodeError, decode};

/// Reads and decodes the bytes.
///
/// # Panics
/// When a record is taken from bytes of another length, or decoding contradicts the table.
pub fn run(data: &[u8]) {
    match Record::from_bytes(data) {
        Ok(Record::Call(record)) => {
            assert_eq!(data.len(), CALL_RECORD_BYTES);
            let row = probes::by_id(record.probe);
            match decode(&record) {
                Ok(call) => {
                    assert_eq!(Some(call.symbol), row.map(|row| row.symbol));
                    assert_eq!((call.tgid.0, call.tid.0), (record.tgid, record.tid));
                    assert_eq!(decode(&record), Ok(call), "the same record is the same call");
                    // A failed call's size is read all the same: it is what was refused.
                    assert!(!matches!(call.action, Action::Free { .. }) || call.action.requested_bytes().is_none());
                }
                Err(DecodeError::UnknownProbe(id)) => assert!(row.is_none() && id == record.probe),
                Err(DecodeError::ResultUnreadable(_)) => assert!(record.status == 0 && record.flags != 0),
            }
        }
        Ok(Record::Process(record)) => {
            assert_eq!(data.len(), PROCESS_RECORD_BYTES);
            assert!(record.event().is_none_or(|event| event as u8 == record.event));
        }
        Err(_) => {}
    }
}
