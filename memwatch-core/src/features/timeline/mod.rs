//! Timeline of memory and events: recorded as they occur; names are resolved when a report is
//! requested.

pub(crate) mod events;
pub mod view;

use crate::attribution::device::resolve;
use crate::features::profile::MemoryProfile;
use crate::features::samples::course::{ByteSeries, SeriesSample};
use crate::features::samples::{ProcessLifetime, SeriesKey, of_life};
use crate::features::timeline::events::{Events, TimelineEvent, TrainingPosition};
use crate::features::timeline::view::{EventView, PointView, SpanView, TimelineView, TrackView};
use crate::ledger::totals::DeviceRef;
use crate::snapshot::build::places::{phase_name, whose};
use crate::state::State;
use crate::words::{Name, Ordinal};

impl MemoryProfile {
    /// Records events from now on, with allocations of at least `large_bytes`.
    pub fn record_events(&mut self, large_bytes: u64) {
        self.events.get_or_insert_with(|| Events::new(large_bytes));
    }

    /// Returns the timeline, with events if they are recorded.
    pub fn timeline(&self, state: &State) -> TimelineView {
        let samples = &self.samples;
        let mut view = TimelineView {
            interval_ns: samples.interval_ns(),
            begun_ns: samples.begun_ns().unwrap_or(state.now_ns),
            last_ns: state.now_ns,
            ..TimelineView::default()
        };
        for (track, course) in samples.tracks() {
            let own = self.track(state, track, course);
            view.events.extend(peak(&own, course));
            view.tracks.push(own);
        }
        let mut lives: Vec<ProcessLifetime> = samples.tracks().keys().filter_map(SeriesKey::life).collect();
        lives.sort_unstable();
        lives.dedup();
        for life in lives {
            self.life_events(state, life, &mut view.events);
        }
        if let Some(events) = &self.events {
            view.events.extend(events.events.iter().map(|event| event_view(state, event)));
            view.forgotten_events = events.forgotten_events;
            view.spans = spans(state, events);
            view.forgotten_spans = events.forgotten_spans;
        }
        view.events.sort_by_key(|event| event.time_ns);
        view
    }

    fn track(&self, state: &State, track: &SeriesKey, course: &ByteSeries) -> TrackView {
        let by_ordinal = |life: &ProcessLifetime, ordinal: &Ordinal| {
            let process = of_life(state, *life)?;
            resolve(process, DeviceRef::Ordinal(*ordinal), &state.reading.devices)
        };
        let (uuid, measure) = match track {
            SeriesKey::GpuUsed(uuid) | SeriesKey::Used(_, uuid) => (Some(uuid.clone()), "used"),
            SeriesKey::GpuLive(uuid) => (Some(uuid.clone()), "live"),
            SeriesKey::Live(_, uuid) => (uuid.clone(), "live"),
            SeriesKey::Allocated(life, ordinal) => (by_ordinal(life, ordinal), "allocated"),
            SeriesKey::Reserved(life, ordinal) => (by_ordinal(life, ordinal), "reserved"),
            SeriesKey::Pinned(_) => (None, "pinned"),
        };
        let process = track.life().map(|life| self.life_named(state, life));
        let point = |point: SeriesSample| PointView {
            time_ns: point.time_ns,
            bytes: point.bytes,
            most_bytes: point.most_bytes,
        };
        TrackView {
            tgid: track.life().map(|life| life.tgid),
            comm: process.as_ref().map(|process| process.comm.clone()).unwrap_or_default(),
            command: process.map(|process| process.command).unwrap_or_default(),
            observed_since_ns: track.life().map(|life| life.since_ns),
            uuid,
            measure: measure.into(),
            begun_ns: course.begun_ns(),
            points: course.points(state.now_ns).into_iter().map(point).collect(),
        }
    }

    fn life_events(&self, state: &State, life: ProcessLifetime, events: &mut Vec<EventView>) {
        let process = of_life(state, life);
        let reported = |time_ns, kind: &'static str| EventView {
            time_ns,
            kind: kind.into(),
            tgid: Some(life.tgid),
            ..EventView::default()
        };
        if process.is_some_and(|process| process.from_start) {
            events.push(reported(life.since_ns, "start"));
        }
        let gone = self.gone.get(&life).and_then(|gone| gone.ended_ns);
        events.extend(gone.map(|time_ns| reported(time_ns, "exit")));
    }
}

fn event_view(state: &State, event: &TimelineEvent) -> EventView {
    let process = of_life(state, event.life);
    let tensors = process.and_then(|process| process.tensors.as_ref());
    let device = event.ordinal.map(DeviceRef::Ordinal);
    let uuid = process.zip(device).and_then(|(process, device)| resolve(process, device, &state.reading.devices));
    EventView {
        time_ns: event.time_ns,
        kind: if event.failed { "failure" } else { "large" }.into(),
        tgid: Some(event.life.tgid),
        uuid,
        bytes: Some(event.bytes),
        level: Some(if event.symbol.is_some() { "driver" } else { "tensor" }.into()),
        symbol: event.symbol.clone(),
        whose: tensors.zip(event.whose).map(|(tensors, own)| whose(tensors.names(), &own)),
    }
}

fn spans(state: &State, events: &Events) -> Vec<SpanView> {
    let open = events.phases.iter().map(|(life, (phase, begun_ns))| {
        let ended_ns = of_life(state, *life).and_then(|process| process.ended).map(|ended| ended.time_ns);
        (*life, TrainingPosition::Phase(*phase), *begun_ns, ended_ns.unwrap_or(state.now_ns))
    });
    let mut spans: Vec<SpanView> = events
        .spans
        .iter()
        .cloned()
        .chain(open)
        .map(|(life, what, begun_ns, last_ns)| {
            let (kind, name) = match what {
                TrainingPosition::Step(number) => ("step", Name::from(number.to_string())),
                TrainingPosition::Phase(phase) => ("phase", phase_name(phase)),
            };
            SpanView { tgid: life.tgid, kind: kind.into(), name, begun_ns, last_ns: last_ns.max(begun_ns) }
        })
        .collect();
    spans.sort_by_key(|span| (span.tgid, span.begun_ns));
    spans
}

/// Returns the peak event of a series from traced changes; `None` for a series from readings, and for
/// an empty one.
fn peak(track: &TrackView, course: &ByteSeries) -> Option<EventView> {
    let peak = course.peak();
    let is_reported = track.measure != "used" && peak.bytes > 0;
    is_reported.then(|| EventView {
        time_ns: peak.time_ns,
        kind: "peak".into(),
        tgid: track.tgid,
        uuid: track.uuid.clone(),
        bytes: Some(peak.bytes),
        level: Some(track.measure.clone()),
        ..EventView::default()
    })
}
