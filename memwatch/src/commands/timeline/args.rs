//! Arguments of `memwatch timeline`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::options::{Checked, Looks, values};

/// Default values.
const INTERVAL: Duration = Duration::from_millis(100);
const MIN_SIZE: u64 = 100 << 20;
const POINTS: usize = 1000;
const TOP: usize = 20;

/// `memwatch timeline`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Timeline {
    #[command(flatten)]
    pub(crate) looks: Looks,
    /// Sampling interval: 100ms, 2s, 1m; a bare number is seconds; at least 100ms
    #[arg(short, long, value_name = "TIME", default_value = "100ms", help_heading = "Time")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Duration,
    /// Format: svg, html, perfetto (for ui.perfetto.dev), tensorboard, json, csv or parquet
    /// (default: by the file name; a table without a file)
    #[arg(short, long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    pub(crate) format: Option<TimelineFormat>,
    /// The file; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// List allocations of this size and above: 500M, 2G; a bare number is bytes
    #[arg(short = 'z', long, value_name = "SIZE", default_value = "100M", value_parser = values::size_bytes)]
    pub(crate) min_size: u64,
    /// Maximum number of points per series in JSON; neighbours are merged, and keep their maximum
    #[arg(long, value_name = "N", default_value_t = POINTS)]
    pub(crate) points: usize,
    /// Maximum number of events in the table (the last ones)
    #[arg(short = 'n', long, value_name = "N", default_value_t = TOP)]
    pub(crate) top: usize,
}

/// How a timeline is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimelineFormat {
    /// A picture
    Svg,
    /// A page
    Html,
    /// A trace
    Perfetto,
    /// Scalars
    #[value(name = "tensorboard")]
    TensorBoard,
    /// A report
    Json,
    /// A table for spreadsheets
    Csv,
    /// A table for data frames
    Parquet,
}

/// Formats with their file name endings.
const ENDS: [(TimelineFormat, &[&str]); 7] = [
    (TimelineFormat::Svg, &[".svg"]),
    (TimelineFormat::Html, &[".html", ".htm"]),
    (TimelineFormat::Perfetto, &[".pftrace", ".perfetto-trace", ".perfetto"]),
    (TimelineFormat::TensorBoard, &[".tfevents"]),
    (TimelineFormat::Json, &[".json"]),
    (TimelineFormat::Csv, &[".csv"]),
    (TimelineFormat::Parquet, &[".parquet"]),
];

impl Timeline {
    /// Makes arguments for a file in this format, with default values for the rest.
    pub(crate) fn of(looks: Looks, format: TimelineFormat, output: PathBuf) -> Self {
        Self {
            looks,
            interval: INTERVAL,
            format: Some(format),
            output: Some(output),
            force: false,
            min_size: MIN_SIZE,
            points: POINTS,
            top: TOP,
        }
    }

    /// Returns the format; `None` for a table.
    ///
    /// # Errors
    /// The format is unknown.
    pub(crate) fn written(&self) -> Result<Option<TimelineFormat>, String> {
        let Some(output) = &self.output else {
            return match self.format {
                None | Some(TimelineFormat::Json | TimelineFormat::Csv) => Ok(self.format),
                Some(_) => {
                    Err("a picture, a page or a trace goes into a file: -o FILE, or -o - for standard output"
                        .to_owned())
                }
            };
        };
        let found = self.format.or_else(|| by_name(output)).map(Some);
        found.ok_or_else(|| {
            "the name of the file has no known format: -f svg, html, perfetto, tensorboard, json, csv or parquet"
                .to_owned()
        })
    }
}

/// Returns the format of a file name ending.
pub(crate) fn by_name(output: &std::path::Path) -> Option<TimelineFormat> {
    let name = output.file_name()?.to_string_lossy().to_ascii_lowercase();
    ENDS.iter().find(|(_, ends)| ends.iter().any(|end| name.ends_with(end))).map(|(format, _)| *format)
}

impl Checked for Timeline {
    fn check(&self) -> Result<(), String> {
        self.written().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::{Timeline, TimelineFormat};
    use crate::cli::{Command, MemwatchArgs};

    fn parsed(line: &str) -> Result<Option<TimelineFormat>, String> {
        match MemwatchArgs::from_words(line.split(' ')).map_err(|error| error.to_string())?.command {
            Some(Command::Timeline(timeline)) => timeline.written(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_name_of_the_file_reports_the_format_unless_one_is_named() {
        for (words, format) in [
            ("-o a.svg", Some(TimelineFormat::Svg)),
            ("-o A.HTML", Some(TimelineFormat::Html)),
            ("-o a.parquet", Some(TimelineFormat::Parquet)),
            ("-o a.csv", Some(TimelineFormat::Csv)),
            ("-o a.pftrace", Some(TimelineFormat::Perfetto)),
            ("-o runs/a.tfevents", Some(TimelineFormat::TensorBoard)),
            ("-o a.tfevents.1 -f tensorboard", Some(TimelineFormat::TensorBoard)),
            ("-o a.svg -f perfetto", Some(TimelineFormat::Perfetto)),
            ("-o - -f svg", Some(TimelineFormat::Svg)),
            ("-f json", Some(TimelineFormat::Json)),
            ("-f csv", Some(TimelineFormat::Csv)),
            ("-i 200ms", None),
        ] {
            assert_eq!(parsed(&format!("memwatch timeline --in j.mwr {words}")), Ok(format), "{words}");
        }
    }

    #[test]
    fn timeline_defaults_equal_the_parsed_defaults() {
        let words = "memwatch timeline --pid 1 -o a.tfevents -f tensorboard";
        let Some(Command::Timeline(typed)) = MemwatchArgs::from_words(words.split(' ')).expect("a command").command
        else {
            panic!("{words}")
        };
        let format = TimelineFormat::TensorBoard;
        assert_eq!(Timeline::of(typed.looks.clone(), format, "a.tfevents".into()), typed);
    }

    #[test]
    fn timeline_rejects_outputs_without_a_known_format() {
        for words in ["-o a.png", "-o -", "-f svg"] {
            let refusal = parsed(&format!("memwatch timeline --in j.mwr {words}")).expect_err(words);
            assert!(refusal.contains("-f svg") || refusal.contains("-o FILE"), "{words}: {refusal}");
        }
    }
}
