//! Memory of GPUs and processes over time, as a section of the report.

use std::collections::BTreeSet;

use memwatch_core::features::profile::view::ProfileView;
use memwatch_core::snapshot::Snapshot;

use crate::commands::report::args::ReportArgs;
use crate::options::TargetArgs;

/// Returns the sampling interval.
pub(crate) fn interval_ns(args: &ReportArgs) -> u64 {
    u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX)
}

/// Keeps only the processes in the snapshot, and the GPUs in it if some were named.
pub(crate) fn choose(profile: &mut ProfileView, targets: &TargetArgs, snapshot: &Snapshot) {
    let gpus: BTreeSet<_> = snapshot.gpus.iter().map(|gpu| &gpu.uuid).collect();
    let lives: BTreeSet<_> =
        snapshot.processes.iter().map(|process| (process.tgid, process.observed_since_ns)).collect();
    profile.processes.retain(|process| lives.contains(&(process.tgid, process.observed_since_ns)));
    if targets.gpus.is_empty() {
        return;
    }
    profile.gpus.retain(|gpu| gpus.contains(&gpu.uuid));
    for process in &mut profile.processes {
        process.gpus.retain(|gpu| gpu.uuid.as_ref().is_none_or(|uuid| gpus.contains(uuid)));
    }
}
