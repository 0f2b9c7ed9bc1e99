//! Selects the processes in which PyTorch is traced in a machine-wide session: by name, container,
//! pod, job or user.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memwatch_core::Pipeline;
use memwatch_core::words::Tgid;

use crate::watch::selection::Selection;

/// Interval for checking an unselected process again: an exec or the answer of a container runtime
/// may change its name.
const AGAIN: Duration = Duration::from_millis(500);

/// Processes selected by name or owner.
#[derive(Debug, Default)]
pub(crate) struct TracedSelection {
    /// `None` if every process is selected.
    selection: Option<Selection>,
    /// When each process was last checked; `None` once selected.
    looked: BTreeMap<u32, Option<Instant>>,
}

impl TracedSelection {
    /// Creates the state. Without a selection every process is selected.
    pub(super) fn new(selection: Option<Selection>) -> Self {
        Self { selection, looked: BTreeMap::new() }
    }

    /// Returns when the next check of an unselected process is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.looked.values().flatten().min().map(|looked| *looked + AGAIN)
    }

    /// Keeps only the selected ones of these processes.
    pub(super) fn retain<T>(&mut self, pipeline: &Pipeline, wanted: &mut BTreeMap<u32, T>) {
        let Self { selection: Some(selection), looked } = self else { return };
        looked.retain(|tgid, _| wanted.contains_key(tgid));
        wanted.retain(|tgid, _| {
            let last = looked.get(tgid).copied();
            if let Some(None) = last {
                return true;
            }
            if last.flatten().is_some_and(|last| last.elapsed() < AGAIN) {
                return false;
            }
            let is_chosen = pipeline.state.process(Tgid(*tgid)).is_some_and(|process| selection.chooses(&process));
            looked.insert(*tgid, (!is_chosen).then(Instant::now));
            is_chosen
        });
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::{Input, ProcessFacts};

    use super::*;
    use crate::options::Choice;

    fn pipeline(names: &[(u32, &str)]) -> Pipeline {
        let mut pipeline = Pipeline::new(false);
        for (tgid, comm) in names {
            let facts = ProcessFacts { tgid: *tgid, comm: (*comm).to_owned(), ..ProcessFacts::default() };
            pipeline.step(Input::Process(facts));
        }
        pipeline
    }

    fn left(named: &mut TracedSelection, pipeline: &Pipeline) -> Vec<u32> {
        let mut wanted: BTreeMap<u32, u32> = pipeline.state.watched().map(|tgid| (tgid.0, tgid.0)).collect();
        named.retain(pipeline, &mut wanted);
        wanted.into_keys().collect()
    }

    #[test]
    fn pytorch_is_traced_in_the_processes_of_a_name_and_in_no_others() {
        let choice = Choice { names: vec!["train.py".to_owned()], ..Choice::default() };
        let mut named = TracedSelection::new(Some(Selection::new(&choice, &[])));
        let first = pipeline(&[(1, "train.py"), (2, "serve.py")]);
        assert_eq!(left(&mut named, &first), [1]);
        assert_eq!(left(&mut named, &pipeline(&[(1, "train.py"), (2, "serve.py"), (3, "train.py")])), [1, 3]);
        assert_eq!(left(&mut named, &pipeline(&[(3, "train.py")])), [3], "what has ended is forgotten");
        assert_eq!(left(&mut TracedSelection::new(None), &first), [1, 2], "without a name all are meant");
    }
}
