//! When the own books of a process's arenas are read: once at the attach, where it had them before, and whenever what was followed lacks something.
//!
//! It happens between two fetches of the ring, as with PyTorch's books.

use std::io;
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use super::intake::Intake;
use crate::frameworks::bfc::{ArenaLayout, ArenaReader};
use crate::frameworks::pytorch::has_arenas;

/// Between two tries, the first of which come more quickly.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
const QUICK_TRIES: u32 = 50;
const BETWEEN_LATER_TRIES: Duration = Duration::from_secs(1);

/// The arenas of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessArenas {
    reader: Option<ArenaReader>,
    /// What the heap has shown, until it was read.
    searched: Option<Vec<u64>>,
    is_refused: bool,
    tried: Option<Instant>,
    tries: u32,
}

impl ProcessArenas {
    /// Reads them where they say more than is known; `is_late` where the process had them before it was watched.
    pub(super) fn read(&mut self, tgid: u32, (layout, is_late): (ArenaLayout, bool), pipeline: &mut Intake) {
        let between = if self.tries < QUICK_TRIES { BETWEEN_TRIES } else { BETWEEN_LATER_TRIES };
        if self.is_refused || self.tried.is_some_and(|tried| tried.elapsed() < between) {
            return;
        }
        let mut wanted = pipeline.wanted_arenas(Tgid(tgid));
        let is_search_due = is_late && self.searched.is_none();
        if wanted.is_empty() && !is_search_due && self.searched.as_ref().is_none_or(Vec::is_empty) {
            return;
        }
        self.tried = Some(Instant::now());
        self.tries = self.tries.saturating_add(1);
        if let Err(error) = self.open(tgid, layout) {
            log::info!("process {tgid}: what its arenas held before is not known: {error}");
            self.is_refused = true;
            return;
        }
        let is_tried_enough = self.tries > QUICK_TRIES;
        let Some(reader) = &mut self.reader else { return };
        let searched = self.searched.get_or_insert_with(|| if is_late { reader.search() } else { Vec::new() });
        wanted.extend(searched.iter().filter(|arena| !wanted.contains(arena)).copied().collect::<Vec<_>>());
        let books = reader.read(&wanted);
        // What looks like an arena and cannot be read for a second is none, or not finished: its events will say.
        searched.retain(|arena| !is_tried_enough && books.arenas.iter().all(|book| book.allocator != *arena));
        if !books.arenas.is_empty() {
            pipeline.step(Input::Arenas(Box::new(books)));
        }
    }

    fn open(&mut self, tgid: u32, layout: ArenaLayout) -> io::Result<()> {
        if self.reader.is_none() {
            self.reader = Some(ArenaReader::open(tgid, layout, has_arenas)?);
        }
        Ok(())
    }
}
