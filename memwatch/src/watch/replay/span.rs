//! The part of a recording that a replay needs.

use anyhow::bail;
use memwatch_core::pipeline::saved::STATE;
use memwatch_core::recording::PartPosition;

use super::ReplayRequest;
use crate::options::RecordingTime;
use crate::render::wall_clock::WallClock;
use crate::watch::joined::{JoinedPosition, RecordingFile};

/// Part of a recording to replay, in the clock of the recorded machine.
#[derive(Clone, Copy, Debug)]
pub(in crate::watch) struct ReplaySpan {
    /// Start of the detectors; `None` for the first event.
    pub(super) since_ns: Option<u64>,
    /// End of the period.
    pub(in crate::watch) until_ns: u64,
    /// Part to start from, if not the first.
    pub(in crate::watch) first: Option<JoinedPosition>,
    /// Part to end with, if not the last: a state after which inputs are missing.
    pub(in crate::watch) last: Option<JoinedPosition>,
    /// Time of the keyframe at the start of the recording, if any.
    pub(super) begins_ns: Option<u64>,
    /// First time, if it is later than the requested start.
    pub(super) begins_late_ns: Option<u64>,
}

/// Checks whether these files cover the requested period.
pub(crate) fn have_some_of(files: &[RecordingFile], request: ReplayRequest) -> bool {
    ReplaySpan::of(request, files).is_ok()
}

impl ReplaySpan {
    /// Determines the period of a recording.
    ///
    /// # Errors
    /// The recording has no data of the period.
    pub(in crate::watch) fn of(request: ReplayRequest, files: &[RecordingFile]) -> anyhow::Result<Self> {
        let (until_ns, begins_late_ns) = (u64::MAX, None);
        let mut span = Self { since_ns: None, until_ns, first: None, last: None, begins_ns: None, begins_late_ns };
        if request.window.is_whole() {
            return Ok(span);
        }
        let places: Vec<&PartPosition> = files.iter().flat_map(|file| &file.places).collect();
        let times = Times::of(&places, request.now_unix_ns)?;
        span.begins_ns = places.first().and_then(|place| Some(place.keyframe?.time_ns));
        if let Some(moment) = request.window.until {
            span.until_ns = times
                .boottime_ns(moment)
                .map_err(|begins| anyhow::anyhow!("it starts at {begins}, after the requested time"))?;
        }
        if let Some(moment) = request.window.since {
            if let Ok(since_ns) = times.boottime_ns(moment) {
                span.since_ns = Some(since_ns);
            } else {
                (span.since_ns, span.begins_late_ns) = (span.begins_ns, Some(times.begin_ns));
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
        span.first = earliest_ns.and_then(|time_ns| last_keyframe(files, time_ns)).map(|(first, _)| first);
        span.last = last_keyframe(files, span.until_ns).filter(|(_, has_more)| *has_more).map(|(last, _)| last);
        Ok(span)
    }
}

/// Returns the last keyframe up to a time, and whether inputs are missing between it and the next
/// one.
fn last_keyframe(files: &[RecordingFile], time_ns: u64) -> Option<(JoinedPosition, bool)> {
    let is_before =
        |place: &PartPosition| place.keyframe.is_some_and(|front| front.time_ns <= time_ns && front.layout == STATE);
    files.iter().enumerate().rev().find_map(|(number, file)| {
        let at = file.places.iter().rposition(is_before)?;
        let is_last = file.places[at + 1..].iter().all(|place| place.keyframe.is_none());
        let position = JoinedPosition { file: number, byte: file.places[at].byte };
        Some((position, file.front.is_of_states() && !is_last))
    })
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
    fn of(places: &[&PartPosition], now_unix_ns: Option<i128>) -> anyhow::Result<Self> {
        let times = |place: &PartPosition| match (place.chunk, place.keyframe) {
            (Some(chunk), _) => (chunk.first_ns, chunk.last_ns, i128::from(chunk.boottime_to_unix_ns)),
            (_, Some(front)) => (front.time_ns, front.time_ns, i128::from(front.boottime_to_unix_ns)),
            (None, None) => (0, 0, 0),
        };
        let all: Vec<_> = places.iter().copied().map(times).filter(|(first_ns, ..)| *first_ns > 0).collect();
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
