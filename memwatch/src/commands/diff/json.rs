//! JSON output of `memwatch diff`: every call site of both runs.

use std::io;
use std::path::Path;

use memwatch_core::features::diff::{Difference, Pair, Row};
use memwatch_core::snapshot::LayerView;
use serde::Serialize;

use crate::commands::diff::Run;
use crate::render::json::{Origin, write_report};

/// Writes the report as one line; the envelope is that of the later run.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (difference, [before, after]): (&Difference, [&Run<'_>; 2]),
    origin: Origin,
) -> io::Result<()> {
    let layers = difference.layers.iter().map(layer).collect();
    let data = Data { before: watched(before), after: watched(after), difference, layers };
    write_report(out, "memwatch.diff/2", data, &after.snapshot, origin)
}

fn watched<'a>(run: &'a Run<'_>) -> Watched<'a> {
    Watched { file: run.file, time: &run.time, complete: run.snapshot.complete }
}

#[derive(Serialize)]
struct Data<'a> {
    before: Watched<'a>,
    after: Watched<'a>,
    #[serde(flatten)]
    difference: &'a Difference,
    layers: Vec<Layer<'a>>,
}

#[derive(Serialize)]
struct Watched<'a> {
    /// `null` for a session.
    file: Option<&'a Path>,
    time: &'a str,
    complete: bool,
}

/// A module by its names; the other fields of its view belong to one of the runs.
#[derive(Serialize)]
struct Layer<'a> {
    kind: &'a str,
    model: Option<&'a str>,
    name: Option<&'a str>,
    class: Option<&'a str>,
    #[serde(flatten)]
    pair: Pair,
}

fn layer(row: &Row<LayerView>) -> Layer<'_> {
    let LayerView { kind, model, name, class, .. } = &row.place;
    Layer { kind, model: model.as_deref(), name: name.as_deref(), class: class.as_deref(), pair: row.pair }
}
