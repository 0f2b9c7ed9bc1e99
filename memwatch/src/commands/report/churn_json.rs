//! How memory comes and goes, in JSON.

use memwatch_core::features::churn::view::{ChurnView, ClassView, FlowView, TemporaryView};
use serde::Serialize;

/// The part of a report.
pub(crate) fn data(churn: &ChurnView) -> Data<'_> {
    Data {
        seconds: seconds(churn.watched_ns),
        temporary_within: churn.temporary_within,
        kinds: churn.kinds.iter().map(|flow| flow_json(flow, seconds(churn.watched_ns))).collect(),
        temporaries: churn.temporaries.iter().map(temporary_json).collect(),
    }
}

#[derive(Serialize)]
pub(crate) struct Data<'a> {
    seconds: f64,
    temporary_within: u64,
    kinds: Vec<FlowJson<'a>>,
    temporaries: Vec<TemporaryJson<'a>>,
}

#[derive(Serialize)]
struct FlowJson<'a> {
    kind: &'a str,
    allocations: u64,
    total_bytes: u64,
    frees: u64,
    older_frees: u64,
    allocations_per_second: Option<f64>,
    bytes_per_second: Option<f64>,
    mean_lifetime_seconds: Option<f64>,
    longest_lifetime_seconds: Option<f64>,
    temporary: u64,
    temporary_bytes: u64,
    sizes: Vec<SizeJson>,
    lifetimes: Vec<LifetimeJson>,
}

#[derive(Serialize)]
struct SizeJson {
    from_bytes: u64,
    below_bytes: Option<u64>,
    allocations: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct LifetimeJson {
    from_seconds: f64,
    below_seconds: Option<f64>,
    frees: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TemporaryJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    kind: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    allocations: u64,
    temporary: u64,
    temporary_bytes: u64,
    mean_lifetime_seconds: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no sixteen digits")]
fn flow_json(flow: &FlowView, watched: f64) -> FlowJson<'_> {
    let rate = |number: u64| (watched > 0.0).then(|| number as f64 / watched);
    FlowJson {
        kind: &flow.kind,
        allocations: flow.allocations,
        total_bytes: flow.total_bytes,
        frees: flow.frees,
        older_frees: flow.older_frees,
        allocations_per_second: rate(flow.allocations),
        bytes_per_second: rate(flow.total_bytes),
        mean_lifetime_seconds: flow.mean_lifetime_ns.map(seconds),
        longest_lifetime_seconds: flow.longest_lifetime_ns.map(seconds),
        temporary: flow.temporary,
        temporary_bytes: flow.temporary_bytes,
        sizes: flow.sizes.iter().map(size_json).collect(),
        lifetimes: flow.lifetimes.iter().map(lifetime_json).collect(),
    }
}

fn size_json(class: &ClassView) -> SizeJson {
    let ClassView { from, below, count, bytes } = *class;
    SizeJson { from_bytes: from, below_bytes: below, allocations: count, bytes }
}

fn lifetime_json(class: &ClassView) -> LifetimeJson {
    let ClassView { from, below, count, bytes } = *class;
    LifetimeJson { from_seconds: seconds(from), below_seconds: below.map(seconds), frees: count, bytes }
}

fn temporary_json(temporary: &TemporaryView) -> TemporaryJson<'_> {
    TemporaryJson {
        tgid: temporary.tgid.0,
        kind: &temporary.site.kind,
        file: temporary.site.file.as_deref(),
        line: temporary.site.line,
        function: temporary.site.function.as_deref(),
        allocations: temporary.allocations,
        temporary: temporary.temporary,
        temporary_bytes: temporary.temporary_bytes,
        mean_lifetime_seconds: seconds(temporary.mean_lifetime_ns),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time needs no sixteen digits")]
fn seconds(time_ns: u64) -> f64 {
    time_ns as f64 / 1e9
}
