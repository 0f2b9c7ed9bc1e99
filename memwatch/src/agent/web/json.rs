//! JSON content of the page: the report of `memwatch ps` and the page's additional data.

use std::io;

use memwatch_core::features::forecast::view::OutlookView;
use memwatch_core::features::leak::model::Verdict;
use memwatch_core::features::leak::view::{LeakView, LeaksView};
use memwatch_core::snapshot::{ProcessView, Snapshot, Viewer, WorkloadGpuView, WorkloadView};
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::client::protocol::OutlookMessage;
use crate::render::json::{JsonReport, PsData, ReportOrigin, data, write_report};
use crate::render::owners;
use crate::render::wall_clock::WallClock;

/// Data that one viewer may see.
pub(super) struct PageContent<'a> {
    /// Snapshot with the largest processes, largest first.
    pub(super) snapshot: &'a Snapshot,
    /// Leaks and forecasts.
    pub(super) outlook: &'a OutlookMessage,
    /// Number of processes that are left out of the snapshot.
    pub(super) left_out: usize,
    /// Viewer of the page.
    pub(super) viewer: Viewer,
    /// Host name.
    pub(super) host: &'a str,
    /// Clock of the host.
    pub(super) clock: &'a WallClock,
}

#[derive(Serialize)]
struct PageJson<'a> {
    #[serde(flatten)]
    ps: PsData<'a>,
    sees_everything: bool,
    left_out_processes: usize,
    workloads: Vec<WorkloadJson<'a>>,
    growing: Vec<Growing<'a>>,
    forecasts: Vec<Forecast<'a>>,
}

#[derive(Serialize)]
struct WorkloadJson<'a> {
    kind: &'a str,
    namespace: Option<&'a str>,
    pod: Option<&'a str>,
    container: Option<&'a str>,
    slurm_job: Option<&'a str>,
    unit: Option<&'a str>,
    processes: u64,
    exact: bool,
    gpus: Vec<WorkloadGpu<'a>>,
}

#[derive(Serialize)]
struct WorkloadGpu<'a> {
    uuid: Option<&'a str>,
    used_bytes: Option<u64>,
    #[serde(rename = "driver_allocated_bytes")]
    live_bytes: u64,
    peak_bytes: u64,
    growth_bytes_per_second: Option<f64>,
    failed_allocations: u64,
}

/// Time for which a process may be loading its model, in nanoseconds. Growth in this time is not
/// reported as a leak.
const LOADING_NS: u64 = 300_000_000_000;

/// A growing part of a process.
#[derive(Serialize)]
struct Growing<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    command: &'a str,
    user: Option<&'a str>,
    /// Pod, job, container or unit of the process.
    workload: Option<String>,
    verdict: Verdict,
    level: &'a str,
    uuid: Option<&'a str>,
    kind: Option<&'a str>,
    bytes_per_minute: f64,
    since: String,
}

/// Forecast of the time at which memory runs out, for a GPU or for a process on it.
#[derive(Serialize)]
struct Forecast<'a> {
    #[serde(rename = "pid")]
    tgid: Option<u32>,
    uuid: &'a str,
    level: &'a str,
    bytes_per_second: Option<f64>,
    seconds: Option<f64>,
    earliest_seconds: Option<f64>,
    latest_seconds: Option<f64>,
}

/// Writes the content as one line.
///
/// # Errors
/// If writing to `out` fails.
pub(super) fn write(out: &mut impl io::Write, shown: &PageContent) -> io::Result<()> {
    let PageContent { snapshot, outlook, left_out, viewer, host, clock } = *shown;
    let living = snapshot.workloads.iter().filter(|workload| workload.ended_ns.is_none());
    let growing = outlook.leaks.iter().flat_map(|leaks| {
        let growing = leaks.findings.iter().filter(|finding| finding.verdict.grows());
        let process = process_of(leaks, snapshot);
        growing.map(move |finding| growing_json((leaks, finding), process, snapshot.time_ns, clock))
    });
    let of_gpus = outlook.forecasts.gpus.iter().map(|gpu| forecast_json(None, &gpu.uuid, &gpu.outlook));
    let of_processes = outlook.forecasts.processes.iter();
    let of_processes = of_processes.map(|own| forecast_json(Some(own.tgid.0), &own.uuid, &own.outlook));
    let page = PageJson {
        ps: data(JsonReport::Ps(None), snapshot),
        sees_everything: viewer == Viewer::Everything,
        left_out_processes: left_out,
        workloads: living.map(workload_json).collect(),
        growing: growing.collect(),
        forecasts: of_gpus.chain(of_processes).collect(),
    };
    write_report(out, "memwatch.page/1", page, snapshot, ReportOrigin { host, clock })
}

fn workload_json(workload: &WorkloadView) -> WorkloadJson<'_> {
    WorkloadJson {
        kind: &workload.kind,
        namespace: workload.namespace.as_deref(),
        pod: workload.pod.as_deref(),
        container: workload.container.as_deref(),
        slurm_job: workload.slurm_job.as_deref(),
        unit: workload.unit.as_deref(),
        processes: workload.processes,
        exact: workload.exact,
        gpus: workload.gpus.iter().map(workload_gpu_json).collect(),
    }
}

fn workload_gpu_json(gpu: &WorkloadGpuView) -> WorkloadGpu<'_> {
    WorkloadGpu {
        uuid: gpu.uuid.as_ref().map(GpuUuid::as_str),
        used_bytes: gpu.used_bytes,
        live_bytes: gpu.live_bytes,
        peak_bytes: gpu.peak_bytes,
        growth_bytes_per_second: gpu.growth_bytes_per_second,
        failed_allocations: gpu.refusals.values().sum(),
    }
}

/// Returns the process of the findings, which may have ended and left its number to a later one.
fn process_of<'a>(leaks: &LeaksView, snapshot: &'a Snapshot) -> Option<&'a ProcessView> {
    let is_it =
        |process: &&ProcessView| process.tgid == leaks.tgid && process.observed_since_ns == leaks.observed_since_ns;
    snapshot.processes.iter().find(is_it)
}

fn growing_json<'a>(
    (leaks, finding): (&'a LeaksView, &'a LeakView),
    process: Option<&'a ProcessView>,
    now_ns: u64,
    clock: &WallClock,
) -> Growing<'a> {
    Growing {
        tgid: leaks.tgid.0,
        command: &leaks.command,
        user: process.and_then(|process| process.user.as_deref()),
        workload: process.and_then(|process| owners::workload(&process.owner)),
        // A model that is being loaded grows like a leak.
        verdict: match finding.verdict {
            Verdict::Leak if now_ns.saturating_sub(leaks.observed_since_ns) < LOADING_NS => Verdict::Slow,
            verdict => verdict,
        },
        level: &finding.level,
        uuid: finding.uuid.as_ref().map(GpuUuid::as_str),
        kind: finding.kind.as_deref(),
        bytes_per_minute: finding.bytes_per_minute,
        since: clock.rfc3339(finding.first_ns),
    }
}

fn forecast_json<'a>(tgid: Option<u32>, uuid: &'a GpuUuid, outlook: &'a OutlookView) -> Forecast<'a> {
    let range = outlook.end.and_then(|end| end.range);
    Forecast {
        tgid,
        uuid: uuid.as_str(),
        level: &outlook.level,
        bytes_per_second: outlook.growth.filter(|growth| growth.grows).map(|growth| growth.bytes_per_second),
        seconds: outlook.end.map(|end| end.seconds),
        earliest_seconds: range.map(|range| range.earliest_seconds),
        latest_seconds: range.map(|range| range.latest_seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::tui::fixture::{leaking_node, leaking_outlooks};

    #[test]
    fn a_model_that_is_loaded_grows_and_only_later_leaks() {
        let (node, outlooks) = (leaking_node(), leaking_outlooks());
        let (leaks, process) = (&outlooks.leaks[0], &node.processes[0]);
        let clock = WallClock::utc(0);
        let at = |seconds: u64| {
            let now_ns = leaks.observed_since_ns + seconds * 1_000_000_000;
            growing_json((leaks, &leaks.findings[0]), Some(process), now_ns, &clock)
        };
        assert_eq!((at(80).verdict, at(299).verdict, at(300).verdict), (Verdict::Slow, Verdict::Slow, Verdict::Leak));
        let named = at(80);
        assert_eq!((named.command, named.user), ("/usr/bin/python3 train_leak.py", Some("root")), "it is named");
    }

    #[test]
    fn leak_has_no_user_of_a_later_process_with_its_pid() {
        let (mut node, outlooks) = (leaking_node(), leaking_outlooks());
        let mut later = node.processes[0].clone();
        later.observed_since_ns += 1;
        node.processes.insert(0, later);
        let found = process_of(&outlooks.leaks[0], &node).map(|process| process.observed_since_ns);
        assert_eq!(found, Some(outlooks.leaks[0].observed_since_ns));
        node.processes.pop();
        assert_eq!(process_of(&outlooks.leaks[0], &node), None);
    }
}
