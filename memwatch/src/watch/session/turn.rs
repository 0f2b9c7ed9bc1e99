//! One iteration of the poll loop: waits for the next event and handles it.

use std::time::Instant;

use memwatch_core::input::Input;
use memwatch_core::snapshot::Snapshot;

use super::collectors::attach_examined;
use super::{Session, survival};
use crate::sources::clock;
use crate::watch::signals::at;

impl Session {
    /// Waits for records, a collector's answer or a due poll, and handles the first of these.
    ///
    /// Cancel safe: a future dropped while waiting has consumed nothing.
    pub(crate) async fn advance(&mut self) {
        let next_poll = self.parts.backoff.next_look(self.due(Instant::now()));
        let Self { parts, collectors, .. } = self;
        tokio::select! {
            // While awake, a wake-up only fetches records. Everything else happens at the normal
            // interval.
            _ = parts.ring.wake() => if parts.backoff.is_awake() { parts.pump() } else { self.poll() },
            () = parts.libraries.rings() => {
                parts.backoff.note_mapping(Instant::now());
                self.poll();
            }
            () = at(next_poll.map(Into::into)) => self.poll(),
            () = parts.libraries.news() => attach_examined(parts),
            () = collectors.answered() => collectors.take_answers(parts),
        }
    }

    /// Returns a snapshot of the current state.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.collectors.note_request(Instant::now());
        self.tick();
        let mut snapshot = self.parts.sink.pipeline().snapshot();
        if !self.parts.scope.everybody {
            snapshot.keep_wanted();
        }
        snapshot
    }

    /// Processes everything up to now without making a report, so that peaks include this moment.
    pub(crate) fn tick(&mut self) {
        // The ring holds every call that has returned by now, so a report covers all calls up to its time.
        let now_ns = clock::boottime_ns();
        self.parts.pump();
        self.parts.kernel.login_users.refresh();
        self.collectors.collect_for_report(&mut self.parts, now_ns);
        self.parts.sink.step(Input::Tick { time_ns: now_ns });
        survival::tend(&mut self.survival, &mut self.parts);
    }

    /// Fetches all records and does everything that is due.
    fn poll(&mut self) {
        self.collectors.collect_before_records(&mut self.parts);
        self.fetch();
        self.parts.sink.take_news();
        self.parts.sink.write_if_due();
        self.parts.sink.tend_journal();
        self.collectors.collect(&mut self.parts);
        if self.parts.backoff.note_look(Instant::now()) {
            self.fall_asleep();
        } else if self.parts.backoff.is_awake() {
            self.parts.libraries.hush();
        }
    }

    fn fetch(&mut self) {
        // Mappings come first: forks arrive in the record ring, which is drained afterwards.
        if self.parts.libraries.fetch_mapped() {
            self.parts.backoff.note_records();
        }
        self.parts.pump();
    }

    /// Arms every source to wake the loop. Anything that arrived earlier is in the rings and is
    /// fetched below.
    fn fall_asleep(&mut self) {
        self.parts.libraries.want_next_mapping();
        if let Err(error) = self.parts.ring.want_next() {
            log::warn!("cannot sleep until the next record, so the ring is polled: {error}");
            self.parts.backoff.note_records();
        }
        self.fetch();
    }

    /// Returns when the next work is due that no record announces.
    fn due(&self, now: Instant) -> Option<Instant> {
        let log = self.parts.diagnostics.as_ref().map(|_| now);
        [log, self.parts.sink.due(now), self.collectors.due(&self.parts, now)].into_iter().flatten().min()
    }
}
