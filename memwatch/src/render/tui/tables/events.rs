//! The Events tab: events of a process, newest first.

use std::cmp::Reverse;
use std::fmt::Write as _;

use memwatch_core::snapshot::{FailureView, ProcessView, RefusalView};
use memwatch_core::words::OUT_OF_MEMORY;

use super::TableInput;
use crate::backends::error_words;
use crate::render::Tone;
use crate::render::format::{count, printable};
use crate::render::places;
use crate::render::sentences;
use crate::render::tui::grid::{GridCell, GridColumn, GridRow, ScreenGrid};
use crate::render::tui::size::size;
use crate::render::tui::state::RowKey;

struct Happened {
    time_ns: u64,
    tone: Tone,
    what: &'static str,
    text: String,
}

/// Builds one row per event.
pub(crate) fn grid(facts: &TableInput, process: &ProcessView) -> ScreenGrid {
    let columns = vec![GridColumn::words("TIME", 12), GridColumn::words("EVENT", 13), GridColumn::words("WHAT", 0)];
    let all = happened(facts, process);
    let row = |(place, event): (usize, &Happened)| GridRow {
        key: RowKey::Place(key(all.len(), place)),
        cells: vec![
            GridCell { text: facts.clock.time_of_day(event.time_ns), ..GridCell::number(event.time_ns, "") },
            GridCell::text(event.what).in_tone(event.tone),
            GridCell::text(event.text.clone()),
        ],
        tone: Tone::Plain,
        branch: None,
    };
    let rows = all.iter().enumerate().map(row).collect();
    ScreenGrid { columns, rows, natural: "TIME", empty: "Nothing has happened yet.".to_owned() }
}

/// Returns the full text of an event.
pub(crate) fn detail(facts: &TableInput, process: &ProcessView, place: &str) -> Vec<String> {
    let all = happened(facts, process);
    let found = all.iter().enumerate().find(|(at, _)| key(all.len(), *at) == place);
    found.map_or_else(Vec::new, |(_, event)| {
        vec![
            format!("{} {}", facts.clock.moment(event.time_ns, facts.snapshot.time_ns), event.what),
            event.text.clone(),
        ]
    })
}

/// Returns the key of an event. The oldest event has number 1, so new events leave the keys
/// unchanged.
fn key(all: usize, place: usize) -> String {
    (all - place).to_string()
}

fn happened(facts: &TableInput, process: &ProcessView) -> Vec<Happened> {
    let event = |time_ns, tone, what, text: &str| Happened { time_ns, tone, what, text: text.to_owned() };
    let mut all = Vec::new();
    let attached = if process.from_start {
        "traced from its start"
    } else {
        "the process was running before the attach: earlier calls are unknown"
    };
    all.push(event(process.observed_since_ns, Tone::Plain, "attached", attached));
    all.extend(process.failures.iter().map(|failure| failed_call(facts, failure)));
    let refusals = process.tensors.iter().flat_map(|tensors| &tensors.attribution.refusals);
    all.extend(refusals.map(failed_tensor));
    if let Some(reset_ns) = process.peaks_begun_ns {
        all.push(event(reset_ns, Tone::Plain, "peaks reset", "peaks count from here"));
    }
    if let Some(anchored_ns) = process.anchored_ns {
        let text = "allocated bytes were recounted from the kernel's tables";
        all.push(event(anchored_ns, Tone::Warning, "recounted", text));
    }
    if let Some(ended_ns) = process.ended_ns {
        let mut text = "its memory was freed".to_owned();
        if process.implicit_frees > 0 {
            let _ = write!(text, ": the driver freed {} allocations", count(process.implicit_frees));
        }
        all.push(event(ended_ns, Tone::Plain, "ended", &text));
    }
    if !process.exact {
        let causes = process.losses.iter().map(|(name, lost)| format!("{} ({})", count(*lost), name.replace('_', " ")));
        let text = format!("{}: peak and totals may be wrong", causes.collect::<Vec<_>>().join(", "));
        all.push(event(facts.snapshot.time_ns, Tone::Warning, "dropped", &text));
    }
    all.sort_by_key(|event| Reverse(event.time_ns));
    all
}

fn failed_call(facts: &TableInput, failure: &FailureView) -> Happened {
    let on = failure
        .uuid
        .as_ref()
        .map_or_else(String::new, |uuid| format!(" on GPU {}", sentences::gpu_number(facts.snapshot, Some(uuid))));
    let requested = format!("{} requested {}{on}", printable(&failure.symbol), size(failure.requested_bytes));
    let is_oom = failure.status == OUT_OF_MEMORY;
    let why = if is_oom { String::new() } else { format!(": {}", error_words(failure.status)) };
    let what = if is_oom { "OOM" } else { "failed" };
    Happened { time_ns: failure.time_ns, tone: Tone::Bad, what, text: format!("{requested}{why}") }
}

fn failed_tensor(refusal: &RefusalView) -> Happened {
    let text = format!("PyTorch requested {}: {}", size(refusal.wanted_bytes), places::whose(&refusal.whose));
    Happened { time_ns: refusal.time_ns, tone: Tone::Bad, what: "OOM", text }
}
