//! Text output of events: one row per event.

use std::io;

use jiff::Timestamp;
use serde::Deserialize;

use crate::render::Tone;
use crate::render::format::{UNKNOWN, printable, width};
use crate::render::sentences::Sentence;
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Titles of the columns.
const TITLES: [&str; 6] = ["TIME", "KIND", "PID", "USER", "GPU", "WHAT"];
/// Minimum widths of the columns, for events that are printed one by one.
const WIDTHS: [usize; 5] = [8, 13, 7, 8, 3];

/// The fields of a line of JSON that a row shows.
#[derive(Clone, Debug, Deserialize)]
struct EventRow {
    time: String,
    kind: String,
    #[serde(rename = "pid")]
    tgid: Option<u32>,
    user: Option<String>,
    gpu: Option<String>,
    what: String,
}

/// Writes rows with the same columns, as they come.
#[derive(Debug)]
pub(super) struct EventTable {
    options: TableOptions,
    widths: [usize; 5],
    has_titles: bool,
    /// Date at which times need no date, nanoseconds since 1970.
    now_unix_ns: u64,
}

impl EventTable {
    /// Creates a table without rows. Times of another day than that of `now_unix_ns` (nanoseconds since
    /// 1970) have their date.
    pub(super) const fn new(options: TableOptions, now_unix_ns: u64) -> Self {
        Self { options, widths: WIDTHS, has_titles: false, now_unix_ns }
    }

    /// Writes these events, in the form of lines of JSON, and the titles before the first of them.
    ///
    /// # Errors
    /// The error of `out`.
    pub(super) fn write<'a>(
        &mut self,
        out: &mut impl io::Write,
        lines: impl Iterator<Item = &'a str>,
    ) -> io::Result<()> {
        let rows: Vec<_> =
            lines.filter_map(|line| serde_json::from_str(line).ok()).map(|row| self.cells(&row)).collect();
        for (cells, _) in &rows {
            for (wide, cell) in self.widths.iter_mut().zip(cells) {
                *wide = (*wide).max(width(cell));
            }
        }
        let mut page = TextPage { text: String::new(), options: self.options };
        if !self.has_titles {
            page.line(&Sentence::new(Tone::Heading, self.row(&TITLES.map(str::to_owned))));
            self.has_titles = true;
        }
        for (cells, tone) in &rows {
            page.line(&Sentence::new(*tone, self.row(cells)));
        }
        out.write_all(page.text.as_bytes())?;
        out.flush()
    }

    fn cells(&self, row: &EventRow) -> ([String; 6], Tone) {
        let unknown = || UNKNOWN.to_owned();
        let time = row.time.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_nanosecond()).ok());
        let clock = WallClock::local(0);
        let cells = [
            time.map_or_else(unknown, |unix_ns| clock.moment(unix_ns, self.now_unix_ns)),
            printable(&row.kind.replace('_', " ")).into_owned(),
            row.tgid.map_or_else(unknown, |tgid| tgid.to_string()),
            row.user.as_deref().map_or_else(unknown, |user| printable(user).into_owned()),
            row.gpu.as_deref().map_or_else(unknown, |gpu| printable(gpu).into_owned()),
            printable(&row.what).into_owned(),
        ];
        (cells, if row.kind == "out_of_memory" { Tone::Bad } else { Tone::Plain })
    }

    fn row(&self, cells: &[String; 6]) -> String {
        let mut line = String::new();
        for (at, (cell, wide)) in cells.iter().zip(self.widths).enumerate() {
            let padding = " ".repeat(wide.saturating_sub(width(cell)));
            // Numbers are aligned to the right.
            let parts = if TITLES[at] == "PID" { [&*padding, cell] } else { [&**cell, &padding] };
            line.extend(parts.into_iter().chain(["  "]));
        }
        line + &cells[5]
    }
}
