//! Text output of `memwatch monitor`: the report of each detector, one below the other.

use std::io;

use memwatch_core::snapshot::Snapshot;

use crate::commands::fragment::text as fragments;
use crate::commands::leak::text as leaks;
use crate::commands::monitor::DetectorFinding;
use crate::commands::oom::{forecast_text as forecast, text as oom};
use crate::commands::profile::text as profile;
use crate::commands::report::churn_text as churn;
use crate::render::Tone;
use crate::render::sentences::Sentence;
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Writes each section, with at most `top` rows per list.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (findings, top): (&[(&'static str, DetectorFinding)], usize),
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    for (name, finding) in findings {
        page.line(&Sentence::new(Tone::Heading, name.to_uppercase()));
        match finding {
            DetectorFinding::Leaks(found) => leaks::section(&mut page, (found, top), snapshot),
            DetectorFinding::Ooms(found) => oom::section(&mut page, found, clock),
            DetectorFinding::Profile(found) => profile::section(&mut page, found, snapshot, clock),
            DetectorFinding::Forecasts(found) => forecast::show(&mut page, (found, &[]), snapshot, clock),
            DetectorFinding::Fragments(found) => fragments::section(&mut page, (found, top), snapshot, clock),
            DetectorFinding::Churn(found) => churn::section(&mut page, found, top),
        }
        page.text.push('\n');
    }
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}
