//! Schedules reading the state of a process's arenas: when the session attaches, if arenas exist by
//! then, and whenever the traced events leave a gap.
//!
//! Arenas are read between two fetches of the ring, like PyTorch's allocators. Searching the heap
//! for arenas takes longer and runs in its own thread.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::words::{Framework, Tgid};

use super::input_sink::InputSink;
use crate::frameworks::FRAMEWORKS;
use crate::frameworks::bfc::{ArenaLayout, ArenaReader};

/// Framework of some arenas, and the layout of its structures.
type ArenaKind = (Framework, ArenaLayout);

/// Time between two of the first [`QUICK_TRIES`] attempts. Later attempts are further apart.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
const QUICK_TRIES: u32 = 50;
const BETWEEN_LATER_TRIES: Duration = Duration::from_secs(1);

/// The arenas of one framework in one process.
#[derive(Debug, Default)]
pub(super) struct ProcessArenas {
    reader: Option<ArenaReader>,
    search: ArenaSearch,
    /// Arenas that the search has found and that are not read yet.
    found: Vec<u64>,
    is_refused: bool,
    tried: Option<Instant>,
    tries: u32,
}

/// Search of the heap for arenas older than the session. It covers gigabytes and runs in its own
/// thread.
#[derive(Debug, Default)]
enum ArenaSearch {
    #[default]
    NotBegun,
    Runs(Receiver<Vec<u64>>),
    Ended,
}

impl ProcessArenas {
    /// Reads the arenas if a reading is due.
    pub(super) fn read(&mut self, tgid: u32, whose: ArenaKind, sink: &mut InputSink) {
        self.follow_search(tgid, whose);
        let (now, mut wanted) = (Instant::now(), sink.state().wanted_arenas(Tgid(tgid), whose.0));
        if self.reading_due(!wanted.is_empty(), now).is_none_or(|due| due > now) {
            return;
        }
        self.tried = Some(now);
        self.tries = self.tries.saturating_add(1);
        if let Err(error) = self.open(tgid, whose) {
            log::info!("process {tgid}: cannot read its arenas, so memory from before the attach is unknown: {error}");
            self.is_refused = true;
        }
        let is_tried_enough = self.tries > QUICK_TRIES;
        let Some(reader) = &self.reader else { return };
        wanted.extend(&self.found);
        wanted.sort_unstable();
        wanted.dedup();
        let allocator_state = reader.read(&wanted);
        // A candidate still unreadable after the quick attempts (1 s) is no arena or is not set up
        // yet; in the second case its events will report it.
        self.found
            .retain(|arena| !is_tried_enough && allocator_state.arenas.iter().all(|book| book.allocator != *arena));
        if !allocator_state.arenas.is_empty() {
            sink.step(Input::Arenas(Box::new(allocator_state)));
        }
    }

    /// Returns when the next work is due. `is_wanted`: the known arenas must be read again.
    pub(super) fn due(&self, is_wanted: bool, now: Instant) -> Option<Instant> {
        let search = match &self.search {
            ArenaSearch::NotBegun => Some(now),
            ArenaSearch::Runs(_) => Some(now + BETWEEN_TRIES),
            ArenaSearch::Ended => None,
        };
        [search.filter(|_| !self.is_refused), self.reading_due(is_wanted, now)].into_iter().flatten().min()
    }

    fn reading_due(&self, is_wanted: bool, now: Instant) -> Option<Instant> {
        if self.is_refused || (!is_wanted && self.found.is_empty()) {
            return None;
        }
        let between = if self.tries < QUICK_TRIES { BETWEEN_TRIES } else { BETWEEN_LATER_TRIES };
        Some(self.tried.map_or(now, |tried| tried + between))
    }

    fn follow_search(&mut self, tgid: u32, whose: ArenaKind) {
        match &self.search {
            ArenaSearch::NotBegun => self.search = begin_search(tgid, whose),
            ArenaSearch::Runs(answer) => match answer.try_recv() {
                Ok(found) => (self.search, self.found) = (ArenaSearch::Ended, found),
                Err(TryRecvError::Disconnected) => self.search = ArenaSearch::Ended,
                Err(TryRecvError::Empty) => {}
            },
            ArenaSearch::Ended => {}
        }
    }

    fn open(&mut self, tgid: u32, whose: ArenaKind) -> io::Result<()> {
        if self.reader.is_none() {
            self.reader = Some(ArenaReader::open(tgid, whose, |framework, path| FRAMEWORKS.is_of(framework, path))?);
        }
        Ok(())
    }
}

fn begin_search(tgid: u32, whose: ArenaKind) -> ArenaSearch {
    let (sender, answer) = channel();
    let thread = thread::Builder::new().name(format!("search {tgid}")).spawn(move || {
        let found = ArenaReader::open(tgid, whose, |framework, path| FRAMEWORKS.is_of(framework, path))
            .map(|reader| reader.search());
        // The receiver is gone if the session has ended.
        let _ = sender.send(found.unwrap_or_default());
    });
    match thread {
        Ok(_) => ArenaSearch::Runs(answer),
        Err(error) => {
            log::warn!("process {tgid}: cannot search its heap for arenas: {error}");
            ArenaSearch::Ended
        }
    }
}
