//! Beginnings and ends of ranges that the program opens, kept for who replays what happened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::decode::{TensorChange, TensorEvent};
use crate::words::Tid;

/// So many threads, and so many open ranges of each, are followed at most.
const THREADS: usize = 4096;
const OPEN: usize = 256;

/// The beginning or the end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub name: Arc<str>,
    /// It begins.
    pub begins: bool,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// The last of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    all: VecDeque<Mark>,
    open: BTreeMap<Tid, Vec<Arc<str>>>,
    limit: usize,
}

impl Marks {
    pub(super) fn keep(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Mark> {
        self.all.iter()
    }

    pub(super) fn apply(&mut self, event: &TensorEvent) {
        if self.limit == 0 {
            return;
        }
        match &event.what {
            TensorChange::RangeBegins(name) => {
                if self.open.len() >= THREADS {
                    self.open.clear();
                }
                let (open, name) = (self.open.entry(event.tid).or_default(), Arc::from(&**name));
                if open.len() < OPEN {
                    open.push(Arc::clone(&name));
                }
                self.push(Mark { name, begins: true, time_ns: event.time_ns });
            }
            TensorChange::RangeEnds => {
                if let Some(name) = self.open.get_mut(&event.tid).and_then(Vec::pop) {
                    self.push(Mark { name, begins: false, time_ns: event.time_ns });
                }
            }
            _ => {}
        }
    }

    /// Events did not arrive: which ranges are open is not known.
    pub(super) fn lose(&mut self) {
        self.open.clear();
        self.all.clear();
    }

    fn push(&mut self, mark: Mark) {
        self.all.push_back(mark);
        let more = self.all.len().saturating_sub(self.limit);
        self.all.drain(..more);
    }
}
