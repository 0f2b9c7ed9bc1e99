//! Where memory of PyTorch is held, by Python stack, for programs that show such profiles: one file per format.

pub(crate) mod columns;
pub(crate) mod csv;
pub(crate) mod folded;
pub(crate) mod html;
pub(crate) mod mem_trace;
pub(crate) mod parquet;
pub(crate) mod perfetto;
pub(crate) mod pickle;
pub(crate) mod plot;
pub(crate) mod pprof;
pub(crate) mod speedscope;
pub(crate) mod svg;
pub(crate) mod tensorboard;

use memwatch_core::features::leak::view::{LeakView, LeaksView};
use memwatch_core::snapshot::{
    CallPathView, DeviceCallPaths, DevicePlacesView, FrameView, ProcessView, SiteView, Snapshot, SumView,
};

use super::render::format::{bytes, count, printable};
use super::render::wall_clock::WallClock;
use super::render::{places, sentences};

/// What a program writes into its files about itself.
const EXPORTER: &str = concat!("memwatch ", env!("CARGO_PKG_VERSION"));

/// What is counted of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Bytes that were live at the end.
    InUse,
    /// Bytes that were live when the device's total was highest.
    Peak,
    /// Bytes of all blocks since the attach.
    Allocated,
    /// Their number.
    Count,
    /// Live bytes of lines that keep growing, and of no others: a profile of those is [`leaking`].
    Leak,
}

impl Weight {
    /// All that a stack has at once, in the order of [`Self::all_of`].
    pub(crate) const ALL: [Self; 4] = [Self::InUse, Self::Peak, Self::Allocated, Self::Count];

    /// What a sum has of it.
    const fn of(self, sum: &SumView) -> u64 {
        match self {
            Self::InUse | Self::Leak => sum.live_bytes,
            Self::Peak => sum.at_peak_bytes,
            Self::Allocated => sum.total_bytes,
            Self::Count => sum.allocations,
        }
    }

    /// What a sum has of each.
    fn all_of(sum: &SumView) -> [u64; 4] {
        Self::ALL.map(|weight| weight.of(sum))
    }

    /// What it is called: of bytes, what they are.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::InUse => "in use",
            Self::Peak => "in use at the peak",
            Self::Allocated => "allocated",
            Self::Count => "allocations",
            Self::Leak => "in use by what keeps growing",
        }
    }

    /// `12.0 MiB in use`, `1,234 allocations`.
    pub(crate) fn amount(self, number: u64) -> String {
        let number = if self == Self::Count { count(number) } else { bytes(number) };
        format!("{number} {}", self.name())
    }
}

/// How a profile is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Folded stacks, a line each.
    Folded,
    /// JSON of speedscope.app.
    Speedscope,
    /// `profile.proto`, packed.
    Pprof,
    /// A table of lines of Python.
    Csv,
    /// The same table for data frames.
    Parquet,
    /// A picture.
    Svg,
    /// A page.
    Html,
}

/// Why a profile cannot be written in a format.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// The picture would be empty.
    #[error("there is nothing to draw: 0 {0}")]
    Empty(&'static str),
    /// The format has other numbers.
    #[error("pprof's profiles of a heap have no peak; all other formats do")]
    NoPeak,
    /// A writer of the format does not do it.
    #[error("it cannot be written in this format")]
    Writer(#[from] std::io::Error),
}

/// Where memory is held.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Profile {
    /// Devices of processes.
    pub(crate) parts: Vec<Part>,
    /// The moment: nanoseconds since 1970.
    unix_ns: i64,
    /// For how long the first process was watched by then.
    duration_ns: u64,
}

/// One device of one process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    tgid: u32,
    program: String,
    gpu: String,
    uuid: Option<String>,
    /// What the allocator has granted and is in no sample, since events were lost.
    pub(crate) unplaced_bytes: i64,
    /// All samples together.
    pub(crate) total: SumView,
    /// As in the list of sites.
    sites: Vec<SiteView>,
    pub(crate) samples: Vec<Sample>,
}

/// Blocks that came the same way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Outermost first; never empty: what has no stack has one frame that says why.
    frames: Vec<Frame>,
    /// `forward`, `backward (recomputed)`.
    stage: String,
    sum: SumView,
}

/// A frame; its texts are [`printable`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Frame {
    /// The function; for what is none, what it is.
    name: String,
    /// The file; `None` for what is no function.
    file: Option<String>,
    line: Option<u32>,
}

impl Profile {
    /// What a snapshot and the call paths of its processes have.
    pub(crate) fn new(
        snapshot: &Snapshot,
        call_paths: impl Fn(&ProcessView) -> Vec<DeviceCallPaths>,
        clock: &WallClock,
    ) -> Self {
        let mut parts = Vec::new();
        for process in &snapshot.processes {
            let Some(tensors) = &process.tensors else { continue };
            let call_paths = call_paths(process);
            for device in &tensors.places.devices {
                if let Some(call_paths) = call_paths.iter().find(|call_paths| call_paths.device == device.device) {
                    parts.push(part(snapshot, process, device, call_paths));
                }
            }
        }
        let watched = snapshot.processes.iter().find(|process| process.tensors.is_some());
        Self {
            parts,
            unix_ns: clock.unix_ns(snapshot.time_ns),
            duration_ns: watched.map_or(0, |process| snapshot.time_ns.saturating_sub(process.observed_since_ns)),
        }
    }

    /// How much there is in all.
    pub(crate) fn total(&self, weight: Weight) -> u64 {
        self.parts.iter().fold(0, |total, part| total.saturating_add(weight.of(&part.total)))
    }

    /// The bytes of a file; formats with room for several numbers begin with `weight`.
    ///
    /// # Errors
    /// When the format cannot have it.
    pub(crate) fn write(&self, format: Format, weight: Weight) -> Result<Vec<u8>, ExportError> {
        match format {
            Format::Folded => Ok(folded::write(self, weight).into_bytes()),
            Format::Speedscope => Ok(speedscope::write(self, weight)?),
            Format::Pprof => pprof::write(self, weight),
            Format::Csv => Ok(csv::write(self).into_bytes()),
            Format::Parquet => Ok(parquet::write(self)?),
            Format::Svg => svg::write(self, weight),
            Format::Html => Ok(html::write(self, weight)?),
        }
    }
}

impl Part {
    /// `PID 1234 python train.py, GPU 0`.
    fn name(&self) -> String {
        format!("PID {} {}, GPU {}", self.tgid, self.program, self.gpu)
    }
}

impl Frame {
    /// What stands for something that is no function.
    fn pseudo(name: impl Into<String>) -> Self {
        Self { name: name.into(), file: None, line: None }
    }

    /// `/srv/train.py:12`; empty where there is no file.
    fn place(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}"),
            (Some(file), None) => file.clone(),
            (None, _) => String::new(),
        }
    }
}

/// Of the ways to a process's memory those whose line keeps growing.
pub(crate) fn leaking(
    call_paths: Vec<DeviceCallPaths>,
    process: &ProcessView,
    leaks: &[LeaksView],
) -> Vec<DeviceCallPaths> {
    let own =
        leaks.iter().filter(|leaks| (leaks.tgid, leaks.observed_since_ns) == (process.tgid, process.observed_since_ns));
    let grows = |finding: &&LeakView| finding.verdict.grows();
    let suspects: Vec<&LeakView> = own.flat_map(|leaks| &leaks.findings).filter(grows).collect();
    let only = |device: DeviceCallPaths| {
        let is_of = |suspect: &&LeakView, site: &SiteView| {
            (suspect.device, suspect.kind.as_ref()) == (Some(device.device), Some(&site.kind))
                && (&suspect.file, suspect.line, &suspect.function) == (&site.file, site.line, &site.function)
        };
        let mut call_paths = device.call_paths;
        call_paths.retain(|call_path| suspects.iter().any(|suspect| is_of(suspect, &call_path.site)));
        let mut total = SumView::default();
        for sum in call_paths.iter().map(|call_path| &call_path.site.sum) {
            total.live_bytes = total.live_bytes.saturating_add(sum.live_bytes);
            total.at_peak_bytes = total.at_peak_bytes.saturating_add(sum.at_peak_bytes);
            total.total_bytes = total.total_bytes.saturating_add(sum.total_bytes);
            total.allocations += sum.allocations;
        }
        DeviceCallPaths { call_paths, total, unplaced_bytes: 0, ..device }
    };
    call_paths.into_iter().map(only).collect()
}

fn part(snapshot: &Snapshot, process: &ProcessView, device: &DevicePlacesView, call_paths: &DeviceCallPaths) -> Part {
    Part {
        tgid: process.tgid.0,
        program: sentences::short_command(process),
        gpu: sentences::gpu_number(snapshot, call_paths.uuid.as_ref()),
        uuid: call_paths.uuid.as_ref().map(|uuid| printable(uuid.as_str()).into_owned()),
        unplaced_bytes: call_paths.unplaced_bytes,
        total: call_paths.total,
        sites: device.sites.clone(),
        samples: call_paths.call_paths.iter().map(sample).collect(),
    }
}

fn sample(call_path: &CallPathView) -> Sample {
    let mut frames: Vec<Frame> = call_path.frames.iter().rev().map(frame).collect();
    if call_path.frames.iter().all(|frame| frame.file.is_none()) {
        frames = vec![Frame::pseudo(places::site(&call_path.site))];
    } else if call_path.truncated {
        frames.insert(0, Frame::pseudo("(outer frames are missing)"));
    }
    Sample { frames, stage: places::stage(&call_path.stage), sum: call_path.site.sum }
}

fn frame(view: &FrameView) -> Frame {
    let Some(file) = &view.file else { return Frame::pseudo("(code not known)") };
    let function = view.function.as_deref().unwrap_or("(function not known)");
    Frame { name: printable(function).into_owned(), file: Some(printable(file).into_owned()), line: view.line }
}

#[cfg(test)]
mod tests;
