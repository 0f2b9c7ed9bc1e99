//! Reads the kernel half's loss counters.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, MapData};
use aya::{Ebpf, Pod};
use memwatch_common::loss::Loss;
use memwatch_common::shares::{LossCount, NOBODY, SharedTable};
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;
use serde::{Deserialize, Serialize};

use super::load::LoadError;
use super::shares::{GiveBack, processes_of};

#[derive(Clone, Copy)]
#[repr(transparent)]
struct LossEntry(LossCount);

// SAFETY: the type is two words, for which every bit pattern is valid.
unsafe impl Pod for LossEntry {}

/// Counts already passed on as inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReportedLosses {
    by_process: Vec<(u64, u64)>,
    total: Vec<(u32, u64)>,
}

/// Reader of the counters. It stores the counts already passed on.
pub(crate) struct LossCounters {
    by_process: HashMap<MapData, u64, LossEntry>,
    by_owner: HashMap<MapData, u64, u64>,
    owners: OwnerLosses,
    give_back: GiveBack,
    total: Array<MapData, u64>,
    reported: BTreeMap<u64, u64>,
    reported_total: BTreeMap<Loss, u64>,
}

impl LossCounters {
    /// Opens the counters of the loaded kernel half.
    pub(crate) fn open(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let by_process = ebpf.take_map("LOST").ok_or(LoadError::Missing("LOST"))?;
        let by_owner = ebpf.take_map("LOST_BY_OWNER").ok_or(LoadError::Missing("LOST_BY_OWNER"))?;
        let total = ebpf.take_map("LOST_TOTAL").ok_or(LoadError::Missing("LOST_TOTAL"))?;
        Ok(Self {
            by_process: HashMap::try_from(by_process)?,
            by_owner: HashMap::try_from(by_owner)?,
            owners: OwnerLosses::default(),
            give_back: GiveBack::open(ebpf)?,
            total: Array::try_from(total)?,
            reported: BTreeMap::new(),
            reported_total: BTreeMap::new(),
        })
    }

    /// Returns the counts passed on so far: by process and loss, and in total by loss.
    pub(crate) fn reported(&self) -> ReportedLosses {
        let by_process = self.reported.iter().map(|(key, count)| (*key, *count)).collect();
        let total = self.reported_total.iter().map(|(loss, count)| (*loss as u32, *count)).collect();
        ReportedLosses { by_process, total }
    }

    /// Restores the counts passed on by the previous memwatch.
    pub(crate) fn restore(&mut self, reported: &ReportedLosses) {
        self.reported = reported.by_process.iter().copied().collect();
        let total = reported.total.iter().filter_map(|(loss, count)| Some((Loss::from_number(*loss)?, *count)));
        self.reported_total = total.collect();
    }

    /// Returns the losses since the last call.
    ///
    /// The totals are read first. A loss counted after that is in the table by process, and so
    /// never taken for a loss without a process.
    ///
    /// Counters of exited processes are given back after they were read. If an owner has no
    /// counters left, the loss counts for each process of that owner, and for no other process.
    pub(crate) fn poll(&mut self, is_alive: impl Fn(u32) -> bool) -> Vec<Input> {
        let new_total = self.new_totals();
        let mut inputs = if new_total.is_empty() { Vec::new() } else { self.read(new_total) };
        inputs.extend(self.owners.take(Instant::now(), |owner| processes_of(owner, Path::new("/proc"))));
        self.give_back(is_alive);
        inputs
    }

    fn read(&mut self, mut new_total: BTreeMap<Loss, u64>) -> Vec<Input> {
        let mut inputs = Vec::new();
        let counted: Vec<(u64, u64)> =
            self.by_process.iter().flatten().map(|(key, LossEntry(lost))| (key, lost.count)).collect();
        let of_owners: Vec<(u64, u64)> =
            self.by_owner.iter().flatten().map(|(key, count)| (key | OF_OWNER, count)).collect();
        for (key, count) in counted.into_iter().chain(of_owners) {
            let (whose, number) = split(key & !OF_OWNER);
            let Some(loss) = Loss::from_number(number) else { continue };
            let known = self.reported.entry(key).or_insert(0);
            let new = count.saturating_sub(*known);
            *known = count;
            if new > 0 {
                if key & OF_OWNER == 0 {
                    inputs.push(Input::Lost { tgid: Some(Tgid(whose)), loss, count: new });
                } else {
                    self.owners.note(whose, loss, new);
                }
                let ownerless = new_total.entry(loss).or_insert(0);
                *ownerless = ownerless.saturating_sub(new);
                *self.reported_total.entry(loss).or_insert(0) += new;
            }
        }
        for (loss, count) in new_total.into_iter().filter(|(_, count)| *count > 0) {
            // Both tables were full, so the process is unknown.
            *self.reported_total.entry(loss).or_insert(0) += count;
            inputs.push(Input::Lost { tgid: None, loss, count });
        }
        inputs
    }

    fn give_back(&mut self, is_alive: impl Fn(u32) -> bool) {
        let by_process = &mut self.by_process;
        let mut owners = Vec::new();
        self.reported.retain(|key, reported| {
            if key & OF_OWNER != 0 {
                return true;
            }
            let Ok(LossEntry(lost)) = by_process.get(key, 0) else { return is_alive(split(*key).0) };
            // If the count has risen since, the next poll reads it.
            let kept = lost.count > *reported || is_alive(split(*key).0);
            if !kept && by_process.remove(key).is_ok() {
                owners.push(u32::try_from(lost.owner).unwrap_or(NOBODY));
            }
            kept
        });
        self.give_back.give_all(SharedTable::Losses, owners.into_iter());
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

/// Losses by owner, of processes that have no counters of their own.
#[derive(Debug, Default)]
struct OwnerLosses {
    new: BTreeMap<(u32, Loss), u64>,
    handed_over: Option<Instant>,
}

/// Minimum interval between two searches for an owner's processes, which visit all processes.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

impl OwnerLosses {
    fn note(&mut self, owner: u32, loss: Loss, count: u64) {
        *self.new.entry((owner, loss)).or_insert(0) += count;
    }

    /// Takes all losses, once for each running process of the owner. Does so at most once per
    /// [`LOOK_PAUSE`].
    fn take(&mut self, now: Instant, processes: impl Fn(u32) -> Vec<u32>) -> Vec<Input> {
        if self.new.is_empty() || self.handed_over.is_some_and(|before| now < before + LOOK_PAUSE) {
            return Vec::new();
        }
        self.handed_over = Some(now);
        let mut of_owner = BTreeMap::<u32, Vec<u32>>::new();
        let mut inputs = Vec::new();
        for ((owner, loss), count) in std::mem::take(&mut self.new) {
            let own = of_owner.entry(owner).or_insert_with(|| processes(owner));
            inputs.extend(own.iter().map(|tgid| Input::Lost { tgid: Some(Tgid(*tgid)), loss, count }));
        }
        inputs
    }
}

/// Bit that marks a key as one of an owner instead of a process. Loss numbers are smaller.
const OF_OWNER: u64 = 1 << 31;

/// Splits a key of the kernel half, `tgid << 32 | loss`.
fn split(key: u64) -> (u32, u32) {
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (low(key >> 32), low(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_of_an_owner_is_charged_to_each_of_their_processes() {
        let mut owners = OwnerLosses::default();
        let now = Instant::now();
        owners.note(1001, Loss::InFlightFull, 5);
        owners.note(1001, Loss::RingFull, 1);
        owners.note(1001, Loss::InFlightFull, 2);
        let processes = |owner| if owner == 1001 { vec![7, 9] } else { Vec::new() };
        let lost = |tgid, loss, count| Input::Lost { tgid: Some(Tgid(tgid)), loss, count };
        let expected = [
            lost(7, Loss::RingFull, 1),
            lost(9, Loss::RingFull, 1),
            lost(7, Loss::InFlightFull, 7),
            lost(9, Loss::InFlightFull, 7),
        ];
        assert_eq!(owners.take(now, processes), expected);
        owners.note(1001, Loss::RingFull, 3);
        assert_eq!(owners.take(now, processes), [], "a look at all processes takes its time");
        assert_eq!(owners.take(now + LOOK_PAUSE, processes).len(), 2);
        assert_eq!(owners.take(now + LOOK_PAUSE * 2, processes), []);
    }
}
