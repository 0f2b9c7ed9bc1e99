//! Restart handover to a different kernel half: another version, or another ring size.
//!
//! The journal holds the state. Records that the earlier kernel half made after the last journal
//! entry cannot be decoded, except for their process and kind. The processes of these records count
//! that many losses; all other processes resume exactly. A call that spans the whole exchange of
//! probes is missed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use memwatch_common::loss::Loss;
use memwatch_common::record::{CommonFields, ProcessEvent, RecordKind};
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use super::parts::SessionParts;
use crate::exit::ExitFailure;
use crate::sources::clock;
use crate::sources::kernel::ring::read_left;
use crate::watch::journal::RestoredJournal;

/// Unread records of the earlier kernel half.
#[derive(Debug, Default, PartialEq, Eq)]
struct UnreadRecords {
    /// Number of records by process and kind of loss: driver calls, or requests to the kernel
    /// driver.
    lost: BTreeMap<(u32, Loss), u64>,
    /// Processes that exited or called exec, with the time. `true` if the process called exec.
    ended: BTreeMap<u32, (u64, bool)>,
    /// Number of records that could not be read.
    unknown: u64,
}

impl UnreadRecords {
    /// Counts one record. Calls entered after `probed_ns` are recorded by the new kernel half as
    /// well and do not count.
    fn take(&mut self, record: Option<CommonFields>, probed_ns: u64) {
        let Some(CommonFields { kind, tgid, event, time_ns }) = record else {
            self.unknown += 1;
            return;
        };
        if time_ns.is_some_and(|time_ns| time_ns >= probed_ns) {
            return;
        }
        match (kind, event) {
            (RecordKind::Process, Some(ProcessEvent::Exec | ProcessEvent::Exit)) => {
                self.ended.insert(tgid, (time_ns.unwrap_or(probed_ns), event == Some(ProcessEvent::Exec)));
                self.lost.retain(|(own, _), _| *own != tgid);
            }
            (RecordKind::Call, _) | (RecordKind::Process, None) => self.lose(tgid, Loss::OtherVersion),
            (RecordKind::Rm, _) => self.lose(tgid, Loss::RmRecordLost),
            // Discovery finds the processes of forks and first calls anyway. Tensor tracing starts
            // again with its client.
            _ => {}
        }
    }

    fn lose(&mut self, tgid: u32, loss: Loss) {
        *self.lost.entry((tgid, loss)).or_insert(0) += 1;
    }
}

/// Continues from the records of the earlier kernel half. All probes of the new kernel half
/// must be in place.
///
/// # Errors
/// The ring of the earlier kernel half cannot be read.
pub(super) fn take_over(parts: &mut SessionParts, kept: &RestoredJournal) -> Result<(), ExitFailure> {
    let probed_ns = clock::boottime_ns();
    let Some(pins) = &mut parts.kernel.pins else { return Ok(()) };
    let ring = pins.silence_earlier().context("cannot find the ring of the previous agent")?;
    let mut left = UnreadRecords::default();
    let is_whole = read_left(&ring, kept.position, |record| left.take(record, probed_ns))?;
    let is_known = is_whole && left.unknown == 0;
    let everybodys = [(!is_known, Loss::OtherVersion), (!is_known || kept.aside.takes_waiting, Loss::RmRecordLost)];
    for (_, loss) in everybodys.into_iter().filter(|(is_lost, _)| *is_lost) {
        parts.sink.step(Input::Lost { tgid: None, loss, count: left.unknown.max(1) });
    }
    for (&tgid, &(time_ns, _)) in &left.ended {
        parts.sink.step(Input::ProcessEnded { tgid: Tgid(tgid), time_ns });
    }
    let known: BTreeSet<u32> = parts.sink.state().watched().map(|tgid| tgid.0).collect();
    for (&(tgid, loss), &count) in left.lost.iter().filter(|((tgid, _), _)| known.contains(tgid)) {
        parts.sink.step(Input::Lost { tgid: Some(Tgid(tgid)), loss, count });
    }
    // A process that the pipeline does not know yet has no earlier state that could be wrong.
    let whose: BTreeSet<u32> = left.lost.keys().map(|(tgid, _)| *tgid).collect();
    let execs = left.ended.iter().filter(|(_, (_, is_another))| *is_another).map(|(tgid, _)| *tgid);
    for tgid in whose.iter().copied().chain(execs).collect::<BTreeSet<u32>>().difference(&known) {
        parts.learn_late(*tgid, probed_ns);
    }
    let (count, records) = (whose.len(), left.lost.values().sum::<u64>());
    if count > 0 {
        let whose = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
        eprintln!(
            "memwatch: cannot read {records} records of {whose}: another version of memwatch wrote them while no agent ran. The totals of {whose} may be inexact"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: RecordKind, tgid: u32, event: Option<ProcessEvent>, time_ns: u64) -> CommonFields {
        CommonFields { kind, tgid, event, time_ns: Some(time_ns) }
    }

    fn left(records: &[CommonFields]) -> UnreadRecords {
        let mut left = UnreadRecords::default();
        for record in records {
            left.take(Some(*record), 100);
        }
        left
    }

    #[test]
    fn unread_calls_and_requests_are_losses_of_their_process() {
        let event = |tgid, event| record(RecordKind::Process, tgid, Some(event), 10);
        let mut left = left(&[
            record(RecordKind::Call, 7, None, 10),
            record(RecordKind::Rm, 7, None, 20),
            record(RecordKind::Call, 8, None, 99),
            record(RecordKind::Call, 9, None, 100),
            record(RecordKind::Tensor, 10, None, 10),
            event(11, ProcessEvent::FirstCall),
            event(12, ProcessEvent::Fork),
        ]);
        left.take(None, 100);
        let (call, request) = (Loss::OtherVersion, Loss::RmRecordLost);
        let lost = BTreeMap::from([((7, call), 1), ((7, request), 1), ((8, call), 1)]);
        assert_eq!(left, UnreadRecords { lost, ended: BTreeMap::new(), unknown: 1 });
    }

    #[test]
    fn unread_records_before_a_program_ended_are_lost_with_it() {
        let left = left(&[
            record(RecordKind::Call, 7, None, 10),
            record(RecordKind::Process, 7, Some(ProcessEvent::Exec), 20),
            record(RecordKind::Call, 7, None, 30),
            record(RecordKind::Call, 8, None, 10),
            record(RecordKind::Process, 8, Some(ProcessEvent::Exit), 20),
            record(RecordKind::Process, 9, Some(ProcessEvent::Exit), 200),
        ]);
        let ended = BTreeMap::from([(7, (20, true)), (8, (20, false))]);
        assert_eq!(left, UnreadRecords { lost: BTreeMap::from([((7, Loss::OtherVersion), 1)]), ended, unknown: 0 });
    }
}
