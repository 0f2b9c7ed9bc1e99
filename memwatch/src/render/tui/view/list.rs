//! All processes in a table, one row per process and GPU.

use memwatch_core::snapshot::{ProcessGpuView, ProcessView};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::look::{Fill, Look};
use super::{Shown, State};
use crate::render::Tone;
use crate::render::format::{UNKNOWN, bytes, count, fit, known, printable, rate, signed_bytes, width};
use crate::render::owners;
use crate::render::sentences::{self, KINDS, MANAGED};

/// A column that is left out where no process has one.
const WORKLOAD: &str = "WORKLOAD";

/// What a row is made from.
struct Entry<'a> {
    shown: &'a Shown<'a>,
    process: &'a ProcessView,
    gpu: Option<&'a ProcessGpuView>,
}

struct Column {
    title: &'static str,
    width: usize,
    right: bool,
    /// The narrowest screen that shows it.
    from: usize,
    text: fn(&Entry) -> String,
}

/// In the order of the screen; the command takes what room is left.
const COLUMNS: [Column; 12] = [
    Column { title: "PID", width: 7, right: true, from: 0, text: |entry| entry.process.tgid.0.to_string() },
    Column { title: "USER", width: 8, right: false, from: 60, text: user },
    Column { title: WORKLOAD, width: 20, right: false, from: 100, text: workload },
    Column { title: "GPU", width: 4, right: true, from: 0, text: gpu_number },
    Column {
        title: "USED",
        width: 10,
        right: true,
        from: 24,
        text: |entry| on_gpu(entry, |gpu| known(gpu.used_bytes, bytes)),
    },
    Column {
        title: "LIVE",
        width: 10,
        right: true,
        from: 36,
        text: |entry| on_gpu(entry, |gpu| bytes(gpu.live_bytes)),
    },
    Column {
        title: "PEAK",
        width: 10,
        right: true,
        from: 70,
        text: |entry| on_gpu(entry, |gpu| bytes(gpu.peak_bytes)),
    },
    Column { title: "BEFORE", width: 11, right: true, from: 112, text: before },
    Column { title: "UNEXPLAINED", width: 11, right: true, from: 112, text: unattributed },
    Column {
        title: "ALLOC/s",
        width: 7,
        right: true,
        from: 150,
        text: |entry| known(entry.process.allocations_per_second, rate),
    },
    Column {
        title: "FREE/s",
        width: 7,
        right: true,
        from: 150,
        text: |entry| known(entry.process.frees_per_second, rate),
    },
    Column {
        title: "FAILED",
        width: 6,
        right: true,
        from: 76,
        text: |entry| on_gpu(entry, |gpu| count(gpu.failed_allocations)),
    },
];
/// Columns of the bar of kinds, and the narrowest screen that shows it.
const KINDS_BAR: (usize, usize) = (12, 132);

/// The titles and the rows that fit.
pub(crate) fn lines(state: &mut State, shown: &Shown, columns: usize, room: usize) -> Vec<Line<'static>> {
    if room == 0 {
        return Vec::new();
    }
    state.fit(state.rows().len(), room - 1);
    if state.rows().is_empty() {
        return vec![Line::raw("No process with GPU memory has been seen yet.")];
    }
    let shape = Shape::of(shown, columns);
    let mut lines = vec![shape.titles(shown.look)];
    let visible = (0..).zip(state.rows()).skip(state.top()).take(room - 1);
    for (place, row) in visible {
        // The rows were made from this snapshot; a row whose process is missing is left out rather than believed.
        let Some(process) = shown.snapshot.processes.get(row.process) else { continue };
        let gpu = row.gpu.and_then(|gpu| process.gpus.get(gpu));
        let line = shape.line(&Entry { shown, process, gpu });
        lines.push(if place == state.selected() { selected(line, columns) } else { line });
    }
    lines
}

/// What of a row fits on the screen.
struct Shape {
    columns: usize,
    shown: Vec<&'static Column>,
    kinds: bool,
}

impl Shape {
    /// The workload is shown where a process has one; what else is only for wide screens then takes as much more.
    fn of(shown: &Shown, columns: usize) -> Self {
        let has_workloads = owners::any(shown.snapshot);
        let workload = COLUMNS.iter().find(|column| column.title == WORKLOAD);
        let taken =
            workload.filter(|workload| has_workloads && workload.from <= columns).map_or(0, |own| own.width + 1);
        let fits = |from: usize| from <= columns && (from <= 100 || from + taken <= columns);
        let shown = COLUMNS.iter().filter(|column| fits(column.from) && (has_workloads || column.title != WORKLOAD));
        Self { columns, shown: shown.collect(), kinds: fits(KINDS_BAR.1) }
    }

    fn titles(&self, look: Look) -> Line<'static> {
        let mut text: String = self.shown.iter().map(|column| cell(column.title, column)).collect();
        if self.kinds {
            text.extend([format!("{:<1$}", "KINDS", KINDS_BAR.0), " ".to_owned()]);
        }
        text.push_str("COMMAND");
        Line::from(look.span(Tone::Faint, fit(&text, self.columns, "")))
    }

    fn line(&self, entry: &Entry) -> Line<'static> {
        let look = entry.shown.look;
        let row_tone = if entry.process.ended_ns.is_some() { Tone::Faint } else { Tone::Plain };
        let refused = entry.gpu.is_some_and(|gpu| gpu.failed_allocations > 0);
        let mut line = Line::default();
        for column in &self.shown {
            let tone = match column.title {
                "FAILED" if refused => Tone::Bad,
                "USED" if row_tone == Tone::Plain => Tone::Heading,
                _ => row_tone,
            };
            line.push_span(look.span(tone, cell(&(column.text)(entry), column)));
        }
        if self.kinds {
            line.spans.extend(kinds_bar(entry, KINDS_BAR.0));
            line.push_span(Span::raw(" "));
        }
        let room = self.columns.saturating_sub(line.width());
        line.push_span(look.span(row_tone, fit(&command(entry), room, look.mark())));
        line
    }
}

/// A cell with the gap behind it.
fn cell(text: &str, column: &Column) -> String {
    let text = fit(text, column.width, "");
    let padding = " ".repeat(column.width - width(&text));
    if column.right { format!("{padding}{text} ") } else { format!("{text}{padding} ") }
}

fn selected(line: Line<'static>, columns: usize) -> Line<'static> {
    let padding = " ".repeat(columns.saturating_sub(line.width()));
    let mut line = line;
    line.push_span(Span::raw(padding));
    for span in &mut line.spans {
        span.style = span.style.add_modifier(Modifier::REVERSED);
    }
    line
}

fn kinds_bar(entry: &Entry, columns: usize) -> Vec<Span<'static>> {
    let look = entry.shown.look;
    let Some(gpu) = entry.gpu.filter(|gpu| gpu.peak_bytes > 0) else {
        return vec![look.span(Tone::Faint, format!("{UNKNOWN:<columns$}"))];
    };
    let pieces: Vec<_> = KINDS
        .iter()
        .filter(|name| **name != MANAGED)
        .filter_map(|name| Some((Fill::Kind(name), gpu.kinds.get(*name)?.live_bytes)))
        .collect();
    look.bar(&pieces, gpu.peak_bytes, columns)
}

fn command(entry: &Entry) -> String {
    let command = sentences::short_command(entry.process);
    match entry.process.ended_ns {
        Some(ended_ns) => format!("ended {}: {command}", entry.shown.clock.time_of_day(ended_ns)),
        None => command,
    }
}

fn on_gpu(entry: &Entry, text: fn(&ProcessGpuView) -> String) -> String {
    known(entry.gpu, text)
}

fn workload(entry: &Entry) -> String {
    owners::workload(&entry.process.owner).unwrap_or_else(|| UNKNOWN.to_owned())
}

fn user(entry: &Entry) -> String {
    entry.process.user.as_deref().map_or(UNKNOWN.into(), printable).into_owned()
}

/// The GPU's number, or what the column shows of a UUID where NVML gives no number.
fn gpu_number(entry: &Entry) -> String {
    let number = sentences::gpu_number(entry.shown.snapshot, entry.gpu.and_then(|gpu| gpu.uuid.as_ref()));
    number.split_once('-').filter(|(kind, _)| !kind.is_empty()).map_or(number.clone(), |(_, bare)| bare.to_owned())
}

fn before(entry: &Entry) -> String {
    known(entry.gpu, |gpu| sentences::preexisting(gpu, entry.shown.look.ascii))
}

fn unattributed(entry: &Entry) -> String {
    on_gpu(entry, |gpu| known(gpu.unattributed_bytes, signed_bytes))
}
