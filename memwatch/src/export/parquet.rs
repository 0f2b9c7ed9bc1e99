//! Parquet table for data frames: one row per call site, with the columns of the CSV table.

use std::io;

use memwatch_core::snapshot::{SiteView, SumView};

use super::{CallPathProfile, ProfilePart};
use crate::export::columns::{ColumnValues, number, write as write_table};
use crate::render::places;

/// Writes the call sites of all parts, in the order of `memwatch where`.
///
/// # Errors
/// If the Parquet writer fails.
pub(crate) fn write(profile: &CallPathProfile) -> io::Result<Vec<u8>> {
    let rows = || profile.parts.iter().flat_map(|part| part.sites.iter().map(move |site| (part, site)));
    let text = |of: &dyn Fn(&ProfilePart, &SiteView) -> Option<String>| {
        ColumnValues::Text(rows().map(|(part, site)| of(part, site)).collect())
    };
    let amount =
        |of: &dyn Fn(&SumView) -> u64| ColumnValues::Number(rows().map(|(_, site)| number(of(&site.sum))).collect());
    let seconds = |of: &dyn Fn(&SumView) -> Option<u64>| {
        ColumnValues::Real(rows().map(|(_, site)| of(&site.sum).map(in_seconds)).collect())
    };
    write_table(&[
        ("pid", ColumnValues::Number(rows().map(|(part, _)| Some(i64::from(part.tgid))).collect())),
        ("command", text(&|part, _| Some(part.program.clone()))),
        ("gpu", text(&|part, _| Some(part.gpu.clone()))),
        ("gpu_uuid", text(&|part, _| part.uuid.clone())),
        ("kind", text(&|_, site| Some(site.kind.clone().into_owned()))),
        ("call_site", text(&|_, site| Some(places::site(site)))),
        ("file", text(&|_, site| site.file.clone())),
        ("line", ColumnValues::Number(rows().map(|(_, site)| site.line.map(i64::from)).collect())),
        ("function", text(&|_, site| site.function.clone())),
        ("allocated_bytes", amount(&|sum| sum.live_bytes)),
        ("at_peak_bytes", amount(&|sum| sum.at_peak_bytes)),
        ("peak_bytes", amount(&|sum| sum.peak_bytes)),
        ("total_bytes", amount(&|sum| sum.total_bytes)),
        ("allocations", amount(&|sum| sum.allocations)),
        ("frees", amount(&|sum| sum.frees)),
        ("mean_lifetime_seconds", seconds(&|sum| sum.mean_lifetime_ns)),
        ("longest_lifetime_seconds", seconds(&|sum| sum.longest_lifetime_ns)),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "a time needs no sixteen digits")]
fn in_seconds(time_ns: u64) -> f64 {
    time_ns as f64 / 1e9
}
