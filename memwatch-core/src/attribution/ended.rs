//! The processes that have ended and are remembered, in the order of their ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::attribution::process::Process;
use crate::words::Tgid;

/// Each has a place of its own, so that thousands of them cost little to move, and is found by its number.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndedProcesses {
    #[expect(clippy::vec_box, reason = "the first go all the time, and the others would move by kilobytes each")]
    all: Vec<Box<Process>>,
    /// How many have each number.
    numbers: BTreeMap<Tgid, usize>,
}

impl EndedProcesses {
    /// Adds the one that has just ended.
    pub(crate) fn push(&mut self, process: Process) {
        *self.numbers.entry(process.tgid).or_default() += 1;
        self.all.push(Box::new(process));
    }

    /// Keeps those of which `stays` is true, asking from the first to end to the last.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&Process) -> bool) {
        let before = self.all.len();
        self.all.retain(|process| stays(process));
        if self.all.len() < before {
            self.number();
        }
    }

    fn number(&mut self) {
        self.numbers.clear();
        for process in &self.all {
            *self.numbers.entry(process.tgid).or_default() += 1;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Process> + Clone {
        self.all.iter().map(Box::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Process> {
        self.all.iter_mut().map(Box::as_mut)
    }

    /// Whether one had this number.
    pub(crate) fn contains(&self, tgid: Tgid) -> bool {
        self.numbers.contains_key(&tgid)
    }

    /// The last one with this number.
    pub(crate) fn last(&self, tgid: Tgid) -> Option<&Process> {
        self.contains(tgid).then(|| self.iter().rfind(|process| process.tgid == tgid))?
    }

    /// The same, to be changed.
    pub(crate) fn last_mut(&mut self, tgid: Tgid) -> Option<&mut Process> {
        self.contains(tgid).then(|| self.iter_mut().rfind(|process| process.tgid == tgid))?
    }
}

impl Serialize for EndedProcesses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EndedProcesses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut ended = Self { all: Vec::deserialize(deserializer)?, numbers: BTreeMap::new() };
        ended.number();
        Ok(ended)
    }
}
