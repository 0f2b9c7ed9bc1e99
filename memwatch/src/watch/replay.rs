//! Replays a recording into a pipeline, which can then be used like that of a live session.

mod span;

use std::path::Path;

use anyhow::bail;
use memwatch_common::record::{CallRecord, RingRecord};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::pipeline::saved::STATE;
use memwatch_core::recording::{Ending, Front, Keyframe, RecordingPart};
use memwatch_core::snapshot::Snapshot;

pub(super) use self::span::ReplaySpan;
pub(crate) use self::span::have_some_of;
use crate::options::TimeWindow;
use crate::watch::joined::{JoinedReader, RecordingFile};
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

impl ReplayRequest {
    /// Opens a recording of one file.
    ///
    /// # Errors
    /// The file is no recording, or cannot be read.
    pub(crate) fn open(self, path: &Path) -> anyhow::Result<RecordingFile> {
        let is_whole = self.window.is_whole();
        Ok(if is_whole { RecordingFile::open_whole(path)? } else { RecordingFile::open(path)? })
    }
}

/// State after a part of a recording.
pub(crate) struct ReplayedPart<'a> {
    /// The pipeline.
    pub(crate) pipeline: &'a mut Pipeline,
    /// Host on which the part was recorded.
    pub(crate) host: &'a str,
    /// Offset from the recording's times to nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i64,
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
    /// Part of the period of which only states are recorded.
    pub(crate) states: Option<RecordedStates>,
}

/// A time of which only states are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedStates {
    /// First state: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) first_ns: u64,
    /// Last state: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) last_ns: u64,
    /// Time between two of them, nanoseconds, at most where it varies.
    pub(crate) apart_ns: u64,
}

impl ReplayedRecording {
    /// Replays a recording of several files of one start of the machine, oldest first. `prepare`
    /// enables detectors in the pipeline, and `each` is called after each part of the period.
    ///
    /// # Errors
    /// The files are no recording, cannot be read, or have no data of the period. A truncated or
    /// damaged recording is replayed as far as possible.
    pub(crate) fn play_files(
        files: Vec<RecordingFile>,
        request: ReplayRequest,
        prepare: impl FnOnce(&mut Pipeline),
        mut each: impl FnMut(ReplayedPart<'_>),
    ) -> anyhow::Result<Self> {
        let span = ReplaySpan::of(request, &files)?;
        let mut reader = JoinedReader::begin(files, span.first, span.last)?;
        let mut front = reader.front().clone();
        let mut player = Player::new(&span, prepare);
        let first = if front.has_keyframes() { reader.next_part()? } else { None };
        let (mut pipeline, mut first) = player.begin(first, &front)?;
        let events_since_ns = if span.first.is_some() { span.begins_ns } else { player.begun_ns };
        pipeline.state.keep_ended(!front.everybody || request.all_events || span.since_ns.is_some());
        if span.since_ns.is_none() {
            player.open(&mut pipeline);
        }
        while let Some(part) = first.take().map_or_else(|| reader.next_part(), |part| Ok(Some(part)))? {
            match part {
                RecordingPart::Chunk(chunk) => {
                    if !player.take_chunk(chunk, &mut pipeline) {
                        reader.note_damage();
                    }
                }
                RecordingPart::Keyframe(keyframe) => {
                    front.clone_from(reader.front());
                    player.resume(&keyframe, &front, &mut pipeline)?;
                }
            }
            if player.prepare.is_none() {
                each(ReplayedPart { pipeline: &mut pipeline, host: &front.host, boottime_to_unix_ns: player.offset });
            }
            if player.is_over {
                break;
            }
        }
        player.open(&mut pipeline);
        let is_over = player.is_over || span.last.is_some();
        let ending = if is_over { None } else { Some(reader.ending().unwrap_or(Ending::Cut)) };
        if !matches!(ending, Some(Ending::Whole(_))) {
            // The recording has no event at this end, so a tick sets the time.
            pipeline.step(Input::Tick { time_ns: if player.is_over { span.until_ns } else { player.last_ns } });
        }
        let ReplaySpan { since_ns, begins_late_ns, .. } = span;
        Ok(Self {
            front,
            pipeline,
            ending,
            boottime_to_unix_ns: i128::from(player.offset),
            bytes: reader.bytes(),
            inputs: player.inputs,
            events_since_ns,
            since_ns,
            begins_late_ns,
            states: player.states,
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
    /// Offset to nanoseconds since 1970 at the last part.
    offset: i64,
    /// Time of the keyframe that the replay began with, if any.
    begun_ns: Option<u64>,
    states: Option<RecordedStates>,
}

impl<F: FnOnce(&mut Pipeline)> Player<F> {
    fn new(span: &ReplaySpan, prepare: F) -> Self {
        let ReplaySpan { since_ns, until_ns, .. } = *span;
        let calls = Vec::with_capacity(TOGETHER);
        Self {
            calls,
            inputs: 0,
            last_ns: 0,
            since_ns,
            until_ns,
            prepare: Some(prepare),
            is_over: false,
            offset: 0,
            begun_ns: None,
            states: None,
        }
    }

    /// Begins with a keyframe, or without one. Returns the state, and the part if it is none.
    fn begin(
        &mut self,
        first: Option<RecordingPart>,
        front: &Front,
    ) -> anyhow::Result<(Pipeline, Option<RecordingPart>)> {
        let Some(RecordingPart::Keyframe(keyframe)) = first else {
            return Ok((Pipeline::new(!front.everybody), first));
        };
        let begun = keyframe.front;
        (self.inputs, self.last_ns, self.offset) = (begun.inputs, begun.time_ns, begun.boottime_to_unix_ns);
        self.begun_ns = Some(begun.time_ns);
        self.note_states(front, begun.time_ns);
        Ok((load(&keyframe, front)?, None))
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

    /// Continues with a state before which inputs are missing.
    fn resume(&mut self, keyframe: &Keyframe, front: &Front, pipeline: &mut Pipeline) -> anyhow::Result<()> {
        let time_ns = keyframe.front.time_ns;
        self.is_over |= time_ns > self.until_ns;
        if self.is_over {
            return Ok(());
        }
        let later = load(keyframe, front)?;
        if Some(time_ns) > self.since_ns {
            self.open(pipeline);
        }
        pipeline.step_calls(&std::mem::take(&mut self.calls));
        pipeline.resume(later, self.since_ns.unwrap_or(0));
        self.last_ns = self.last_ns.max(time_ns);
        self.offset = keyframe.front.boottime_to_unix_ns;
        self.note_states(front, time_ns);
        Ok(())
    }

    /// Notes a state in place of inputs.
    fn note_states(&mut self, front: &Front, time_ns: u64) {
        let Some(apart_ns) = front.apart_ns.filter(|_| front.is_of_states()) else { return };
        if Some(time_ns) < self.since_ns || front.states_until_ns.is_some_and(|until_ns| time_ns > until_ns) {
            return;
        }
        let states = self.states.get_or_insert(RecordedStates { first_ns: time_ns, last_ns: time_ns, apart_ns });
        (states.last_ns, states.apart_ns) = (time_ns, states.apart_ns.max(apart_ns));
    }

    /// Replays one chunk. Returns false if an item is not a valid input.
    fn take_chunk(&mut self, chunk: memwatch_core::recording::Chunk, pipeline: &mut Pipeline) -> bool {
        self.last_ns = self.last_ns.max(chunk.front.last_ns);
        self.offset = chunk.front.boottime_to_unix_ns;
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

    use memwatch_core::recording::{Encoder, FORMAT, FORMAT_WITH_KEYFRAMES, KeyframeFront, Stopped};

    use super::*;
    use crate::options::RecordingTime;

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
        let replay = ReplayedRecording::play_files(
            vec![request.open(path)?],
            request,
            |pipeline| prepared_ns = Some(pipeline.state.now_ns()),
            |_| {},
        )?;
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
