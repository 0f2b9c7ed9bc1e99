//! Replays a recording into a pipeline, which can then be used like that of a live session.

use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::path::Path;

use anyhow::bail;
use memwatch_common::record::{CallRecord, RingRecord};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::pipeline::saved::STATE;
use memwatch_core::recording::{
    Ending, FORMAT_WITH_KEYFRAMES, Front, Keyframe, PartPosition, RecordingPart, RecordingReader,
};
use memwatch_core::snapshot::Snapshot;

use crate::options::{RecordingTime, TimeWindow};
use crate::render::wall_clock::WallClock;
use crate::watch::recording::RecordingFacts;

/// Maximum number of calls per batch, as in a live session.
const TOGETHER: usize = 256;

/// Options of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplayRequest {
    /// Start of the detectors and end of the replay.
    pub(crate) window: TimeWindow,
    /// Whether every event of the period is needed, not only the final state.
    pub(crate) all_events: bool,
    /// For a recording in progress: the current time in nanoseconds since 1970.
    pub(crate) now_unix_ns: Option<i128>,
}

/// A replayed recording.
pub(crate) struct ReplayedRecording {
    /// Header.
    pub(crate) front: Front,
    /// Final state of the pipeline.
    pub(crate) pipeline: Pipeline,
    /// How the recording ends; `None` if not replayed to the end.
    pub(crate) ending: Option<Ending>,
    /// Offset from the recording's times to nanoseconds since 1970, at the end of the replay.
    pub(crate) boottime_to_unix_ns: i128,
    /// Number of bytes read.
    pub(crate) bytes: u64,
    /// Number of inputs that led to the state, including dropped ones.
    pub(crate) inputs: u64,
    /// Time of the oldest event, if older ones were dropped: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) events_since_ns: Option<u64>,
    /// Start of the detectors, if later than the beginning: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) since_ns: Option<u64>,
    /// Time of the first event, if the requested start was earlier.
    pub(crate) begins_late_ns: Option<u64>,
}

impl ReplayedRecording {
    /// Replays a recording. `prepare` enables detectors in the pipeline.
    ///
    /// # Errors
    /// The file is no recording, cannot be read, or has no data of the period. A truncated or
    /// damaged recording is replayed as far as possible.
    pub(crate) fn play(
        path: &Path,
        request: ReplayRequest,
        prepare: impl FnOnce(&mut Pipeline),
    ) -> anyhow::Result<Self> {
        let mut file = File::open(path)?;
        // The file is read through a single descriptor, since it may be replaced at any time.
        let span = if request.window.is_whole() { ReplaySpan::default() } else { ReplaySpan::of(request, &mut file)? };
        let mut reader = RecordingReader::open(BufReader::with_capacity(1 << 20, file))?;
        let front = reader.front().clone();
        if let Some(byte) = span.byte {
            reader.go_to(byte)?;
        }
        let mut first = if front.format == FORMAT_WITH_KEYFRAMES { reader.next_part()? } else { None };
        let mut player = Player::new(&span, prepare);
        let (mut offset, mut events_since_ns) = (0, None);
        let mut pipeline = if let Some(RecordingPart::Keyframe(keyframe)) = &first {
            (player.inputs, player.last_ns) = (keyframe.front.inputs, keyframe.front.time_ns);
            offset = keyframe.front.boottime_to_unix_ns;
            events_since_ns = if span.byte.is_some() { span.begins_ns } else { Some(keyframe.front.time_ns) };
            let pipeline = load(keyframe, &front)?;
            first = None;
            pipeline
        } else {
            Pipeline::new(!front.everybody)
        };
        pipeline.state.keep_ended(!front.everybody || request.all_events || span.since_ns.is_some());
        if span.since_ns.is_none() {
            player.open(&mut pipeline);
        }
        while let Some(part) = first.take().map_or_else(|| reader.next_part(), |part| Ok(Some(part)))? {
            let RecordingPart::Chunk(chunk) = part else { continue };
            offset = chunk.front.boottime_to_unix_ns;
            if !player.take_chunk(chunk, &mut pipeline) {
                reader.note_damage();
            }
            if player.is_over {
                break;
            }
        }
        player.open(&mut pipeline);
        let ending = if player.is_over { None } else { Some(reader.ending().unwrap_or(Ending::Cut)) };
        if !matches!(ending, Some(Ending::Whole(_))) {
            // The recording has no event at this end, so a tick sets the time.
            pipeline.step(Input::Tick { time_ns: if player.is_over { span.until_ns } else { player.last_ns } });
        }
        let (bytes, inputs, boottime_to_unix_ns) = (reader.bytes(), player.inputs, i128::from(offset));
        let ReplaySpan { since_ns, begins_late_ns, .. } = span;
        Ok(Self {
            front,
            pipeline,
            ending,
            boottime_to_unix_ns,
            bytes,
            inputs,
            events_since_ns,
            since_ns,
            begins_late_ns,
        })
    }

    /// Returns the properties that reports show.
    pub(crate) fn facts<'a>(&'a self, path: &'a Path) -> RecordingFacts<'a> {
        let Self { front, ending, bytes, inputs, events_since_ns, since_ns, .. } = self;
        let (ending, bytes, inputs) = (*ending, *bytes, *inputs);
        RecordingFacts { path, front, bytes, inputs, ending, events_since_ns: *events_since_ns, since_ns: *since_ns }
    }

    /// Returns the time of the end: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) const fn now_ns(&self) -> u64 {
        self.pipeline.state.now_ns()
    }

    /// Returns the snapshot at the end.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.pipeline.snapshot();
        if !self.front.everybody {
            snapshot.keep_wanted();
        }
        snapshot
    }
}

/// Restores the pipeline at the start of a recording.
pub(super) fn load(keyframe: &Keyframe, front: &Front) -> anyhow::Result<Pipeline> {
    if keyframe.front.layout != STATE {
        bail!("it contains keyframes of memwatch {}: only that version can read them", front.version);
    }
    let loaded = keyframe.state().and_then(|state| Pipeline::load(&state).ok());
    loaded.ok_or_else(|| anyhow::anyhow!("its first keyframe is damaged, so the rest cannot be read"))
}

/// Part of a recording to replay, in the clock of the recorded machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplaySpan {
    /// Start of the detectors; `None` for the first event.
    since_ns: Option<u64>,
    /// End of the period.
    pub(super) until_ns: u64,
    /// Position to start from, if not the beginning.
    pub(super) byte: Option<u64>,
    /// Time of the keyframe at the start of the recording, if any.
    begins_ns: Option<u64>,
    begins_late_ns: Option<u64>,
}

impl Default for ReplaySpan {
    fn default() -> Self {
        Self { since_ns: None, until_ns: u64::MAX, byte: None, begins_ns: None, begins_late_ns: None }
    }
}

/// Checks whether a recording is readable and covers the requested period.
pub(crate) fn has_some_of(path: &Path, request: ReplayRequest) -> bool {
    File::open(path).is_ok_and(|mut file| ReplaySpan::of(request, &mut file).is_ok())
}

impl ReplaySpan {
    /// Determines the period of a recording, and rewinds the file.
    ///
    /// # Errors
    /// The file cannot be read, or has no data of the period.
    pub(super) fn of(request: ReplayRequest, file: &mut File) -> anyhow::Result<Self> {
        let places = RecordingReader::open(&mut *file)?.places()?;
        file.rewind()?;
        let times = Times::of(&places, request.now_unix_ns)?;
        let begins_ns = places.first().and_then(|place| Some(place.keyframe?.time_ns));
        let mut span = Self { begins_ns, ..Self::default() };
        if let Some(moment) = request.window.until {
            span.until_ns = times
                .boottime_ns(moment)
                .map_err(|begins| anyhow::anyhow!("it starts at {begins}, after the requested time"))?;
        }
        if let Some(moment) = request.window.since {
            if let Ok(since_ns) = times.boottime_ns(moment) {
                span.since_ns = Some(since_ns);
            } else {
                (span.since_ns, span.begins_late_ns) = (begins_ns, Some(times.begin_ns));
            }
        }
        if span.since_ns.is_some_and(|since_ns| since_ns >= span.until_ns) {
            bail!("--since is not before --until");
        }
        if let Some(since_ns) =
            span.since_ns.filter(|since_ns| *since_ns > times.end_ns && request.now_unix_ns.is_none())
        {
            let clock = WallClock::local(times.end_offset);
            bail!("it ends at {}, before --since {}", clock.moment(times.end_ns, 0), clock.moment(since_ns, 0));
        }
        let earliest_ns = span.since_ns.or((!request.all_events).then_some(span.until_ns));
        let is_before = |place: &&PartPosition| {
            place.keyframe.is_some_and(|front| Some(front.time_ns) <= earliest_ns && front.layout == STATE)
        };
        span.byte = places.iter().rfind(is_before).map(|place| place.byte);
        Ok(span)
    }
}

/// Times of the parts of a recording, with wall-clock offsets.
struct Times {
    /// First and last time of each part with events, and the offset to nanoseconds since 1970.
    all: Vec<(u64, u64, i128)>,
    begin_ns: u64,
    begin_offset: i128,
    end_ns: u64,
    end_offset: i128,
    /// Reference of relative times: the end of the recording, or the current time.
    end_unix_ns: i128,
}

impl Times {
    fn of(places: &[PartPosition], now_unix_ns: Option<i128>) -> anyhow::Result<Self> {
        let times = |place: &PartPosition| match (place.chunk, place.keyframe) {
            (Some(chunk), _) => (chunk.first_ns, chunk.last_ns, i128::from(chunk.boottime_to_unix_ns)),
            (_, Some(front)) => (front.time_ns, front.time_ns, i128::from(front.boottime_to_unix_ns)),
            (None, None) => (0, 0, 0),
        };
        let all: Vec<_> = places.iter().map(times).filter(|(first_ns, ..)| *first_ns > 0).collect();
        let (Some((begin_ns, _, begin_offset)), Some((_, end_ns, end_offset))) =
            (all.first().copied(), all.last().copied())
        else {
            bail!("it is empty");
        };
        let end_unix_ns = now_unix_ns.unwrap_or(i128::from(end_ns) + end_offset);
        Ok(Self { all, begin_ns, begin_offset, end_ns, end_offset, end_unix_ns })
    }

    /// Converts a moment to the recorded machine's clock. If the moment is earlier than the
    /// recording, the error holds the recording's first time.
    fn boottime_ns(&self, moment: RecordingTime) -> Result<u64, String> {
        let unix_ns = moment.unix_ns(self.end_unix_ns);
        // The wall clock may have been set during the recording, so the part before the moment
        // provides the offset.
        let before = self.all.iter().rfind(|(_, last_ns, offset)| i128::from(*last_ns) + offset <= unix_ns);
        let time_ns = unix_ns - before.map_or(self.begin_offset, |(.., offset)| *offset);
        if time_ns < i128::from(self.begin_ns) {
            return Err(WallClock::local(self.begin_offset).moment(self.begin_ns, 0));
        }
        Ok(u64::try_from(time_ns).unwrap_or(u64::MAX))
    }
}

/// Passes inputs to a pipeline.
struct Player<F> {
    calls: Vec<CallRecord>,
    inputs: u64,
    last_ns: u64,
    since_ns: Option<u64>,
    until_ns: u64,
    /// Enables the detectors; `None` once they run.
    prepare: Option<F>,
    /// Whether an input was later than the period.
    is_over: bool,
}

impl<F: FnOnce(&mut Pipeline)> Player<F> {
    fn new(span: &ReplaySpan, prepare: F) -> Self {
        let ReplaySpan { since_ns, until_ns, .. } = *span;
        let calls = Vec::with_capacity(TOGETHER);
        Self { calls, inputs: 0, last_ns: 0, since_ns, until_ns, prepare: Some(prepare), is_over: false }
    }

    /// Enables the detectors, once.
    fn open(&mut self, pipeline: &mut Pipeline) {
        let Some(prepare) = self.prepare.take() else { return };
        pipeline.step_calls(&self.calls);
        self.calls.clear();
        if let Some(since_ns) = self.since_ns {
            pipeline.begin_window(since_ns);
        }
        prepare(pipeline);
        if self.since_ns.is_some() || self.last_ns > 0 {
            pipeline.show_present();
        }
    }

    /// Replays one chunk. Returns false if an item is not a valid input.
    fn take_chunk(&mut self, chunk: memwatch_core::recording::Chunk, pipeline: &mut Pipeline) -> bool {
        self.last_ns = self.last_ns.max(chunk.front.last_ns);
        let read = chunk.for_each(|input| {
            let time_ns = input.time_ns();
            self.is_over |= time_ns.is_some_and(|time_ns| time_ns > self.until_ns);
            if self.prepare.is_some() && time_ns > self.since_ns {
                self.open(pipeline);
            }
            if !self.is_over {
                self.inputs += 1;
                self.take(pipeline, input);
            }
        });
        pipeline.step_calls(&std::mem::take(&mut self.calls));
        read.is_ok()
    }

    fn take(&mut self, pipeline: &mut Pipeline, input: Input) {
        if let Input::Record(RingRecord::Call(call)) = input {
            self.calls.push(call);
            if self.calls.len() < TOGETHER {
                return;
            }
            pipeline.step_calls(&self.calls);
            self.calls.clear();
            return;
        }
        pipeline.step_calls(&self.calls);
        self.calls.clear();
        // Clears the list of freed addresses for the kernel half's allocation map, which does not
        // exist in a replay.
        if matches!(input, Input::Tick { .. }) {
            pipeline.state.take_unnamed();
        }
        pipeline.step(input);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use memwatch_core::recording::{Encoder, FORMAT, KeyframeFront, Stopped};

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Returns a recording with one tick and chunk per second, after a keyframe of the previous
    /// second if requested.
    fn recording(directory: &Path, seconds: std::ops::RangeInclusive<u64>, has_keyframe: bool) -> PathBuf {
        let format = if has_keyframe { FORMAT_WITH_KEYFRAMES } else { FORMAT };
        let mut bytes = Encoder::front(&Front { format, everybody: true, ..Front::default() });
        if has_keyframe {
            let mut pipeline = Pipeline::new(false);
            let time_ns = (seconds.start() - 1) * SECOND_NS;
            pipeline.step(Input::Tick { time_ns });
            let front = KeyframeFront { layout: STATE, time_ns, ..KeyframeFront::default() };
            bytes.extend(Keyframe::pack(front, &pipeline.save()).expect("it is small"));
        }
        let mut encoder = Encoder::default();
        for second in seconds {
            encoder.push(&Input::Tick { time_ns: second * SECOND_NS });
            bytes.extend(encoder.chunk(0).expect("it is packed").expect("there is one"));
        }
        bytes.extend(encoder.end(Stopped::Asked));
        let path = directory.join("job.mwr");
        std::fs::write(&path, bytes).expect("the directory is ours");
        path
    }

    fn window(since: Option<u64>, until: Option<u64>) -> ReplayRequest {
        let moment = |seconds| RecordingTime::BeforeEnd(Duration::from_secs(seconds));
        ReplayRequest {
            window: TimeWindow { since: since.map(moment), until: until.map(moment) },
            ..ReplayRequest::default()
        }
    }

    /// Returns the time of the preparation in seconds, and the replay.
    fn played(path: &Path, request: ReplayRequest) -> anyhow::Result<(u64, ReplayedRecording)> {
        let mut prepared_ns = None;
        let replay = ReplayedRecording::play(path, request, |pipeline| prepared_ns = Some(pipeline.state.now_ns()))?;
        Ok((prepared_ns.expect("it is prepared once") / SECOND_NS, replay))
    }

    #[test]
    fn replay_covers_the_window_from_since_to_until() {
        let directory = tempfile::tempdir().expect("a directory");
        for has_keyframe in [false, true] {
            let path = recording(directory.path(), 10..=50, has_keyframe);
            let (prepared, replay) = played(&path, window(Some(20), Some(5))).expect("it is one");
            assert_eq!((prepared, replay.since_ns, replay.now_ns()), (30, Some(30 * SECOND_NS), 45 * SECOND_NS));
            assert_eq!((replay.begins_late_ns, replay.ending), (None, None));
            let (prepared, replay) = played(&path, window(None, None)).expect("it is one");
            assert_eq!((prepared, replay.since_ns), (if has_keyframe { 9 } else { 0 }, None));
            // The end is also a time of the recording, without an input.
            let (prepared, _) = played(&path, window(Some(1), None)).expect("it is one");
            assert_eq!(prepared, 49);
        }
    }

    #[test]
    fn replay_reports_a_late_begin_and_refuses_a_window_outside_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = recording(directory.path(), 10..=50, true);
        let (prepared, replay) = played(&path, window(Some(3600), None)).expect("it is one");
        assert_eq!((prepared, replay.begins_late_ns), (9, Some(9 * SECOND_NS)));
        assert_eq!(replay.since_ns, Some(9 * SECOND_NS), "what was found before is not of that time");
        let path = recording(directory.path(), 10..=50, false);
        let (prepared, replay) = played(&path, window(Some(3600), None)).expect("it is one");
        assert_eq!((prepared, replay.since_ns, replay.begins_late_ns), (0, None, Some(10 * SECOND_NS)));
        let refused = |request| played(&path, request).err().expect("it is refused").to_string();
        assert!(refused(window(Some(5), Some(5))).contains("--since is not before --until"));
        assert!(refused(window(None, Some(3600))).contains("it starts at"));
        let later = RecordingTime::At("1970-01-01T00:02:00Z".parse().expect("a time"));
        let request =
            ReplayRequest { window: TimeWindow { since: Some(later), until: None }, ..ReplayRequest::default() };
        assert!(refused(request).contains("it ends at"), "{}", refused(request));
        // A recording in progress has no end.
        let (prepared, _) = played(&path, ReplayRequest { now_unix_ns: Some(130 * i128::from(SECOND_NS)), ..request })
            .expect("it is one");
        assert_eq!(prepared, 120);
    }
}
