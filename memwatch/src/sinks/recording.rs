//! A recording on its way into a file: written a chunk at a time, so that all but the last second survives whatever happens.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::recording::{Encoder, Ending, Front, Stopped};

use super::format::bytes;
use crate::exit::Failure;

/// A chunk is written at least so often: what a killed recorder loses.
const LONGEST_UNWRITTEN: Duration = Duration::from_secs(1);
/// The end mark has room within the limit.
const END_BYTES: u64 = 256;

/// What to record into.
#[derive(Clone, Debug)]
pub(crate) struct TapeOptions {
    /// The file.
    pub(crate) path: PathBuf,
    /// Replace it, if it is there.
    pub(crate) force: bool,
    /// It becomes no larger than this, in bytes.
    pub(crate) limit_bytes: Option<u64>,
    /// What stands at its front.
    pub(crate) front: Front,
}

/// A recording that is being made.
pub(crate) struct Tape {
    path: PathBuf,
    file: File,
    encoder: Encoder,
    /// How long the file is: all of it complete.
    bytes: u64,
    limit_bytes: u64,
    written: Instant,
    state: State,
}

/// How a recording is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Going,
    /// It was ended, and has its end mark.
    Ended(Stopped),
    /// It could not be written on; why.
    Failed(String),
}

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The file.
    pub(crate) path: PathBuf,
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// How many inputs are in it.
    pub(crate) inputs: u64,
    /// Why it ended; else why it could not be written on.
    pub(crate) end: Result<Stopped, String>,
}

impl Recorded {
    /// `job.mwr is written, 1.3 MiB; what is in it says: memwatch report job.mwr`.
    pub(crate) fn sentence(&self, stopped: Stopped) -> String {
        let (path, size) = (self.path.display(), bytes(self.bytes));
        match stopped {
            Stopped::Limit => format!("{path} is as large as --max-size allows, {size}: the recording ended there"),
            _ => format!("{path} is written, {size}; what is in it says: memwatch report {path}"),
        }
    }
}

/// What is told of a recording, beside what is in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    /// The file.
    pub(crate) path: &'a Path,
    /// What stands at its front.
    pub(crate) front: &'a Front,
    /// Its length in bytes, as far as it can be read.
    pub(crate) bytes: u64,
    /// How many inputs are in it.
    pub(crate) inputs: u64,
    /// How it ends.
    pub(crate) ending: Ending,
}

impl Tape {
    /// Makes the file, with its front.
    ///
    /// # Errors
    /// When it cannot be made, or is there already.
    pub(crate) fn create(options: &TapeOptions) -> Result<Self, Failure> {
        let path = &options.path;
        let made = if options.force { File::create(path) } else { File::create_new(path) };
        let front = Encoder::front(&options.front);
        let written = made.and_then(|mut file| file.write_all(&front).map(|()| file));
        let file = written.map_err(|error| Failure::cannot_make(path, &error))?;
        Ok(Self {
            path: path.clone(),
            file,
            encoder: Encoder::default(),
            bytes: front.len() as u64,
            limit_bytes: options.limit_bytes.unwrap_or(u64::MAX),
            written: Instant::now(),
            state: State::Going,
        })
    }

    /// Records what comes next; `boottime_to_unix_ns` tells what to add to the kernel's clock for people's.
    pub(crate) fn note(&mut self, input: &Input, boottime_to_unix_ns: impl Fn() -> i128) {
        if self.state != State::Going {
            return;
        }
        self.encoder.push(input);
        if self.encoder.is_full() {
            self.write(boottime_to_unix_ns());
        }
    }

    /// Writes what has come, if that was not done for a second.
    pub(crate) fn write_if_due(&mut self, boottime_to_unix_ns: impl Fn() -> i128) {
        if self.state == State::Going && self.written.elapsed() >= LONGEST_UNWRITTEN {
            self.write(boottime_to_unix_ns());
        }
    }

    /// Whether it goes on.
    pub(crate) fn is_going(&self) -> bool {
        self.state == State::Going
    }

    /// Writes all that has come, and the end mark, and waits until the disk has it.
    pub(crate) fn end(mut self, stopped: Stopped, boottime_to_unix_ns: i128) -> Recorded {
        if self.state == State::Going {
            self.write(boottime_to_unix_ns);
        }
        if self.state == State::Going {
            self.finish(stopped);
        }
        let synced = self.file.sync_data();
        let end = match (self.state, synced) {
            (State::Ended(_), Err(error)) => Err(error.to_string()),
            (State::Ended(stopped), Ok(())) => Ok(stopped),
            (State::Failed(why), _) => Err(why),
            (State::Going, _) => Ok(stopped),
        };
        Recorded { path: self.path, bytes: self.bytes, inputs: self.encoder.inputs(), end }
    }

    fn write(&mut self, boottime_to_unix_ns: i128) {
        self.written = Instant::now();
        let offset = i64::try_from(boottime_to_unix_ns).unwrap_or(i64::MAX);
        match self.encoder.chunk(offset) {
            Ok(None) => {}
            Ok(Some(chunk)) if self.bytes + chunk.len() as u64 + END_BYTES > self.limit_bytes => {
                self.finish(Stopped::Limit);
            }
            Ok(Some(chunk)) => self.append(&chunk),
            Err(error) => self.fail(&error),
        }
    }

    fn finish(&mut self, stopped: Stopped) {
        let end = self.encoder.end(stopped);
        self.append(&end);
        if self.state == State::Going {
            self.state = State::Ended(stopped);
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        match self.file.write_all(bytes) {
            Ok(()) => self.bytes += bytes.len() as u64,
            Err(error) => {
                // Part of it may be there: readers would take it for a recorder's that was killed, which is right, but it is of no use.
                let _ = self.file.set_len(self.bytes);
                self.fail(&error);
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.state = State::Failed(error.to_string());
    }
}
