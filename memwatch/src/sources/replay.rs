//! A recording, played into a pipeline: everything after that is as if it were watched.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use memwatch_common::record::Record;
use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::{Ending, Front, Reader, RecordingError};
use memwatch_core::snapshot::Snapshot;

/// As many calls are taken in together, as a watch does.
const TOGETHER: usize = 256;

/// A recording that has been played to its end.
pub(crate) struct Replay {
    /// What stands at its front.
    pub(crate) front: Front,
    /// What it has led to.
    pub(crate) pipeline: Pipeline,
    /// How it ends.
    pub(crate) ending: Ending,
    /// What to add to its times to get nanoseconds since 1970: as it was at its end.
    pub(crate) boottime_to_unix_ns: i128,
    /// How many bytes of it were read.
    pub(crate) bytes: u64,
    /// How many inputs it has.
    pub(crate) inputs: u64,
}

impl Replay {
    /// Plays a recording; `prepare` says what the pipeline is to keep beyond the usual.
    ///
    /// # Errors
    /// When it is none, or cannot be read. One that was cut off or damaged is played as far as it goes.
    pub(crate) fn play(path: &Path, prepare: impl FnOnce(&mut Pipeline)) -> Result<Self, RecordingError> {
        let mut reader = Reader::open(BufReader::with_capacity(1 << 20, File::open(path)?))?;
        let mut pipeline = Pipeline::new(!reader.front().everybody);
        prepare(&mut pipeline);
        let (mut inputs, mut last_ns, mut boottime_to_unix_ns) = (0_u64, 0_u64, 0_i128);
        let mut calls = Vec::with_capacity(TOGETHER);
        while let Some(chunk) = reader.next_chunk()? {
            last_ns = last_ns.max(chunk.front.last_ns);
            boottime_to_unix_ns = i128::from(chunk.front.boottime_to_unix_ns);
            let read = chunk.for_each(|input| {
                inputs += 1;
                take(&mut pipeline, &mut calls, input);
            });
            pipeline.step_calls(&std::mem::take(&mut calls));
            if read.is_err() {
                reader.note_damage();
            }
        }
        let ending = reader.ending().unwrap_or(Ending::Cut);
        if !matches!(ending, Ending::Whole(_)) {
            // Nobody wrote down the time of its end.
            pipeline.step(Input::Tick { time_ns: last_ns });
        }
        let (front, bytes) = (reader.front().clone(), reader.bytes());
        Ok(Self { front, pipeline, ending, boottime_to_unix_ns, bytes, inputs })
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

fn take(pipeline: &mut Pipeline, calls: &mut Vec<memwatch_common::record::CallRecord>, input: Input) {
    if let Input::Record(Record::Call(call)) = input {
        calls.push(call);
        if calls.len() < TOGETHER {
            return;
        }
        pipeline.step_calls(calls);
        calls.clear();
        return;
    }
    pipeline.step_calls(calls);
    calls.clear();
    // The kernel half's books, which these are for, are no more.
    if matches!(input, Input::Tick { .. }) {
        pipeline.take_unnamed();
    }
    pipeline.step(input);
}
