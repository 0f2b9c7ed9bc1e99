//! The agent's history: a recording that keeps the newest data of the current session, next to
//! recordings of earlier sessions.
//!
//! Disk errors never stop the agent: it reports them and retries at intervals.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use memwatch_core::recording::{RecordingReader, Stopped};

use super::directory::OwnDirectory;
use super::trail::{Trail, past};
use crate::agent::args::AgentArgs;
use crate::client::protocol::HistoryFiles;
use crate::own_folder::unless_absent;
use crate::sources::clock;
use crate::watch::recorded::front;
use crate::watch::recording::{Recorder, RecorderOptions, copy_of};
use crate::watch::session::Session;

/// File names of the current recording and of the previous session's recording.
const FILE: &str = "history.mwr";
const PREVIOUS: &str = "previous.mwr";
/// Maximum number of earlier recordings: `previous.mwr`, `previous-2.mwr` and so on, newest first.
/// Fewer are kept if they do not fit the size limit.
const MOST_EARLIER: usize = 32;
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
            keeps_newest: true,
            mode: Some(FILE_MODE),
            waits: false,
            front: front(true, true),
        };
        Ok(Some(Self { directory, options, state: HistoryState::default(), failing: None, failed: None }))
    }

    /// Starts writing. The recording of the previous agent becomes the previous history.
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
            }
            Err(error) => self.fail(format!("{error:#}")),
        }
    }

    /// Returns a receiver of per-GPU data of the previous history, which is read in the background.
    pub(crate) fn earlier(&self) -> Option<Receiver<Trail>> {
        let previous = self.directory.join(PREVIOUS);
        let (report, earlier) = channel();
        let read = move || match past::of_recording(&previous, clock::boottime_to_unix_ns()) {
            // The agent may have exited, so that the receiver is gone.
            Ok(trail) => drop(report.send(trail)),
            Err(error) => log::info!("{}: {error}", previous.display()),
        };
        thread::Builder::new().name("history".to_owned()).spawn(read).is_ok().then_some(earlier)
    }

    /// Checks whether the history is still being written, and retries if not.
    pub(crate) fn tend(&mut self, session: &mut Session) {
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
        let previous = self.directory.join(PREVIOUS);
        let older = (2..=MOST_EARLIER).map(|number| self.earlier_file(number));
        HistoryFiles {
            file: self.options.path.clone(),
            previous: previous.exists().then_some(previous),
            older: older.take_while(|file| file.exists()).collect(),
            failing: self.failing.as_ref().map(|(why, _)| match why.as_str() {
                "" => "unknown reason".to_owned(),
                why => why.to_owned(),
            }),
        }
    }

    /// Renames the current recording to the previous one, or removes it if empty, so that its name
    /// is free.
    fn make_room(&self) -> io::Result<()> {
        let file = &self.options.path;
        // A killed agent may have left an unfinished copy.
        fs::remove_file(copy_of(file)).or_else(unless_absent)?;
        if is_empty(file) {
            return fs::remove_file(file);
        }
        if !file.exists() {
            return Ok(());
        }
        self.age()?;
        fs::rename(file, self.directory.join(PREVIOUS))
    }

    /// Returns the path of an earlier session's recording; 1 is the most recent.
    fn earlier_file(&self, number: usize) -> PathBuf {
        if number == 1 {
            return self.directory.join(PREVIOUS);
        }
        self.directory.join(format!("previous-{number}.mwr"))
    }

    /// Renumbers the earlier recordings to free the first place, and removes the oldest ones that
    /// do not fit.
    fn age(&self) -> io::Result<()> {
        let bytes_of = |file: &Path| fs::metadata(file).map_or(0, |found| found.len());
        let there: Vec<PathBuf> =
            (1..=MOST_EARLIER).map(|number| self.earlier_file(number)).take_while(|file| file.exists()).collect();
        let limit_bytes = self.options.limit_bytes.unwrap_or(u64::MAX);
        let mut bytes = bytes_of(&self.options.path);
        let fits = |file: &&PathBuf| {
            bytes = bytes.saturating_add(bytes_of(file));
            bytes <= limit_bytes
        };
        let kept = there.iter().take_while(fits).take(MOST_EARLIER - 1).count();
        for file in &there[kept..] {
            fs::remove_file(file).or_else(unless_absent)?;
        }
        for (place, file) in there[..kept].iter().enumerate().rev() {
            // Numbers start at 1, and each recording moves to the next number.
            fs::rename(file, self.earlier_file(place + 2))?;
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

    #[test]
    fn a_history_becomes_the_previous_one_and_an_empty_one_goes() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = prepared(directory.path()).expect("it is ours");
        let [file, previous] = [FILE, PREVIOUS].map(|name| directory.path().join(name));
        let copy = copy_of(&file);
        history.make_room().expect("there is nothing");
        fs::write(&file, recording(3)).expect("it is ours");
        fs::write(&copy, "half").expect("it is ours");
        history.make_room().expect("it is ours");
        assert!(!file.exists() && !copy.exists());
        assert_eq!(history.kept().previous.as_ref(), Some(&previous));
        for empty in [recording(0), Vec::new()] {
            fs::write(&file, empty).expect("it is ours");
            history.make_room().expect("it is ours");
            assert!(!file.exists());
            assert_eq!(fs::read(&previous).expect("it is kept"), recording(3));
        }
        // A file that is not a recording is not removed.
        fs::write(&file, "something").expect("it is ours");
        history.make_room().expect("it is ours");
        assert_eq!(fs::read(&previous).expect("it is kept"), b"something");
    }

    #[test]
    fn restarts_keep_earlier_histories_in_order_as_far_as_they_fit() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut history = prepared(directory.path()).expect("it is ours");
        let file = directory.path().join(FILE);
        let restart = |history: &AgentHistory, content: &str| {
            fs::write(&file, content).expect("it is ours");
            history.make_room().expect("it is ours");
        };
        let all = |history: &AgentHistory| {
            let kept = history.kept();
            let files = kept.previous.into_iter().chain(kept.older);
            files.map(|file| fs::read_to_string(file).expect("it is kept")).collect::<Vec<_>>()
        };
        for content in ["first", "second", "third"] {
            restart(&history, content);
        }
        assert_eq!(all(&history), ["third", "second", "first"]);
        history.make_room().expect("there is nothing");
        assert_eq!(all(&history).len(), 3, "a start without a history ages nothing");
        history.options.limit_bytes = Some(14);
        restart(&history, "fourth");
        assert_eq!(all(&history), ["fourth", "third"], "what is beyond the size goes, the oldest first");
        restart(&history, "larger than all of the size");
        assert_eq!(all(&history), ["larger than all of the size"]);
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
