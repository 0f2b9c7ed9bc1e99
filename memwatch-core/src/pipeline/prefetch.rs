//! Calls in number: while one is applied, what later ones will read is on its way from memory.

use memwatch_common::record::CallRecord;

use crate::ledger::ProcessLedger;
use crate::ledger::table::Tag;
use crate::words::Tgid;
use crate::{Pipeline, decode};

/// So many calls are looked ahead at a time: as many reads a core may wait for at once, and what they bring has to fit its nearest cache.
const TOGETHER: usize = 16;

/// What the calls of one group are going to look up, in their order; `None` for what needs no prefetch.
type Tags = [Option<Tag>; TOGETHER];

impl Pipeline {
    /// Takes these calls into account, as [`Pipeline::step`] does one after the other, but faster where there is much to look up.
    pub fn step_calls(&mut self, records: &[CallRecord]) {
        let mut groups = records.chunks(TOGETHER);
        let mut present = groups.next().unwrap_or_default();
        let first_tags = self.prefetch(present);
        let mut next = groups.next().unwrap_or_default();
        let mut next_tags = self.prefetch(next);
        self.prefetch_tenant(present, &first_tags);
        while !present.is_empty() {
            // In this order, each of the two has the time that one group takes to arrive.
            self.prefetch_tenant(next, &next_tags);
            let last = groups.next().unwrap_or_default();
            let last_tags = self.prefetch(last);
            for record in present {
                self.call(record);
            }
            (present, next, next_tags) = (next, last, last_tags);
        }
    }

    fn prefetch(&self, records: &[CallRecord]) -> Tags {
        let mut tags = [None; TOGETHER];
        let mut ledgers = Ledgers { pipeline: self, latest: None };
        for (tag, record) in tags.iter_mut().zip(records) {
            *tag = decode::address(record).and_then(|address| ledgers.of(record)?.prefetch(address));
        }
        tags
    }

    fn prefetch_tenant(&self, records: &[CallRecord], tags: &Tags) {
        let mut ledgers = Ledgers { pipeline: self, latest: None };
        for (record, tag) in records.iter().zip(tags) {
            if let (Some(tag), Some(ledger)) = (tag, ledgers.of(record)) {
                ledger.prefetch_tenant(*tag);
            }
        }
    }
}

/// The ledgers of processes: one call after another is most often of the same.
struct Ledgers<'a> {
    pipeline: &'a Pipeline,
    latest: Option<(Tgid, Option<&'a ProcessLedger>)>,
}

impl<'a> Ledgers<'a> {
    #[inline]
    fn of(&mut self, record: &CallRecord) -> Option<&'a ProcessLedger> {
        let tgid = Tgid(record.tgid);
        if let Some((_, ledger)) = self.latest.filter(|(latest, _)| *latest == tgid) {
            return ledger;
        }
        let ledger = self.pipeline.processes.get(&tgid).map(|process| &process.ledger);
        self.latest = Some((tgid, ledger));
        ledger
    }
}
