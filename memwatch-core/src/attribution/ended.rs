//! Exited processes that are still reported, in the order in which they exited.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::attribution::process::Process;
use crate::words::Tgid;

/// List of exited processes. Boxed, so that dropping the first ones moves little; indexed by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndedProcesses {
    #[expect(clippy::vec_box, reason = "the first go all the time, and the others would move by kilobytes each")]
    all: Vec<Box<Process>>,
    /// Numbers of the processes in the list.
    numbers: BTreeSet<Tgid>,
}

impl EndedProcesses {
    /// Appends a process that has just exited.
    pub(crate) fn push(&mut self, process: Process) {
        self.numbers.insert(process.tgid);
        self.all.push(Box::new(process));
    }

    /// Keeps the processes for which `stays` returns true. They are visited in order.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&Process) -> bool) {
        let before = self.all.len();
        self.all.retain(|process| stays(process));
        if self.all.len() < before {
            self.number();
        }
    }

    /// Keeps the last `most` processes.
    pub(crate) fn keep_last(&mut self, most: usize) {
        let surplus = self.all.len().saturating_sub(most);
        if surplus > 0 {
            self.all.drain(..surplus);
            self.number();
        }
    }

    fn number(&mut self) {
        self.numbers = self.iter().map(|process| process.tgid).collect();
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

    /// Whether a process had this number.
    pub(crate) fn contains(&self, tgid: Tgid) -> bool {
        self.numbers.contains(&tgid)
    }

    /// Returns the last process with this number.
    pub(crate) fn last(&self, tgid: Tgid) -> Option<&Process> {
        self.contains(tgid).then(|| self.iter().rfind(|process| process.tgid == tgid))?
    }

    /// Returns mutable access to the last process with this number.
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
        let mut ended = Self { all: Vec::deserialize(deserializer)?, numbers: BTreeSet::new() };
        ended.number();
        Ok(ended)
    }
}
