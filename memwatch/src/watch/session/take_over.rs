//! A watch that goes on with another kernel half than the one that recorded until now: of another version, or with another ring.
//!
//! What was known is in the journal. What the earlier kernel half recorded since cannot be decoded, but whose each record is can be read: those processes
//! have lost so much, and all others are known as before. A call that lasts from before the first new probe until the last old one is out is missed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use memwatch_common::loss::Loss;
use memwatch_common::record::{Common, ProcessEvent, RecordKind};
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use super::Session;
use crate::exit::Failure;
use crate::sources::clock;
use crate::sources::kernel::ring::read_left;
use crate::watch::journal::Kept;

/// What the earlier kernel half recorded and nobody has read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    /// Records by whose they are and what goes with them: calls of the driver, or requests to the kernel driver.
    lost: BTreeMap<(u32, Loss), u64>,
    /// Whose program ended, and when; with `true`, another one is in its place.
    ended: BTreeMap<u32, (u64, bool)>,
    /// Records of which nothing can be read.
    unknown: u64,
}

impl Left {
    /// `probed_ns`: what was entered after that is recorded by this kernel half as well.
    fn take(&mut self, record: Option<Common>, probed_ns: u64) {
        let Some(Common { kind, tgid, event, time_ns }) = record else {
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
            // What a fork or a first call leads to is looked for. Tensors are traced for who asks, and who asks begins there.
            _ => {}
        }
    }

    fn lose(&mut self, tgid: u32, loss: Loss) {
        *self.lost.entry((tgid, loss)).or_insert(0) += 1;
    }
}

impl Session {
    /// All is probed by this kernel half.
    pub(super) fn take_over(&mut self, kept: &Kept) -> Result<(), Failure> {
        let probed_ns = clock::boottime_ns();
        let Some(pins) = &mut self.kernel.pins else { return Ok(()) };
        let ring = pins.silence_earlier().context("the ring of the agent before cannot be found")?;
        let mut left = Left::default();
        let is_whole = read_left(&ring, kept.position, |record| left.take(record, probed_ns))?;
        let is_known = is_whole && left.unknown == 0;
        let everybodys = [(!is_known, Loss::OtherVersion), (!is_known || kept.aside.takes_waiting, Loss::RmRecordLost)];
        for (_, loss) in everybodys.into_iter().filter(|(is_lost, _)| *is_lost) {
            self.pipeline.step(Input::Lost { tgid: None, loss, count: left.unknown.max(1) });
        }
        for (&tgid, &(time_ns, _)) in &left.ended {
            self.pipeline.step(Input::ProcessEnded { tgid: Tgid(tgid), time_ns });
        }
        let known: BTreeSet<u32> = self.pipeline.watched().map(|tgid| tgid.0).collect();
        for (&(tgid, loss), &count) in left.lost.iter().filter(|((tgid, _), _)| known.contains(tgid)) {
            self.pipeline.step(Input::Lost { tgid: Some(Tgid(tgid)), loss, count });
        }
        // Of who is met now, nothing was known that could be wrong.
        let whose: BTreeSet<u32> = left.lost.keys().map(|(tgid, _)| *tgid).collect();
        let execs = left.ended.iter().filter(|(_, (_, is_another))| *is_another).map(|(tgid, _)| *tgid);
        for tgid in whose.iter().copied().chain(execs).collect::<BTreeSet<u32>>().difference(&known) {
            self.learn_late(*tgid, probed_ns);
        }
        let (count, records) = (whose.len(), left.lost.values().sum::<u64>());
        if count > 0 {
            let whose = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
            eprintln!(
                "memwatch: {records} records of {whose} cannot be read, since another version made them while no agent ran: what these hold is not exact"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: RecordKind, tgid: u32, event: Option<ProcessEvent>, time_ns: u64) -> Common {
        Common { kind, tgid, event, time_ns: Some(time_ns) }
    }

    fn left(records: &[Common]) -> Left {
        let mut left = Left::default();
        for record in records {
            left.take(Some(*record), 100);
        }
        left
    }

    #[test]
    fn calls_and_requests_are_lost_of_whose_they_are_and_tensors_are_not() {
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
        assert_eq!(left, Left { lost, ended: BTreeMap::new(), unknown: 1 });
    }

    #[test]
    fn what_was_lost_of_a_program_that_has_ended_is_lost_with_it() {
        let left = left(&[
            record(RecordKind::Call, 7, None, 10),
            record(RecordKind::Process, 7, Some(ProcessEvent::Exec), 20),
            record(RecordKind::Call, 7, None, 30),
            record(RecordKind::Call, 8, None, 10),
            record(RecordKind::Process, 8, Some(ProcessEvent::Exit), 20),
            record(RecordKind::Process, 9, Some(ProcessEvent::Exit), 200),
        ]);
        let ended = BTreeMap::from([(7, (20, true)), (8, (20, false))]);
        assert_eq!(left, Left { lost: BTreeMap::from([((7, Loss::OtherVersion), 1)]), ended, unknown: 0 });
    }
}
