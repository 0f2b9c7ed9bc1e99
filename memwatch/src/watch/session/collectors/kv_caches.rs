//! KV caches of the inference servers among the watched processes, read from process memory at
//! intervals, without a probe.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt, KvCacheReading};
use memwatch_core::words::{Framework, Tgid};
use memwatch_inspect::engines::SearchBreadth;

use super::Collector;
use super::owner_rounds::{OwnerRounds, RoundReader};
use crate::frameworks::serving::{KvCacheReader, SearchEffort};
use crate::sources::clock;
use crate::sources::procfs::ProcReader;
use crate::watch::session::parts::SessionParts;

/// Interval of the readings.
const EVERY: Duration = Duration::from_secs(5);
/// Minimum pause after a reading, as a multiple of its processor time, so that readings take at most
/// 0.5 % of a core.
const SPARING: u32 = 200;
/// Maximum time of a search, and of a reading. A pool of 30,000 blocks takes 60 ms.
const LONGEST: Duration = Duration::from_secs(1);
/// A process without an engine is looked at again after a pause that doubles each time, up to this
/// maximum.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// KV cache readings of a session.
pub(super) struct KvCachePoller(OwnerRounds<ServingProcesses>);

impl KvCachePoller {
    /// Creates the state without any reading.
    pub(super) fn new() -> Self {
        Self(OwnerRounds::new("kv caches", EVERY))
    }
}

impl Collector for KvCachePoller {
    fn collect_for_report(&mut self, parts: &mut SessionParts, _now_ns: u64) {
        let SessionParts { frameworks, sink, .. } = parts;
        for reading in self.0.advance(|| frameworks.having(Framework::PyTorch)).into_iter().flatten() {
            sink.step(Input::KvCache(Box::new(reading)));
        }
    }
}

/// Readers of one owner's inference servers.
struct ServingProcesses {
    every: Duration,
    known: BTreeMap<u32, ServingProcess>,
}

/// One process, whether it serves or not.
#[derive(Default)]
struct ServingProcess {
    reader: Option<KvCacheReader>,
    last: Option<Result<KvCache, KvCacheDoubt>>,
    /// Time of the next reading; `None` before the first.
    due: Option<Instant>,
    /// Pause before the last search for an engine.
    pause: Duration,
}

impl RoundReader for ServingProcesses {
    type Round = Vec<KvCacheReading>;

    fn new(every: Duration) -> Self {
        Self { every, known: BTreeMap::new() }
    }

    fn round(&mut self, tgids: &BTreeSet<u32>) -> Vec<KvCacheReading> {
        self.known.retain(|tgid, _| tgids.contains(tgid));
        let mut processes = ProcReader::new("/proc");
        let changed = tgids.iter().filter_map(|tgid| {
            let process = self.known.entry(*tgid).or_default();
            let pool = process.changed(*tgid, self.every, &mut processes)?;
            Some(KvCacheReading { tgid: Tgid(*tgid), time_ns: clock::boottime_ns(), pool, peak: None })
        });
        changed.collect()
    }
}

impl ServingProcess {
    /// Reads the pool when it is due. Returns it if it differs from the last reading.
    fn changed(
        &mut self,
        tgid: u32,
        every: Duration,
        processes: &mut ProcReader,
    ) -> Option<Result<KvCache, KvCacheDoubt>> {
        if self.due.is_some_and(|due| Instant::now() < due) {
            return None;
        }
        let (begun_ns, was_found) = (clock::thread_ns(), self.reader.is_some());
        let read = self.read(tgid, processes);
        let took = Duration::from_nanos(clock::thread_ns().saturating_sub(begun_ns));
        // A server that starts has no scheduler yet.
        let is_known = matches!(read, Some(Ok(_)));
        self.pause = if is_known { Duration::ZERO } else { (2 * self.pause).clamp(every, LONGEST_PAUSE) };
        // The scheduler is searched once, which takes longer than a reading.
        let pause = if is_known && !was_found { every } else { self.pause.max(took * SPARING) };
        self.due = Some(Instant::now() + pause);
        let read = read.filter(|read| self.last.as_ref() != Some(read))?;
        self.last = Some(read.clone());
        Some(read)
    }

    fn read(&mut self, tgid: u32, processes: &mut ProcReader) -> Option<Result<KvCache, KvCacheDoubt>> {
        if let Some(Ok(pool)) = self.reader.as_ref().map(|reader| reader.read(LONGEST)) {
            return Some(Ok(pool));
        }
        // The engine may have been replaced, or the process has called exec.
        let effort = SearchEffort { breadth: SearchBreadth::Frames, time: LONGEST };
        self.reader = match KvCacheReader::find(tgid, processes, effort) {
            Ok(reader) => reader,
            Err(doubt) => return Some(Err(doubt)),
        };
        self.reader.as_ref().map(|reader| reader.read(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_an_engine_is_looked_at_ever_more_seldom() {
        let own = std::process::id();
        let mut readers = ServingProcesses::new(EVERY);
        for seconds in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(readers.round(&BTreeSet::from([own])), []);
            let process = readers.known.get_mut(&own).expect("it was looked at");
            assert_eq!(process.pause, Duration::from_secs(seconds));
            assert!(process.due.take() >= Some(Instant::now() + process.pause / 2));
        }
        assert!(readers.round(&BTreeSet::new()).is_empty() && readers.known.is_empty());
    }
}
