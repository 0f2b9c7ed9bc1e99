//! Leaves out the details of a recording with keyframes: what remains are states at intervals,
//! readings of the GPUs between them, and which processes began and ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Seek, Write};

use memwatch_common::record::RingRecord;

use super::{
    Chunk, Encoder, Ending, FORMAT_OF_STATES, Front, Keyframe, PartPosition, RecordingError, RecordingPart,
    RecordingReader, Stopped,
};
use crate::input::Input;
use crate::words::Tgid;

/// Number of readings of a kind between two states.
const READINGS: u64 = 12;
/// Maximum number of events of processes between two states: processes can come and go at any rate.
const MOST_EVENTS: u32 = 200;

/// Writes what remains of a recording if two states are at least `apart_ns` nanoseconds apart. Each of
/// its files continues the one before.
///
/// The last state stays, and what follows it stays complete, unless another file continues the
/// recording: that one begins with the next state.
///
/// # Errors
/// A source is no recording, or there is no keyframe; a source cannot be read, or `out` cannot be
/// written.
pub fn thin<R: Read + Seek>(sources: Vec<R>, apart_ns: u64, out: &mut impl Write) -> Result<(), RecordingError> {
    let mut readers = Vec::new();
    let (mut all, mut is_continued) = (Vec::new(), false);
    for (number, source) in sources.into_iter().enumerate() {
        let mut reader = RecordingReader::open(source)?;
        let places = reader.places()?;
        let end = ending(&mut reader, &places)?;
        is_continued = matches!(end, Some(Ending::Whole(mark)) if mark.stopped == Stopped::Limit);
        let keyframes = places.iter().filter_map(|place| Some(((number, place.byte), place.keyframe?.time_ns)));
        all.extend(keyframes);
        readers.push(reader);
    }
    let kept = kept_keyframes(&all, apart_ns);
    let (Some(((first_file, first), _)), Some((last, _))) = (all.first().copied(), all.last().copied()) else {
        return Err(RecordingError::Front);
    };
    let mut readers = readers.into_iter().enumerate().skip(first_file).peekable();
    if let Some((_, reader)) = readers.peek_mut() {
        let apart_ns = reader.front().apart_ns.map_or(apart_ns, |before_ns| before_ns.max(apart_ns));
        let front = Front { format: FORMAT_OF_STATES, apart_ns: Some(apart_ns), ..reader.front().clone() };
        out.write_all(&Encoder::front(&front))?;
    }
    let mut thinner = Thinner { encoder: Encoder::default(), readings: Readings::new(apart_ns), offset: 0, out };
    for (number, mut reader) in readers {
        let begin = if number == first_file { first } else { reader.bytes_of_front() };
        reader.go_to(begin)?;
        loop {
            let at = (number, reader.bytes());
            match reader.next_part()? {
                Some(RecordingPart::Keyframe(keyframe)) if kept.contains(&at) => thinner.keep(&keyframe)?,
                Some(RecordingPart::Keyframe(_)) => {}
                Some(RecordingPart::Chunk(_)) if at > last && is_continued => break,
                Some(RecordingPart::Chunk(chunk)) => thinner.take(chunk, at > last)?,
                None => break,
            }
        }
    }
    thinner.write_chunk()?;
    let stopped = if is_continued { Stopped::Limit } else { Stopped::Asked };
    let Thinner { encoder, out, .. } = thinner;
    out.write_all(&encoder.end(stopped))?;
    Ok(())
}

/// Writes parts of a recording.
struct Thinner<'a, W> {
    encoder: Encoder,
    readings: Readings,
    /// Offset to wall-clock time of the last chunk.
    offset: i64,
    out: &'a mut W,
}

impl<W: Write> Thinner<'_, W> {
    fn keep(&mut self, keyframe: &Keyframe) -> io::Result<()> {
        self.write_chunk()?;
        self.readings.events = 0;
        self.out.write_all(&keyframe.bytes())
    }

    /// Takes what remains of a chunk; all of it if it is to stay complete.
    fn take(&mut self, chunk: Chunk, is_complete: bool) -> io::Result<()> {
        self.offset = chunk.front.boottime_to_unix_ns;
        let Self { encoder, readings, .. } = self;
        // A chunk that cannot be decoded to its end is used as far as it can.
        let _ = chunk.for_each(|input| {
            if is_complete {
                encoder.push(&input);
            } else {
                readings.take(&input, encoder);
            }
        });
        if is_complete || encoder.is_full() { self.write_chunk() } else { Ok(()) }
    }

    fn write_chunk(&mut self) -> io::Result<()> {
        if let Some(chunk) = self.encoder.chunk(self.offset)? {
            self.out.write_all(&chunk)?;
        }
        Ok(())
    }
}

/// Returns how a recording ends.
fn ending<R: Read + Seek>(reader: &mut RecordingReader<R>, places: &[PartPosition]) -> io::Result<Option<Ending>> {
    let Some(last) = places.last() else { return Ok(None) };
    reader.go_to(last.byte)?;
    while reader.next_part()?.is_some() {}
    Ok(reader.take_ending())
}

/// File and offset of a part.
type Position = (usize, u64);

/// Returns the positions of the keyframes that remain, of all with their times.
fn kept_keyframes(all: &[(Position, u64)], apart_ns: u64) -> BTreeSet<Position> {
    let mut due_ns = 0;
    let mut kept = BTreeSet::new();
    for (number, (position, time_ns)) in all.iter().enumerate() {
        // Without the last one, all readings after the one before it would be of no use.
        if *time_ns >= due_ns || number + 1 == all.len() {
            kept.insert(*position);
            due_ns = time_ns.saturating_add(apart_ns);
        }
    }
    kept
}

/// Selects the inputs that remain between two states.
struct Readings {
    apart_ns: u64,
    /// Time of the last reading of each kind: `CLOCK_BOOTTIME`, nanoseconds.
    last_ns: BTreeMap<(ReadingKind, Option<Tgid>), u64>,
    /// Number of events of processes since the last state.
    events: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReadingKind {
    Devices,
    Counters,
    KvCache,
    HeldNames,
}

impl Readings {
    const fn new(apart_ns: u64) -> Self {
        Self { apart_ns: apart_ns / READINGS, last_ns: BTreeMap::new(), events: 0 }
    }

    fn take(&mut self, input: &Input, encoder: &mut Encoder) {
        let (kind, tgid, time_ns) = match input {
            Input::Devices(reading) => (ReadingKind::Devices, None, reading.end_ns),
            Input::Numbers(numbers) => (ReadingKind::Counters, Some(numbers.tgid), numbers.time_ns),
            Input::KvCache(reading) => (ReadingKind::KvCache, Some(reading.tgid), reading.time_ns),
            Input::HeldNames(reading) => (ReadingKind::HeldNames, Some(reading.tgid), reading.time_ns),
            Input::Record(RingRecord::Process(_))
            | Input::Process(_)
            | Input::ProcessEnded { .. }
            | Input::Names(_)
            | Input::Cgroups { .. } => {
                self.events += 1;
                if self.events <= MOST_EVENTS {
                    encoder.push(input);
                }
                return;
            }
            _ => return,
        };
        let due_ns = self.last_ns.get(&(kind, tgid)).map_or(0, |last_ns| last_ns.saturating_add(self.apart_ns));
        if time_ns < due_ns {
            return;
        }
        self.last_ns.insert((kind, tgid), time_ns);
        encoder.push(input);
        // Only records and ticks give a chunk its times.
        encoder.push(&Input::Tick { time_ns });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use memwatch_common::record::{CallRecord, RecordKind};

    use super::*;
    use crate::input::{DeviceReading, NvmlState};
    use crate::recording::{FORMAT_WITH_KEYFRAMES, KeyframeFront};

    const SECOND_NS: u64 = 1_000_000_000;

    fn call(time_ns: u64) -> Input {
        let call = CallRecord { kind: RecordKind::Call as u8, entered_ns: time_ns, ..CallRecord::default() };
        Input::Record(RingRecord::Call(CallRecord { returned_ns: time_ns + 1, ..call }))
    }

    fn reading(time_ns: u64) -> Input {
        let (state, devices) = (NvmlState::Ok, Vec::new());
        Input::Devices(DeviceReading { begin_ns: time_ns, end_ns: time_ns, state, devices })
    }

    /// Returns a recording of 300 seconds with a call and a reading in each, a state every ten, and an
    /// end of process 7 at 155 s.
    fn recording(end: Option<Stopped>) -> Vec<u8> {
        recording_of(0..=304, end)
    }

    fn recording_of(seconds: std::ops::RangeInclusive<u64>, end: Option<Stopped>) -> Vec<u8> {
        let mut bytes = Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..Front::default() });
        let mut encoder = Encoder::default();
        for second in seconds {
            let time_ns = (1000 + second) * SECOND_NS;
            if second % 10 == 0 {
                let front = KeyframeFront { time_ns, ..KeyframeFront::default() };
                bytes.extend(Keyframe::pack(front, &second.to_le_bytes()).expect("it is small"));
            }
            encoder.push(&call(time_ns + 1));
            encoder.push(&reading(time_ns + 2));
            if second == 155 {
                encoder.push(&Input::ProcessEnded { tgid: Tgid(7), time_ns });
            }
            bytes.extend(encoder.chunk(5).expect("it is packed").expect("there are inputs"));
        }
        bytes.extend(end.map(|stopped| encoder.end(stopped)).unwrap_or_default());
        bytes
    }

    /// Returns the seconds of states, of readings and of calls, and how many processes ended.
    fn contents(bytes: &[u8]) -> (Vec<u64>, Vec<u64>, Vec<u64>, usize) {
        let (mut states, mut readings, mut calls, mut ended) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut reader = RecordingReader::open(bytes).expect("it is a recording");
        let second = |time_ns: u64| time_ns / SECOND_NS - 1000;
        while let Some(part) = reader.next_part().expect("memory can be read") {
            match part {
                RecordingPart::Keyframe(keyframe) => {
                    let at = second(keyframe.front.time_ns);
                    assert_eq!(keyframe.state().as_deref(), Some(&at.to_le_bytes()[..]), "the state is unchanged");
                    states.push(at);
                }
                RecordingPart::Chunk(chunk) => {
                    assert!(chunk.front.boottime_to_unix_ns == 5 && chunk.front.last_ns > 0);
                    let each = |input: Input| match input {
                        Input::Devices(reading) => readings.push(second(reading.end_ns)),
                        Input::Record(RingRecord::Call(call)) => calls.push(second(call.entered_ns)),
                        Input::ProcessEnded { .. } => ended += 1,
                        _ => {}
                    };
                    chunk.for_each(each).expect("it is whole");
                }
            }
        }
        assert!(matches!(reader.ending(), Some(Ending::Whole(_))), "{:?}", reader.ending());
        (states, readings, calls, ended)
    }

    fn thinned(source: &[u8], apart_seconds: u64) -> Vec<u8> {
        let mut out = Vec::new();
        thin(vec![Cursor::new(source)], apart_seconds * SECOND_NS, &mut out).expect("it is a recording");
        out
    }

    #[test]
    fn thinned_recording_has_states_and_readings_at_intervals_and_who_ended() {
        let once = thinned(&recording(Some(Stopped::Limit)), 60);
        let front = RecordingReader::open(&once[..]).expect("it is one").front().clone();
        assert!(front.is_of_states() && front.apart_ns == Some(60 * SECOND_NS));
        let (states, readings, calls, ended) = contents(&once);
        assert_eq!(states, [0, 60, 120, 180, 240, 300]);
        assert_eq!(readings, (0..300).step_by(5).collect::<Vec<_>>());
        assert_eq!((calls, ended), (Vec::new(), 1));
        let again = thinned(&once, 120);
        let (states, readings, calls, ended) = contents(&again);
        assert_eq!(states, [0, 120, 240, 300]);
        assert_eq!(readings, (0..300).step_by(10).collect::<Vec<_>>());
        assert_eq!((calls, ended), (Vec::new(), 1));
        assert!(once.len() < recording(None).len() / 4 && again.len() < once.len());
    }

    #[test]
    fn files_that_continue_each_other_are_thinned_as_one() {
        let whole = thinned(&recording(Some(Stopped::Asked)), 120);
        let parts = [recording_of(0..=159, Some(Stopped::Limit)), recording_of(160..=304, Some(Stopped::Asked))];
        let mut joined = Vec::new();
        let sources = parts.iter().map(Cursor::new).collect();
        thin(sources, 120 * SECOND_NS, &mut joined).expect("they are recordings");
        assert_eq!(contents(&joined), contents(&whole));
    }

    #[test]
    fn what_follows_the_last_state_stays_if_nothing_continues_the_recording() {
        for end in [None, Some(Stopped::Asked)] {
            let (states, readings, calls, _) = contents(&thinned(&recording(end), 120));
            assert_eq!(states, [0, 120, 240, 300]);
            assert_eq!(calls, [300, 301, 302, 303, 304]);
            assert!(readings.ends_with(&[290, 300, 301, 302, 303, 304]), "{readings:?}");
        }
    }

    #[test]
    fn recording_without_states_cannot_be_thinned_and_a_damaged_one_only_partly() {
        let none = Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..Front::default() });
        assert!(thin(vec![Cursor::new(none)], 1, &mut Vec::new()).is_err());
        let mut bytes = recording(Some(Stopped::Limit));
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let (states, _, calls, _) = contents(&thinned(&bytes, 60));
        assert!(states.starts_with(&[0, 60, 120]) && !states.contains(&240) && calls.is_empty(), "{states:?}");
    }
}
