//! The agent's history: a recording of several files, across sessions. The older a file, the fewer
//! details it keeps ([`store`]).
//!
//! Disk errors never stop the agent: it reports them and retries at intervals.

mod store;

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::bail;
use memwatch_core::recording::{RecordingReader, Stopped};

use super::directory::OwnDirectory;
use super::trail::{Trail, past};
use crate::agent::args::AgentArgs;
use crate::client::protocol::HistoryFiles;
use crate::own_folder::unless_absent;
use crate::sources::clock;
use crate::watch::recorded::front;
use crate::watch::recording::segments::{begin_of, complete_files, free_name};
use crate::watch::recording::{AtLimit, Recorder, RecorderOptions};
use crate::watch::session::Session;

/// File name of the current recording.
const FILE: &str = "history.mwr";
/// How names of unfinished copies begin and end ([`copy_of`]).
const UNFINISHED: (&str, &str) = (".history", ".mwr.new");
/// What names of earlier recordings began with in older versions.
const FORMERLY: &str = "previous";
/// File mode: readable by root and the group only, since the file contains all users' processes.
const FILE_MODE: u32 = 0o640;
/// Directory mode; files inherit the group.
const DIRECTORY_MODE: u32 = 0o2750;
/// Retry interval after a failure.
const PAUSE: Duration = Duration::from_secs(10);

/// State of the history, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HistoryState {
    /// Whether the history is being written.
    pub(crate) is_written: bool,
    /// Number of failures to create or write the history.
    pub(crate) failures_total: u64,
    /// Time of its oldest data in nanoseconds since 1970; `None` if there is none.
    pub(crate) oldest_unix_ns: Option<i128>,
}

/// History of the current session.
pub(crate) struct AgentHistory {
    directory: PathBuf,
    options: RecorderOptions,
    state: HistoryState,
    /// Reason why the history is not written, and time of the next attempt.
    failing: Option<(String, Instant)>,
    /// A failed recording, until its thread has closed the file.
    failed: Option<Recorder>,
    /// The thread that shortens the complete files, and the number of those that it knows.
    store: Option<JoinHandle<store::Tended>>,
    tended_files: u64,
}

impl AgentHistory {
    /// Prepares the directory. A missing directory is created for root and this group, which needs
    /// privileges that are dropped later.
    ///
    /// # Errors
    /// The directory is unusable or unsafe.
    pub(crate) fn prepare(agent: &AgentArgs, group: Option<u32>) -> anyhow::Result<Option<Self>> {
        let Some(directory) = &agent.history else { return Ok(None) };
        let name = directory.display();
        if directory.exists() && !directory.is_dir() {
            bail!("{name} is not a directory: --history needs one");
        }
        let own = OwnDirectory::open(directory, DIRECTORY_MODE & 0o777)?;
        // In a user namespace or without privileges, the directory stays private to its creator.
        if own.is_new && group.is_some_and(|group| own.give_to(group).is_ok()) {
            own.set_mode(DIRECTORY_MODE)?;
        }
        if own.is_open_to_all()? {
            bail!(
                "other users can write to {name}: --history needs a directory that only root or the agent's user can write to"
            );
        }
        let directory = directory.canonicalize()?;
        let options = RecorderOptions {
            path: directory.join(FILE),
            force: false,
            limit_bytes: Some(agent.history_size),
            at_limit: AtLimit::NextFile,
            mode: Some(FILE_MODE),
            waits: false,
            front: front(true, true),
        };
        let state = HistoryState::default();
        Ok(Some(Self { directory, options, state, failing: None, failed: None, store: None, tended_files: 0 }))
    }

    /// Starts writing. The recording of the previous agent gets a name of its own.
    pub(crate) fn begin(&mut self, session: &mut Session) {
        let begun = self
            .make_room()
            .map_err(anyhow::Error::from)
            .and_then(|()| session.begin_recording(&self.options).map_err(|failure| failure.error));
        match begun {
            Ok(()) => {
                if self.failing.take().is_some() {
                    eprintln!("memwatch: the history is written again");
                }
                self.state.is_written = true;
                self.shorten();
            }
            Err(error) => self.fail(format!("{error:#}")),
        }
    }

    /// Returns a receiver of per-GPU data of the files before this session, which are read in the
    /// background.
    pub(crate) fn earlier(&self) -> Option<Receiver<Trail>> {
        let files = complete_files(&self.options.path).unwrap_or_default();
        let (report, earlier) = channel();
        // The agent may have exited, so that the receiver is gone.
        let read = move || drop(report.send(past::of_files(&files, clock::boottime_to_unix_ns())));
        thread::Builder::new().name("history".to_owned()).spawn(read).is_ok().then_some(earlier)
    }

    /// Has a thread shorten the complete files to their limit, unless one does already.
    fn shorten(&mut self) {
        if self.store.is_some() {
            return;
        }
        let (path, limit_bytes) = (self.options.path.clone(), self.options.limit_bytes.unwrap_or(u64::MAX));
        let tend = move || store::tend(&path, limit_bytes);
        self.store = thread::Builder::new().name("history".to_owned()).spawn(tend).ok();
    }

    /// Learns what the thread has done, and starts it again if there are more files.
    fn tend_files(&mut self, complete_files: u64) {
        if let Some(store) = self.store.take_if(|store| store.is_finished()) {
            match store.join() {
                Ok(Ok(oldest_unix_ns)) => self.state.oldest_unix_ns = oldest_unix_ns,
                Ok(Err(error)) => self.note_unshortened(&error.to_string()),
                Err(_) => self.note_unshortened("its thread has ended"),
            }
        }
        if complete_files != self.tended_files && self.store.is_none() {
            self.tended_files = complete_files;
            self.shorten();
        }
    }

    fn note_unshortened(&mut self, why: &str) {
        self.state.failures_total += 1;
        eprintln!("memwatch: cannot shorten the history in {}: {why}", self.directory.display());
    }

    /// Checks whether the history is still being written, and retries if not.
    pub(crate) fn tend(&mut self, session: &mut Session) {
        self.tend_files(session.complete_files());
        if let Some(recorder) = session.take_ended_recording() {
            self.state.is_written = false;
            self.failed = Some(recorder);
            self.fail(String::new());
        }
        if self.failed.as_ref().is_some_and(Recorder::has_let_go)
            && let Some(Err(why)) = self.failed.take().map(|recorder| recorder.end(Stopped::Limit, 0).end)
        {
            self.report(why);
        }
        let is_due = self.failing.as_ref().is_some_and(|(_, again)| Instant::now() >= *again);
        if is_due && self.failed.is_none() {
            self.begin(session);
        }
    }

    /// Finishes the recording when the agent exits.
    pub(crate) fn end(&self, session: &mut Session) {
        if self.state.is_written
            && let (_, _, Some(recorded)) = session.end_recording(Stopped::Asked)
            && let Err(why) = recorded.end
        {
            eprintln!("memwatch: the history in {} is incomplete: {why}", self.directory.display());
        }
    }

    /// Returns the state for metrics.
    pub(crate) const fn state(&self) -> HistoryState {
        self.state
    }

    /// Returns the paths, for users who may read the files.
    pub(crate) fn kept(&self) -> HistoryFiles {
        let mut complete = complete_files(&self.options.path).unwrap_or_default().into_iter().rev();
        HistoryFiles {
            file: self.options.path.clone(),
            previous: complete.next(),
            older: complete.collect(),
            failing: self.failing.as_ref().map(|(why, _)| match why.as_str() {
                "" => "unknown reason".to_owned(),
                why => why.to_owned(),
            }),
        }
    }

    /// Gives the current recording a name of its own, or removes it if empty, so that its name is
    /// free.
    fn make_room(&self) -> io::Result<()> {
        let file = &self.options.path;
        self.clean()?;
        if is_empty(file) {
            return fs::remove_file(file);
        }
        match begin_of(file) {
            Some(unix_ns) => fs::rename(file, free_name(file, unix_ns)?),
            // It is none of ours, or of another version: nothing is known of its time.
            None if file.exists() => {
                let modified = fs::metadata(file)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                fs::rename(file, free_name(file, modified.as_nanos().try_into().unwrap_or(i128::MAX))?)
            }
            None => Ok(()),
        }
    }

    /// Removes unfinished copies of a killed agent, and renames the recordings of earlier sessions by
    /// an older version of memwatch.
    fn clean(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1) {
                fs::remove_file(&path).or_else(unless_absent)?;
            } else if name.starts_with(FORMERLY)
                && let Some(unix_ns) = begin_of(&path)
            {
                fs::rename(&path, free_name(&self.options.path, unix_ns)?)?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, why: String) {
        self.state.failures_total += 1;
        let before = self.failing.take();
        let known = before.map(|(why, _)| why).unwrap_or_default();
        self.failing = Some((known, Instant::now() + PAUSE));
        self.report(why);
    }

    /// Prints each reason once.
    fn report(&mut self, why: String) {
        let Some((known, _)) = self.failing.as_mut().filter(|(known, _)| *known != why && !why.is_empty()) else {
            return;
        };
        let place = self.directory.display();
        eprintln!("memwatch: cannot write the history in {place}; retrying every {} s: {why}", PAUSE.as_secs());
        *known = why;
    }
}

/// Whether the file is empty or a recording without any data.
fn is_empty(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    if file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0) {
        return true;
    }
    RecordingReader::open(BufReader::new(file)).is_ok_and(|mut reader| matches!(reader.next_part(), Ok(None)))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use memwatch_core::input::Input;
    use memwatch_core::recording::{Encoder, FORMAT_WITH_KEYFRAMES, Front};

    use super::*;
    use crate::cli::{Command, MemwatchArgs};
    use crate::watch::recording::copy_of;

    fn prepared(directory: &Path) -> anyhow::Result<AgentHistory> {
        prepared_for(directory, None)
    }

    fn prepared_for(directory: &Path, group: Option<u32>) -> anyhow::Result<AgentHistory> {
        let words = ["memwatch", "agent", "--history", directory.to_str().expect("a plain path")];
        let Some(Command::Agent(agent)) = MemwatchArgs::from_words(words).expect("it is one").command else { panic!() };
        AgentHistory::prepare(&agent, group).map(|history| history.expect("one is wanted"))
    }

    fn recording(inputs: u64) -> Vec<u8> {
        let mut encoder = Encoder::default();
        let mut bytes = Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..Front::default() });
        (1..=inputs).for_each(|time_ns| encoder.push(&Input::Tick { time_ns }));
        bytes.extend(encoder.chunk(0).expect("it is packed").unwrap_or_default());
        bytes
    }

    /// Names of the complete files, oldest first.
    fn complete(history: &AgentHistory) -> Vec<String> {
        let files = complete_files(&history.options.path).expect("it can be read");
        files.iter().map(|file| file.file_name().expect("it has one").to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_history_is_named_by_its_begin_and_an_empty_one_goes() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = prepared(directory.path()).expect("it is ours");
        let file = directory.path().join(FILE);
        let copies = [copy_of(&file), copy_of(&directory.path().join("history-19700101T000000Z.mwr"))];
        history.make_room().expect("there is nothing");
        for _ in 0..2 {
            fs::write(&file, recording(3)).expect("it is ours");
            for copy in &copies {
                fs::write(copy, "half").expect("it is ours");
            }
            history.make_room().expect("it is ours");
            assert!(!file.exists() && copies.iter().all(|copy| !copy.exists()));
        }
        let both = ["history-19700101T000000Z.mwr", "history-19700101T000000Z_02.mwr"];
        assert_eq!(complete(&history), both, "each keeps a name of its own");
        let kept = history.kept();
        assert_eq!(kept.previous, Some(directory.path().join(both[1])));
        assert_eq!(kept.older, [directory.path().join(both[0])]);
        for empty in [recording(0), Vec::new()] {
            fs::write(&file, empty).expect("it is ours");
            history.make_room().expect("it is ours");
            assert!(!file.exists());
            assert_eq!(complete(&history), both);
        }
        // A file that is not a recording is not removed.
        fs::write(&file, "something").expect("it is ours");
        history.make_room().expect("it is ours");
        let other = complete(&history).pop().expect("it is the newest");
        assert_eq!(fs::read(directory.path().join(other)).expect("it is kept"), b"something");
    }

    #[test]
    fn recordings_of_an_older_version_are_found_by_their_begin() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = prepared(directory.path()).expect("it is ours");
        for name in ["previous.mwr", "previous-2.mwr"] {
            fs::write(directory.path().join(name), recording(1)).expect("it is ours");
        }
        fs::write(directory.path().join("previous.txt"), "a note").expect("it is ours");
        history.make_room().expect("it is ours");
        assert_eq!(complete(&history).len(), 2);
        assert!(directory.path().join("previous.txt").exists() && !directory.path().join("previous.mwr").exists());
    }

    #[test]
    fn a_directory_is_made_for_its_maker_and_one_of_others_is_refused() {
        let parent = tempfile::tempdir().expect("a directory");
        let made = parent.path().join("made");
        prepared(&made).expect("it is made");
        let bits = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
        assert_eq!(bits(&made), 0o750);
        // SAFETY: getegid has no preconditions.
        let own = unsafe { libc::getegid() };
        let of_group = parent.path().join("of_group");
        prepared_for(&of_group, Some(own)).expect("it is made");
        assert_eq!(bits(&of_group), 0o2750, "files in it are of its group, whatever the agent's is");
        prepared_for(&made, Some(own)).expect("it is there");
        assert_eq!(bits(&made), 0o750, "what is there stays as it is");
        fs::set_permissions(&made, Permissions::from_mode(0o777)).expect("it is ours");
        let refusal = |path: &Path| prepared(path).err().expect("it is refused").to_string();
        assert!(refusal(&made).contains("can be changed by others"), "{}", refusal(&made));
        fs::set_permissions(&made, Permissions::from_mode(0o1777)).expect("it is ours");
        assert!(refusal(&made).contains("other users can write to"), "{}", refusal(&made));
        let file = parent.path().join("file");
        fs::write(&file, "").expect("it is ours");
        assert!(refusal(&file).contains("is not a directory"), "{}", refusal(&file));
        assert!(refusal(&parent.path().join("a/b")).contains("cannot be made"));
        symlink(&file, parent.path().join("link")).expect("it is ours");
        assert!(refusal(&parent.path().join("link")).contains("is not a directory"));
    }
}
