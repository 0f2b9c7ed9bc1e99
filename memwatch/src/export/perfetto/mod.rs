//! Traces of memory over time for ui.perfetto.dev: counters per process and GPU, steps and phases
//! as slices, failures as instant events.

mod proto;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use memwatch_core::features::timeline::view::{EventView, TimelineView, TrackView};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;
use prost::Message as _;

use self::proto::{
    Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, ProcessDescriptor, Trace, TraceEvent, TracePacket,
    TrackDescriptor,
};
use super::plot::sentence;
use crate::render::format::printable;
use crate::render::sentences;
use crate::render::wall_clock::WallClock;

/// Packet sequence. All packets come from one writer.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: the sequence depends on no earlier packets.
const CLEARED: u32 = 1;
/// `CounterDescriptor.Unit`.
const UNIT_SIZE_BYTES: i32 = 3;
/// `TrackEvent.Type`.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;
/// `BuiltinClock`. Packets use `BOOTTIME`, the default clock of a trace.
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 6;

/// Writes a trace ordered by time. The same timeline always gives the same bytes.
pub(crate) fn write(timeline: &TimelineView, snapshot: &Snapshot, clock: &WallClock) -> Vec<u8> {
    let mut writer = TraceWriter { packets: Vec::new(), next: 1, processes: BTreeMap::new(), extra: BTreeMap::new() };
    writer.clocks(timeline, clock);
    let mut timed = Vec::new();
    for track in &timeline.tracks {
        let uuid = writer.counter(track, snapshot);
        timed.extend(counts(track, uuid));
    }
    for span in &timeline.spans {
        let name = if span.kind == "step" { "training steps" } else { "phases, by allocations" };
        let uuid = writer.under(span.tgid, name);
        let title = if span.kind == "step" { format!("step {}", span.name) } else { span.name.clone().into_owned() };
        timed.push((span.begun_ns, 1, event(span.begun_ns, slice(SLICE_BEGIN, uuid, title))));
        timed.push((span.last_ns, 0, event(span.last_ns, slice(SLICE_END, uuid, String::new()))));
    }
    for reported in &timeline.events {
        let uuid = match (&*reported.kind, reported.tgid) {
            ("failure", Some(tgid)) => writer.under(tgid, "allocation failures"),
            (_, Some(tgid)) => writer.under(tgid, "events"),
            (_, None) => writer.gpus("events"),
        };
        timed.push((reported.time_ns, 2, event(reported.time_ns, instant(reported, uuid, snapshot))));
    }
    // At the same time, a slice ends before the next one begins.
    timed.sort_by_key(|(time_ns, rank, _)| (*time_ns, *rank));
    writer.packets.extend(timed.into_iter().map(|(_, _, packet)| packet));
    Trace { packet: writer.packets }.encode_to_vec()
}

/// Writer of packets. Each track is described before its first event.
struct TraceWriter {
    packets: Vec<TracePacket>,
    next: u64,
    /// Track of each process.
    processes: BTreeMap<Tgid, u64>,
    /// Further tracks, by parent and name.
    extra: BTreeMap<(u64, String), u64>,
}

impl TraceWriter {
    fn clocks(&mut self, timeline: &TimelineView, clock: &WallClock) {
        let reading = |id, time_ns| Clock { clock_id: id, timestamp: time_ns };
        let unix_ns = u64::try_from(clock.unix_ns(timeline.begun_ns)).unwrap_or(0);
        let clocks = vec![reading(BOOTTIME, timeline.begun_ns), reading(REALTIME, unix_ns)];
        self.packets.push(TracePacket {
            timestamp: Some(timeline.begun_ns),
            trusted_packet_sequence_id: SEQUENCE,
            sequence_flags: Some(CLEARED),
            clock_snapshot: Some(ClockSnapshot { clocks }),
            ..TracePacket::default()
        });
    }

    fn describe(&mut self, descriptor: TrackDescriptor) -> u64 {
        let uuid = self.next;
        self.next += 1;
        self.packets.push(TracePacket {
            trusted_packet_sequence_id: SEQUENCE,
            track_descriptor: Some(TrackDescriptor { uuid, ..descriptor }),
            ..TracePacket::default()
        });
        uuid
    }

    fn process(&mut self, tgid: Tgid, comm: &str, command: &str) -> u64 {
        if let Some(uuid) = self.processes.get(&tgid) {
            return *uuid;
        }
        let name = if command.is_empty() { comm } else { command };
        let process = ProcessDescriptor {
            tgid: i32::try_from(tgid.0).unwrap_or(0),
            cmdline: command
                .split(' ')
                .filter(|word| !word.is_empty())
                .map(|word| printable(word).into_owned())
                .collect(),
            process_name: printable(name).into_owned(),
        };
        let uuid = self.describe(TrackDescriptor { process: Some(process), ..TrackDescriptor::default() });
        self.processes.insert(tgid, uuid);
        uuid
    }

    /// Returns the track of a process with this name.
    fn under(&mut self, tgid: Tgid, name: &str) -> u64 {
        let parent = self.process(tgid, "", "");
        self.named(parent, name)
    }

    /// Returns the track with this name in the group of GPUs.
    fn gpus(&mut self, name: &str) -> u64 {
        let parent = self.named(0, "GPUs");
        self.named(parent, name)
    }

    fn named(&mut self, parent_uuid: u64, name: &str) -> u64 {
        let key = (parent_uuid, name.to_owned());
        if let Some(uuid) = self.extra.get(&key) {
            return *uuid;
        }
        let parent = (parent_uuid != 0).then_some(parent_uuid);
        let uuid = self.describe(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: parent,
            ..TrackDescriptor::default()
        });
        self.extra.insert(key, uuid);
        uuid
    }

    fn counter(&mut self, track: &TrackView, snapshot: &Snapshot) -> u64 {
        let parent_uuid = match track.tgid {
            Some(tgid) => self.process(tgid, &track.comm, &track.command),
            None => self.named(0, "GPUs"),
        };
        let gpu = sentences::gpu_number(snapshot, track.uuid.as_ref());
        let name = match &*track.measure {
            "pinned" => "pinned host memory".to_owned(),
            "used" => format!("GPU {gpu} used (NVML)"),
            "live" => format!("GPU {gpu} live"),
            measure => format!("GPU {gpu} tensors {measure}"),
        };
        // Counters of the same GPU share one scale.
        let share = track.uuid.as_ref().map(|_| format!("gpu{gpu}"));
        let counter = CounterDescriptor { unit: Some(UNIT_SIZE_BYTES), y_axis_share_key: share };
        self.describe(TrackDescriptor {
            name: Some(name),
            parent_uuid: Some(parent_uuid),
            counter: Some(counter),
            ..TrackDescriptor::default()
        })
    }
}

/// Returns the values of a counter at each poll. If the maximum between two polls was higher, it is
/// inserted between them.
fn counts(track: &TrackView, uuid: u64) -> Vec<(u64, u8, TracePacket)> {
    let mut before_ns = track.begun_ns;
    let mut counts = Vec::new();
    for point in &track.points {
        if point.most_bytes > point.bytes {
            let middle_ns = before_ns + point.time_ns.saturating_sub(before_ns) / 2;
            counts.push((middle_ns, 3, event(middle_ns, count(uuid, point.most_bytes))));
        }
        counts.push((point.time_ns, 3, event(point.time_ns, count(uuid, point.bytes))));
        before_ns = point.time_ns;
    }
    counts
}

fn event(time_ns: u64, reported: TraceEvent) -> TracePacket {
    TracePacket {
        timestamp: Some(time_ns),
        trusted_packet_sequence_id: SEQUENCE,
        track_event: Some(reported),
        ..TracePacket::default()
    }
}

fn count(track_uuid: u64, bytes: u64) -> TraceEvent {
    let counter_value = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
    TraceEvent { kind: COUNTER, track_uuid, counter_value, ..TraceEvent::default() }
}

fn slice(kind: i32, track_uuid: u64, name: String) -> TraceEvent {
    let name = (!name.is_empty()).then_some(name);
    TraceEvent { kind, track_uuid, name, ..TraceEvent::default() }
}

fn instant(reported: &EventView, track_uuid: u64, snapshot: &Snapshot) -> TraceEvent {
    let text = |name: &str, value: String| DebugAnnotation {
        name: Some(name.to_owned()),
        string_value: Some(value),
        uint_value: None,
    };
    let mut debug_annotations = Vec::new();
    if let Some(bytes) = reported.bytes {
        let name = if reported.kind == "failure" { "wanted_bytes" } else { "bytes" };
        let (name, uint_value) = (Some(name.to_owned()), Some(bytes));
        debug_annotations.push(DebugAnnotation { name, uint_value, string_value: None });
    }
    if let Some(whose) = &reported.whose {
        debug_annotations.push(text("phase", whose.phase.clone().into_owned()));
        let places = [("call_site", &whose.site.name), ("module", &whose.module.name)];
        let named = places.into_iter().filter_map(|(name, place)| Some((name, place.as_ref()?)));
        debug_annotations.extend(named.map(|(name, place)| text(name, printable(place).into_owned())));
    }
    TraceEvent {
        kind: INSTANT,
        track_uuid,
        name: Some(sentence(reported, snapshot)),
        debug_annotations,
        ..TraceEvent::default()
    }
}
