//! Reads a recording of one or several files, each of which continues the one before.

use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use memwatch_core::pipeline::saved::STATE;
use memwatch_core::recording::{Ending, Front, PartPosition, RecordingError, RecordingPart, RecordingReader, Stopped};

/// One file of a recording.
pub(crate) struct RecordingFile {
    /// Header.
    pub(crate) front: Front,
    /// Position of every complete part; empty if the whole file is read.
    pub(crate) places: Vec<PartPosition>,
    reader: RecordingReader<BufReader<File>>,
}

impl RecordingFile {
    /// Opens a file of which a period is read, and finds its parts. All of it is read through this
    /// single descriptor, since the file may be replaced at any time.
    ///
    /// # Errors
    /// The file is no recording, or cannot be read.
    pub(crate) fn open(path: &Path) -> Result<Self, RecordingError> {
        let mut file = File::open(path)?;
        // Without a buffer, since only the parts' headers are read.
        let places = RecordingReader::open(&mut file)?.places()?;
        file.rewind()?;
        Ok(Self { places, ..Self::read(file)? })
    }

    /// Opens a file that is read from start to end, such as a pipe.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_whole(path: &Path) -> Result<Self, RecordingError> {
        Self::read(File::open(path)?)
    }

    fn read(file: File) -> Result<Self, RecordingError> {
        let reader = RecordingReader::open(BufReader::with_capacity(32 << 10, file))?;
        Ok(Self { front: reader.front().clone(), places: Vec::new(), reader })
    }

    /// Whether its first part is a state that another version of memwatch has written.
    fn is_foreign(&self) -> bool {
        let first = self.places.first().and_then(|place| place.keyframe);
        first.is_some_and(|front| front.layout != STATE)
    }

    /// Returns the time of the first part: `CLOCK_BOOTTIME`, nanoseconds.
    fn begins_ns(&self) -> u64 {
        let time_ns = |place: &PartPosition| {
            place.keyframe.map(|front| front.time_ns).or(place.chunk.map(|front| front.first_ns))
        };
        self.places.first().and_then(time_ns).unwrap_or(0)
    }

    /// Returns the latest time: `CLOCK_BOOTTIME`, nanoseconds.
    fn ends_ns(&self) -> u64 {
        let time_ns =
            |place: &PartPosition| place.keyframe.map(|front| front.time_ns).or(place.chunk.map(|front| front.last_ns));
        self.places.iter().filter_map(time_ns).max().unwrap_or(0)
    }

    /// Whether this file is of the same start of the machine, so that times can be compared.
    fn is_of_boot(&self, other: &Self) -> bool {
        self.front.boot.is_some() && self.front.boot == other.front.boot
    }

    /// Whether this file continues `before` without a gap.
    fn continues(&self, before: &Front, ending: Option<Ending>) -> bool {
        let is_whole = matches!(ending, Some(Ending::Whole(mark)) if mark.stopped == Stopped::Limit);
        is_whole && before.session_ns.is_some() && before.session_ns == self.front.session_ns && !before.is_of_states()
    }
}

/// Position of a part in a recording of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JoinedPosition {
    /// Number of the file.
    pub(crate) file: usize,
    /// Offset of the part in it.
    pub(crate) byte: u64,
}

/// Opens the files of a history, in the order of their names, and returns them by starts of the
/// machine, newest first, each oldest first. Times of different starts cannot be compared, and
/// names are by a wall clock that may have been set.
///
/// Files that cannot be read are skipped, since the agent removes the oldest ones. The second result
/// is the number of files of other versions.
pub(crate) fn by_boot(paths: &[PathBuf]) -> (Vec<Vec<RecordingFile>>, usize) {
    let mut foreign = 0;
    let mut boots: Vec<Vec<RecordingFile>> = Vec::new();
    for path in paths {
        let file = match RecordingFile::open(path) {
            Ok(file) if file.places.is_empty() => continue,
            Ok(file) if file.is_foreign() => {
                foreign += 1;
                continue;
            }
            Ok(file) => file,
            Err(error) => {
                log::info!("{}: {error}", path.display());
                continue;
            }
        };
        let known = boots.iter().position(|boot| boot.iter().any(|one| one.is_of_boot(&file)));
        // The start with the last name is the newest.
        let mut boot = known.map(|at| boots.remove(at)).unwrap_or_default();
        boot.push(file);
        boots.push(boot);
    }
    boots.reverse();
    (boots.into_iter().map(in_order).collect(), foreign)
}

/// Returns the files of one start of the machine by time. A file whose begin is in the one before is
/// left out: two files were made one, and the agent was killed before it removed the second.
fn in_order(mut files: Vec<RecordingFile>) -> Vec<RecordingFile> {
    files.sort_by_key(RecordingFile::begins_ns);
    let mut known_ns = 0;
    files.retain(|file| {
        let is_new = file.begins_ns() >= known_ns;
        if is_new {
            known_ns = known_ns.max(file.ends_ns());
        }
        is_new
    });
    files
}

/// Reads the parts of several files in order.
pub(crate) struct JoinedReader {
    files: IntoIter<RecordingFile>,
    current: RecordingFile,
    /// Number of the current file.
    number: usize,
    /// What stopped before the current file; `None` for the first.
    before: Option<(Front, Option<Ending>)>,
    is_first_part: bool,
    /// Last part to read.
    last: Option<JoinedPosition>,
    bytes: u64,
    is_over: bool,
}

impl JoinedReader {
    /// Begins at a part, or at the first one.
    ///
    /// # Errors
    /// There is no file, or it cannot be read.
    pub(crate) fn begin(
        files: Vec<RecordingFile>,
        first: Option<JoinedPosition>,
        last: Option<JoinedPosition>,
    ) -> anyhow::Result<Self> {
        let number = first.map_or(0, |first| first.file);
        let mut files = files.into_iter();
        let mut current = files.nth(number).ok_or_else(|| anyhow::anyhow!("it is empty"))?;
        if let Some(first) = first {
            current.reader.go_to(first.byte)?;
        }
        let (before, is_first_part) = (None, true);
        Ok(Self { files, current, number, before, is_first_part, last, bytes: 0, is_over: false })
    }

    /// Returns the header of the current file.
    pub(crate) const fn front(&self) -> &Front {
        &self.current.front
    }

    /// Returns how the last file ends; `None` before.
    pub(crate) const fn ending(&self) -> Option<Ending> {
        self.current.reader.ending()
    }

    /// Marks the current file as damaged here.
    pub(crate) const fn note_damage(&mut self) {
        self.current.reader.note_damage();
    }

    /// Number of bytes read.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes + self.current.reader.bytes()
    }

    /// Returns the next part: a chunk, or a keyframe that replaces the state.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn next_part(&mut self) -> std::io::Result<Option<RecordingPart>> {
        while !self.is_over {
            let at = JoinedPosition { file: self.number, byte: self.current.reader.bytes() };
            if self.last.is_some_and(|last| at > last) {
                break;
            }
            let Some(part) = self.current.reader.next_part()? else {
                if self.go_on() {
                    continue;
                }
                break;
            };
            let is_first_part = std::mem::take(&mut self.is_first_part);
            match part {
                RecordingPart::Keyframe(_) if !self.is_needed(is_first_part) => {}
                part => return Ok(Some(part)),
            }
        }
        self.is_over = true;
        Ok(None)
    }

    /// Whether a keyframe is the state to continue with.
    fn is_needed(&self, is_first_part: bool) -> bool {
        if self.current.front.is_of_states() {
            return true;
        }
        is_first_part && self.before.as_ref().is_none_or(|(front, ending)| !self.current.continues(front, *ending))
    }

    /// Goes to the next file, if there is one.
    fn go_on(&mut self) -> bool {
        let Some(next) = self.files.next() else { return false };
        self.before = Some((self.current.front.clone(), self.current.reader.ending()));
        self.bytes = self.bytes.saturating_add(self.current.reader.bytes());
        self.current = next;
        self.number += 1;
        self.is_first_part = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use memwatch_core::input::Input;
    use memwatch_core::recording::{Encoder, FORMAT};

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Writes a recording of these seconds of a start of the machine.
    fn recording(directory: &Path, name: &str, boot: Option<&str>, seconds: std::ops::RangeInclusive<u64>) -> PathBuf {
        let boot = boot.map(str::to_owned);
        let mut bytes = Encoder::front(&Front { format: FORMAT, boot, ..Front::default() });
        let mut encoder = Encoder::default();
        for second in seconds {
            encoder.push(&Input::Tick { time_ns: second * SECOND_NS });
        }
        bytes.extend(encoder.chunk(0).expect("it is packed").expect("there is one"));
        let path = directory.join(name);
        fs::write(&path, bytes).expect("the directory is ours");
        path
    }

    #[test]
    fn files_are_by_start_of_the_machine_and_by_time_whatever_their_names_say() {
        let directory = tempfile::tempdir().expect("a directory");
        let one = |name, boot, seconds| recording(directory.path(), name, boot, seconds);
        let paths = [
            one("a", None, 5..=6),
            one("b", Some("first"), 500..=600),
            // The clock was set back after the first file of the second start.
            one("c", Some("second"), 20..=30),
            one("d", Some("second"), 35..=40),
            one("e", Some("second"), 10..=20),
            one("f", Some("second"), 25..=28),
            one("g", Some("second"), 41..=50),
            directory.path().join("removed meanwhile"),
        ];
        let (boots, foreign) = by_boot(&paths);
        let begins: Vec<Vec<u64>> =
            boots.iter().map(|boot| boot.iter().map(|file| file.begins_ns() / SECOND_NS).collect()).collect();
        assert_eq!(begins, [vec![10, 20, 35, 41], vec![500], vec![5]], "what another file has is read once");
        assert_eq!(foreign, 0);
    }
}
