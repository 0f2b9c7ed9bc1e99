//! Recording that keeps the newest data. A separate thread writes the file, and copies its newest
//! part into a new file before the old one becomes too large.
//!
//! The copy begins with a keyframe and replaces the file atomically, so that a reader always finds
//! a complete file. Both files together never exceed the limit. A file that has reached its full
//! size once is therefore between a third and two thirds of the limit.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::recording::{Keyframe, KeyframeFront};

use crate::own_folder::unless_absent;

/// Maximum number of orders waiting for the disk. When it is reached, the session waits, too, or
/// the recording ends.
const WAITING: usize = 64;
/// Number of keyframes in a full file, unless the keyframes themselves are large.
const KEYFRAMES: u64 = 8;
/// The same for a file that another one continues, which begins with one.
const KEYFRAMES_IN_ONE_OF_SEVERAL: u64 = 2;
/// Part of the limit that one of several files takes, unless the state itself is large.
pub(crate) const SEGMENTS: u64 = 16;
/// Maximum time between two keyframes of a recording that continues in other files, in nanoseconds:
/// of its older part only such states are kept.
const BETWEEN_KEYFRAMES_NS: u64 = 60_000_000_000;
/// Copying the state takes at most this part of the time.
const COPYING: u64 = 1000;

/// Limits of the files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingLimits {
    /// Maximum size in bytes of all files together.
    pub(crate) limit_bytes: u64,
    /// Whether the session waits for a slow disk.
    pub(crate) waits: bool,
    /// Whether the recording continues in a new file.
    pub(crate) continues: bool,
}

/// Order to the writing thread.
enum RingFileOrder {
    /// A chunk, and the latest time of all inputs so far: `CLOCK_BOOTTIME`, nanoseconds.
    Chunk(Vec<u8>, u64),
    /// A state, and how long it took to copy it.
    Keyframe(KeyframeFront, Box<Pipeline>, Duration),
    /// The end mark.
    End(Vec<u8>),
}

/// Handle of the writing thread.
pub(crate) struct RingFile {
    orders: SyncSender<RingFileOrder>,
    thread: JoinHandle<(FileContents, io::Result<()>)>,
    flags: Arc<Flags>,
    /// Whether the session waits for a slow disk.
    waits: bool,
}

/// Contents of the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileContents {
    /// Length in bytes, all of it complete.
    pub(crate) bytes: u64,
    /// Time of the keyframe that the file begins with; `None` while the file holds everything.
    pub(crate) since_ns: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Flags {
    /// Whether a keyframe is wanted.
    pub(super) is_due: AtomicBool,
    /// Whether a write has failed, or the disk does not keep up.
    has_failed: AtomicBool,
    /// Number of complete files.
    pub(super) complete_files: AtomicU64,
}

impl RingFile {
    /// Starts the writing thread on a file that holds only the header.
    ///
    /// # Errors
    /// The file is not a regular file and so cannot be replaced, or no thread can be started.
    pub(crate) fn start(path: &Path, file: File, front: Vec<u8>, limits: RingLimits) -> io::Result<Self> {
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file, which --keep newest needs"));
        }
        // A symbolic link stays; the file that it leads to is replaced.
        let path = path.canonicalize()?;
        let flags = Arc::new(Flags::default());
        let writer = RingFileWriter::new(path, file, front, limits, Arc::clone(&flags));
        let (orders, waiting) = sync_channel(WAITING);
        let thread = thread::Builder::new().name("recording".to_owned()).spawn(move || writer.run(&waiting))?;
        Ok(Self { orders, thread, flags, waits: limits.waits })
    }

    /// Number of complete files.
    pub(crate) fn complete_files(&self) -> u64 {
        self.flags.complete_files.load(Ordering::Relaxed)
    }

    /// Whether the recording is still in progress.
    pub(crate) fn is_going(&self) -> bool {
        !self.flags.has_failed.load(Ordering::Relaxed)
    }

    /// Whether a keyframe is wanted.
    pub(crate) fn wants_keyframe(&self) -> bool {
        self.flags.is_due.load(Ordering::Relaxed)
    }

    /// Adds a chunk. `latest_ns` is the latest time of all inputs so far.
    pub(crate) fn append(&self, chunk: Vec<u8>, latest_ns: u64) {
        self.order(RingFileOrder::Chunk(chunk, latest_ns));
    }

    fn order(&self, order: RingFileOrder) {
        // A thread that has ended has already reported its failure.
        if self.waits {
            let _ = self.orders.send(order);
        } else if let Err(TrySendError::Full(_)) = self.orders.try_send(order) {
            self.flags.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the thread has ended, after which it never accesses the file again.
    pub(crate) fn has_let_go(&self) -> bool {
        self.thread.is_finished()
    }

    /// Adds a keyframe after the last chunk. `took` is the time in which the session copied its
    /// state.
    pub(crate) fn keyframe(&self, front: KeyframeFront, pipeline: Pipeline, took: Duration) {
        self.flags.is_due.store(false, Ordering::Relaxed);
        self.order(RingFileOrder::Keyframe(front, Box::new(pipeline), took));
    }

    /// Writes the end mark. Returns the contents of the file, and whether everything was written.
    pub(crate) fn end(self, mark: Vec<u8>) -> (FileContents, io::Result<()>) {
        let _ = self.orders.send(RingFileOrder::End(mark));
        drop(self.orders);
        self.thread
            .join()
            .unwrap_or_else(|_| (FileContents::default(), Err(io::Error::other("its writer thread has exited"))))
    }
}

/// State of the writing thread.
pub(super) struct RingFileWriter {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) front: Vec<u8>,
    pub(super) kept: FileContents,
    limits: RingLimits,
    /// Byte position and time of each keyframe in the file.
    pub(super) keyframes: VecDeque<(u64, u64)>,
    /// Bytes written since the last keyframe.
    pub(super) since: u64,
    /// First keyframe of the file.
    pub(super) begun: Option<KeyframeFront>,
    /// When the next keyframe is due whatever the size is: `CLOCK_BOOTTIME`, nanoseconds.
    next_keyframe_ns: u64,
    pub(super) flags: Arc<Flags>,
}

impl RingFileWriter {
    fn new(path: PathBuf, file: File, front: Vec<u8>, limits: RingLimits, flags: Arc<Flags>) -> Self {
        let kept = FileContents { bytes: front.len() as u64, since_ns: None };
        let (keyframes, since) = (VecDeque::new(), 0);
        Self { path, file, front, kept, limits, keyframes, since, begun: None, next_keyframe_ns: u64::MAX, flags }
    }

    fn run(mut self, orders: &Receiver<RingFileOrder>) -> (FileContents, io::Result<()>) {
        let mut done = Ok(());
        for order in orders {
            if self.flags.has_failed.load(Ordering::Relaxed) {
                done = Err(io::Error::other("the disk is too slow for the recording"));
                break;
            }
            done = match order {
                RingFileOrder::Chunk(chunk, latest_ns) => self.add(&chunk, latest_ns),
                RingFileOrder::Keyframe(front, pipeline, took) => {
                    let state = pipeline.save();
                    drop(pipeline);
                    if self.limits.continues {
                        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                        let apart_ns = BETWEEN_KEYFRAMES_NS.max(took_ns.saturating_mul(COPYING));
                        self.next_keyframe_ns = front.time_ns.saturating_add(apart_ns);
                    }
                    Keyframe::pack(front, &state).and_then(|keyframe| self.add_keyframe(&keyframe, front))
                }
                RingFileOrder::End(mark) => self.append(&mark).and_then(|()| self.file.sync_data()),
            };
            if done.is_err() {
                self.flags.has_failed.store(true, Ordering::Relaxed);
                break;
            }
        }
        (self.kept, done)
    }

    /// Returns the size at which the file is replaced. The rest of the limit is reserved for the
    /// copy, or for other files.
    pub(super) const fn full_bytes(&self) -> u64 {
        if self.limits.continues { self.limits.limit_bytes / SEGMENTS } else { self.limits.limit_bytes / 3 * 2 }
    }

    /// Returns the maximum size of the file.
    pub(super) const fn most_bytes(&self) -> u64 {
        if self.limits.continues { self.limits.limit_bytes / 4 } else { self.limits.limit_bytes }
    }

    /// Returns the size from which on a keyframe is wanted that replaces the file, or begins the next
    /// one, if the last keyframe has this size. Of several files, each has as many inputs as its state is
    /// large, as far as it may: else a large state would be written again and again.
    fn replaced_bytes(&self, keyframe: u64) -> u64 {
        if !self.limits.continues {
            return self.full_bytes();
        }
        self.full_bytes().max((2 * keyframe).min(self.most_bytes() / 4 * 3))
    }

    fn add(&mut self, chunk: &[u8], latest_ns: u64) -> io::Result<()> {
        let more = chunk.len() as u64;
        if !self.limits.continues && self.kept.bytes + more > self.full_bytes() {
            self.keep_newest(more)?;
        }
        // A keyframe may still be on its way, so the file may exceed its full size for a while, but
        // not the limit.
        if self.kept.bytes + more + super::END_BYTES > self.most_bytes() {
            return Err(io::Error::other(
                "--max-size (agent: --history-size) is too small: the limit was reached before a keyframe was written",
            ));
        }
        self.append(chunk)?;
        self.since += more;
        let last = self.keyframes.back().map_or(0, |(last, _)| self.kept.bytes - self.since - last);
        let keyframes = if self.limits.continues { KEYFRAMES_IN_ONE_OF_SEVERAL } else { KEYFRAMES };
        if self.since >= (self.full_bytes() / keyframes).max(2 * last)
            || self.kept.bytes > self.replaced_bytes(last)
            || latest_ns >= self.next_keyframe_ns
        {
            self.flags.is_due.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn add_keyframe(&mut self, keyframe: &[u8], front: KeyframeFront) -> io::Result<()> {
        let (more, time_ns) = (keyframe.len() as u64, front.time_ns);
        if self.limits.continues {
            return self.add_or_continue(keyframe, front);
        }
        if self.kept.bytes + more > self.full_bytes() {
            self.keep_newest(more)?;
        }
        if self.kept.bytes == self.front.len() as u64 {
            self.kept.since_ns = Some(time_ns);
        }
        if self.kept.bytes + more > self.full_bytes() {
            // No part of the file fits beside the keyframe: the file starts over with it.
            self.keyframes.push_back((self.kept.bytes, time_ns));
            self.since = 0;
            return self.replace((self.kept.bytes, time_ns), keyframe);
        }
        self.keyframes.push_back((self.kept.bytes, time_ns));
        self.append(keyframe)?;
        self.since = 0;
        // The chunk before it may have requested a keyframe again.
        self.flags.is_due.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Drops older data if there is a keyframe from which on the rest is short enough.
    fn keep_newest(&mut self, more: u64) -> io::Result<()> {
        let most = (self.full_bytes() / 2)
            .min(self.limits.limit_bytes.saturating_sub(self.kept.bytes + self.front.len() as u64));
        let most = most.min(self.full_bytes().saturating_sub(more));
        match self.keyframes.iter().copied().find(|(byte, _)| self.kept.bytes - byte <= most) {
            Some(first) => self.replace(first, &[]),
            None => Ok(()),
        }
    }

    /// Replaces the file by the header, the bytes of the file from `byte` on, and `more`.
    fn replace(&mut self, (byte, since_ns): (u64, u64), more: &[u8]) -> io::Result<()> {
        let kept = self.kept.bytes - byte;
        let bytes = self.front.len() as u64 + kept + more.len() as u64;
        if self.kept.bytes + bytes > self.limits.limit_bytes {
            return Err(Self::too_large(more));
        }
        let new = copy_of(&self.path);
        let copied = self.copy(&new, (byte, kept), more).and_then(|file| {
            fs::rename(&new, &self.path)?;
            Ok(file)
        });
        match copied {
            Ok(file) => self.file = file,
            Err(error) => {
                let _ = fs::remove_file(&new);
                return Err(error);
            }
        }
        let front = self.front.len() as u64;
        self.keyframes.retain(|(place, _)| *place >= byte);
        for (place, _) in &mut self.keyframes {
            *place = *place - byte + front;
        }
        self.kept = FileContents { bytes, since_ns: Some(since_ns) };
        Ok(())
    }

    pub(super) fn too_large(keyframe: &[u8]) -> io::Error {
        let state = super::bytes(keyframe.len() as u64);
        io::Error::other(format!(
            "the current state takes {state}: set --max-size (agent: --history-size) to at least six times that"
        ))
    }

    fn copy(&self, new: &Path, (byte, kept): (u64, u64), more: &[u8]) -> io::Result<File> {
        let mut old = OpenOptions::new().read(true).open(&self.path)?;
        let mut file = create_beside(&self.file, new)?;
        file.write_all(&self.front)?;
        old.seek(SeekFrom::Start(byte))?;
        let copied = io::copy(&mut old.take(kept), &mut file)?;
        if copied != kept {
            return Err(io::Error::other("another process truncated it"));
        }
        file.write_all(more)?;
        // Synced before the rename: after a crash of the machine, the name must not lead to less
        // data than before.
        file.sync_data()?;
        Ok(file)
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.kept.bytes += bytes.len() as u64,
            // The file may end with a part of the bytes, which is useless.
            Err(_) => drop(self.file.set_len(self.kept.bytes)),
        }
        written
    }
}

/// Creates an empty file for the same users as this one. A killed recorder may have left one.
pub(crate) fn create_beside(file: &File, new: &Path) -> io::Result<File> {
    // A file or link that another user puts there meanwhile is not followed.
    fs::remove_file(new).or_else(unless_absent)?;
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    let (before, own) = (file.metadata()?, created.metadata()?);
    if (before.uid(), before.gid()) != (own.uid(), own.gid()) {
        fchown(&created, Some(before.uid()), Some(before.gid()))?;
    }
    created.set_permissions(before.permissions())?;
    Ok(created)
}

/// Returns the path of the copy that replaces the file.
pub(crate) fn copy_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::Input;
    use memwatch_core::recording::{Encoder, FORMAT_WITH_KEYFRAMES, Front, RecordingPart, RecordingReader};

    use super::*;

    const LIMIT: u64 = 60_000;

    fn writer(directory: &Path) -> RingFileWriter {
        writer_of(directory, false)
    }

    fn writer_of(directory: &Path, continues: bool) -> RingFileWriter {
        let path = directory.join("job.mwr");
        let front = Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..Front::default() });
        fs::write(&path, &front).expect("the directory is ours");
        let file = OpenOptions::new().append(true).open(&path).expect("it is there");
        let limits = RingLimits { limit_bytes: LIMIT, waits: true, continues };
        RingFileWriter::new(path, file, front, limits, Arc::default())
    }

    /// Returns a chunk of ticks that compress badly.
    fn chunk(encoder: &mut Encoder, number: u64) -> Vec<u8> {
        for tick in 0..300 {
            let noise = (number * 300 + tick).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            encoder.push(&Input::Tick { time_ns: (number << 32) + noise });
        }
        encoder.chunk(0).expect("it is packed").expect("there are inputs")
    }

    /// Returns the time of the keyframe at the start of the file, and the numbers of its chunks.
    fn read(path: &Path) -> (Option<u64>, Vec<u64>) {
        let mut reader = RecordingReader::open(File::open(path).expect("it is there")).expect("it is a recording");
        let (mut begins, mut chunks) = (None, Vec::new());
        while let Some(part) = reader.next_part().expect("it can be read") {
            match part {
                RecordingPart::Chunk(chunk) => chunks.push(chunk.front.last_ns >> 32),
                RecordingPart::Keyframe(keyframe) if chunks.is_empty() && begins.is_none() => {
                    begins = Some(keyframe.front.time_ns >> 32);
                }
                RecordingPart::Keyframe(_) => {}
            }
        }
        (begins, chunks)
    }

    fn add_both(writer: &mut RingFileWriter, encoder: &mut Encoder, number: u64, state: &[u8]) -> io::Result<()> {
        writer.add(&chunk(encoder, number), encoder.latest_ns())?;
        if writer.flags.is_due.load(Ordering::Relaxed) {
            let time_ns = encoder.latest_ns();
            let front = KeyframeFront { time_ns, ..KeyframeFront::default() };
            writer.add_keyframe(&Keyframe::pack(front, state)?, front)?;
        }
        Ok(())
    }

    #[test]
    fn ring_recording_keeps_the_newest_without_gaps_within_its_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut writer, mut encoder) = (writer(directory.path()), Encoder::default());
        for number in 1..=400 {
            add_both(&mut writer, &mut encoder, number, &[7; 100]).expect("there is room");
            let length = fs::metadata(&writer.path).expect("it is there").len();
            assert!(length == writer.kept.bytes && length <= writer.full_bytes() + 1000, "{length}");
            let (begins, chunks) = read(&writer.path);
            let first = begins.map_or(1, |before| before + 1);
            assert_eq!(chunks, (first..=number).collect::<Vec<_>>(), "after chunk {number}");
            assert_eq!(writer.kept.since_ns.map(|since_ns| since_ns >> 32), begins);
        }
        let (begins, chunks) = read(&writer.path);
        assert!(begins > Some(100) && chunks.len() > 5, "{begins:?} {chunks:?}");
        assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 1, "no copy is left");
    }

    /// Returns a state that does not compress.
    fn noise(bytes: usize) -> Vec<u8> {
        let mut word = 1_u64;
        let next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()[4]
        };
        std::iter::repeat_with(next).take(bytes).collect()
    }

    #[test]
    fn state_larger_than_a_file_is_written_once_for_as_many_inputs() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut writer, mut encoder) = (writer_of(directory.path(), true), Encoder::default());
        let state = noise(5_000);
        assert!(state.len() as u64 > writer.full_bytes());
        let front = KeyframeFront { time_ns: 1, ..KeyframeFront::default() };
        let keyframe = Keyframe::pack(front, &state).expect("it is small");
        writer.add_keyframe(&keyframe, front).expect("there is room");
        let (mut inputs, mut number) = (0, 0);
        while !writer.flags.is_due.load(Ordering::Relaxed) {
            number += 1;
            let chunk = chunk(&mut encoder, number);
            inputs += chunk.len();
            writer.add(&chunk, encoder.latest_ns()).expect("there is room");
        }
        assert!(inputs > keyframe.len() / 2 && writer.kept.bytes <= writer.most_bytes(), "{inputs}");
    }

    #[test]
    fn ring_recording_with_an_oversized_keyframe_ends_and_keeps_the_rest() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut writer, mut encoder) = (writer(directory.path()), Encoder::default());
        let noise = noise(70_000);
        let failed = (1..=400).find_map(|number| add_both(&mut writer, &mut encoder, number, &noise).err());
        let sentence = failed.expect("it does not fit").to_string();
        assert!(sentence.contains("--max-size"), "{sentence}");
        let (begins, chunks) = read(&writer.path);
        assert!(begins.is_none() && chunks.len() > 2, "{begins:?} {chunks:?}");
    }
}
