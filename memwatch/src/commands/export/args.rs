//! Arguments of `memwatch export` and `memwatch flamegraph`: processes, output file and format.

use std::path::PathBuf;
use std::time::Duration;

use crate::commands::snapshot::args::Pickle;
use crate::commands::timeline::args::{Timeline, TimelineFormat};
use crate::export::{ProfileFormat, ProfileWeight};
use crate::options::moment::PAST;
use crate::options::{Checked, Looks, ReportSubject, TargetArgs, values};
use crate::output_file;

/// Kind of an output file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportKind {
    /// A profile of stacks.
    Profile(ProfileFormat),
    /// The output of `memwatch snapshot`.
    Snapshot,
    /// The output of `memwatch timeline` for TensorBoard.
    TensorBoard,
    /// The agent's metrics.
    Metrics,
}

/// Formats by name, with their file name endings; if two endings match, the first counts.
const FORMATS: [(&str, ExportKind, &[&str]); 10] = [
    ("folded", ExportKind::Profile(ProfileFormat::Folded), &[".folded", ".txt"]),
    ("speedscope", ExportKind::Profile(ProfileFormat::Speedscope), &[".speedscope.json", ".json"]),
    ("pprof", ExportKind::Profile(ProfileFormat::Pprof), &[".pb.gz", ".pprof"]),
    ("csv", ExportKind::Profile(ProfileFormat::Csv), &[".csv"]),
    ("parquet", ExportKind::Profile(ProfileFormat::Parquet), &[".parquet"]),
    ("svg", ExportKind::Profile(ProfileFormat::Svg), &[".svg"]),
    ("html", ExportKind::Profile(ProfileFormat::Html), &[".html", ".htm"]),
    ("memory-viz", ExportKind::Snapshot, &[".pickle"]),
    ("tensorboard", ExportKind::TensorBoard, &[".tfevents"]),
    ("openmetrics", ExportKind::Metrics, &[".openmetrics"]),
];

/// Whose memory, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct ExportSource {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Only these GPUs: index, UUID (or its beginning) or PCI bus id; may be repeated
    #[arg(short, long = "gpu", value_name = "GPU", value_delimiter = ',', value_parser = values::gpu)]
    pub(crate) gpus: Vec<String>,
    /// The file; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// What is counted: inuse (allocated at the end), peak (allocated at the device's peak), alloc
    /// (all bytes allocated), count (allocations) or leak (inuse of lines that keep growing).
    /// Default: inuse; peak for a program that has ended
    #[arg(short, long, value_name = "WHAT", value_parser = weight)]
    pub(crate) weight: Option<ProfileWeight>,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Watch for this time first; ends earlier on Ctrl-C or when the program ends
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
}

/// `memwatch export`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) held: ExportSource,
    /// Format: folded, speedscope, pprof, csv, parquet, svg, html, memory-viz, tensorboard or
    /// openmetrics (default: by the file name)
    #[arg(short, long, value_name = "FORMAT", value_parser = format)]
    pub(crate) format: Option<ExportKind>,
}

/// `memwatch flamegraph`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Flamegraph {
    #[command(flatten)]
    pub(crate) held: ExportSource,
    /// Format: svg or html (default: by the file name; svg for standard output)
    #[arg(short, long, value_name = "FORMAT", value_parser = drawing)]
    pub(crate) format: Option<ExportKind>,
}

impl ExportSource {
    /// Whether the output goes to standard output.
    pub(crate) fn is_for_stdout(&self) -> bool {
        output_file::is_stdout(&self.output)
    }

    /// # Errors
    /// A time window is given, but the weight is not of a window.
    fn check_window(&self) -> Result<(), String> {
        self.subject.check()?;
        if self.subject.past.window.since.is_none()
            || matches!(self.weight, None | Some(ProfileWeight::Peak | ProfileWeight::Leak))
        {
            return Ok(());
        }
        Err("--since goes with --weight peak or leak: live memory is of one time (--until), and sums cover the whole recording".to_owned())
    }

    /// Makes the corresponding arguments of `memwatch snapshot`.
    pub(crate) fn pickle(&self) -> Pickle {
        Pickle {
            subject: self.subject.clone(),
            output: self.output.clone(),
            native: false,
            force: self.force,
            duration: self.duration,
        }
    }

    /// Makes the corresponding arguments of `memwatch timeline`.
    pub(crate) fn timeline(&self) -> Timeline {
        let targets = TargetArgs { selected: self.subject.selected.clone(), gpus: self.gpus.clone() };
        let looks = Looks { targets, past: self.subject.past.clone(), duration: Some(self.duration) };
        Timeline { force: self.force, ..Timeline::of(looks, TimelineFormat::TensorBoard, self.output.clone()) }
    }
}

impl ExportArgs {
    /// Returns the format.
    ///
    /// # Errors
    /// The format is unknown, or conflicts with other arguments.
    pub(crate) fn written(&self) -> Result<ExportKind, String> {
        let written = match self.format {
            Some(format) => format,
            None if self.held.is_for_stdout() => {
                return Err(format!("'-o -' needs a format: -f {}", names(|_| true)));
            }
            None => by_name(&self.held)
                .ok_or_else(|| format!("the name of the file has no known format: -f {}", names(|_| true)))?,
        };
        self.held.subject.check()?;
        if written == ExportKind::Snapshot {
            let ExportSource { subject, gpus, .. } = &self.held;
            let refusal = if self.held.is_for_stdout() {
                Some("memory-viz goes into a file: -o snapshot.pickle")
            } else if subject.selected.tgids.len() > 1 || !gpus.is_empty() {
                Some("memory-viz is of one process, with all its GPUs")
            } else {
                None
            };
            return refusal.map_or(Ok(written), |refusal| Err(refusal.to_owned()));
        }
        self.held.check_window().map(|()| written)
    }
}

impl Checked for ExportArgs {
    fn check(&self) -> Result<(), String> {
        self.written().map(drop)
    }
}

impl Checked for Flamegraph {
    fn check(&self) -> Result<(), String> {
        self.written().map(drop)
    }
}

impl Flamegraph {
    /// Returns the format.
    ///
    /// # Errors
    /// The format is unknown.
    pub(crate) fn written(&self) -> Result<ExportKind, String> {
        let refusal =
            || format!("a flame graph needs a file name that ends in .svg or .html, or -f {}", names(is_drawn));
        self.held.check_window()?;
        match self.format {
            Some(format) => Ok(format),
            None if self.held.is_for_stdout() => Ok(ExportKind::Profile(ProfileFormat::Svg)),
            None => by_name(&self.held).filter(|format| is_drawn(*format)).ok_or_else(refusal),
        }
    }
}

const fn is_drawn(written: ExportKind) -> bool {
    matches!(written, ExportKind::Profile(ProfileFormat::Svg | ProfileFormat::Html))
}

fn by_name(held: &ExportSource) -> Option<ExportKind> {
    let name = held.output.file_name()?.to_string_lossy().to_ascii_lowercase();
    let fits = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    FORMATS.iter().find(|(_, _, ends)| fits(ends)).map(|(_, written, _)| *written)
}

/// Formats `svg or html`.
fn names(is_meant: impl Fn(ExportKind) -> bool) -> String {
    let mut names: Vec<&str> =
        FORMATS.iter().filter(|(_, written, _)| is_meant(*written)).map(|(name, ..)| *name).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} or {last}", names.join(", "))
}

fn format(text: &str) -> Result<ExportKind, String> {
    named(text, |_| true)
}

fn drawing(text: &str) -> Result<ExportKind, String> {
    named(text, is_drawn)
}

fn named(text: &str, is_meant: impl Fn(ExportKind) -> bool) -> Result<ExportKind, String> {
    let found = FORMATS.iter().find(|(name, written, _)| *name == text && is_meant(*written));
    found.map(|(_, written, _)| *written).ok_or_else(|| names(is_meant))
}

fn weight(text: &str) -> Result<ProfileWeight, String> {
    match text {
        "inuse" => Ok(ProfileWeight::InUse),
        "peak" => Ok(ProfileWeight::Peak),
        "alloc" => Ok(ProfileWeight::Allocated),
        "count" => Ok(ProfileWeight::Count),
        "leak" => Ok(ProfileWeight::Leak),
        _ => Err("inuse, peak, alloc, count or leak".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, MemwatchArgs};

    fn parsed(line: &str) -> Result<ExportKind, String> {
        match MemwatchArgs::from_words(line.split(' ')).map_err(|error| error.to_string())?.command {
            Some(Command::Export(export)) => export.written(),
            Some(Command::Flamegraph(flamegraph)) => flamegraph.written(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_name_of_the_file_reports_the_format_unless_one_is_named() {
        for (file, format) in [
            ("a.folded", ProfileFormat::Folded),
            ("a.txt", ProfileFormat::Folded),
            ("a.speedscope.json", ProfileFormat::Speedscope),
            ("A.JSON", ProfileFormat::Speedscope),
            ("a.pb.gz", ProfileFormat::Pprof),
            ("a.pprof", ProfileFormat::Pprof),
            ("a.csv", ProfileFormat::Csv),
            ("a.parquet", ProfileFormat::Parquet),
            ("a.svg", ProfileFormat::Svg),
            ("a.html", ProfileFormat::Html),
        ] {
            assert_eq!(
                parsed(&format!("memwatch export --in j.mwr -o {file}")),
                Ok(ExportKind::Profile(format)),
                "{file}"
            );
        }
        assert_eq!(parsed("memwatch export -p 1 -o a.pickle"), Ok(ExportKind::Snapshot));
        assert_eq!(parsed("memwatch export -p 1 -o - -f openmetrics"), Ok(ExportKind::Metrics));
        assert_eq!(parsed("memwatch export -p 1 -o runs/a.tfevents"), Ok(ExportKind::TensorBoard));
        assert_eq!(parsed("memwatch export -p 1 -o - -f csv"), Ok(ExportKind::Profile(ProfileFormat::Csv)));
        assert_eq!(parsed("memwatch flamegraph -p 1 -o -"), Ok(ExportKind::Profile(ProfileFormat::Svg)));
        assert_eq!(parsed("memwatch flamegraph -p 1 -o a.txt -f html"), Ok(ExportKind::Profile(ProfileFormat::Html)));
    }

    #[test]
    fn export_rejects_unknown_formats_by_listing_the_known_ones() {
        for (line, words) in [
            (
                "export -p 1 -o a.bin",
                "-f folded, speedscope, pprof, csv, parquet, svg, html, memory-viz, tensorboard or openmetrics",
            ),
            ("export -p 1 -o -", "'-o -' needs a format"),
            ("export -p 1 -o a -f png", "folded, speedscope"),
            ("flamegraph -p 1 -o a.csv", "-f svg or html"),
            ("flamegraph -p 1 -o a -f csv", "svg or html"),
            ("export -p 1,2 -o a.pickle", "memory-viz is of one process"),
            ("export -p 1 -o - -f memory-viz", "goes into a file"),
            ("export -p 1 -o a.csv -w some", "inuse, peak, alloc, count or leak"),
            ("export -o a.csv", "--pid"),
            ("export --in j.mwr -o a.csv -w inuse --since 10m", "--since goes with --weight peak or leak"),
            ("flamegraph --in j.mwr -o a.svg -w alloc --since 10m", "--since goes with --weight peak or leak"),
        ] {
            let refusal = parsed(&format!("memwatch {line}")).expect_err(line);
            assert!(refusal.contains(words), "{line}: {refusal}");
        }
    }
}
