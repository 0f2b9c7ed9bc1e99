//! Writes a recording in chunks, so that a killed recorder loses at most the last second.

pub(crate) mod ring;
pub(crate) mod segments;

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::{Encoder, Ending, Front, KeyframeFront, Stopped};

pub(crate) use self::ring::copy_of;
use self::ring::{FileContents, RingFile, RingLimits};
use crate::exit::ExitFailure;
use crate::output_file;
use crate::render::format::bytes;
use crate::sources::clock;

/// Maximum time between two chunks.
const LONGEST_UNWRITTEN: Duration = Duration::from_secs(1);
/// Bytes reserved for the end mark.
const END_BYTES: u64 = 256;

/// Options of a recording.
#[derive(Clone, Debug)]
pub(crate) struct RecorderOptions {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Replace an existing file.
    pub(crate) force: bool,
    /// Maximum size in bytes.
    pub(crate) limit_bytes: Option<u64>,
    /// What happens at the limit.
    pub(crate) at_limit: AtLimit,
    /// Mode of the file, if not derived from the umask.
    pub(crate) mode: Option<u32>,
    /// Wait for a slow disk instead of ending the recording.
    pub(crate) waits: bool,
    /// Header.
    pub(crate) front: Front,
}

/// What a recording does when it has reached its size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtLimit {
    /// It ends.
    End,
    /// It drops the oldest data and continues.
    DropOldest,
    /// It continues in a new file from a part of the limit on, and the complete file gets a name of
    /// its own ([`segments`]).
    NextFile,
}

/// Writer of a recording in progress.
pub(crate) struct Recorder {
    path: PathBuf,
    target: RecorderSink,
    encoder: Encoder,
    written: Instant,
    state: RecorderState,
}

/// Sink of the chunks.
enum RecorderSink {
    /// A file that ends at its size limit.
    File {
        file: File,
        /// Length of the complete chunks.
        bytes: u64,
        limit_bytes: u64,
    },
    /// A file that keeps the newest data.
    Ring(RingFile),
}

/// State of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RecorderState {
    Going,
    /// Finished, with an end mark.
    Ended(Stopped),
    /// Failed, with the reason.
    Failed(String),
}

/// Outcome of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Number of inputs.
    pub(crate) inputs: u64,
    /// Why the recording ended, or why a write failed.
    pub(crate) end: Result<Stopped, String>,
    /// Time of the oldest event, if older ones were dropped: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) events_since_ns: Option<u64>,
}

impl Recorded {
    /// Formats the outcome: `job.mwr is written, 1.3 MiB; to read it: memwatch report job.mwr`.
    pub(crate) fn sentence(&self, stopped: Stopped) -> String {
        let (path, size) = (output_file::name(&self.path), bytes(self.bytes));
        match stopped {
            Stopped::Limit => format!("{path} has reached --max-size, {size}: the recording has ended"),
            _ if output_file::is_stdout(&self.path) => format!("the recording is written to {path}, {size}"),
            _ => format!("{path} is written, {size}; to read it: memwatch report {path}"),
        }
    }
}

/// Properties of a recording that reports show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordingFacts<'a> {
    /// Path of the file.
    pub(crate) path: &'a Path,
    /// Header.
    pub(crate) front: &'a Front,
    /// Readable length in bytes.
    pub(crate) bytes: u64,
    /// Number of inputs.
    pub(crate) inputs: u64,
    /// How the recording ends; `None` if not read to the end.
    pub(crate) ending: Option<Ending>,
    /// Time of the oldest event, if older ones were dropped: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) events_since_ns: Option<u64>,
    /// Start of the analysed period, if not all of it: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) since_ns: Option<u64>,
}

impl Recorder {
    /// Creates the file and writes the header.
    ///
    /// # Errors
    /// The file cannot be created, or exists already.
    pub(crate) fn create(options: &RecorderOptions) -> Result<Self, ExitFailure> {
        let path = &options.path;
        // Only the files of a service have an explicit mode.
        let create = if options.mode.is_some() { output_file::create_own } else { output_file::create };
        let made = create(path, options.force);
        let (boot, session_ns) = (clock::boot_id(), Some(clock::boottime_ns()));
        let front = Encoder::front(&Front { boot, session_ns, ..options.front.clone() });
        let made = made.and_then(|file| {
            let permissions = options.mode.map(Permissions::from_mode);
            permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions)).map(|()| file)
        });
        let written = made.and_then(|mut file| file.write_all(&front).map(|()| file));
        let limit_bytes = options.limit_bytes.unwrap_or(u64::MAX);
        let target = written.and_then(|file| {
            let continues = match options.at_limit {
                AtLimit::End => return Ok(RecorderSink::File { file, bytes: front.len() as u64, limit_bytes }),
                AtLimit::DropOldest => false,
                AtLimit::NextFile => true,
            };
            let limits = RingLimits { limit_bytes, waits: options.waits, continues };
            RingFile::start(path, file, front, limits).map(RecorderSink::Ring)
        });
        let target = target.map_err(|error| ExitFailure::cannot_make(path, &error))?;
        let (path, encoder) = (path.clone(), Encoder::default());
        Ok(Self { path, target, encoder, written: Instant::now(), state: RecorderState::Going })
    }

    /// Records an input. `boottime_to_unix_ns` returns the offset from the kernel's clock to
    /// wall-clock time.
    pub(crate) fn note(&mut self, input: &Input, boottime_to_unix_ns: impl Fn() -> i128) {
        if self.state != RecorderState::Going {
            return;
        }
        self.encoder.push(input);
        if self.encoder.is_full() || self.encoder.most_bytes() > self.room_bytes() {
            self.write(boottime_to_unix_ns());
        }
    }

    /// Returns the maximum length of the next chunk. With shorter chunks near the limit, a file
    /// uses all of its limit.
    const fn room_bytes(&self) -> u64 {
        match &self.target {
            RecorderSink::File { bytes, limit_bytes, .. } => limit_bytes.saturating_sub(*bytes + END_BYTES),
            RecorderSink::Ring(_) => u64::MAX,
        }
    }

    /// Writes buffered inputs if the last write was at least a second ago.
    pub(crate) fn write_if_due(&mut self, boottime_to_unix_ns: impl Fn() -> i128) {
        if self.state == RecorderState::Going && self.written.elapsed() >= LONGEST_UNWRITTEN {
            self.write(boottime_to_unix_ns());
        }
    }

    /// Returns when buffered inputs have to be written; `None` if there are none.
    pub(crate) fn due(&self) -> Option<Instant> {
        (self.state == RecorderState::Going && self.encoder.pending() > 0).then(|| self.written + LONGEST_UNWRITTEN)
    }

    /// Adds a keyframe with the current state if one is due. All recorded inputs are part of that
    /// state.
    pub(crate) fn keep_if_wanted(&mut self, pipeline: &Pipeline, boottime_to_unix_ns: impl Fn() -> i128) {
        if !matches!(&self.target, RecorderSink::Ring(ring) if ring.wants_keyframe()) {
            return;
        }
        let offset = boottime_to_unix_ns();
        self.write(offset);
        self.keep(pipeline, self.encoder.latest_ns(), offset);
    }

    /// Adds a keyframe with the state at `time_ns` to a file that keeps the newest data, so that a
    /// shortened file can start there.
    pub(crate) fn keep(&self, pipeline: &Pipeline, time_ns: u64, boottime_to_unix_ns: i128) {
        if let RecorderSink::Ring(ring) = &self.target {
            let inputs = self.encoder.inputs();
            let boottime_to_unix_ns = i64::try_from(boottime_to_unix_ns).unwrap_or(i64::MAX);
            let layout = memwatch_core::pipeline::saved::STATE;
            let front = KeyframeFront { layout, time_ns, inputs, boottime_to_unix_ns, ..KeyframeFront::default() };
            // Copying the state is faster than encoding it, so the ring's thread encodes it.
            let begun = Instant::now();
            let copy = pipeline.clone();
            ring.keyframe(front, copy, begun.elapsed());
        }
    }

    /// Number of files that are complete because the recording continues in another one.
    pub(crate) fn complete_files(&self) -> u64 {
        if let RecorderSink::Ring(ring) = &self.target { ring.complete_files() } else { 0 }
    }

    /// Whether the recording is still in progress.
    pub(crate) fn is_going(&self) -> bool {
        self.state == RecorderState::Going && !matches!(&self.target, RecorderSink::Ring(ring) if !ring.is_going())
    }

    /// Whether the file has no writer left.
    pub(crate) fn has_let_go(&self) -> bool {
        !matches!(&self.target, RecorderSink::Ring(ring) if !ring.has_let_go())
    }

    /// Writes buffered inputs and the end mark, and syncs the file.
    pub(crate) fn end(mut self, stopped: Stopped, boottime_to_unix_ns: i128) -> Recorded {
        if self.state == RecorderState::Going {
            self.write(boottime_to_unix_ns);
        }
        if self.state == RecorderState::Going && matches!(self.target, RecorderSink::File { .. }) {
            self.finish(stopped);
        }
        let inputs = self.encoder.inputs();
        let (kept, end) = match (self.target, self.state) {
            (RecorderSink::File { file, bytes, .. }, state) => {
                (FileContents { bytes, since_ns: None }, ended(&file, state, stopped))
            }
            (RecorderSink::Ring(ring), RecorderState::Failed(why)) => (ring.end(Vec::new()).0, Err(why)),
            (RecorderSink::Ring(ring), _) => {
                let (kept, done) = ring.end(self.encoder.end(stopped));
                (kept, done.map(|()| stopped).map_err(|error| error.to_string()))
            }
        };
        Recorded { path: self.path, bytes: kept.bytes, inputs, end, events_since_ns: kept.since_ns }
    }

    fn write(&mut self, boottime_to_unix_ns: i128) {
        self.written = Instant::now();
        let offset = i64::try_from(boottime_to_unix_ns).unwrap_or(i64::MAX);
        let inputs = self.encoder.pending();
        let chunk = match self.encoder.chunk(offset) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return,
            Err(error) => return self.fail(&error),
        };
        match &self.target {
            RecorderSink::Ring(ring) => ring.append(chunk, self.encoder.latest_ns()),
            RecorderSink::File { .. } if chunk.len() as u64 > self.room_bytes() => {
                self.encoder.leave_out(inputs);
                self.finish(Stopped::Limit);
            }
            RecorderSink::File { .. } => self.append(&chunk),
        }
    }

    fn finish(&mut self, stopped: Stopped) {
        let end = self.encoder.end(stopped);
        self.append(&end);
        if self.state == RecorderState::Going {
            self.state = RecorderState::Ended(stopped);
        }
    }

    fn append(&mut self, more: &[u8]) {
        let RecorderSink::File { file, bytes, .. } = &mut self.target else { return };
        match file.write_all(more) {
            Ok(()) => *bytes += more.len() as u64,
            Err(error) => {
                // The file may end with a partial chunk, which readers handle but which is useless.
                let _ = file.set_len(*bytes);
                self.fail(&error);
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.state = RecorderState::Failed(error.to_string());
    }
}

/// Syncs the file and returns the outcome.
fn ended(file: &File, state: RecorderState, stopped: Stopped) -> Result<Stopped, String> {
    // A pipe cannot be synced.
    let is_on_disk = file.metadata().is_ok_and(|found| found.is_file());
    match (state, if is_on_disk { file.sync_data() } else { Ok(()) }) {
        (RecorderState::Ended(_), Err(error)) => Err(error.to_string()),
        (RecorderState::Ended(stopped), Ok(())) => Ok(stopped),
        (RecorderState::Failed(why), _) => Err(why),
        (RecorderState::Going, _) => Ok(stopped),
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::recording::{EndMark, FORMAT, RecordingPart, RecordingReader};

    use super::*;

    #[test]
    fn recording_at_its_size_limit_has_all_that_fits_and_its_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, limit_bytes) = (directory.path().join("job.mwr"), 20_000);
        let front = Front { format: FORMAT, ..Front::default() };
        let (limit, force) = (Some(limit_bytes), false);
        let at_limit = AtLimit::End;
        let options = RecorderOptions { path, force, limit_bytes: limit, at_limit, mode: None, waits: true, front };
        let mut recorder = Recorder::create(&options).expect("the directory is ours");
        let mut noted = 0_u64;
        while recorder.is_going() {
            noted += 1;
            recorder.note(&Input::Tick { time_ns: noted.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 }, || 0);
        }
        let written = recorder.end(Stopped::NobodyLeft, 0);
        assert_eq!(written.end, Ok(Stopped::Limit));
        let file = std::fs::read(&options.path).expect("it is there");
        assert_eq!(file.len() as u64, written.bytes);
        assert!((limit_bytes - END_BYTES - 100..limit_bytes).contains(&written.bytes), "{written:?}");
        let mut reader = RecordingReader::open(&file[..]).expect("it is a recording");
        let mut inputs = 0;
        while let Some(part) = reader.next_part().expect("memory can be read") {
            let RecordingPart::Chunk(chunk) = part else { panic!("it has no keyframes") };
            inputs += u64::from(chunk.front.inputs);
        }
        assert_eq!(reader.ending(), Some(Ending::Whole(EndMark { stopped: Stopped::Limit, inputs })));
        assert!(inputs == written.inputs && inputs + 3 > noted, "{inputs} of {noted}");
    }
}
