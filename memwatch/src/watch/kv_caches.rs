//! Reads the KV caches of the inference servers among the processes of a report.

use std::collections::BTreeMap;

use memwatch_core::features::causes::{self, Cause, CauseEvidence};
use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;

use crate::frameworks::serving::kv_cache;
use crate::sources::procfs::ProcReader;

/// KV caches by the process that has the tensors, or the reasons why they are not known. Processes
/// without a known engine are not listed.
#[derive(Debug, Default)]
pub(crate) struct KvCaches(BTreeMap<Tgid, Result<KvCache, KvCacheDoubt>>);

impl KvCaches {
    /// Reads the KV caches of the running processes in a snapshot.
    pub(crate) fn read(snapshot: &Snapshot) -> Self {
        let mut processes = ProcReader::new("/proc");
        let running = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let read = running.filter_map(|process| {
            let found = kv_cache(process.tgid.0, &mut processes).transpose()?;
            Some((process.tgid, found))
        });
        Self(read.collect())
    }

    /// Returns the KV cache of a process, or the reason why it is not known; `None` if the process
    /// serves no requests.
    pub(crate) fn of(&self, tgid: Tgid) -> Option<&Result<KvCache, KvCacheDoubt>> {
        self.0.get(&tgid)
    }

    /// Returns the causes that the KV caches show. Ranks with one scheduler have one cause, which is
    /// the scheduler's.
    pub(crate) fn causes(&self) -> Vec<Cause> {
        let pools: BTreeMap<Tgid, &KvCache> = self.0.values().flatten().map(|pool| (pool.scheduler, pool)).collect();
        let of = |(tgid, pool): (Tgid, &KvCache)| {
            causes::causes(&CauseEvidence { tgid, kv_cache: Some(pool), ..CauseEvidence::default() })
        };
        pools.into_iter().flat_map(of).collect()
    }
}
