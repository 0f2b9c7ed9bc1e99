//! JSON output of `memwatch fragment`.

use std::io;

use memwatch_core::features::fragments::view::{DriverFragmentsView, DriverPoolView, FragmentsView, ShapeView};
use memwatch_core::snapshot::Snapshot;
use serde::Serialize;

use crate::commands::fragment::words::{FragmentFindings, FragmentReport, remarks, scattered_part, unused_part};
use crate::render::json::{ReportOrigin, write_report};

/// Writes the report as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    found: &FragmentFindings,
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    write_report(out, "memwatch.fragment/3", data(found, snapshot), snapshot, origin)
}

/// Returns the report as a part of another report.
pub(crate) fn data<'a>(found: &'a FragmentFindings, snapshot: &'a Snapshot) -> FragmentData<'a> {
    FragmentData {
        devices: found.allocators.iter().map(|one| device(one, snapshot)).collect(),
        driver: &found.drivers,
        remarks: found.driver_remarks(snapshot),
    }
}

#[derive(Serialize)]
pub(crate) struct FragmentData<'a> {
    devices: Vec<FragmentDevice<'a>>,
    /// Driver allocations of processes.
    driver: &'a [DriverFragmentsView],
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct FragmentDevice<'a> {
    comm: &'a str,
    command: &'a str,
    #[serde(flatten)]
    view: &'a FragmentsView,
    unseen_bytes: u64,
    all: FragmentPool,
    small: FragmentPool,
    large: FragmentPool,
    driver_pool: Option<DriverPoolView>,
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct FragmentPool {
    #[serde(flatten)]
    shape: ShapeView,
    /// Free memory that `empty_cache` does not release and that is not in a private pool.
    reusable_bytes: u64,
    /// `(reserved - allocated) / reserved`.
    unused_part: f64,
    /// `1 - largest free / free`.
    scattered_part: f64,
}

fn device<'a>(reported: &'a FragmentReport, snapshot: &'a Snapshot) -> FragmentDevice<'a> {
    let (view, process) = (&reported.view, reported.process(snapshot));
    FragmentDevice {
        comm: process.map_or("", |process| &process.comm),
        command: process.map_or("", |process| &process.command),
        view,
        unseen_bytes: reported.unseen_bytes(),
        all: pool(reported.all()),
        small: pool(view.small),
        large: pool(view.large),
        driver_pool: reported.driver_pool(snapshot),
        remarks: remarks(reported),
    }
}

fn pool(shape: ShapeView) -> FragmentPool {
    FragmentPool {
        shape,
        reusable_bytes: shape.reusable_bytes(),
        unused_part: unused_part(&shape),
        scattered_part: scattered_part(&shape),
    }
}
