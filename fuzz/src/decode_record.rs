//! A record from the ring, or a line table of Python. The traced program controls these bytes as
//! far as its arguments and memory go.

use memwatch_common::native::COPY_BYTES;
use memwatch_common::probes;
use memwatch_common::record::{CALL_RECORD_BYTES, Item, PROCESS_RECORD_BYTES, RingRecord};
use memwatch_common::rm::RmRecord;
use memwatch_core::decode::{Action, DecodeError, decode, decode_tensor};
use memwatch_core::input::rm::RmCall;
use memwatch_core::kernel_driver::KernelDriver;
use memwatch_core::kernel_driver::decode::Lies;
use memwatch_core::kernel_driver::process_ledger::DriverLedger;
use memwatch_core::stack::lines::LineTable;

/// Decodes items longer than a record, which are read in place.
fn long(data: &[u8]) {
    match Item::from_bytes(data) {
        Ok(Item::Stack(stack)) => assert_eq!(stack.frames().count(), usize::from(stack.record.frames)),
        Ok(Item::Native(copy)) => assert!(copy.stack.len() <= COPY_BYTES),
        Ok(Item::Rm(record)) => request(&record),
        Ok(Item::Statistics(_) | Item::Record(_)) | Err(_) => {}
    }
}

/// Applies a request to the kernel driver twice: the second request replaces the objects of the
/// first.
fn request(record: &RmRecord) {
    let call = RmCall::from(record);
    let mut ledger = KernelDriver::default();
    ledger.apply(&call, None);
    ledger.apply(&call, None);
    let video = ledger.memory(call.tgid).filter(|(.., memory)| memory.lies == Lies::Video);
    let bytes: u64 = video.map(|(.., memory)| memory.granted_bytes).sum();
    let live: u64 = ledger.ledger_of(call.tgid).into_iter().flat_map(DriverLedger::live).map(|(_, bytes)| bytes).sum();
    assert_eq!(bytes, live);
}

/// Reads and decodes the bytes.
///
/// # Panics
/// When a record is read from bytes of another length, or decoding contradicts the table of probes.
pub fn run(data: &[u8]) {
    lines(data);
    long(data);
    match RingRecord::from_bytes(data) {
        Ok(RingRecord::Call(record)) => {
            assert_eq!(data.len(), CALL_RECORD_BYTES);
            let row = probes::by_id(record.probe);
            match decode(&record) {
                Ok(call) => {
                    assert_eq!(Some(call.symbol), row.map(|row| row.symbol));
                    assert_eq!((call.tgid.0, call.tid.0), (record.tgid, record.tid));
                    assert_eq!(decode(&record), Ok(call), "the same record is the same call");
                    // The size of a failed call is decoded too: it is the refused size.
                    assert!(!matches!(call.action, Action::Free { .. }) || call.action.requested_bytes().is_none());
                }
                Err(DecodeError::UnknownProbe(id)) => assert!(row.is_none() && id == record.probe),
                Err(DecodeError::ResultUnreadable(_)) => assert!(record.status == 0 && record.flags != 0),
            }
        }
        Ok(RingRecord::Process(record)) => {
            assert_eq!(data.len(), PROCESS_RECORD_BYTES);
            assert!(record.event().is_none_or(|event| event as u8 == record.event));
        }
        Ok(record @ (RingRecord::Tensor(_) | RingRecord::Text(_))) => {
            if let Some(event) = decode_tensor(&record) {
                assert_eq!(decode_tensor(&record), Some(event), "the same record is the same event");
            }
        }
        Err(_) => {}
    }
}

/// Looks up a line: the first two bytes are an offset in the code, the rest is its line table.
fn lines(data: &[u8]) {
    let Some((&[low, high], table)) = data.split_first_chunk() else { return };
    let offset = u32::from(u16::from_le_bytes([low, high]));
    for format in [LineTable::Increments, LineTable::Ranges, LineTable::Locations] {
        let line = format.line(table, 1, offset);
        // Beyond the end of a table there is no line, except the last one in the format of 3.9.
        let is_behind = format.is_of(table, u64::from(offset));
        assert!(!is_behind || format == LineTable::Increments || line.is_none(), "{format:?}: {line:?} at {offset}");
    }
}
