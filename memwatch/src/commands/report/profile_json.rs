//! JSON output of memory over time: each number over time, and whether it is exact or sampled.

use memwatch_core::features::profile::view::{GpuProfileView, ProfileView};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::{GpuUuid, json};
use serde::Serialize;

/// Returns the data of the section.
pub(crate) fn data<'a>(profile: &'a ProfileView, snapshot: &'a Snapshot) -> ProfileData<'a> {
    let gpu = |view: &'a GpuProfileView| {
        let facts = snapshot.gpus.iter().find(|facts| facts.uuid == view.uuid);
        let (nvml_index, name) = (facts.map(|facts| facts.nvml_index), facts.map(|facts| facts.name.as_str()));
        ProfileGpu { view, nvml_index, name }
    };
    ProfileData { view: profile, summary: summary(profile), gpus: profile.gpus.iter().map(gpu).collect() }
}

#[derive(Serialize)]
pub(crate) struct ProfileData<'a> {
    #[serde(flatten)]
    view: &'a ProfileView,
    summary: ProfileSummary<'a>,
    gpus: Vec<ProfileGpu<'a>>,
}

#[derive(Serialize)]
struct ProfileSummary<'a> {
    #[serde(serialize_with = "json::all_seconds")]
    watched_ns: u64,
    gpus: usize,
    processes: usize,
    /// Whether every record of every process arrived.
    exact: bool,
    /// The GPU with the highest use relative to its size, as NVML reports it.
    fullest: Option<Fullest<'a>>,
}

#[derive(Serialize)]
struct Fullest<'a> {
    uuid: &'a GpuUuid,
    maximum_utilization: f64,
    maximum_bytes: u64,
}

#[derive(Serialize)]
struct ProfileGpu<'a> {
    #[serde(flatten)]
    view: &'a GpuProfileView,
    nvml_index: Option<u32>,
    name: Option<&'a str>,
}

fn summary(profile: &ProfileView) -> ProfileSummary<'_> {
    let fullest = |gpu: &'_ GpuProfileView| Some((gpu.utilization?.maximum, gpu.used?.maximum_bytes));
    let part = |gpu: &&GpuProfileView| fullest(gpu).map_or(-1.0, |(part, _)| part);
    let most = profile.gpus.iter().max_by(|one, other| part(one).total_cmp(&part(other)));
    ProfileSummary {
        watched_ns: profile.last_ns.saturating_sub(profile.begun_ns),
        gpus: profile.gpus.len(),
        processes: profile.processes.len(),
        exact: profile.processes.iter().all(|process| process.exact),
        fullest: most.and_then(|gpu| {
            let (maximum_utilization, maximum_bytes) = fullest(gpu)?;
            Some(Fullest { uuid: &gpu.uuid, maximum_utilization, maximum_bytes })
        }),
    }
}
