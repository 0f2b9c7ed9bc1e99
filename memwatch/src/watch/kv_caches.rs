//! Reads the KV caches of the inference servers among the processes of a report.

use std::collections::BTreeMap;

use memwatch_core::features::causes::{self, Cause, CauseEvidence};
use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt, KvCachePeak};
use memwatch_core::snapshot::{ProcessView, Snapshot};
use memwatch_core::words::Tgid;

use crate::frameworks::serving::kv_cache;
use crate::sources::procfs::ProcReader;

/// KV caches by the process that has the tensors, or the reasons why they are not known. Processes
/// without a known engine are not listed.
#[derive(Debug, Default)]
pub(crate) struct KvCaches(BTreeMap<Tgid, FoundKvCache>);

#[derive(Debug)]
struct FoundKvCache {
    pool: Result<KvCache, KvCacheDoubt>,
    /// Maxima of a watch of this pool, and its duration in nanoseconds.
    peak: Option<(KvCachePeak, u64)>,
}

impl KvCaches {
    /// Reads the KV caches of the running processes in a snapshot.
    ///
    /// A process that this user may not read has the last reading of the agent that watches it.
    pub(crate) fn read(snapshot: &Snapshot) -> Self {
        let mut processes = ProcReader::new("/proc");
        let running = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let read = running.filter_map(|process| {
            let now = kv_cache(process.tgid.0, &mut processes).transpose();
            let found = now.or_else(|| process.kv_cache.as_ref().map(|last| last.pool.clone()))?;
            Some((process.tgid, FoundKvCache { pool: found, peak: peak(process, snapshot) }))
        });
        Self(read.collect())
    }

    /// Takes the readings that a snapshot has, such as one of a recording.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let with_reading = |process: &ProcessView| {
            let pool = process.kv_cache.as_ref()?.pool.clone();
            Some((process.tgid, FoundKvCache { pool, peak: peak(process, snapshot) }))
        };
        Self(snapshot.processes.iter().filter_map(with_reading).collect())
    }

    /// Returns the KV cache of a process, or the reason why it is not known; `None` if the process
    /// serves no requests.
    pub(crate) fn get(&self, tgid: Tgid) -> Option<&Result<KvCache, KvCacheDoubt>> {
        self.0.get(&tgid).map(|found| &found.pool)
    }

    /// Returns the causes that the KV caches show. Ranks with one scheduler have one cause, which is
    /// the scheduler's.
    pub(crate) fn causes(&self) -> Vec<Cause> {
        let known = self.0.values().filter_map(|found| Some((found.pool.as_ref().ok()?, found.peak)));
        let pools: BTreeMap<Tgid, CauseEvidence<'_>> = known
            .map(|(pool, kv_cache_peak)| {
                let tgid = pool.scheduler;
                (tgid, CauseEvidence { tgid, kv_cache: Some(pool), kv_cache_peak, ..CauseEvidence::default() })
            })
            .collect();
        pools.values().flat_map(causes::causes).collect()
    }
}

/// Returns the maxima that a watch has of a process's pool, and the duration of the watch.
fn peak(process: &ProcessView, snapshot: &Snapshot) -> Option<(KvCachePeak, u64)> {
    let peak = process.kv_cache.as_ref()?.peak?;
    Some((peak, snapshot.time_ns.saturating_sub(peak.since_ns)))
}
