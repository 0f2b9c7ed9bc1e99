//! Plots of memory over time as SVG and HTML: one panel per GPU, and one per process and GPU.

mod html;
mod svg;

pub(crate) use svg::escape;

use std::cmp::Reverse;

use memwatch_core::features::timeline::view::{EventView, PointView, TimelineView, TrackView};
use memwatch_core::snapshot::{ProcessView, Snapshot};
use memwatch_core::words::{GpuUuid, Tgid};

use crate::render::format::{bytes, printable};
use crate::render::places;
use crate::render::sentences;
use crate::render::wall_clock::WallClock;

/// Maximum number of panels. Those with the most memory are drawn.
const PANELS: usize = 24;
/// Maximum number of points per line.
const POINTS: usize = 800;

/// A plot.
pub(crate) struct Plot {
    title: String,
    begun_ns: u64,
    last_ns: u64,
    /// Clock for the time axis.
    clock: WallClock,
    /// Time of the beginning: `2026-11-20T14:02:11Z`.
    begin: String,
    panels: Vec<Panel>,
    /// Notes below the panels.
    notes: Vec<String>,
    /// Events for the HTML page: `14:02:11  PID 1234: …`.
    reported: Vec<String>,
}

/// Lines with a common axis.
struct Panel {
    title: String,
    total_bytes: Option<u64>,
    lines: Vec<PlotLine>,
    marks: Vec<PlotMark>,
}

/// One line of a panel.
struct PlotLine {
    measure: Measure,
    points: Vec<PointView>,
}

/// A marked event.
struct PlotMark {
    time_ns: u64,
    kind: MarkKind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkKind {
    Failure,
    Large,
    Life,
}

/// A measure: its name in the timeline and in styles, and its label.
type Measure = (&'static str, &'static str);

/// Measures in drawing order.
const MEASURES: [Measure; 5] = [
    ("used", "used (NVML)"),
    ("live", "allocated by driver calls"),
    ("reserved", "reserved by PyTorch"),
    ("allocated", "allocated by PyTorch"),
    ("pinned", "pinned host memory"),
];

/// Returns the label of a measure of the timeline.
pub(crate) fn label(measure: &str) -> &str {
    MEASURES.iter().find(|(name, _)| *name == measure).map_or(measure, |(_, label)| label)
}

impl Plot {
    /// Creates the plot of a timeline, with the GPUs of a snapshot.
    pub(crate) fn new(timeline: &TimelineView, snapshot: &Snapshot, clock: &WallClock) -> Self {
        let mut groups: Vec<(PanelKey, Vec<&TrackView>)> = Vec::new();
        for track in &timeline.tracks {
            let key = key_of(track);
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, tracks)) => tracks.push(track),
                None => groups.push((key, vec![track])),
            }
        }
        // GPUs come first, in their order. Processes follow, those with the most memory first.
        let place = |uuid: Option<&GpuUuid>| snapshot.gpus.iter().position(|gpu| Some(&gpu.uuid) == uuid);
        groups.sort_by_key(|((process, uuid), tracks)| match process {
            None => (false, place(uuid.as_ref()), Reverse(0), uuid.clone()),
            Some(_) => (true, None, Reverse(most(tracks)), None),
        });
        let more = groups.len().saturating_sub(PANELS);
        groups.truncate(PANELS);
        let panels = groups.iter().map(|(key, tracks)| panel(key, tracks, timeline, snapshot)).collect();
        let mut notes =
            vec!["A line shows the samples; the light band reaches up to the maximum between two samples.".to_owned()];
        if more > 0 {
            notes.push(format!("Panels not drawn because they held less memory: {more}."));
        }
        if !snapshot.complete {
            notes.push("Records were lost: numbers may be wrong.".to_owned());
        }
        let (begun_ns, last_ns) = (timeline.begun_ns, timeline.last_ns.max(timeline.begun_ns + 1));
        let reported =
            |event: &EventView| format!("{}  {}", clock.time_of_day(event.time_ns), sentence(event, snapshot));
        Self {
            title: "GPU memory over time".to_owned(),
            begun_ns,
            last_ns,
            clock: clock.clone(),
            begin: clock.rfc3339(begun_ns),
            panels,
            notes,
            reported: timeline.events.iter().map(reported).collect(),
        }
    }

    /// Returns the plot as SVG. It follows the light or dark mode of the reader's system.
    pub(crate) fn svg(&self) -> String {
        svg::whole(self)
    }

    /// Returns the plot as a self-contained page with the values at the pointer and a list of
    /// events.
    ///
    /// # Errors
    /// If the serializer fails.
    pub(crate) fn html(&self) -> std::io::Result<Vec<u8>> {
        html::write(self)
    }

    /// Returns whether there is nothing to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.panels.is_empty()
    }
}

/// Key of a panel: a process (PID and start of the observation), and a GPU.
type PanelKey = (Option<(Tgid, Option<u64>)>, Option<GpuUuid>);

fn key_of(track: &TrackView) -> PanelKey {
    (track.tgid.map(|tgid| (tgid, track.observed_since_ns)), track.uuid.clone())
}

fn most(tracks: &[&TrackView]) -> u64 {
    let points = tracks.iter().flat_map(|track| &track.points);
    points.map(|point| point.most_bytes).max().unwrap_or(0)
}

fn panel(key: &PanelKey, tracks: &[&TrackView], timeline: &TimelineView, snapshot: &Snapshot) -> Panel {
    let (process, uuid) = key;
    let gpu = snapshot.gpus.iter().find(|gpu| Some(&gpu.uuid) == uuid.as_ref());
    let number = sentences::gpu_number(snapshot, uuid.as_ref());
    let total_bytes = gpu.and_then(|gpu| gpu.total_bytes);
    let title = match (process, uuid, gpu) {
        (None, ..) => format!(
            "GPU {number}  {}{}",
            gpu.map(sentences::gpu_name).unwrap_or_default(),
            total_bytes.map(|total| format!(", {} in all", bytes(total))).unwrap_or_default(),
        ),
        (Some((tgid, since_ns)), None, _) if tracks.iter().all(|track| track.measure == "pinned") => {
            format!("PID {}  {}, host memory", tgid.0, name(tracks, *since_ns, snapshot))
        }
        (Some((tgid, since_ns)), ..) => {
            format!("PID {}  {}, GPU {number}", tgid.0, name(tracks, *since_ns, snapshot))
        }
    };
    let mut lines = Vec::new();
    for measure in MEASURES {
        let own = tracks.iter().filter(|track| track.measure == measure.0);
        lines.extend(own.map(|track| PlotLine { measure, points: thinned(&track.points) }));
    }
    let is_here = |event: &&EventView| match process {
        Some((tgid, _)) => event.tgid == Some(*tgid) && (event.uuid.is_none() || event.uuid == *uuid),
        None => event.kind == "failure" && place_of(event, timeline) == uuid.as_ref(),
    };
    let marks = timeline.events.iter().filter(is_here).filter_map(|event| {
        let kind = match &*event.kind {
            "failure" => MarkKind::Failure,
            "large" => MarkKind::Large,
            "start" | "exit" => MarkKind::Life,
            _ => return None,
        };
        Some(PlotMark { time_ns: event.time_ns, kind, text: sentence(event, snapshot) })
    });
    Panel { title, total_bytes, lines, marks: marks.collect() }
}

/// Returns the GPU of an event. If the event has none, returns the only GPU of its process, or the
/// only GPU of the timeline.
fn place_of<'a>(event: &'a EventView, timeline: &'a TimelineView) -> Option<&'a GpuUuid> {
    let only = |is_meant: &dyn Fn(&TrackView) -> bool| {
        let mut uuids = timeline.tracks.iter().filter(|track| is_meant(track)).filter_map(|track| track.uuid.as_ref());
        uuids.next().filter(|first| uuids.all(|uuid| uuid == *first))
    };
    let of_process = || only(&|track| track.tgid.is_some() && track.tgid == event.tgid);
    event.uuid.as_ref().or_else(of_process).or_else(|| only(&|_| true))
}

fn name(tracks: &[&TrackView], since_ns: Option<u64>, snapshot: &Snapshot) -> String {
    let is_of = |process: &&ProcessView| {
        Some(process.observed_since_ns) == since_ns && tracks.iter().all(|track| track.tgid == Some(process.tgid))
    };
    if let Some(process) = snapshot.processes.iter().find(is_of) {
        return sentences::short_command(process);
    }
    let track = tracks.first();
    let name = track.map_or("", |track| if track.command.is_empty() { &track.comm } else { &track.command });
    let name = printable(name).into_owned();
    if name.chars().count() <= 80 { name } else { name.chars().take(79).chain(['…']).collect() }
}

/// Merges neighbouring points and keeps the maximum of each group.
pub(crate) fn thinned(points: &[PointView]) -> Vec<PointView> {
    thinned_to(points, POINTS)
}

/// Merges neighbouring points so that at most `limit` remain.
pub(crate) fn thinned_to(points: &[PointView], limit: usize) -> Vec<PointView> {
    let together = points.len().div_ceil(limit.max(1)).max(1);
    let joined = points.chunks(together).filter_map(|chunk| {
        let most_bytes = chunk.iter().map(|point| point.most_bytes).max()?;
        Some(PointView { most_bytes, ..*chunk.last()? })
    });
    joined.collect()
}

/// `PID 1234 on GPU 0: allocation of 2.00 GiB failed by cuMemAlloc_v2: forward, train.py:12 step`.
pub(crate) fn sentence(event: &EventView, snapshot: &Snapshot) -> String {
    let who = event.tgid.map_or_else(String::new, |tgid| format!("PID {}", tgid.0));
    let on = event.uuid.as_ref().map(|uuid| format!("GPU {}", sentences::gpu_number(snapshot, Some(uuid))));
    let amount = event.bytes.map(bytes).unwrap_or_default();
    let by = event.symbol.as_ref().map_or_else(String::new, |symbol| format!(" by {symbol}"));
    let whose = event.whose.as_ref().map_or_else(String::new, |whose| format!(": {}", places::whose(whose)));
    let who_and_where = match (who.is_empty(), on) {
        (true, Some(on)) => on,
        (false, Some(on)) => format!("{who} on {on}"),
        (_, None) => who.clone(),
    };
    match &*event.kind {
        "start" => format!("{who} starts"),
        "exit" => format!("{who} ends"),
        "failure" => format!("{who_and_where}: allocation of {amount} failed{by}{whose}"),
        "large" => format!("{who_and_where}: {amount} allocated{by}{whose}"),
        _ => {
            let level = event.level.as_deref().unwrap_or_default();
            format!("{who_and_where}: peak of {level}, {amount}")
        }
    }
}

#[cfg(test)]
mod tests;
