//! `memwatch diff` in JSON: every place of both runs. A pair of sums becomes what changed and by how much, which no view has.

use std::io;
use std::path::Path;

use memwatch_core::allocators::names::HeldAs;
use memwatch_core::features::diff::{Difference, Pair, Row, Side};
use memwatch_core::snapshot::{LayerView, SiteView, StageView, SumView};
use serde::Serialize;

use crate::commands::diff::Run;
use crate::render::json::{Origin, write_report};

/// Writes the report as one line; its envelope is of the later run.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    (difference, [before, after]): (&Difference, [&Run<'_>; 2]),
    origin: Origin,
) -> io::Result<()> {
    let data = Data {
        before: run(before),
        after: run(after),
        driver: pair(&difference.driver),
        tensors: pair(&difference.tensors),
        sites: difference.sites.iter().map(site).collect(),
        stages: difference.stages.iter().map(stage).collect(),
        layers: difference.layers.iter().map(layer).collect(),
    };
    write_report(out, "memwatch.diff/2", data, &after.snapshot, origin)
}

fn run<'a>(run: &'a Run<'_>) -> RunJson<'a> {
    RunJson { file: run.file, time: &run.time, complete: run.snapshot.complete }
}

#[derive(Serialize)]
struct Data<'a> {
    before: RunJson<'a>,
    after: RunJson<'a>,
    driver: PairJson,
    tensors: PairJson,
    sites: Vec<SiteJson<'a>>,
    stages: Vec<StageJson<'a>>,
    layers: Vec<LayerJson<'a>>,
}

#[derive(Serialize)]
struct RunJson<'a> {
    /// `null` for a watch.
    file: Option<&'a Path>,
    time: &'a str,
    complete: bool,
}

#[derive(Serialize)]
struct PairJson {
    state: &'static str,
    before: Option<SumJson>,
    after: Option<SumJson>,
    change: ChangeJson,
    /// By which part of before; null where there was nothing.
    growth: GrowthJson,
}

#[derive(Serialize)]
struct SumJson {
    live_bytes: u64,
    peak_bytes: u64,
    total_bytes: u64,
    allocations: u64,
}

#[derive(Serialize)]
struct ChangeJson {
    live_bytes: i64,
    peak_bytes: i64,
    total_bytes: i64,
    allocations: i64,
}

#[derive(Serialize)]
struct GrowthJson {
    live: Option<f64>,
    peak: Option<f64>,
    total: Option<f64>,
    allocations: Option<f64>,
}

#[derive(Serialize)]
struct SiteJson<'a> {
    kind: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    held: Option<&'a HeldAs>,
    #[serde(flatten)]
    pair: PairJson,
}

#[derive(Serialize)]
struct StageJson<'a> {
    stage: &'a str,
    recomputed: bool,
    captured: bool,
    #[serde(flatten)]
    pair: PairJson,
}

#[derive(Serialize)]
struct LayerJson<'a> {
    kind: &'a str,
    model: Option<&'a str>,
    name: Option<&'a str>,
    class: Option<&'a str>,
    #[serde(flatten)]
    pair: PairJson,
}

fn pair(pair: &Pair) -> PairJson {
    let sum = |sum: SumView| SumJson {
        live_bytes: sum.live_bytes,
        peak_bytes: sum.peak_bytes,
        total_bytes: sum.total_bytes,
        allocations: sum.allocations,
    };
    let [live_bytes, peak_bytes, total_bytes, allocations] = Side::ALL.map(|side| pair.change(side));
    let [live, peak, total, count] = Side::ALL.map(|side| pair.growth(side));
    PairJson {
        state: pair.state(),
        before: pair.before.map(sum),
        after: pair.after.map(sum),
        change: ChangeJson { live_bytes, peak_bytes, total_bytes, allocations },
        growth: GrowthJson { live, peak, total, allocations: count },
    }
}

fn site(row: &Row<SiteView>) -> SiteJson<'_> {
    let SiteView { kind, file, line, function, held, sum: _ } = &row.place;
    let (file, function) = (file.as_deref(), function.as_deref());
    SiteJson { kind, file, line: *line, function, held: held.as_ref(), pair: pair(&row.pair) }
}

fn stage(row: &Row<StageView>) -> StageJson<'_> {
    let StageView { stage, recomputed, captured, .. } = &row.place;
    StageJson { stage, recomputed: *recomputed, captured: *captured, pair: pair(&row.pair) }
}

fn layer(row: &Row<LayerView>) -> LayerJson<'_> {
    let LayerView { kind, model, name, class, .. } = &row.place;
    let (model, name, class) = (model.as_deref(), name.as_deref(), class.as_deref());
    LayerJson { kind, model, name, class, pair: pair(&row.pair) }
}
