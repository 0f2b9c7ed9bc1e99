//! What the view is at: which page, which row, which history. It knows no terminal.

use std::collections::{BTreeMap, VecDeque};

use memwatch_core::snapshot::{ProcessView, Snapshot};
use memwatch_core::words::{GpuUuid, Tgid};

use crate::render::order::by_holding;

/// So many snapshots back goes the history of live bytes.
const REMEMBERED: usize = 120;

/// A process in the views: its id alone may come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessKey {
    tgid: Tgid,
    observed_since_ns: u64,
}

impl ProcessKey {
    /// The key of a process.
    pub(crate) fn of(process: &ProcessView) -> Self {
        Self { tgid: process.tgid, observed_since_ns: process.observed_since_ns }
    }
}

/// A row of the list: a process on a GPU, or a process without any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The process.
    pub(crate) key: ProcessKey,
    /// Its place in the snapshot.
    pub(crate) process: usize,
    /// The GPU's place in the process.
    pub(crate) gpu: Option<usize>,
}

/// What the screen shows below the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// All processes in a table.
    List,
    /// One process.
    Process(ProcessKey),
    /// All processes, one below the other.
    Blocks,
}

/// One step of a person through the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One page up.
    PageUp,
    /// One page down.
    PageDown,
    /// To the first row.
    First,
    /// To the last row.
    Last,
    /// Into the selected row.
    Open,
    /// Out of the page.
    Back,
    /// Stop or go on.
    Pause,
    /// The help page, or away from it.
    Help,
}

/// The view's state.
#[derive(Debug)]
pub(crate) struct State {
    page: Page,
    help: bool,
    paused: bool,
    rows: Vec<Row>,
    selected: usize,
    /// The first line shown of a page that scrolls.
    top: usize,
    /// Lines that a page has room for, as of the last drawing.
    height: usize,
    histories: BTreeMap<(ProcessKey, Option<GpuUuid>), VecDeque<u64>>,
}

impl State {
    /// At the beginning: the list, or the blocks of what is watched.
    pub(crate) fn new(blocks: bool) -> Self {
        Self {
            page: if blocks { Page::Blocks } else { Page::List },
            help: false,
            paused: false,
            rows: Vec::new(),
            selected: 0,
            top: 0,
            height: 0,
            histories: BTreeMap::new(),
        }
    }

    /// The page under the help page, if that is open.
    pub(crate) fn page(&self) -> Page {
        self.page
    }

    /// The process that is open alone.
    pub(crate) fn process(&self) -> Option<Tgid> {
        if let Page::Process(key) = self.page { Some(key.tgid) } else { None }
    }

    /// The help page is open.
    pub(crate) fn is_help(&self) -> bool {
        self.help
    }

    /// New snapshots are not shown.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The rows of the list, in order.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The place of the selected row.
    pub(crate) fn selected(&self) -> usize {
        self.selected
    }

    /// The live bytes of a process on a GPU, snapshot by snapshot, the last at the end.
    pub(crate) fn history(&self, key: ProcessKey, uuid: Option<&GpuUuid>) -> Option<&VecDeque<u64>> {
        self.histories.get(&(key, uuid.cloned()))
    }

    /// Takes a snapshot into the histories; those of processes that are no longer there are dropped.
    pub(crate) fn remember(&mut self, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.histories);
        for process in &snapshot.processes {
            for gpu in &process.gpus {
                let key = (ProcessKey::of(process), gpu.uuid.clone());
                let mut history = before.remove(&key).unwrap_or_default();
                if process.ended_ns.is_none() || history.is_empty() {
                    history.push_back(gpu.live_bytes);
                }
                if history.len() > REMEMBERED {
                    history.pop_front();
                }
                self.histories.insert(key, history);
            }
        }
    }

    /// Orders the list for a snapshot. The selection stays with its process.
    pub(crate) fn arrange(&mut self, snapshot: &Snapshot) {
        let old = self.rows.get(self.selected).map(|row| (row.key, row.gpu));
        let places: BTreeMap<_, _> =
            (0..).zip(&snapshot.processes).map(|(at, process)| (ProcessKey::of(process), at)).collect();
        self.rows.clear();
        for process in by_holding(snapshot) {
            let key = ProcessKey::of(process);
            let row = |gpu| Row { key, process: places[&key], gpu };
            match process.gpus.len() {
                0 => self.rows.push(row(None)),
                gpus => self.rows.extend((0..gpus).map(|gpu| row(Some(gpu)))),
            }
        }
        let again = old.and_then(|old| self.rows.iter().position(|row| (row.key, row.gpu) == old));
        self.selected = again.unwrap_or(self.selected).min(self.rows.len().saturating_sub(1));
        if let Page::Process(key) = self.page
            && !places.contains_key(&key)
        {
            self.turn_to(Page::List);
        }
    }

    /// Takes the room of a page and its number of lines into account; afterwards [`State::top`] is right.
    pub(crate) fn fit(&mut self, lines: usize, height: usize) {
        self.height = height;
        if self.page == Page::List && !self.help {
            self.top = self.top.clamp((self.selected + 1).saturating_sub(height.max(1)), self.selected);
        }
        self.top = self.top.min(lines.saturating_sub(height));
    }

    /// The first line of the page that is shown.
    pub(crate) fn top(&self) -> usize {
        self.top
    }

    /// Does a step.
    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Up => self.go(|at, _| at.saturating_sub(1)),
            Step::Down => self.go(|at, _| at.saturating_add(1)),
            Step::PageUp => self.go(usize::saturating_sub),
            Step::PageDown => self.go(usize::saturating_add),
            Step::First => self.go(|_, _| 0),
            Step::Last => self.go(|_, _| usize::MAX),
            Step::Pause => self.paused = !self.paused,
            Step::Help => {
                self.help = !self.help;
                self.top = 0;
            }
            Step::Back if self.help => self.take(Step::Help),
            Step::Back => self.turn_to(Page::List),
            Step::Open if self.page == Page::List && !self.help => {
                if let Some(row) = self.rows.get(self.selected) {
                    self.turn_to(Page::Process(row.key));
                }
            }
            Step::Open => {}
        }
    }

    /// Moves the selection of the list, or the text of another page; the argument after the place is a page's height.
    fn go(&mut self, to: impl Fn(usize, usize) -> usize) {
        let page = self.height.max(1);
        if self.page == Page::List && !self.help {
            self.selected = to(self.selected, page).min(self.rows.len().saturating_sub(1));
        } else {
            self.top = to(self.top, page);
        }
    }

    fn turn_to(&mut self, page: Page) {
        if self.page != page {
            self.page = page;
            self.top = 0;
        }
    }
}

#[cfg(test)]
mod tests;
