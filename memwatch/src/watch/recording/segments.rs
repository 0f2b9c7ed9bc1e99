//! A recording of several files, as an agent's history is: the newest file has the recording's own
//! name, and each complete one that of the time at which it begins.

use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use memwatch_core::recording::{EndMark, KeyframeFront, RecordingReader, Stopped};

use super::ring::{FileContents, RingFileWriter, copy_of, create_beside};

/// Maximum time in one file, so that little is read for a moment, in nanoseconds.
const LONGEST_NS: u64 = 2 * 3_600_000_000_000;
/// Maximum number of complete files of one recording: a reader opens all of them.
pub(crate) const MOST_FILES: usize = 400;
/// Maximum number of files that begin within one second.
const MOST_AT_ONCE: u32 = 99;
/// Extension of recordings.
const EXTENSION: &str = "mwr";

impl RingFileWriter {
    /// Adds a keyframe to the file, or begins a new file with it.
    pub(super) fn add_or_continue(&mut self, keyframe: &[u8], front: KeyframeFront) -> io::Result<()> {
        let is_full = self.kept.bytes + keyframe.len() as u64 > self.full_bytes();
        let is_long = |begins: &KeyframeFront| front.time_ns.saturating_sub(begins.time_ns) >= LONGEST_NS;
        if let Some(begins) = self.begun.filter(|begins| is_full || is_long(begins)) {
            self.continue_in_next(begins, keyframe, front)?;
        } else if self.kept.bytes + keyframe.len() as u64 > self.most_bytes() {
            return Err(Self::too_large(keyframe));
        } else {
            self.append(keyframe)?;
        }
        if self.begun.is_none() {
            (self.begun, self.kept.since_ns) = (Some(front), Some(front.time_ns));
        }
        self.keyframes.push_back((self.kept.bytes - keyframe.len() as u64, front.time_ns));
        self.since = 0;
        self.flags.is_due.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Completes the file, gives it a name of its own, and begins a new one with this keyframe.
    fn continue_in_next(&mut self, begins: KeyframeFront, keyframe: &[u8], front: KeyframeFront) -> io::Result<()> {
        if self.front.len() as u64 + keyframe.len() as u64 > self.most_bytes() {
            return Err(Self::too_large(keyframe));
        }
        self.append(&EndMark { stopped: Stopped::Limit, inputs: front.inputs }.bytes())?;
        self.file.sync_data()?;
        let new = copy_of(&self.path);
        let begun = create_beside(&self.file, &new).and_then(|mut file| {
            file.write_all(&self.front)?;
            file.write_all(keyframe)?;
            // A crash of the machine between the two names leaves the complete file.
            fs::rename(&self.path, free_name(&self.path, begins_unix_ns(&begins))?)?;
            fs::rename(&new, &self.path)?;
            Ok(file)
        });
        self.file = begun.inspect_err(|_| drop(fs::remove_file(&new)))?;
        self.kept = FileContents { bytes: (self.front.len() + keyframe.len()) as u64, since_ns: Some(front.time_ns) };
        self.keyframes.clear();
        self.begun = None;
        self.flags.complete_files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn begins_unix_ns(front: &KeyframeFront) -> i128 {
    i128::from(front.time_ns) + i128::from(front.boottime_to_unix_ns)
}

/// Returns a free name beside `path` for a recording that begins at this time:
/// `history-20261129T123049Z.mwr`.
///
/// # Errors
/// All names of that second are taken.
pub(crate) fn free_name(path: &Path, unix_ns: i128) -> io::Result<PathBuf> {
    let time = Timestamp::from_nanosecond(unix_ns).unwrap_or(Timestamp::UNIX_EPOCH).strftime("%Y%m%dT%H%M%SZ");
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let names = (1..=MOST_AT_ONCE).map(|number| match number {
        1 => format!("{stem}-{time}.{EXTENSION}"),
        // After the first one in the order of names.
        number => format!("{stem}-{time}_{number:02}.{EXTENSION}"),
    });
    let free = names.map(|name| path.with_file_name(name)).find(|name| fs::symlink_metadata(name).is_err());
    free.ok_or_else(|| io::Error::other(format!("{MOST_AT_ONCE} recordings begin at {time}")))
}

/// Returns the time of the first part of a recording in nanoseconds since 1970; `None` if it has
/// none or cannot be read.
pub(crate) fn begin_of(path: &Path) -> Option<i128> {
    let mut reader = RecordingReader::open(BufReader::new(File::open(path).ok()?)).ok()?;
    let part = reader.first_place().ok()??;
    let chunk = part.chunk.map(|front| i128::from(front.first_ns) + i128::from(front.boottime_to_unix_ns));
    part.keyframe.as_ref().map(begins_unix_ns).or(chunk)
}

/// Returns the complete files of the recording at `path`, oldest first, by what their names say.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn complete_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let stem = format!("{}-", path.file_stem().unwrap_or_default().to_string_lossy());
    let is_one = |entry: &Path| {
        let name = entry.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&stem)) && entry.extension().is_some_and(|end| end == EXTENSION)
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(path.parent().unwrap_or(Path::new(".")))? {
        let entry = entry?.path();
        if is_one(&entry) {
            files.push(entry);
        }
    }
    files.sort();
    Ok(files)
}
