//! Plain text: `memwatch ps`, and one table per interval in a pipe.

pub(crate) mod grid;
pub(crate) mod groups;

use std::io;

use memwatch_core::snapshot::{GpuView, ProcessGpuView, ProcessView, Snapshot};

use self::grid::{Align, Grid};
use super::Tone;
use super::failures::attempts;
use super::format::{UNKNOWN, bytes, count, known, plural, rate, signed_bytes, width, wrap};
use super::order::by_holding;
use super::owners;
use super::sentences::{self, Sentence};
use super::wall_clock::WallClock;

/// A column that is left out where no process has one.
const WORKLOAD: &str = "WORKLOAD";
/// How many refused allocations of a process are listed.
const LISTED_FAILURES: usize = 3;
const COLUMNS: [(&str, Align); 14] = [
    ("PID", Align::Right),
    ("USER", Align::Left),
    (WORKLOAD, Align::Left),
    ("GPU", Align::Right),
    ("USED", Align::Right),
    ("LIVE", Align::Right),
    ("PEAK", Align::Right),
    ("BEFORE", Align::Right),
    ("UNEXPLAINED", Align::Right),
    ("KINDS", Align::Left),
    ("ALLOC/s", Align::Right),
    ("FREE/s", Align::Right),
    ("FAILED", Align::Right),
    ("COMMAND", Align::Left),
];

/// The look of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableOptions {
    /// Columns of the terminal; `None` in a pipe, where no line is cut.
    pub(crate) columns: Option<usize>,
    /// With colours.
    pub(crate) color: bool,
    /// With ASCII characters only (but for the texts of others).
    pub(crate) ascii: bool,
    /// One of several tables: it begins with the time and ends with an empty line.
    pub(crate) repeated: bool,
}

/// Writes a snapshot as text.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = Page { text: String::new(), options: *options };
    if options.repeated {
        page.line(&Sentence::new(Tone::Heading, clock.time_of_day(snapshot.time_ns)));
    }
    for gpu in &snapshot.gpus {
        page.line(&Sentence::new(Tone::Heading, gpu_line(gpu)));
    }
    page.processes(snapshot, clock);
    page.trust(snapshot, clock);
    if options.repeated {
        page.text.push('\n');
    }
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn gpu_line(gpu: &GpuView) -> String {
    let others = match gpu.unwatched_processes {
        None | Some(0) => String::new(),
        Some(others) => format!("  {} not watched", plural(others, "process", "processes")),
    };
    format!(
        "GPU {}  {}  used {} of {}  live {}  {}{others}",
        sentences::place(gpu),
        sentences::gpu_name(gpu),
        known(gpu.used_bytes, bytes),
        known(gpu.total_bytes, bytes),
        bytes(gpu.live_bytes),
        sentences::unexplained(gpu),
    )
}

/// The text of one table while it grows.
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) options: TableOptions,
}

impl Page {
    pub(crate) fn line(&mut self, sentence: &Sentence) {
        let lines = match self.options.columns {
            Some(columns) => wrap(&sentence.text, columns),
            None => vec![sentence.text.clone()],
        };
        for line in lines {
            self.text.push_str(&self.painted(&Sentence::new(sentence.tone, line)));
            self.text.push('\n');
        }
    }

    fn painted(&self, sentence: &Sentence) -> String {
        let plain = |text: &str| {
            if self.options.ascii { text.replace(" · ", " - ").replace('…', "..") } else { text.to_owned() }
        };
        let code = match sentence.tone {
            Tone::Plain => None,
            Tone::Heading => Some("1"),
            Tone::Faint => Some("2"),
            Tone::Good => Some("32"),
            Tone::Warning => Some("33"),
            Tone::Bad => Some("31"),
        };
        match code.filter(|_| self.options.color) {
            Some(code) => format!("\x1b[{code}m{}\x1b[0m", plain(&sentence.text)),
            None => plain(&sentence.text),
        }
    }

    fn processes(&mut self, snapshot: &Snapshot, clock: &WallClock) {
        let processes = by_holding(snapshot);
        if processes.is_empty() {
            self.line(&Sentence::new(Tone::Plain, "No process with GPU memory has been seen."));
            return;
        }
        let has_workloads = owners::any(snapshot);
        let columns: Vec<_> = COLUMNS.into_iter().filter(|(title, _)| has_workloads || *title != WORKLOAD).collect();
        let mut grid = Grid::new(&columns);
        for process in &processes {
            let rows = match process.gpus.as_slice() {
                [] => vec![self.row(snapshot, process, None)],
                gpus => gpus.iter().map(|gpu| self.row(snapshot, process, Some(gpu))).collect(),
            };
            for row in rows {
                let cells = COLUMNS.iter().zip(row).filter(|((title, _), _)| has_workloads || *title != WORKLOAD);
                grid.push(cells.map(|(_, cell)| cell).collect());
            }
        }
        self.lines(grid.lines(self.options.columns, self.mark()));
        for process in processes {
            self.details(snapshot, process, clock);
        }
    }

    const fn mark(&self) -> &'static str {
        if self.options.ascii { ".." } else { "…" }
    }

    /// A grid whose columns all are shown: those that a narrow terminal has no room for stand in a second line of each row.
    pub(crate) fn grid(&mut self, grid: &Grid) {
        self.lines(grid.folded(self.options.columns, self.mark()));
    }

    fn lines(&mut self, lines: Vec<String>) {
        let mut lines = lines.into_iter();
        if let Some(titles) = lines.next() {
            self.line(&Sentence::new(Tone::Heading, titles));
        }
        for line in lines {
            self.line(&Sentence::new(Tone::Plain, line));
        }
    }

    fn row(&self, snapshot: &Snapshot, process: &ProcessView, gpu: Option<&ProcessGpuView>) -> Vec<String> {
        let on_gpu = |text: &dyn Fn(&ProcessGpuView) -> String| known(gpu, text);
        vec![
            process.tgid.0.to_string(),
            process.user.as_deref().map_or(UNKNOWN.into(), super::format::printable).into_owned(),
            known(owners::workload(&process.owner), |text| text),
            sentences::gpu_number(snapshot, gpu.and_then(|gpu| gpu.uuid.as_ref())),
            on_gpu(&|gpu| known(gpu.used_bytes, bytes)),
            on_gpu(&|gpu| bytes(gpu.live_bytes)),
            on_gpu(&|gpu| bytes(gpu.peak_bytes)),
            on_gpu(&|gpu| sentences::before_attach(gpu, self.options.ascii)),
            on_gpu(&|gpu| known(gpu.unexplained_bytes, signed_bytes)),
            on_gpu(&sentences::kinds),
            known(process.allocations_per_second, rate),
            known(process.frees_per_second, rate),
            on_gpu(&|gpu| count(gpu.failed_allocations)),
            sentences::command(process),
        ]
    }

    fn details(&mut self, snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) {
        let mut details = Vec::new();
        let failures = attempts(&process.failures);
        let earlier = failures.len().saturating_sub(LISTED_FAILURES);
        details.extend(failures[earlier..].iter().map(|one| {
            let Sentence { tone, text } = sentences::failure(snapshot, one.last, clock);
            Sentence::new(tone, format!("{text}{}", one.suffix()))
        }));
        let host = sentences::host(&process.host);
        details.extend(host.map(|text| Sentence::new(Tone::Plain, format!("page-locked host memory: {text}"))));
        details.extend(sentences::remarks(snapshot, process, clock));
        for Sentence { text, tone } in details {
            self.line(&Sentence::new(tone, format!("PID {}: {text}", process.tgid.0)));
        }
    }

    pub(crate) fn trust(&mut self, snapshot: &Snapshot, clock: &WallClock) {
        let joint = if self.options.ascii { " - " } else { " · " };
        let mut used = 0;
        for part in sentences::trust(snapshot, clock) {
            let wide = width(&part.text);
            let fits = self.options.columns.is_none_or(|columns| used + width(joint) + wide <= columns);
            if used > 0 && fits {
                self.text.push_str(joint);
                self.text.push_str(&self.painted(&part));
                used += width(joint) + wide;
                continue;
            }
            if used > 0 {
                self.text.push('\n');
            }
            self.line(&part);
            self.text.truncate(self.text.trim_end_matches('\n').len());
            used = wide;
        }
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests;
