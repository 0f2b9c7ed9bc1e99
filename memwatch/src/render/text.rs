//! Plain text: `memwatch ps`, and one table per interval in a pipe.

pub(crate) mod columns;
pub(crate) mod grid;
pub(crate) mod groups;

use std::io;

use memwatch_core::snapshot::{GpuView, ProcessView, Snapshot};

use self::columns::{ProcessRow, TableSelection};
use self::grid::TextGrid;
use super::Tone;
use super::failures::attempts;
use super::format::{bytes, known, plural, width, wrap};
use super::sentences::{self, Sentence};
use super::wall_clock::WallClock;

/// Maximum number of failed allocations listed per process.
const LISTED_FAILURES: usize = 3;
/// Style of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableOptions {
    /// Width of the terminal in columns; `None` for a pipe, where lines are not truncated.
    pub(crate) columns: Option<usize>,
    /// Use colours.
    pub(crate) color: bool,
    /// Use ASCII characters only, except in text from traced programs.
    pub(crate) ascii: bool,
    /// Whether the table is one of a series: it starts with the time and ends with an empty line.
    pub(crate) repeated: bool,
}

/// Writes a snapshot as text.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write(
    out: &mut impl io::Write,
    snapshot: &Snapshot,
    shown: &TableSelection,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    if options.repeated {
        page.line(&Sentence::new(Tone::Heading, clock.time_of_day(snapshot.time_ns)));
    }
    for gpu in &snapshot.gpus {
        page.line(&Sentence::new(Tone::Heading, gpu_line(snapshot, gpu)));
    }
    page.processes(snapshot, shown, clock);
    page.trust(snapshot, clock);
    if options.repeated {
        page.text.push('\n');
    }
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn gpu_line(snapshot: &Snapshot, gpu: &GpuView) -> String {
    let others = match gpu.unwatched_processes {
        None | Some(0) => String::new(),
        Some(others) => format!("  {} not traced", plural(others, "process", "processes")),
    };
    let attribution = sentences::attribution(snapshot, gpu).map(|text| format!("  {text}")).unwrap_or_default();
    let left = sentences::left_behind::on_gpu(snapshot, gpu).map(|text| format!("  {text}")).unwrap_or_default();
    let context = gpu.context_bytes.map(|context| format!(" (a context takes {})", bytes(context)));
    format!(
        "GPU {}  {}  used {} of {}{attribution}{}{others}{left}",
        sentences::place(gpu),
        sentences::gpu_name(gpu),
        known(gpu.used_bytes, bytes),
        known(gpu.total_bytes, bytes),
        context.filter(|_| !attribution.is_empty()).unwrap_or_default(),
    )
}

/// Text of a page under construction.
pub(crate) struct TextPage {
    pub(crate) text: String,
    pub(crate) options: TableOptions,
}

impl TextPage {
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

    fn processes(&mut self, snapshot: &Snapshot, shown: &TableSelection, clock: &WallClock) {
        let processes = shown.sorted(snapshot);
        if processes.is_empty() {
            self.line(&Sentence::new(Tone::Plain, "No process with GPU memory."));
            return;
        }
        let ascii = self.options.ascii;
        let mut rows = Vec::new();
        for process in &processes {
            let cell = |gpu| ProcessRow { snapshot, process, gpu, ascii };
            match process.gpus.as_slice() {
                [] => rows.push(cell(None)),
                gpus => rows.extend(gpus.iter().map(Some).map(cell)),
            }
        }
        let columns = shown.fitting(&rows, self.options.columns);
        let mut grid = TextGrid::new(&columns.iter().map(|column| column.head()).collect::<Vec<_>>());
        for row in &rows {
            grid.push(columns.iter().map(|column| column.text(row)).collect());
        }
        self.lines(grid.lines(self.options.columns, self.mark()));
        for process in processes {
            self.details(snapshot, process, clock);
        }
    }

    const fn mark(&self) -> &'static str {
        if self.options.ascii { ".." } else { "…" }
    }

    /// Appends a grid with all its columns. On a narrow terminal, columns that do not fit move to a
    /// second line of each row.
    pub(crate) fn grid(&mut self, grid: &TextGrid) {
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

    fn details(&mut self, snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) {
        let mut details = Vec::new();
        let failures = attempts(&process.failures);
        let earlier = failures.len().saturating_sub(LISTED_FAILURES);
        details.extend(failures[earlier..].iter().map(|one| {
            let Sentence { tone, text } = sentences::failure(snapshot, one.last, clock);
            Sentence::new(tone, format!("{text}{}", one.suffix()))
        }));
        let libraries = process.gpus.iter().filter_map(|gpu| sentences::libraries(process, gpu));
        details.extend(libraries.map(|text| Sentence::new(Tone::Plain, text)));
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
