//! The journal of a watch that goes on when its process does not: all that was known at a moment, and every input since, in the recording's format.
//!
//! An entry is written before the ring's records in it are given back, and says how far the ring was read: a record is in the journal, in the ring, or
//! in both, which the position says. It lies in memory (`/run`) and is never synced: a process that dies loses nothing that it has written.

mod file;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use memwatch_common::record::{CallRecord, Record};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::{Encoder, Keyframe, KeyframeFront};

use self::file::entry;
pub(crate) use self::file::{Aside, Head, Kept, NoJournal, read};
use crate::sources::clock::boottime_to_unix_ns;
use crate::sources::kernel::ring::Reached;

/// All that is known is written again after so long, where there is much to be read again.
const BETWEEN_KEYFRAMES: Duration = Duration::from_secs(30);
const MUCH_BYTES: u64 = 64 << 10;
/// So many inputs are taken in again in a tenth of a second.
const MANY_INPUTS: u64 = 50_000;
/// And not more often than this, or than every tenth part of the time is spent on it.
const LEAST_BETWEEN_KEYFRAMES: Duration = Duration::from_millis(200);
/// A journal that is longer has no keyframe for a reason: the thread that makes them does not keep up, or is gone.
const LONGEST_BYTES: u64 = 64 << 20;

/// A journal that is being written.
pub(crate) struct Journal {
    path: PathBuf,
    head: Head,
    file: File,
    /// How much of it came since its keyframe.
    bytes: u64,
    encoder: Encoder,
    /// Chunks of the entry that is being made.
    chunks: Vec<u8>,
    /// What has changed since the last entry.
    aside: Option<Aside>,
    last_aside: Aside,
    /// The last tick, which is written when something else comes: time alone is no news.
    tick: Option<Input>,
    /// Something has come that nobody could find out again.
    has_news: bool,
    position: u64,
    /// How many inputs there are since the last keyframe.
    inputs: u64,
    begun: Instant,
    next: Option<Next>,
    /// How long the last keyframe took.
    took: Duration,
    failure: Option<io::Error>,
}

/// The journal that will take the place of this one, while a thread writes its keyframe.
struct Next {
    ready: Receiver<io::Result<File>>,
    begun: Instant,
    /// What has come since.
    entries: Vec<u8>,
    inputs: u64,
}

impl Journal {
    /// Begins with all that is known now; the ring has been read up to `position`.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn begin(
        path: &Path,
        head: Head,
        pipeline: &Pipeline,
        (position, aside): (u64, Aside),
    ) -> io::Result<Self> {
        let first = Keyframed { head: head.clone(), state: pipeline.state(), position, aside: aside.clone() };
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

    /// Takes in what comes next.
    pub(crate) fn note(&mut self, input: &Input) {
        if matches!(input, Input::Tick { .. }) {
            self.tick = Some(input.clone());
            return;
        }
        if let Some(tick) = self.tick.take() {
            self.push(&tick);
        }
        // Whoever goes on reads these at once, and an agent at rest has them every few seconds.
        self.has_news |= !matches!(input, Input::Devices(_) | Input::CgroupMemory(_));
        self.push(input);
    }

    /// The same of calls.
    pub(crate) fn note_calls(&mut self, calls: &[CallRecord]) {
        for call in calls {
            self.note(&Input::Record(Record::Call(*call)));
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

    /// What belongs to the kernel half's tables is so from now on.
    pub(crate) fn note_aside(&mut self, aside: Aside) {
        self.set_aside(Aside { takes_waiting: self.last_aside.takes_waiting, ..aside });
    }

    fn set_aside(&mut self, aside: Aside) {
        if aside != self.last_aside {
            self.last_aside = aside.clone();
            self.aside = Some(aside);
        }
    }

    /// Writes all that has come, up to here in the ring. When this returns it outlives the process.
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
            self.fail(io::Error::other("it has become longer than 64 MiB before all that is known could be written"));
        }
    }

    /// Writes what came without a record and is news, which happens now and then, and all that is known once more, where that is due.
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
        // All that the copy knows is behind it then.
        self.write();
        let state = pipeline.state();
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

    /// Where its keyframe is written, the next one takes the place of this one.
    fn take_next(&mut self) {
        let Some(next) = &self.next else { return };
        let file = match next.ready.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the thread that writes it has ended")),
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

    /// Writes all that is known now, for who comes next.
    ///
    /// # Errors
    /// It could not be written, now or before.
    pub(crate) fn end(mut self, pipeline: &Pipeline) -> io::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let (position, aside) = (self.position, self.last_aside.clone());
        let last = Keyframed { head: self.head, state: pipeline.state(), position, aside };
        // The thread may be writing under the name of the next one.
        let ready = self.next.take().map(|next| next.ready.recv());
        drop(ready);
        let new = new_name(&self.path);
        last.write(&new)?;
        fs::rename(new, &self.path)
    }

    /// Takes it away.
    ///
    /// # Errors
    /// It is still there.
    pub(crate) fn remove(path: &Path) -> io::Result<()> {
        for path in [new_name(path), file::set_aside_name(path), path.to_owned()] {
            fs::remove_file(path)
                .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        }
        Ok(())
    }

    /// Why it could not be written on, if that is so.
    pub(crate) const fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    fn fail(&mut self, error: io::Error) {
        self.failure.get_or_insert(error);
    }
}

/// What a journal begins with.
struct Keyframed {
    head: Head,
    /// All that is known. As bytes it is a third of what a copy would be.
    state: Vec<u8>,
    position: u64,
    aside: Aside,
}

impl Keyframed {
    fn write(self, path: &Path) -> io::Result<File> {
        let Self { head, state, position, aside } = self;
        let keyframe =
            Keyframe::pack(KeyframeFront { layout: memwatch_core::STATE, ..KeyframeFront::default() }, &state)?;
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

    fn head() -> Head {
        Head { boot: "a boot".to_owned(), ring: 7 }
    }

    fn take(pipeline: &mut Pipeline, journal: &mut Journal, tgid: u32) {
        let input = Input::Process(ProcessFacts { tgid, ..ProcessFacts::default() });
        journal.note(&input);
        pipeline.step(input);
        journal.commit(Reached { position: u64::from(tgid) * 100, takes_waiting: false });
    }

    #[test]
    fn what_comes_while_a_keyframe_is_written_is_in_both_journals() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let mut pipeline = Pipeline::new(false);
        let mut journal =
            Journal::begin(&path, head(), &pipeline, (0, Aside::default())).expect("the directory is ours");
        let known = |count: u32| {
            let kept = read(&path, |found| *found == head()).expect("it is whole at any moment");
            assert_eq!(kept.position, u64::from(count) * 100);
            assert!((1..=count).all(|tgid| kept.pipeline.knows(Tgid(tgid))), "after {count}");
        };
        take(&mut pipeline, &mut journal, 1);
        journal.begin_next(&pipeline);
        take(&mut pipeline, &mut journal, 2);
        known(2);
        // The thread has written its keyframe when it has let go of what it says so by.
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
    fn time_and_readings_alone_write_nothing_and_the_next_news_has_them() {
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
            read(&path, |found| *found == head()).expect("it is whole").pipeline.knows(Tgid(7))
                && journal.inputs > inputs
        );
    }
}
