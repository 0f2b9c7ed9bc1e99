//! GPU memory that stays charged to exited processes: updated on every NVML reading, reported when
//! it begins and when it is over.

pub mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::attribution::process::Process;
use crate::features::left_behind::view::{LeftBehindChangeView, LeftOnPlace};
use crate::input::{DeviceFacts, place};
use crate::snapshot::build::explained;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::Tgid;

/// Maximum number of changes kept until they are taken. The user with most of them loses the oldest.
const KEPT: usize = 64;
/// Maximum number of exited processes that are followed. More are not reported.
const FOLLOWED: usize = 1024;

/// Exited processes that NVML charges, and the changes that were not taken yet.
#[derive(Clone, Debug, Default)]
pub struct LeftBehindLog {
    /// By process and time of the exit: a number may be reused.
    charged: BTreeMap<(Tgid, u64), LeftBehindChangeView>,
    changes: VecDeque<LeftBehindChangeView>,
}

impl Detector for LeftBehindLog {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        if matches!(event, Event::Reading) {
            self.observe(state);
        }
    }
}

impl LeftBehindLog {
    /// Takes the changes since the last call, oldest first; at most the last 64.
    pub fn take_changes(&mut self) -> VecDeque<LeftBehindChangeView> {
        std::mem::take(&mut self.changes)
    }

    fn observe(&mut self, state: &State) {
        let devices = &state.reading.devices;
        let over: Vec<_> =
            self.charged.keys().copied().filter(|key| is_over(*key, &self.charged[key], state)).collect();
        for key in over {
            if let Some(gone) = self.charged.remove(&key) {
                self.keep(LeftBehindChangeView { time_ns: state.reading.begin_ns, is_gone: true, ..gone });
            }
        }
        let listed = devices.iter().flat_map(|device| device.processes.iter().flatten());
        let charged = listed.filter(|entry| entry.used_bytes > Some(0)).map(|entry| entry.tgid);
        let exited: BTreeSet<Tgid> = charged.filter(|tgid| state.ended.contains(*tgid)).collect();
        for process in exited.into_iter().filter_map(|tgid| state.ended.last(tgid)) {
            let Some(seen) = seen(process, state) else { continue };
            let key = (seen.process.tgid, seen.ended_ns);
            if let Some(known) = self.charged.get_mut(&key) {
                (known.gpus, known.forked, known.foreign) = (seen.gpus, seen.forked, seen.foreign);
            } else if self.charged.len() < FOLLOWED {
                self.charged.insert(key, seen.clone());
                self.keep(seen);
            }
        }
    }

    fn keep(&mut self, change: LeftBehindChangeView) {
        if self.changes.len() >= KEPT {
            let count = |uid| self.changes.iter().filter(|one| one.process.uid == uid).count();
            let most = self.changes.iter().rev().map(|one| one.process.uid).max_by_key(|uid| count(*uid));
            let oldest = most.and_then(|uid| self.changes.iter().position(|one| one.process.uid == uid));
            oldest.map(|at| self.changes.remove(at));
        }
        self.changes.push_back(change);
    }
}

/// Returns what NVML charges to an exited process now; `None` if nothing.
fn seen(process: &Process, state: &State) -> Option<LeftBehindChangeView> {
    let around = state.surroundings();
    let left = explained::left_behind(&around, process)?;
    let device = |uuid| state.reading.devices.iter().find(|device: &&DeviceFacts| device.uuid == uuid);
    let gpus = left.gpus.into_iter().filter_map(|own| {
        let device = device(own.uuid)?;
        let number = place(device.nvml_index, device.mig.as_ref());
        Some(LeftOnPlace { uuid: device.uuid.clone(), number, used_bytes: own.used_bytes })
    });
    let uid = process.facts.as_ref().and_then(|facts| facts.uid);
    let user_of = |tgid: &Tgid| state.processes.get(tgid)?.facts.as_ref()?.uid;
    let foreign = left.forked.iter().copied().filter(|tgid| uid.is_none() || user_of(tgid) != uid).collect();
    let ended_ns = process.ended?.time_ns;
    Some(LeftBehindChangeView {
        time_ns: state.reading.begin_ns,
        process: Box::new(around.process(process).identity()),
        is_gone: false,
        ended_ns,
        is_exit_seen: ended_ns >= state.attached_ns,
        since_ns: state.reading.begin_ns,
        gpus: gpus.collect(),
        forked: left.forked,
        foreign,
    })
}

/// Whether NVML has stopped charging the process: its number is another's, or its GPUs do not list
/// it. A GPU that is absent or gives no list says nothing.
fn is_over((tgid, ended_ns): (Tgid, u64), known: &LeftBehindChangeView, state: &State) -> bool {
    let is_of_another =
        state.ended.last(tgid).and_then(|process| process.ended).is_some_and(|ended| ended.time_ns != ended_ns);
    if is_of_another || state.processes.contains_key(&tgid) {
        return true;
    }
    known.gpus.iter().all(|own| {
        let device = state.reading.devices.iter().find(|device| device.uuid == own.uuid);
        let list = device.and_then(|device| device.processes.as_ref());
        list.is_some_and(|list| !list.iter().any(|entry| entry.tgid == tgid && entry.used_bytes != Some(0)))
    })
}
