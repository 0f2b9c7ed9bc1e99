//! File format of a journal: a head, then entries, each preceded by its length and checksum. The
//! last entry may be cut off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use memwatch_common::record::RingRecord;
use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::{Encoder, FORMAT_WITH_KEYFRAMES, Front, RecordingPart, RecordingReader};
use serde::{Deserialize, Serialize};

use crate::sources::kernel::losses::ReportedLosses;

/// First bytes of a journal. They change with the format.
const MAGIC: [u8; 8] = *b"MWJRNL1\n";
/// Maximum number of calls passed to the pipeline as one batch.
const TOGETHER: usize = 256;
/// Maximum number of bytes read.
const LONGEST_BYTES: u64 = 512 << 20;

/// Identifies the kernel half of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalHead {
    /// Id of the machine's boot.
    pub(crate) boot: String,
    /// Number of the kernel half's ring. No other map gets this number until the next boot.
    pub(crate) ring: u32,
}

/// Consumed entries of the kernel half's tables, which are not part of the pipeline's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Aside {
    /// Losses that were passed on as inputs.
    pub(crate) losses: ReportedLosses,
    /// Bytes removed from the allocation map that its sums still count: process, life and bytes.
    pub(crate) removed: Vec<(u32, u32, u64)>,
    /// Whether requests to the kernel driver that did not fit in the ring may have been consumed
    /// without being journaled.
    pub(crate) takes_waiting: bool,
}

/// State restored from a journal.
pub(crate) struct RestoredJournal {
    /// Pipeline as of the last entry.
    pub(crate) pipeline: Pipeline,
    /// Position up to which the ring was read by then.
    pub(crate) position: u64,
    pub(crate) aside: Aside,
    /// Removed on drop, once this process has written its own journal.
    #[cfg_attr(not(test), expect(dead_code, reason = "what counts is when it goes"))]
    pub(crate) mark: StartMark,
}

/// Mark file next to a journal while a process starts from it. It remains only if that process is
/// killed during the start, for example by the kernel because the journal takes too much memory,
/// which would happen again at each start.
pub(crate) struct StartMark(PathBuf);

impl StartMark {
    /// Returns the name of a journal's mark.
    fn beside(journal: &Path) -> PathBuf {
        journal.with_added_extension("starting")
    }

    fn set(journal: &Path) -> io::Result<Self> {
        let path = Self::beside(journal);
        create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for StartMark {
    fn drop(&mut self) {
        // Any other failure of the start is unrelated to the journal, so the mark is removed then,
        // too.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the name under which an unusable journal is kept for investigation.
pub(super) fn set_aside_name(journal: &Path) -> PathBuf {
    journal.with_added_extension("set-aside")
}

/// Why a session cannot be resumed from a journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoJournal {
    /// There is no journal, as at the very first start.
    #[error("there is none")]
    Absent,
    /// The journal cannot be read.
    #[error("it cannot be read")]
    Io(#[source] io::Error),
    /// The journal is damaged or of another version.
    #[error("it is damaged, or of another version of memwatch")]
    Other,
    /// Another user may have written the journal.
    #[error("it belongs to another user, or others may write to it")]
    NotOurs,
    /// The kernel half of the journal is gone.
    #[error("the kernel half of that session no longer exists")]
    OtherKernelHalf,
    /// The previous process was killed while it read the journal.
    #[error("an agent was killed while it resumed from this journal; the journal is kept as {}", .0.display())]
    KilledStart(PathBuf),
}

impl JournalHead {
    /// Returns the bytes at the start of a journal.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        write_text(&mut bytes, self);
        bytes
    }
}

/// Encodes one entry: the ring position, the consumed table entries if they changed, and parts of a
/// recording.
pub(super) fn entry(position: u64, aside: Option<&Aside>, parts: &[u8]) -> Vec<u8> {
    let mut body = position.to_le_bytes().to_vec();
    match aside {
        Some(aside) => write_text(&mut body, aside),
        None => body.extend_from_slice(&0_u32.to_le_bytes()),
    }
    body.extend_from_slice(parts);
    let mut bytes = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Creates the file, readable and writable by its owner only.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Reads a journal. `is_there` returns whether the journal's kernel half still exists.
///
/// # Errors
/// There is no journal, it cannot be used, or its kernel half is gone.
pub(crate) fn read(path: &Path, is_there: impl FnOnce(&JournalHead) -> bool) -> Result<RestoredJournal, NoJournal> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NoJournal::Absent,
        _ => NoJournal::Io(error),
    })?;
    let owner = file.metadata().map_err(NoJournal::Io)?;
    // SAFETY: geteuid has no preconditions.
    if owner.uid() != unsafe { libc::geteuid() } || owner.mode() & 0o022 != 0 || !owner.is_file() {
        return Err(NoJournal::NotOurs);
    }
    if fs::symlink_metadata(StartMark::beside(path)).is_ok() {
        let kept = set_aside_name(path);
        let moved = fs::rename(path, &kept).and_then(|()| fs::remove_file(StartMark::beside(path)));
        return Err(moved.map_or_else(NoJournal::Io, |()| NoJournal::KilledStart(kept)));
    }
    let mark = StartMark::set(path).map_err(NoJournal::Io)?;
    let mut bytes = Vec::new();
    file.take(LONGEST_BYTES).read_to_end(&mut bytes).map_err(NoJournal::Io)?;
    parse(bytes, is_there, mark)
}

fn parse(
    bytes: Vec<u8>,
    is_there: impl FnOnce(&JournalHead) -> bool,
    mark: StartMark,
) -> Result<RestoredJournal, NoJournal> {
    let all = bytes;
    let mut bytes = all.strip_prefix(&MAGIC).ok_or(NoJournal::Other)?;
    let head: JournalHead = read_text(&mut bytes).ok_or(NoJournal::Other)?;
    if !is_there(&head) {
        return Err(NoJournal::OtherKernelHalf);
    }
    let mut recording = Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..Front::default() });
    let mut last = None;
    let mut aside = None;
    while let Some((position, changed, parts)) = next_entry(&mut bytes) {
        recording.extend_from_slice(parts);
        aside = changed.or(aside);
        last = Some(position);
    }
    let (Some(position), Some(aside)) = (last, aside) else { return Err(NoJournal::Other) };
    drop(all);
    let pipeline = replay(&recording).ok_or(NoJournal::Other)?;
    Ok(RestoredJournal { pipeline, position, aside, mark })
}

/// Reads the next complete entry. Records of an incomplete entry, and of anything after it, are
/// still in the ring.
fn next_entry<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Option<Aside>, &'a [u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (body, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (position, mut body) = body.split_first_chunk::<8>()?;
    let aside = match body.strip_prefix(&[0; 4]) {
        Some(rest) => {
            body = rest;
            None
        }
        None => Some(read_text(&mut body)?),
    };
    *bytes = rest;
    Some((u64::from_le_bytes(*position), aside, body))
}

/// Replays the whole recording or nothing: a part that is left out would be missing for good.
fn replay(recording: &[u8]) -> Option<Pipeline> {
    let mut reader = RecordingReader::open(recording).ok()?;
    let Ok(Some(RecordingPart::Keyframe(keyframe))) = reader.next_part() else { return None };
    if keyframe.front.layout != memwatch_core::pipeline::saved::STATE {
        return None;
    }
    let mut pipeline = Pipeline::load(&keyframe.state()?).ok()?;
    let mut calls = Vec::new();
    while let Some(part) = reader.next_part().ok()? {
        let RecordingPart::Chunk(chunk) = part else { return None };
        let taken = chunk.for_each(|input| match input {
            Input::Record(RingRecord::Call(call)) if calls.len() < TOGETHER => calls.push(call),
            input => {
                pipeline.step_calls(&calls);
                calls.clear();
                pipeline.step(input);
            }
        });
        taken.ok()?;
    }
    pipeline.step_calls(&calls);
    (reader.bytes() == recording.len() as u64).then_some(pipeline)
}

/// Appends a value as JSON, preceded by its length in four bytes.
fn write_text(bytes: &mut Vec<u8>, value: &impl Serialize) {
    // Writing to a vector cannot fail, and all map keys in these types are strings.
    let text = serde_json::to_vec(value).expect("it can be written as text");
    bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&text);
}

fn read_text<T: for<'a> Deserialize<'a>>(bytes: &mut &[u8]) -> Option<T> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    let value = serde_json::from_slice(text).ok()?;
    *bytes = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use memwatch_core::input::ProcessFacts;
    use memwatch_core::words::Tgid;
    use proptest::prelude::*;

    use super::*;
    use crate::sources::kernel::ring::Reached;
    use crate::watch::journal::Journal;

    fn head() -> JournalHead {
        JournalHead { boot: "a boot".to_owned(), ring: 7 }
    }

    /// One step of a test sequence.
    #[derive(Clone, Debug)]
    enum Step {
        /// A process appears, or exits.
        Begin(u32),
        End(u32),
        Tick,
        /// Commits a ring position.
        Commit,
        /// Calls `tend`.
        Tend,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1_u32..20).prop_map(Step::Begin),
            2 => (1_u32..20).prop_map(Step::End),
            1 => Just(Step::Tick),
            2 => Just(Step::Commit),
            1 => Just(Step::Tend),
        ]
    }

    fn take(pipeline: &mut Pipeline, journal: &mut Journal, input: Input) {
        journal.note(&input);
        pipeline.step(input);
    }

    proptest! {
        #[test]
        fn journal_restores_the_last_commit_after_any_truncation(
            steps in prop::collection::vec(step(), 1..60),
            cut in any::<prop::sample::Index>(),
        ) {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("journal");
            let mut pipeline = Pipeline::new(false);
            let mut journal =
                Journal::begin(&path, head(), &pipeline, (0, Aside::default())).expect("the directory is ours");
            // State after each commit: length of the file, ring position, and known processes.
            let length = || fs::metadata(&path).expect("it is there").len();
            let known = |pipeline: &Pipeline| pipeline.state.watched().collect::<Vec<Tgid>>();
            let mut committed = vec![(length(), 0, known(&pipeline))];
            let mut position = 0;
            for (time_ns, step) in (1..).zip(steps) {
                match step {
                    Step::Begin(tgid) => {
                        take(&mut pipeline, &mut journal, Input::Process(ProcessFacts { tgid, ..ProcessFacts::default() }));
                    }
                    Step::End(tgid) => {
                        take(&mut pipeline, &mut journal, Input::ProcessEnded { tgid: Tgid(tgid), time_ns });
                    }
                    Step::Tick => take(&mut pipeline, &mut journal, Input::Tick { time_ns }),
                    Step::Commit => {
                        position += 100;
                        journal.commit(Reached { position, takes_waiting: false });
                        committed.push((length(), position, known(&pipeline)));
                    }
                    Step::Tend => {
                        journal.tend(&pipeline);
                        committed.push((length(), position, known(&pipeline)));
                    }
                }
            }
            let bytes = fs::read(&path).expect("it is ours");
            let (first, ..) = committed[0];
            let first = usize::try_from(first).expect("short");
            let cut = first + cut.index(bytes.len() - first + 1);
            let mark = StartMark::set(&path).expect("the directory is ours");
            let kept = parse(bytes[..cut].to_vec(), |found| *found == head(), mark).expect("its first entry is whole");
            let (_, position, processes) =
                committed.iter().rev().find(|(length, ..)| *length <= cut as u64).expect("the first entry");
            prop_assert_eq!(kept.position, *position);
            prop_assert_eq!(known(&kept.pipeline), processes.clone());
        }
    }

    #[test]
    fn journal_that_ended_is_complete_and_rejected_by_other_kernel_halves() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let mut pipeline = Pipeline::new(false);
        let mut journal =
            Journal::begin(&path, head(), &pipeline, (3, Aside::default())).expect("the directory is ours");
        take(&mut pipeline, &mut journal, Input::Process(ProcessFacts { tgid: 5, ..ProcessFacts::default() }));
        let aside = Aside { removed: vec![(5, 1, 4096)], ..Aside::default() };
        journal.note_aside(aside.clone());
        journal.end(&pipeline).expect("there is room");
        let kept = read(&path, |found| *found == head()).expect("it is whole");
        assert_eq!((kept.position, kept.aside), (3, aside));
        assert!(kept.pipeline.state.knows(Tgid(5)));
        assert!(StartMark::beside(&path).exists(), "it starts");
        drop(kept.mark);
        let other = JournalHead { ring: 8, ..head() };
        assert!(matches!(read(&path, |found| *found == other), Err(NoJournal::OtherKernelHalf)));
        assert!(!StartMark::beside(&path).exists(), "whoever is not killed leaves no mark");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("it is ours");
        assert!(matches!(read(&path, |found| *found == head()), Err(NoJournal::NotOurs)));
        Journal::remove(&path).expect("it is ours");
        assert!(matches!(read(&path, |found| *found == head()), Err(NoJournal::Absent)));
        fs::write(&path, b"MWJRNL0\n").expect("it is ours");
        assert!(matches!(read(&path, |found| *found == head()), Err(NoJournal::Other)));
    }
    #[test]
    fn journal_of_a_killed_start_is_set_aside_and_not_read_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let pipeline = Pipeline::new(false);
        let begin = || Journal::begin(&path, head(), &pipeline, (0, Aside::default())).expect("the directory is ours");
        drop(begin());
        let kept = read(&path, |_| true).expect("it is whole");
        // SIGKILL runs no destructors.
        std::mem::forget(kept);
        let aside = set_aside_name(&path);
        assert!(matches!(read(&path, |_| true), Err(NoJournal::KilledStart(found)) if found == aside));
        assert!(aside.exists() && matches!(read(&path, |_| true), Err(NoJournal::Absent)));
        drop(begin());
        assert!(read(&path, |_| true).is_ok());
        Journal::remove(&path).expect("it is ours");
        assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 0);
    }
}
