//! Journal of a session that can be resumed: a keyframe with the complete state, and every input
//! since, in the recording's format.
//!
//! An entry is written before its records are released in the ring, and holds the ring position.
//! The position shows for each record whether it is in the journal, in the ring, or in both. The
//! file is in memory (`/run`) and never synced, since a dying process loses no written data.

mod file;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use memwatch_common::record::{CallRecord, RingRecord};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::{Encoder, Keyframe, KeyframeFront};

use self::file::entry;
pub(crate) use self::file::{Aside, JournalHead, NoJournal, RestoredJournal, read};
use crate::sources::clock::boottime_to_unix_ns;
use crate::sources::kernel::ring::Reached;

/// Interval between keyframes if the journal has at least [`MUCH_BYTES`].
const BETWEEN_KEYFRAMES: Duration = Duration::from_secs(30);
const MUCH_BYTES: u64 = 64 << 10;
/// Number of inputs since the last keyframe that makes a new one due. This number can be replayed
/// in 0.1 s.
const MANY_INPUTS: u64 = 50_000;
/// Minimum interval between keyframes. In addition, keyframes may take at most a tenth of the time.
const LEAST_BETWEEN_KEYFRAMES: Duration = Duration::from_millis(200);
/// Maximum length of a journal. Reached only if the keyframe thread does not keep up or has ended.
const LONGEST_BYTES: u64 = 64 << 20;

/// Writer of the journal.
pub(crate) struct Journal {
    path: PathBuf,
    head: JournalHead,
    file: File,
    /// Bytes written since the keyframe.
    bytes: u64,
    encoder: Encoder,
    /// Chunks of the next entry.
    chunks: Vec<u8>,
    /// Changes of the consumed table entries since the last journal entry.
    aside: Option<Aside>,
    last_aside: Aside,
    /// Last tick. It is written with the next other input, since a tick alone needs no entry.
    tick: Option<Input>,
    /// Whether the entry holds an input that could not be obtained again.
    has_news: bool,
    position: u64,
    /// Inputs since the last keyframe.
    inputs: u64,
    begun: Instant,
    next: Option<Next>,
    /// Duration of the last keyframe.
    took: Duration,
    failure: Option<io::Error>,
}

/// Next journal file, while a thread writes its keyframe.
struct Next {
    ready: Receiver<io::Result<File>>,
    begun: Instant,
    /// Journal entries since its keyframe.
    entries: Vec<u8>,
    inputs: u64,
}

impl Journal {
    /// Starts a journal with the current state. The ring has been read up to `position`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(
        path: &Path,
        head: JournalHead,
        pipeline: &Pipeline,
        (position, aside): (u64, Aside),
    ) -> io::Result<Self> {
        let first = Keyframed { head: head.clone(), state: pipeline.save(), position, aside: aside.clone() };
        let (new, begun) = (new_name(path), Instant::now());
        let file = first.write(&new)?;
        fs::rename(&new, path)?;
        Ok(Self {
            path: path.to_owned(),
            head,
            file,
            bytes: 0,
            encoder: Encoder::default(),
            chunks: Vec::new(),
            aside: None,
            last_aside: aside,
            tick: None,
            has_news: false,
            position,
            inputs: 0,
            begun,
            next: None,
            took: begun.elapsed(),
            failure: None,
        })
    }

    /// Adds an input to the next entry.
    pub(crate) fn note(&mut self, input: &Input) {
        if matches!(input, Input::Tick { .. }) {
            self.tick = Some(input.clone());
            return;
        }
        if let Some(tick) = self.tick.take() {
            self.push(&tick);
        }
        // A restarted agent obtains these inputs again at once, and an idle agent receives them
        // every few seconds.
        self.has_news |= !matches!(input, Input::Devices(_) | Input::CgroupMemory(_));
        self.push(input);
    }

    /// Adds calls to the next entry.
    pub(crate) fn note_calls(&mut self, calls: &[CallRecord]) {
        for call in calls {
            self.note(&Input::Record(RingRecord::Call(*call)));
        }
    }

    fn push(&mut self, input: &Input) {
        self.encoder.push(input);
        if self.encoder.is_full() {
            self.pack();
        }
    }

    fn pack(&mut self) {
        self.inputs += self.encoder.pending();
        match self.encoder.chunk(i64::try_from(boottime_to_unix_ns()).unwrap_or(i64::MAX)) {
            Ok(chunk) => self.chunks.extend(chunk.unwrap_or_default()),
            Err(error) => self.fail(error),
        }
    }

    /// Sets which table entries of the kernel half the next journal entry records as consumed.
    pub(crate) fn note_aside(&mut self, aside: Aside) {
        self.set_aside(Aside { takes_waiting: self.last_aside.takes_waiting, ..aside });
    }

    fn set_aside(&mut self, aside: Aside) {
        if aside != self.last_aside {
            self.last_aside = aside.clone();
            self.aside = Some(aside);
        }
    }

    /// Writes everything up to this ring position. When this returns, the data survives the
    /// process.
    pub(crate) fn commit(&mut self, reached: Reached) {
        self.position = reached.position;
        self.set_aside(Aside { takes_waiting: reached.takes_waiting, ..self.last_aside.clone() });
        self.write();
    }

    fn write(&mut self) {
        self.has_news = false;
        self.pack();
        if self.failure.is_some() {
            return;
        }
        let entry = entry(self.position, self.aside.take().as_ref(), &std::mem::take(&mut self.chunks));
        if let Some(next) = &mut self.next {
            next.entries.extend_from_slice(&entry);
        }
        match self.file.write_all(&entry) {
            Ok(()) => self.bytes += entry.len() as u64,
            Err(error) => self.fail(error),
        }
        if self.bytes > LONGEST_BYTES {
            self.fail(io::Error::other("it exceeded 64 MiB before the next keyframe was written"));
        }
    }

    /// Writes relevant inputs that came without a record, and starts a new keyframe if due.
    pub(crate) fn tend(&mut self, pipeline: &Pipeline) {
        let now = Instant::now();
        if self.has_news || !self.chunks.is_empty() || self.aside.is_some() {
            self.write();
        }
        self.take_next();
        let age = now.duration_since(self.begun);
        let is_long = age >= BETWEEN_KEYFRAMES && self.bytes >= MUCH_BYTES;
        let is_much = self.inputs >= MANY_INPUTS && age >= LEAST_BETWEEN_KEYFRAMES.max(self.took * 10);
        if self.next.is_none() && self.failure.is_none() && (is_long || is_much) {
            self.begin_next(pipeline);
        }
    }

    fn begin_next(&mut self, pipeline: &Pipeline) {
        // The entries before this point are part of the copied state, so they must not be added to
        // the next journal.
        self.write();
        let state = pipeline.save();
        let (head, position, aside) = (self.head.clone(), self.position, self.last_aside.clone());
        let (new, (done, ready)) = (new_name(&self.path), sync_channel(1));
        let first = Keyframed { head, state, position, aside };
        let writing = move || drop(done.send(first.write(&new)));
        match thread::Builder::new().name("journal".to_owned()).spawn(writing) {
            Ok(_) => {
                let (begun, entries) = (Instant::now(), Vec::new());
                self.next = Some(Next { ready, begun, entries, inputs: self.inputs });
            }
            Err(error) => self.fail(error),
        }
    }

    /// Switches to the next journal once its keyframe is written.
    fn take_next(&mut self) {
        let Some(next) = &self.next else { return };
        let file = match next.ready.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("its writer thread has exited")),
            Ok(file) => file,
        };
        let Some(next) = self.next.take() else { return };
        let replaced = file.and_then(|mut file| {
            file.write_all(&next.entries)?;
            fs::rename(new_name(&self.path), &self.path)?;
            Ok((file, next.entries.len() as u64))
        });
        match replaced {
            Ok((file, bytes)) => {
                (self.file, self.bytes) = (file, bytes);
                self.inputs -= next.inputs;
                self.took = next.begun.elapsed();
                self.begun = next.begun;
            }
            Err(error) => self.fail(error),
        }
    }

    /// Writes the current state for the next memwatch.
    ///
    /// # Errors
    /// A write failed, now or earlier.
    pub(crate) fn end(mut self, pipeline: &Pipeline) -> io::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let (position, aside) = (self.position, self.last_aside.clone());
        let last = Keyframed { head: self.head, state: pipeline.save(), position, aside };
        // The thread may still be writing the next journal under the same name.
        let ready = self.next.take().map(|next| next.ready.recv());
        drop(ready);
        let new = new_name(&self.path);
        last.write(&new)?;
        fs::rename(new, &self.path)
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// It could not be removed.
    pub(crate) fn remove(path: &Path) -> io::Result<()> {
        for path in [new_name(path), file::set_aside_name(path), path.to_owned()] {
            fs::remove_file(path)
                .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        }
        Ok(())
    }

    /// Returns the error of a failed write, if any.
    pub(crate) const fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    fn fail(&mut self, error: io::Error) {
        self.failure.get_or_insert(error);
    }
}

/// Start of a journal: its head and the keyframe.
struct Keyframed {
    head: JournalHead,
    /// The complete state, encoded, which takes a third of the memory of a copy.
    state: Vec<u8>,
    position: u64,
    aside: Aside,
}

impl Keyframed {
    fn write(self, path: &Path) -> io::Result<File> {
        let Self { head, state, position, aside } = self;
        let keyframe = Keyframe::pack(
            KeyframeFront { layout: memwatch_core::pipeline::saved::STATE, ..KeyframeFront::default() },
            &state,
        )?;
        let mut bytes = head.bytes();
        bytes.extend(entry(position, Some(&aside), &keyframe));
        let mut file = file::create(path)?;
        file.write_all(&bytes)?;
        Ok(file)
    }
}

fn new_name(path: &Path) -> PathBuf {
    path.with_added_extension("new")
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::{DeviceReading, NvmlState, ProcessFacts};
    use memwatch_core::words::Tgid;

    use super::*;

    fn head() -> JournalHead {
        JournalHead { boot: "a boot".to_owned(), ring: 7 }
    }

    fn take(pipeline: &mut Pipeline, journal: &mut Journal, tgid: u32) {
        let input = Input::Process(ProcessFacts { tgid, ..ProcessFacts::default() });
        journal.note(&input);
        pipeline.step(input);
        journal.commit(Reached { position: u64::from(tgid) * 100, takes_waiting: false });
    }

    #[test]
    fn journal_input_during_a_keyframe_is_in_both_journals() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let mut pipeline = Pipeline::new(false);
        let mut journal =
            Journal::begin(&path, head(), &pipeline, (0, Aside::default())).expect("the directory is ours");
        let known = |count: u32| {
            let kept = read(&path, |found| *found == head()).expect("it is whole at any moment");
            assert_eq!(kept.position, u64::from(count) * 100);
            assert!((1..=count).all(|tgid| kept.pipeline.state.knows(Tgid(tgid))), "after {count}");
        };
        take(&mut pipeline, &mut journal, 1);
        journal.begin_next(&pipeline);
        take(&mut pipeline, &mut journal, 2);
        known(2);
        // The thread has finished when its end of the channel is closed.
        while journal.next.is_some() {
            journal.take_next();
        }
        known(2);
        assert!(journal.failure().is_none() && journal.inputs == 1, "{:?}", journal.failure());
        take(&mut pipeline, &mut journal, 3);
        known(3);
        journal.end(&pipeline).expect("there is room");
        known(3);
        assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn journal_delays_times_and_readings_until_another_input() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let pipeline = Pipeline::new(false);
        let mut journal =
            Journal::begin(&path, head(), &pipeline, (0, Aside::default())).expect("the directory is ours");
        let length = || fs::metadata(&path).expect("it is there").len();
        let before = length();
        for time_ns in 0..1000 {
            journal.note(&Input::Tick { time_ns });
            if time_ns % 10 == 0 {
                let (begin_ns, end_ns) = (time_ns, time_ns);
                let reading = DeviceReading { begin_ns, end_ns, state: NvmlState::Ok, devices: Vec::new() };
                journal.note(&Input::Devices(reading));
            }
            journal.note_aside(Aside::default());
            journal.tend(&pipeline);
        }
        assert_eq!(length(), before);
        let inputs = journal.encoder.pending();
        assert_eq!(inputs, 200, "each reading, and the tick before it");
        journal.note(&Input::Process(ProcessFacts { tgid: 7, ..ProcessFacts::default() }));
        journal.tend(&pipeline);
        assert!(
            read(&path, |found| *found == head()).expect("it is whole").pipeline.state.knows(Tgid(7))
                && journal.inputs > inputs
        );
    }
}
