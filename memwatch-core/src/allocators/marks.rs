//! Keeps the begins and ends of the program's ranges, for replays.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::decode::{TensorChange, TensorEvent};
use crate::words::Tid;

/// Maximum number of threads tracked, and of open ranges per thread.
const THREADS: usize = 4096;
const OPEN: usize = 256;

/// The beginning or the end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeMark {
    /// Name of the range.
    pub name: Arc<str>,
    /// The range begins; otherwise it ends.
    pub begins: bool,
    /// Time of the mark: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// The most recent marks.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    all: VecDeque<RangeMark>,
    open: BTreeMap<Tid, Vec<Arc<str>>>,
    limit: usize,
}

impl Marks {
    pub(super) fn keep(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &RangeMark> {
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
                self.push(RangeMark { name, begins: true, time_ns: event.time_ns });
            }
            TensorChange::RangeEnds => {
                if let Some(name) = self.open.get_mut(&event.tid).and_then(Vec::pop) {
                    self.push(RangeMark { name, begins: false, time_ns: event.time_ns });
                }
            }
            _ => {}
        }
    }

    /// Drops everything after lost events, since the open ranges are unknown.
    pub(super) fn lose(&mut self) {
        self.open.clear();
        self.all.clear();
    }

    fn push(&mut self, mark: RangeMark) {
        self.all.push_back(mark);
        let more = self.all.len().saturating_sub(self.limit);
        self.all.drain(..more);
    }
}
