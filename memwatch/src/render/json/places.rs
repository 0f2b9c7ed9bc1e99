//! JSON reports of `memwatch where`.

use std::collections::BTreeMap;
use std::io;

use memwatch_core::snapshot::{
    AttributionView, DeviceAttributionView, LargeView, ModuleView, PhaseView, PlaceNameView, ProcessView, RangeView,
    RefusalView, SiteView, Snapshot, StackView, SumView, WhoseView, largest,
};
use memwatch_core::words::{Name, Tgid, json};
use serde::Serialize;

use super::overhead::{self, OverheadJson};
use super::{ReportOrigin, write_report};
use crate::render::places::AttributionList;

impl AttributionList {
    const fn schema(self) -> &'static str {
        match self {
            Self::Sites => "memwatch.lines/3",
            Self::Phases => "memwatch.phases/3",
            Self::Modules => "memwatch.modules/3",
        }
    }
}

/// Writes one list of each process with traced tensors as one line. A list has at most `top` rows;
/// the last one sums up the others.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write(
    out: &mut impl io::Write,
    (which, top): (AttributionList, usize),
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    let processes = snapshot.processes.iter().filter_map(|own| process(own, which, top)).collect();
    write_report(out, which.schema(), AttributionReport { processes }, snapshot, origin)
}

#[derive(Serialize)]
struct AttributionReport<'a> {
    processes: Vec<AttributedProcess<'a>>,
}

#[derive(Serialize)]
struct AttributedProcess<'a> {
    #[serde(rename = "pid")]
    tgid: Tgid,
    comm: &'a str,
    command: &'a str,
    #[serde(serialize_with = "json::date")]
    observed_since_ns: u64,
    #[serde(serialize_with = "json::peaks_since")]
    peaks_begun_ns: Option<u64>,
    exact: bool,
    losses: &'a BTreeMap<Name, u64>,
    native_stacks: &'a BTreeMap<Name, u64>,
    stacks_left_out: u64,
    #[serde(flatten)]
    places: &'a AttributionView,
    overhead: Option<OverheadJson<'a>>,
    devices: Vec<AttributedDevice<'a>>,
    failures: Vec<AttributedBlock<'a, RefusalView>>,
}

/// Memory of a process on a device, attributed to code. `attributed_bytes` is the sum of the rows
/// of each list; `allocated_bytes` is the allocator's own number.
#[derive(Serialize)]
pub(crate) struct AttributedDevice<'a> {
    #[serde(flatten)]
    view: &'a DeviceAttributionView,
    attributed_bytes: u64,
    #[serde(flatten)]
    total: SumJson,
    #[serde(flatten)]
    rows: AttributionRows<'a>,
}

/// Lists of one report.
#[derive(Serialize)]
#[serde(untagged)]
enum AttributionRows<'a> {
    Sites {
        #[serde(rename = "lines")]
        sites: Vec<AttributionRow<SiteView>>,
        large: Vec<AttributedBlock<'a, LargeView>>,
        stacks: Vec<AttributionRow<&'a StackView>>,
    },
    Phases {
        phases: Vec<AttributionRow<&'a PhaseView>>,
        ranges: Vec<AttributionRow<RangeView>>,
    },
    Modules {
        modules: Vec<AttributionRow<ModuleView>>,
    },
    All {
        phases: Vec<AttributionRow<&'a PhaseView>>,
        modules: Vec<AttributionRow<ModuleView>>,
        #[serde(rename = "lines")]
        sites: Vec<AttributionRow<SiteView>>,
    },
}

/// A row of a list: its code and the sum of its blocks.
#[derive(Serialize)]
struct AttributionRow<V> {
    #[serde(flatten)]
    place: V,
    allocated_bytes: u64,
    #[serde(flatten)]
    sum: SumJson,
}

/// A sum without its live bytes, whose field has different names in devices and rows.
#[derive(Serialize)]
struct SumJson {
    #[serde(flatten)]
    sum: SumView,
    /// Estimate for all blocks, from tracing windows or from sampled small blocks; `null` if every
    /// block is traced.
    sampled: Option<SampledTotal>,
    /// Estimate for the live blocks, from sampled small blocks; `null` if every live block has its
    /// line.
    sampled_live: Option<SampledLive>,
    /// Whether some events were not traced or blocks were sampled, so that all numbers except the
    /// live bytes are lower bounds.
    lower_bound: bool,
}

#[derive(Serialize)]
struct SampledTotal {
    total_bytes: u64,
    standard_error_bytes: Option<u64>,
}

#[derive(Serialize)]
struct SampledLive {
    allocated_bytes: u64,
    standard_error_bytes: Option<u64>,
}

/// A block, or a failed allocation, with its attribution.
#[derive(Serialize)]
struct AttributedBlock<'a, V> {
    #[serde(flatten)]
    view: &'a V,
    phase: &'a str,
    phase_by: &'a str,
    step: u64,
    #[serde(rename = "call_site")]
    site: &'a PlaceNameView,
    library: Option<&'a str>,
    module: &'a PlaceNameView,
}

fn process(process: &ProcessView, which: AttributionList, top: usize) -> Option<AttributedProcess<'_>> {
    let tensors = process.tensors.as_ref()?;
    let places = &tensors.attribution;
    Some(AttributedProcess {
        tgid: process.tgid,
        comm: &process.comm,
        command: &process.command,
        observed_since_ns: process.observed_since_ns,
        peaks_begun_ns: process.peaks_begun_ns,
        exact: process.exact,
        losses: &process.losses,
        native_stacks: &tensors.native_stacks,
        stacks_left_out: tensors.stacks_left_out,
        places,
        overhead: overhead::of(process),
        devices: places.devices.iter().map(|device| with_rows(device, rows(device, which, top))).collect(),
        failures: places.refusals.iter().map(|refusal| owned(refusal, &refusal.whose)).collect(),
    })
}

/// Returns the largest entries of each device, at most `top` rows per list. The list of phases is
/// complete.
pub(crate) fn largest_places(places: &AttributionView, top: usize) -> Vec<AttributedDevice<'_>> {
    let of = |device| {
        let rows =
            AttributionRows::All { phases: phases(device), modules: modules(device, top), sites: sites(device, top) };
        with_rows(device, rows)
    };
    places.devices.iter().map(of).collect()
}

fn phases(device: &DeviceAttributionView) -> Vec<AttributionRow<&PhaseView>> {
    device.phases.iter().map(|phase| row(phase.sum, phase)).collect()
}

fn modules(device: &DeviceAttributionView, top: usize) -> Vec<AttributionRow<ModuleView>> {
    largest(device.modules.clone(), top).into_iter().map(|module| row(module.sum, module)).collect()
}

fn sites(device: &DeviceAttributionView, top: usize) -> Vec<AttributionRow<SiteView>> {
    largest(device.sites.clone(), top).into_iter().map(|site| row(site.sum, site)).collect()
}

fn rows(device: &DeviceAttributionView, which: AttributionList, top: usize) -> AttributionRows<'_> {
    match which {
        AttributionList::Sites => AttributionRows::Sites {
            sites: sites(device, top),
            large: device.large.iter().map(|block| owned(block, &block.whose)).collect(),
            stacks: device.stacks.iter().map(|stack| row(stack.sum, stack)).collect(),
        },
        AttributionList::Phases => AttributionRows::Phases {
            phases: phases(device),
            ranges: largest(device.ranges.clone(), top).into_iter().map(|range| row(range.sum, range)).collect(),
        },
        AttributionList::Modules => AttributionRows::Modules { modules: modules(device, top) },
    }
}

fn with_rows<'a>(view: &'a DeviceAttributionView, rows: AttributionRows<'a>) -> AttributedDevice<'a> {
    AttributedDevice { view, attributed_bytes: view.total.live_bytes, total: history(view.total), rows }
}

fn row<V>(sum: SumView, place: V) -> AttributionRow<V> {
    AttributionRow { place, allocated_bytes: sum.live_bytes, sum: history(sum) }
}

fn history(sum: SumView) -> SumJson {
    let (all, live) = (sum.sampled, sum.sampled_live);
    SumJson {
        sum,
        lower_bound: sum.is_lower_bound(),
        sampled: all.map(|all| SampledTotal { total_bytes: all.bytes, standard_error_bytes: all.standard_error_bytes }),
        sampled_live: live
            .map(|live| SampledLive { allocated_bytes: live.bytes, standard_error_bytes: live.standard_error_bytes }),
    }
}

fn owned<'a, V>(view: &'a V, whose: &'a WhoseView) -> AttributedBlock<'a, V> {
    let WhoseView { phase, by, step, site, library, module } = whose;
    AttributedBlock { view, phase, phase_by: by, step: *step, site, library: library.as_deref(), module }
}

#[cfg(test)]
mod tests;
