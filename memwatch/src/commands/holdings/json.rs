//! JSON output of `memwatch holdings`: one line.

use std::io;

use memwatch_core::features::holdings::view::HoldingsView;
use memwatch_core::input::holdings::Holding;
use serde::Serialize;

use super::HoldingsReading;
use crate::printable::write_json;
use crate::render::causes::Worded;
use crate::sources::clock::boottime_ns;
use crate::watch::taken_at::TakenAt;

#[derive(Serialize)]
struct HoldingsDocument<'a> {
    schema: &'static str,
    version: &'static str,
    host: &'a str,
    time: String,
    data: Processes<'a>,
}

#[derive(Serialize)]
struct Processes<'a> {
    processes: Vec<HoldingsProcess<'a>>,
}

#[derive(Serialize)]
struct HoldingsProcess<'a> {
    command: &'a str,
    #[serde(flatten)]
    view: &'a HoldingsView,
    /// Number of searches for the layout of this PyTorch build: 0 if an earlier reading has
    /// verified it; `null` in a recording.
    layout_searches: Option<u32>,
    /// Process that this one was forked from, if their allocators have the same addresses: its live
    /// objects are a copy of that process's.
    copy_of: Option<u32>,
    /// Memory that should not be there, or could be less.
    causes: Vec<Worded>,
    /// All live objects, by address.
    blocks: &'a [Holding],
}

/// Writes the document.
///
/// # Errors
/// What `out` answers.
pub(super) fn write<'f>(out: &mut impl io::Write, found: &'f [HoldingsReading], taken_at: &TakenAt) -> io::Result<()> {
    let origin = taken_at.origin();
    let process = |found: &'f HoldingsReading| HoldingsProcess {
        command: &found.command,
        view: &found.view,
        layout_searches: found.layout_searches,
        copy_of: found.copy_of,
        causes: found.causes().iter().map(Worded::of).collect(),
        blocks: &found.blocks,
    };
    let document = HoldingsDocument {
        schema: "memwatch.holdings/1",
        version: env!("CARGO_PKG_VERSION"),
        host: origin.host,
        time: origin.clock.rfc3339(boottime_ns()),
        data: Processes { processes: found.iter().map(process).collect() },
    };
    write_json(out, &document)?;
    out.write_all(b"\n")?;
    out.flush()
}
