//! The kernel half's counters of records that did not arrive.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData};
use memwatch_common::loss::Loss;
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;
use serde::{Deserialize, Serialize};

use super::load::LoadError;

/// What was reported of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reported {
    by_process: Vec<(u64, u64)>,
    total: Vec<(u32, u64)>,
}

/// Reads the counters and remembers what was reported.
pub(crate) struct LossCounters {
    by_process: HashMap<MapData, u64, u64>,
    total: Array<MapData, u64>,
    reported: BTreeMap<u64, u64>,
    reported_total: BTreeMap<Loss, u64>,
}

impl LossCounters {
    /// Takes the counters of the loaded kernel half.
    pub(crate) fn open(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let by_process = ebpf.take_map("LOST").ok_or(LoadError::Missing("LOST"))?;
        let total = ebpf.take_map("LOST_TOTAL").ok_or(LoadError::Missing("LOST_TOTAL"))?;
        Ok(Self {
            by_process: HashMap::try_from(by_process)?,
            total: Array::try_from(total)?,
            reported: BTreeMap::new(),
            reported_total: BTreeMap::new(),
        })
    }

    /// What was reported so far: by process and loss as the kernel half counts them, and in total by loss.
    pub(crate) fn reported(&self) -> Reported {
        let by_process = self.reported.iter().map(|(key, count)| (*key, *count)).collect();
        let total = self.reported_total.iter().map(|(loss, count)| (*loss as u32, *count)).collect();
        Reported { by_process, total }
    }

    /// So much was reported by a process before this one.
    pub(crate) fn restore(&mut self, reported: &Reported) {
        self.reported = reported.by_process.iter().copied().collect();
        let total = reported.total.iter().filter_map(|(loss, count)| Some((Loss::from_number(*loss)?, *count)));
        self.reported_total = total.collect();
    }

    /// What was lost since the last call.
    ///
    /// The totals are read first: a loss counted in between is then in the per-process table already, and never seen as ownerless.
    ///
    /// The counters of processes that are not alive any more are given back once they have been read.
    pub(crate) fn poll(&mut self, is_alive: impl Fn(u32) -> bool) -> Vec<Input> {
        let new_total = self.new_totals();
        let inputs = if new_total.is_empty() { Vec::new() } else { self.read(new_total) };
        self.give_back(is_alive);
        inputs
    }

    fn read(&mut self, mut new_total: BTreeMap<Loss, u64>) -> Vec<Input> {
        let mut inputs = Vec::new();
        let counted: Vec<(u64, u64)> = self.by_process.iter().flatten().collect();
        for (key, count) in counted {
            let (tgid, number) = split(key);
            let Some(loss) = Loss::from_number(number) else { continue };
            let known = self.reported.entry(key).or_insert(0);
            let new = count.saturating_sub(*known);
            *known = count;
            if new > 0 {
                inputs.push(Input::Lost { tgid: Some(Tgid(tgid)), loss, count: new });
                let ownerless = new_total.entry(loss).or_insert(0);
                *ownerless = ownerless.saturating_sub(new);
                *self.reported_total.entry(loss).or_insert(0) += new;
            }
        }
        for (loss, count) in new_total.into_iter().filter(|(_, count)| *count > 0) {
            // The per-process table was full: nobody knows whose these were.
            *self.reported_total.entry(loss).or_insert(0) += count;
            inputs.push(Input::Lost { tgid: None, loss, count });
        }
        inputs
    }

    fn give_back(&mut self, is_alive: impl Fn(u32) -> bool) {
        let by_process = &mut self.by_process;
        self.reported.retain(|key, reported| {
            // A count that has grown since is read by the next poll.
            let unread = by_process.get(key, 0).is_ok_and(|count| count > *reported);
            let kept = unread || is_alive(split(*key).0);
            if !kept {
                // Absent is as good as removed.
                let _ = by_process.remove(key);
            }
            kept
        });
    }

    fn new_totals(&self) -> BTreeMap<Loss, u64> {
        let new = |loss: Loss| {
            let count = self.total.get(&(loss as u32), 0).unwrap_or(0);
            let known = self.reported_total.get(&loss).copied().unwrap_or(0);
            (count > known).then_some((loss, count - known))
        };
        Loss::ALL.into_iter().filter_map(new).collect()
    }
}

/// `tgid << 32 | loss`, as the kernel half makes its keys.
fn split(key: u64) -> (u32, u32) {
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (low(key >> 32), low(key))
}
