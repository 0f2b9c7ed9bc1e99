//! The complete files of the history, within their limit. When they exceed it, the oldest of those
//! with more details than their share are thinned: all calls, then a state every minute, every ten
//! minutes, every hour.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use memwatch_core::recording::{RecordingError, RecordingReader, thin};

use crate::own_folder::unless_absent;
use crate::watch::recording::copy_of;
use crate::watch::recording::ring::{SEGMENTS, create_beside};
use crate::watch::recording::segments::{MOST_FILES, begin_of, complete_files};

/// Time of the oldest data in nanoseconds since 1970; `None` if there is none.
pub(super) type Tended = io::Result<Option<i128>>;

/// Levels of detail: the time between two states in nanoseconds, 0 for all calls; and the share of
/// the files' limit, in eighths.
const LEVELS: [(u64, u64); 4] = [(0, 4), (60_000_000_000, 2), (600_000_000_000, 1), (3_600_000_000_000, 1)];
/// Nice value of the thread: nobody waits for it.
const NICE: i32 = 10;

/// A complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredFile {
    path: PathBuf,
    bytes: u64,
    /// Index in [`LEVELS`].
    level: usize,
    /// Recorder and start of the machine ([`Front`](memwatch_core::recording::Front)).
    session_ns: Option<u64>,
    boot: Option<String>,
}

/// What brings the files closer to their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Thin this file to this level.
    Thin(usize, usize),
    /// Remove this file.
    Remove(usize),
}

/// Shortens the complete files of the recording at `path` to three quarters of the limit; the rest is
/// for the file in progress.
///
/// # Errors
/// A file cannot be read, written or removed.
pub(super) fn tend(path: &Path, limit_bytes: u64) -> Tended {
    // SAFETY: setpriority has no memory preconditions; 0 is the calling thread in Linux.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    let mut files: Vec<StoredFile> = complete_files(path)?.into_iter().map(StoredFile::of).collect();
    while let Some(step) = next_step(&files, limit_bytes / 4 * 3) {
        match step {
            Step::Thin(at, level) => {
                // Thinned alone, a file of ten minutes would keep a state every ten minutes.
                let first =
                    if at > 0 && files[at - 1].is_continued_by(&files[at], level, limit_bytes) { at - 1 } else { at };
                match thin_together(&files[first..=at], LEVELS[level].0) {
                    Ok(()) => {
                        files[first] = StoredFile { level, ..StoredFile::of(files[first].path.clone()) };
                        files.drain(first + 1..=at);
                    }
                    // The disk may be full: the oldest data makes room.
                    Err(RecordingError::Io(error)) => {
                        log::info!("{}: {error}", files[at].path.display());
                        remove(&mut files, 0)?;
                    }
                    // A file without any state has nothing that could be kept.
                    Err(_) => remove(&mut files, at)?,
                }
            }
            Step::Remove(at) => remove(&mut files, at)?,
        }
    }
    Ok(begin_of(files.first().map_or(path, |file| &file.path)))
}

fn remove(files: &mut Vec<StoredFile>, at: usize) -> io::Result<()> {
    fs::remove_file(&files.remove(at).path).or_else(unless_absent)
}

/// Returns the next step while the files, oldest first, exceed the limit.
fn next_step(files: &[StoredFile], limit_bytes: u64) -> Option<Step> {
    if files.len() > MOST_FILES {
        return Some(Step::Remove(0));
    }
    if files.iter().map(|file| file.bytes).sum::<u64>() <= limit_bytes {
        return None;
    }
    let bytes = |level: usize| files.iter().filter(|file| file.level == level).map(|file| file.bytes).sum::<u64>();
    // The level that exceeds its share most; of several the one with most details.
    let level = (0..LEVELS.len()).rev().max_by_key(|level| bytes(*level) / LEVELS[*level].1)?;
    let at = files.iter().position(|file| file.level == level)?;
    Some(if level + 1 < LEVELS.len() { Step::Thin(at, level + 1) } else { Step::Remove(at) })
}

impl StoredFile {
    fn of(path: PathBuf) -> Self {
        let bytes = fs::metadata(&path).map_or(0, |found| found.len());
        let front = File::open(&path).ok().and_then(|file| RecordingReader::open(BufReader::new(file)).ok());
        let front = front.map(|reader| reader.front().clone()).unwrap_or_default();
        let level = LEVELS.iter().rposition(|(of_level_ns, _)| *of_level_ns <= front.apart_ns.unwrap_or(0));
        Self { path, bytes, level: level.unwrap_or(0), session_ns: front.session_ns, boot: front.boot }
    }

    /// Whether this file, which is of this level, and the next one are short enough for one file.
    fn is_continued_by(&self, next: &Self, level: usize, limit_bytes: u64) -> bool {
        let is_one_session =
            self.session_ns.is_some() && (self.session_ns, &self.boot) == (next.session_ns, &next.boot);
        is_one_session && self.level == level && self.bytes < limit_bytes / SEGMENTS / 2
    }
}

/// Replaces files, each of which continues the one before, by one with states at this interval.
fn thin_together(files: &[StoredFile], apart_ns: u64) -> Result<(), RecordingError> {
    let [first, others @ ..] = files else { return Ok(()) };
    let new = copy_of(&first.path);
    let thinned = write_thin(files, &new, apart_ns).and_then(|()| Ok(fs::rename(&new, &first.path)?));
    if thinned.is_err() {
        let _ = fs::remove_file(&new);
    }
    // If the agent is killed here, readers skip what they have read.
    others.iter().try_for_each(|other| fs::remove_file(&other.path).or_else(unless_absent))?;
    thinned
}

fn write_thin(files: &[StoredFile], new: &Path, apart_ns: u64) -> Result<(), RecordingError> {
    let opened: io::Result<Vec<File>> = files.iter().map(|file| File::open(&file.path)).collect();
    let opened = opened?;
    let file = create_beside(opened.first().ok_or(RecordingError::NoRecording)?, new)?;
    let mut out = BufWriter::new(file);
    thin(opened.into_iter().map(BufReader::new).collect(), apart_ns, &mut out)?;
    out.flush()?;
    // Synced before the rename: after a crash of the machine, the name must not lead to less data than
    // before.
    Ok(out.get_ref().sync_data()?)
}

#[cfg(test)]
mod tests {
    use memwatch_core::Pipeline;
    use memwatch_core::input::{DeviceFacts, DeviceReading, Input, NvmlState, ProcessFacts, Sensors};
    use memwatch_core::recording::Stopped;
    use memwatch_core::snapshot::ProcessView;
    use memwatch_core::words::GpuUuid;

    use super::*;
    use crate::options::{RecordingTime, TimeWindow};
    use crate::watch::excerpt::write_excerpt;
    use crate::watch::joined::by_boot;
    use crate::watch::recorded::front;
    use crate::watch::recording::segments::free_name;
    use crate::watch::recording::{AtLimit, Recorder, RecorderOptions};
    use crate::watch::replay::{RecordedStates, ReplayRequest, ReplayedRecording};

    const SECOND_NS: u64 = 1_000_000_000;
    const DAY: u64 = 86_400;
    const BEGUN: u64 = 1000;

    fn file(bytes: u64, level: usize) -> StoredFile {
        StoredFile { path: PathBuf::new(), bytes, level, session_ns: None, boot: None }
    }

    #[test]
    fn level_that_exceeds_its_share_most_loses_details_of_its_oldest_file() {
        let files = |of: &[(u64, usize)]| of.iter().map(|(bytes, level)| file(*bytes, *level)).collect::<Vec<_>>();
        assert_eq!(next_step(&files(&[(100, 0), (100, 0)]), 200), None);
        assert_eq!(next_step(&files(&[(100, 0), (100, 0)]), 199), Some(Step::Thin(0, 1)));
        // Half of all is for calls, and a quarter for a state every minute.
        assert_eq!(next_step(&files(&[(10, 2), (40, 1), (100, 0)]), 100), Some(Step::Thin(2, 1)));
        assert_eq!(next_step(&files(&[(10, 2), (60, 1), (100, 0)]), 100), Some(Step::Thin(1, 2)));
        assert_eq!(next_step(&files(&[(9, 3), (90, 3), (60, 1), (100, 0)]), 100), Some(Step::Remove(0)));
        let many = files(&vec![(0, 3); MOST_FILES + 1]);
        assert_eq!(next_step(&many, 1000), Some(Step::Remove(0)));
    }

    fn options(path: &Path, limit_bytes: u64) -> RecorderOptions {
        let (limit_bytes, at_limit, front) = (Some(limit_bytes), AtLimit::NextFile, front(true, true));
        RecorderOptions {
            path: path.to_owned(),
            force: false,
            limit_bytes,
            at_limit,
            mode: Some(0o640),
            waits: true,
            front,
        }
    }

    fn devices(second: u64) -> Input {
        let (uuid, name, sensors) = (GpuUuid::new("GPU-1"), String::new(), Sensors::default());
        let device = DeviceFacts {
            uuid,
            nvml_index: 0,
            name,
            pci_bus_id: None,
            mig: None,
            cores: None,
            total_bytes: Some(80 << 30),
            used_bytes: Some(second << 10),
            processes: None,
            sensors,
        };
        let time_ns = second * SECOND_NS;
        Input::Devices(DeviceReading {
            begin_ns: time_ns,
            end_ns: time_ns,
            state: NvmlState::Ok,
            devices: vec![device],
        })
    }

    /// Records a part of a day, as an agent does.
    fn record(path: &Path, limit_bytes: u64, pipeline: &mut Pipeline, seconds: std::ops::Range<u64>) {
        let mut recorder = Recorder::create(&options(path, limit_bytes)).expect("the name is free");
        recorder.keep(pipeline, seconds.start * SECOND_NS, 0);
        let mut tended = 0;
        for second in seconds {
            // Times that cannot be compressed are in place of a program's calls.
            let ticks = (1..=30).map(|part| {
                let noise = (second * 30 + part).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SECOND_NS / 30);
                Input::Tick { time_ns: second * SECOND_NS + (part - 1) * (SECOND_NS / 30) + noise }
            });
            let facts = (second % 600 == 0).then(|| {
                let (tgid, start_ns, comm) = (7, 1, format!("at{second}"));
                Input::Process(ProcessFacts { tgid, start_ns, comm, uid: Some(1000), ..ProcessFacts::default() })
            });
            for input in std::iter::once(devices(second)).chain(facts).chain(ticks) {
                recorder.note(&input, || 0);
                if !matches!(input, Input::Tick { .. }) {
                    pipeline.step(input);
                }
            }
            pipeline.step(Input::Tick { time_ns: second * SECOND_NS });
            recorder.keep_if_wanted(pipeline, || 0);
            if second % 60 == 0 {
                recorder.write_if_due(|| 0);
            }
            if recorder.complete_files() != tended {
                tended = recorder.complete_files();
                tend(path, limit_bytes).expect("the directory is ours");
            }
        }
        assert!(recorder.is_going());
        recorder.end(Stopped::Asked, 0).end.expect("the directory is ours");
    }

    #[test]
    fn a_day_with_five_restarts_is_within_its_limit_and_reads_as_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, limit_bytes) = (directory.path().join("history.mwr"), 512 << 10);
        let mut pipeline = Pipeline::new(false);
        for part in 0..6 {
            record(&path, limit_bytes, &mut pipeline, BEGUN + part * DAY / 6..BEGUN + (part + 1) * DAY / 6);
            let begins = begin_of(&path).expect("it has data");
            fs::rename(&path, free_name(&path, begins).expect("one is free")).expect("it is ours");
        }
        tend(&path, limit_bytes).expect("the directory is ours");
        let files = complete_files(&path).expect("it can be read");
        let bytes: u64 = files.iter().map(|file| fs::metadata(file).expect("it is there").len()).sum();
        assert!(bytes <= limit_bytes && bytes > limit_bytes / 4, "{bytes}");
        let levels: Vec<usize> = files.iter().map(|file| StoredFile::of(file.clone()).level).collect();
        assert!(levels.is_sorted_by(|older, newer| older >= newer), "{levels:?}");
        assert!(levels.contains(&0) && levels.contains(&1), "{levels:?}");

        let (mut boots, foreign) = by_boot(&files);
        assert_eq!((boots.len(), foreign), (1, 0));
        let since = Some(RecordingTime::BeforeEnd(std::time::Duration::from_secs(DAY)));
        let window = TimeWindow { since, until: None };
        let request = ReplayRequest { window, all_events: true, now_unix_ns: None };
        let prepare = |pipeline: &mut Pipeline| pipeline.watch_samples(SECOND_NS);
        let replay = ReplayedRecording::play_files(boots.remove(0), request, prepare, |_| {});
        let replay = replay.expect("it can be read");
        let states = replay.states.expect("most of the day has only states");
        assert!(states.first_ns < (BEGUN + 60) * SECOND_NS && states.apart_ns >= 60 * SECOND_NS, "{states:?}");
        assert_eq!(replay.now_ns() / SECOND_NS, BEGUN + DAY - 1);
        let used = replay.pipeline.profile().expect("it is watched").gpus[0].used.expect("it was read");
        let [least, most] = [used.minimum_bytes, used.maximum_bytes].map(|bytes| bytes >> 10);
        assert!(least < BEGUN + 600 && most == BEGUN + DAY - 1, "{least} to {most}");
        // The last state of the recorder is the last of the replay.
        assert_eq!(replay.snapshot().processes, pipeline.snapshot().processes);
        assert_eq!(replay_of_user(&files, request), (replay.states, replay.snapshot().processes));
    }

    /// Replays the part of these files that the user of the one process may see.
    fn replay_of_user(files: &[PathBuf], request: ReplayRequest) -> (Option<RecordedStates>, Vec<ProcessView>) {
        let mut excerpt = tempfile::NamedTempFile::new().expect("a temporary file");
        let files = by_boot(files).0.remove(0);
        write_excerpt(files, request, 1000, &mut excerpt).expect("it can be read");
        let file = request.open(excerpt.path()).expect("it is a recording");
        let replay = ReplayedRecording::play_files(vec![file], request, |_| {}, |_| {}).expect("it is a recording");
        (replay.states, replay.snapshot().processes)
    }
}
