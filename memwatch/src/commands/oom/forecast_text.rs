//! Text output of forecasts: a line for each GPU, and for each growing process with what drives its
//! growth.

use std::io;

use memwatch_core::features::forecast::view::{ForecastChangeView, ForecastsView, ProcessForecastView};
use memwatch_core::snapshot::Snapshot;

use crate::commands::oom::forecast::{advice, change, is_growing, of_gpu, of_process};
use crate::render::Tone;
use crate::render::sentences::Sentence;
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Writes a change: its time, a line, and what drives it.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write_change(
    out: &mut impl io::Write,
    reported: &ForecastChangeView,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    let Sentence { tone, text } = change(reported);
    page.line(&Sentence::new(tone, format!("{}  {text}", clock.time_of_day(reported.time_ns))));
    processes(&mut page, &reported.processes);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// Writes the forecasts, and the changes that were reported before.
pub(crate) fn show(
    page: &mut TextPage,
    (forecasts, changes): (&ForecastsView, &[ForecastChangeView]),
    snapshot: &Snapshot,
    clock: &WallClock,
) {
    let mut all = snapshot.processes.iter();
    if all.len() > 0 && all.all(|process| process.ended_ns.is_some()) {
        page.line(&Sentence::new(Tone::Plain, "No forecast: the program has ended."));
        return;
    }
    for gpu in &forecasts.gpus {
        page.line(&of_gpu(gpu));
        let own: Vec<ProcessForecastView> =
            forecasts.processes.iter().filter(|process| process.uuid == gpu.uuid).cloned().collect();
        processes(page, &own);
    }
    if forecasts.gpus.is_empty() {
        let why = "No forecast: NVML does not say how much memory the GPUs have, or no process uses them.";
        page.line(&Sentence::new(Tone::Plain, why));
    }
    for reported in changes {
        let time = clock.time_of_day(reported.time_ns);
        page.line(&Sentence::new(Tone::Faint, format!("  at {time}  {}", change(reported).text)));
    }
}

fn processes(page: &mut TextPage, processes: &[ProcessForecastView]) {
    for process in processes.iter().filter(|process| is_growing(&process.outlook)) {
        page.line(&of_process(process));
        for sentence in advice(process) {
            page.line(&Sentence::new(Tone::Plain, format!("    so  {sentence}")));
        }
    }
}
