//! JSON output of `memwatch diff`: every call site of both runs.

use std::io;
use std::path::Path;

use memwatch_core::features::diff::{DiffRow, Difference, RunSums};
use memwatch_core::snapshot::ModuleView;
use serde::Serialize;

use crate::commands::diff::DiffRun;
use crate::render::json::{ReportOrigin, write_report};

/// Writes the report as one line; the envelope is that of the later run.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (difference, [before, after]): (&Difference, [&DiffRun<'_>; 2]),
    origin: ReportOrigin,
) -> io::Result<()> {
    let modules = difference.modules.iter().map(module).collect();
    let data = DiffData { before: watched(before), after: watched(after), difference, modules };
    write_report(out, "memwatch.diff/3", data, &after.snapshot, origin)
}

fn watched<'a>(run: &'a DiffRun<'_>) -> DiffSide<'a> {
    DiffSide { file: run.file, time: &run.time, complete: run.snapshot.complete }
}

#[derive(Serialize)]
struct DiffData<'a> {
    before: DiffSide<'a>,
    after: DiffSide<'a>,
    #[serde(flatten)]
    difference: &'a Difference,
    modules: Vec<DiffModule<'a>>,
}

#[derive(Serialize)]
struct DiffSide<'a> {
    /// `null` for a session.
    file: Option<&'a Path>,
    time: &'a str,
    complete: bool,
}

/// A module by its names; the other fields of its view belong to one of the runs.
#[derive(Serialize)]
struct DiffModule<'a> {
    kind: &'a str,
    model: Option<&'a str>,
    name: Option<&'a str>,
    class: Option<&'a str>,
    #[serde(flatten)]
    pair: RunSums,
}

fn module(row: &DiffRow<ModuleView>) -> DiffModule<'_> {
    let ModuleView { kind, model, name, class, .. } = &row.place;
    DiffModule { kind, model: model.as_deref(), name: name.as_deref(), class: class.as_deref(), pair: row.pair }
}
