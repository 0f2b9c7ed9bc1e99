//! `memwatch holdings` in JSON: one line.

use std::io;

use memwatch_core::features::holdings::view::HoldingsView;
use memwatch_core::input::holdings::Holding;
use serde::Serialize;

use super::Found;
use crate::printable::write_json;
use crate::sources::clock::boottime_ns;
use crate::watch::one_shot::TakenAt;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    version: &'static str,
    host: &'a str,
    time: String,
    data: Processes<'a>,
}

#[derive(Serialize)]
struct Processes<'a> {
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
struct Process<'a> {
    command: &'a str,
    #[serde(flatten)]
    view: &'a HoldingsView,
    /// All of them, by address.
    blocks: &'a [Holding],
}

/// Writes the document.
///
/// # Errors
/// What `out` answers.
pub(super) fn write<'f>(out: &mut impl io::Write, found: &'f [Found], taken_at: &TakenAt) -> io::Result<()> {
    let origin = taken_at.origin();
    let process = |found: &'f Found| Process { command: &found.command, view: &found.view, blocks: &found.blocks };
    let document = Document {
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
