//! One iteration of the poll loop: waits for the next event and handles it.

use std::time::Instant;

use super::Session;
use crate::watch::signals::at;

impl Session {
    /// Waits for records, a device reading, names or a due poll, and handles the first of these.
    ///
    /// Cancel safe: a future dropped while waiting has consumed nothing.
    pub(crate) async fn advance(&mut self) {
        let look = self.rest.next_look(self.due(Instant::now()));
        tokio::select! {
            // While awake, a wake-up only fetches records. Everything else happens at the normal
            // interval.
            _ = self.ring.wake() => if self.rest.is_awake() { self.pump() } else { self.look() },
            () = self.libraries.rings() => {
                self.rest.note_mapping(Instant::now());
                self.look();
            }
            () = at(look.map(Into::into)) => self.look(),
            () = self.libraries.news() => self.attach_looked(),
            Some(reading) = self.devices.recv() => self.take_devices(reading),
            found = self.names.next() => self.take_names(found),
        }
    }

    /// Fetches all records and does everything that is due.
    fn look(&mut self) {
        // This precedes the records, since the driver's version decides how requests to the kernel
        // driver are decoded.
        self.driver_version.news().into_iter().for_each(|version| self.sink.step(version));
        self.fetch();
        self.sink.take_news();
        self.sink.write_if_due();
        self.sink.tend_journal();
        self.discover();
        let now = Instant::now();
        self.devices.rest(self.calm.is_calm(self.sink.state().watched().count(), now));
        if self.rest.note_look(now) {
            self.fall_asleep();
        } else if self.rest.is_awake() {
            self.libraries.hush();
        }
    }

    fn fetch(&mut self) {
        // Mappings come first: forks arrive in the record ring, which is drained afterwards.
        if self.libraries.fetch_mapped() {
            self.rest.note_records();
        }
        self.pump();
    }

    /// Arms every source to wake the loop. Anything that arrived earlier is in the rings and is
    /// fetched below.
    fn fall_asleep(&mut self) {
        self.libraries.want_next_mapping();
        if let Err(error) = self.ring.want_next() {
            log::warn!("cannot sleep until the next record, so the ring is polled: {error}");
            self.rest.note_records();
        }
        self.fetch();
    }

    /// Returns when the next work is due that no record announces.
    fn due(&self, now: Instant) -> Option<Instant> {
        let log = self.diagnostics.as_ref().map(|_| now);
        let on_demand = self.on_demand.iter().filter_map(|probes| probes.due(now)).min();
        let tensors = self.tensors.due(&self.sink, now);
        let changes = self.changes.due(now);
        [log, changes, on_demand, tensors, self.sink.due(now), self.libraries.due(now)].into_iter().flatten().min()
    }
}
