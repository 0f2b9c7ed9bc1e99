//! A recording, played into a pipeline: everything after that is as if it were watched.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::bail;
use memwatch_common::record::{CallRecord, Record};
use memwatch_core::input::Input;
use memwatch_core::recording::{Ending, FORMAT_WITH_KEYFRAMES, Front, Keyframe, Part, Place, Reader};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::{Pipeline, STATE};

use crate::args::Moment;
use crate::sinks::wall_clock::WallClock;

/// As many calls are taken in together, as a watch does.
const TOGETHER: usize = 256;

/// What of a recording is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Until then, and not to its end.
    pub(crate) until: Option<Moment>,
    /// Every event that is there is wanted, and not only what they have led to.
    pub(crate) all_events: bool,
}

/// A recording that has been played.
pub(crate) struct Replay {
    /// What stands at its front.
    pub(crate) front: Front,
    /// What it has led to.
    pub(crate) pipeline: Pipeline,
    /// How it ends; `None` where it was not played to its end.
    pub(crate) ending: Option<Ending>,
    /// What to add to its times to get nanoseconds since 1970: as it was at the end of what was played.
    pub(crate) boottime_to_unix_ns: i128,
    /// How many bytes of it were read.
    pub(crate) bytes: u64,
    /// How many inputs led to this, those included that are gone.
    pub(crate) inputs: u64,
    /// From when on there are events in it, where older ones are gone: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) events_since_ns: Option<u64>,
}

impl Replay {
    /// Plays a recording; `prepare` says what the pipeline is to keep beyond the usual.
    ///
    /// # Errors
    /// When it is none, cannot be read, or has nothing of that time. One that was cut off or damaged is played as far as it goes.
    pub(crate) fn play(path: &Path, wish: Wish, prepare: impl FnOnce(&mut Pipeline)) -> anyhow::Result<Self> {
        let mut reader = Reader::open(BufReader::with_capacity(1 << 20, File::open(path)?))?;
        let front = reader.front().clone();
        let (mut until_ns, mut begins_ns) = (u64::MAX, None);
        if let Some(moment) = wish.until {
            let places = Reader::open(File::open(path)?)?.places()?;
            begins_ns = Some(places.first().and_then(|place| Some(place.keyframe?.time_ns)));
            until_ns = resolve(moment, &places)?;
            let is_before =
                |place: &&Place| place.keyframe.is_some_and(|front| front.time_ns <= until_ns && front.layout == STATE);
            if let Some(place) = places.iter().rfind(is_before).filter(|_| !wish.all_events) {
                reader.go_to(place.byte)?;
            }
        }
        let mut player =
            Player { calls: Vec::with_capacity(TOGETHER), inputs: 0, last_ns: 0, until_ns, is_over: false };
        let mut first = if front.format == FORMAT_WITH_KEYFRAMES { reader.next_part()? } else { None };
        let (mut offset, mut events_since_ns) = (0, None);
        let mut pipeline = if let Some(Part::Keyframe(keyframe)) = &first {
            (player.inputs, player.last_ns) = (keyframe.front.inputs, keyframe.front.time_ns);
            (offset, events_since_ns) =
                (keyframe.front.boottime_to_unix_ns, begins_ns.unwrap_or(Some(keyframe.front.time_ns)));
            let pipeline = load(keyframe, &front)?;
            first = None;
            pipeline
        } else {
            Pipeline::new(!front.everybody)
        };
        prepare(&mut pipeline);
        while let Some(part) = first.take().map_or_else(|| reader.next_part(), |part| Ok(Some(part)))? {
            let Part::Chunk(chunk) = part else { continue };
            offset = chunk.front.boottime_to_unix_ns;
            if !player.take_chunk(chunk, &mut pipeline) {
                reader.note_damage();
            }
            if player.is_over {
                break;
            }
        }
        let ending = if player.is_over { None } else { Some(reader.ending().unwrap_or(Ending::Cut)) };
        if !matches!(ending, Some(Ending::Whole(_))) {
            // Nobody wrote down the time of this end.
            pipeline.step(Input::Tick { time_ns: if player.is_over { until_ns } else { player.last_ns } });
        }
        let (bytes, inputs, boottime_to_unix_ns) = (reader.bytes(), player.inputs, i128::from(offset));
        Ok(Self { front, pipeline, ending, boottime_to_unix_ns, bytes, inputs, events_since_ns })
    }

    /// Everything known at its end.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.pipeline.snapshot();
        if !self.front.everybody {
            snapshot.keep_wanted();
        }
        snapshot
    }
}

/// The pipeline that a recording begins with.
fn load(keyframe: &Keyframe, front: &Front) -> anyhow::Result<Pipeline> {
    if keyframe.front.layout != STATE {
        bail!("it keeps the newest, in the layout of memwatch {}: only that version can read it", front.version);
    }
    let loaded = keyframe.state().and_then(|state| Pipeline::load(&state).ok());
    loaded.ok_or_else(|| anyhow::anyhow!("what it begins with is damaged, and nothing after it can be read"))
}

/// When it is by the recorded machine's clock, in a recording of these parts.
fn resolve(moment: Moment, places: &[Place]) -> anyhow::Result<u64> {
    let times = |place: &Place| match (place.chunk, place.keyframe) {
        (Some(chunk), _) => (chunk.first_ns, chunk.last_ns, i128::from(chunk.boottime_to_unix_ns)),
        (_, Some(front)) => (front.time_ns, front.time_ns, i128::from(front.boottime_to_unix_ns)),
        (None, None) => (0, 0, 0),
    };
    let all: Vec<_> = places.iter().map(times).filter(|(first_ns, ..)| *first_ns > 0).collect();
    let (Some((begin_ns, _, begin_offset)), Some((_, end_ns, end_offset))) = (all.first().copied(), all.last()) else {
        bail!("there is nothing in it");
    };
    let unix_ns = moment.unix_ns(i128::from(*end_ns) + end_offset);
    // The clock may have been set meanwhile: the part before the time knows how it went then.
    let before = all.iter().rfind(|(_, last_ns, offset)| i128::from(*last_ns) + offset <= unix_ns);
    let time_ns = unix_ns - before.map_or(begin_offset, |(.., offset)| *offset);
    if time_ns < i128::from(begin_ns) {
        let clock = WallClock::local(begin_offset);
        bail!("it begins at {}: what stood before is not in it", clock.moment(begin_ns, 0));
    }
    Ok(u64::try_from(time_ns).unwrap_or(u64::MAX))
}

/// Inputs on their way into a pipeline.
struct Player {
    calls: Vec<CallRecord>,
    inputs: u64,
    last_ns: u64,
    until_ns: u64,
    /// There was an input of a later time.
    is_over: bool,
}

impl Player {
    /// False where it has something that is no input.
    fn take_chunk(&mut self, chunk: memwatch_core::recording::Chunk, pipeline: &mut Pipeline) -> bool {
        self.last_ns = self.last_ns.max(chunk.front.last_ns);
        let read = chunk.for_each(|input| {
            self.is_over |= input.time_ns().is_some_and(|time_ns| time_ns > self.until_ns);
            if !self.is_over {
                self.inputs += 1;
                self.take(pipeline, input);
            }
        });
        pipeline.step_calls(&std::mem::take(&mut self.calls));
        read.is_ok()
    }

    fn take(&mut self, pipeline: &mut Pipeline, input: Input) {
        if let Input::Record(Record::Call(call)) = input {
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
        // The kernel half's books, which these are for, are no more.
        if matches!(input, Input::Tick { .. }) {
            pipeline.take_unnamed();
        }
        pipeline.step(input);
    }
}
