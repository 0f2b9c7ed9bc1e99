//! Exports PyTorch memory by Python stack for profile viewers, one file per format.

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
    CallPathView, DeviceAttributionView, DeviceCallPaths, FrameView, ProcessView, SiteView, Snapshot, SumView,
};

use super::render::format::{bytes, count, printable};
use super::render::wall_clock::WallClock;
use super::render::{places, sentences};

/// Program name and version for exported files.
const EXPORTER: &str = concat!("memwatch ", env!("CARGO_PKG_VERSION"));

/// Measure of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfileWeight {
    /// Bytes that were live at the end.
    InUse,
    /// Bytes that were live when the device's total was highest.
    Peak,
    /// Bytes of all blocks allocated since the attach.
    Allocated,
    /// Number of blocks allocated since the attach.
    Count,
    /// Live bytes of growing lines only. The profile is filtered by [`leaking`].
    Leak,
}

impl ProfileWeight {
    /// Measures that formats with several weights contain, in the order of [`Self::all_of`].
    pub(crate) const ALL: [Self; 4] = [Self::InUse, Self::Peak, Self::Allocated, Self::Count];

    /// Returns the measure from a sum.
    const fn of(self, sum: &SumView) -> u64 {
        match self {
            Self::InUse | Self::Leak => sum.live_bytes,
            Self::Peak => sum.at_peak_bytes,
            Self::Allocated => sum.total_bytes,
            Self::Count => sum.allocations,
        }
    }

    /// Returns all measures of [`Self::ALL`] from a sum.
    fn all_of(sum: &SumView) -> [u64; 4] {
        Self::ALL.map(|weight| weight.of(sum))
    }

    /// Returns the displayed name.
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

/// File format of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfileFormat {
    /// Folded stacks, one line per stack.
    Folded,
    /// JSON for speedscope.app.
    Speedscope,
    /// `profile.proto`, compressed with gzip.
    Pprof,
    /// CSV table of Python lines.
    Csv,
    /// The CSV table's columns as Parquet, for data frames.
    Parquet,
    /// SVG flame graph.
    Svg,
    /// HTML page with a flame graph.
    Html,
}

/// Reason why a profile cannot be written in a format.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// The SVG would be empty.
    #[error("there is nothing to draw: 0 {0}")]
    Empty(&'static str),
    /// The format does not support the weight.
    #[error("pprof's profiles of a heap have no peak; all other formats do")]
    NoPeak,
    /// The writer of the format failed.
    #[error("it cannot be written in this format")]
    Writer(#[from] std::io::Error),
}

/// Memory by call path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallPathProfile {
    /// One entry per process and device.
    pub(crate) parts: Vec<ProfilePart>,
    /// Time of the snapshot in nanoseconds since 1970.
    unix_ns: i64,
    /// Time for which the first process had been traced, in nanoseconds.
    duration_ns: u64,
}

/// One device of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProfilePart {
    tgid: u32,
    program: String,
    gpu: String,
    uuid: Option<String>,
    /// Bytes that the allocator granted but that are in no sample because events were lost.
    pub(crate) unplaced_bytes: i64,
    /// Sum of all samples.
    pub(crate) total: SumView,
    /// Rows of the list of call sites.
    sites: Vec<SiteView>,
    pub(crate) samples: Vec<Sample>,
}

/// Blocks that were allocated through the same call path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Frames, outermost first. Never empty: a sample without a stack has one frame with the
    /// reason.
    frames: Vec<ProfileFrame>,
    /// Phase: `forward`, `backward (recomputed)`.
    phase: String,
    sum: SumView,
}

/// A frame. Its texts are [`printable`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ProfileFrame {
    /// Function, or a description if the frame is not a function.
    name: String,
    /// File; `None` if the frame is not a function.
    file: Option<String>,
    line: Option<u32>,
}

impl CallPathProfile {
    /// Collects the call paths of all processes of a snapshot.
    pub(crate) fn new(
        snapshot: &Snapshot,
        call_paths: impl Fn(&ProcessView) -> Vec<DeviceCallPaths>,
        clock: &WallClock,
    ) -> Self {
        let mut parts = Vec::new();
        for process in &snapshot.processes {
            let Some(tensors) = &process.tensors else { continue };
            let call_paths = call_paths(process);
            for device in &tensors.attribution.devices {
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

    /// Returns the total of a measure.
    pub(crate) fn total(&self, weight: ProfileWeight) -> u64 {
        self.parts.iter().fold(0, |total, part| total.saturating_add(weight.of(&part.total)))
    }

    /// Returns the file contents. Formats with several weights show `weight` initially.
    ///
    /// # Errors
    /// If the format does not support the profile or the weight.
    pub(crate) fn write(&self, format: ProfileFormat, weight: ProfileWeight) -> Result<Vec<u8>, ExportError> {
        match format {
            ProfileFormat::Folded => Ok(folded::write(self, weight).into_bytes()),
            ProfileFormat::Speedscope => Ok(speedscope::write(self, weight)?),
            ProfileFormat::Pprof => pprof::write(self, weight),
            ProfileFormat::Csv => Ok(csv::write(self).into_bytes()),
            ProfileFormat::Parquet => Ok(parquet::write(self)?),
            ProfileFormat::Svg => svg::write(self, weight),
            ProfileFormat::Html => Ok(html::write(self, weight)?),
        }
    }
}

impl ProfilePart {
    /// `PID 1234 python train.py, GPU 0`.
    fn name(&self) -> String {
        format!("PID {} {}, GPU {}", self.tgid, self.program, self.gpu)
    }
}

impl ProfileFrame {
    /// Creates a frame that is not a function.
    fn pseudo(name: impl Into<String>) -> Self {
        Self { name: name.into(), file: None, line: None }
    }

    /// Returns the location `/srv/train.py:12`, or an empty string without a file.
    fn place(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}"),
            (Some(file), None) => file.clone(),
            (None, _) => String::new(),
        }
    }
}

/// Keeps only the call paths whose line keeps growing.
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

fn part(
    snapshot: &Snapshot,
    process: &ProcessView,
    device: &DeviceAttributionView,
    call_paths: &DeviceCallPaths,
) -> ProfilePart {
    ProfilePart {
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
    let mut frames: Vec<ProfileFrame> = call_path.frames.iter().rev().map(frame).collect();
    if call_path.frames.iter().all(|frame| frame.file.is_none()) {
        frames = vec![ProfileFrame::pseudo(places::site(&call_path.site))];
    } else if call_path.truncated {
        frames.insert(0, ProfileFrame::pseudo("(outer frames are missing)"));
    }
    Sample { frames, phase: places::phase(&call_path.phase), sum: call_path.site.sum }
}

fn frame(view: &FrameView) -> ProfileFrame {
    let Some(file) = &view.file else { return ProfileFrame::pseudo("(code not known)") };
    let function = view.function.as_deref().unwrap_or("(function not known)");
    ProfileFrame { name: printable(function).into_owned(), file: Some(printable(file).into_owned()), line: view.line }
}

#[cfg(test)]
mod tests;
