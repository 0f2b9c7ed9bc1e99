//! Compares ledgers with NVML: computes the bytes charged to a process beyond its seen allocations,
//! and how much of these is explained.
//!
//! `unattributed = used - live`, never clamped. Its known parts:
//! - **before attach**: bytes held at the attach. The number shrinks as they are freed.
//! - **context**: the driver's own memory, learnt per GPU from processes observed from their start.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attribution::device::held_during;
use crate::attribution::process::Process;
use crate::input::DeviceReading;
use crate::words::{GpuUuid, Tgid};

/// NVML's reading of a process on one GPU, with the ledger's value at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChargeReading {
    /// NVML's bytes for the process.
    used_bytes: u64,
    /// The ledger's bytes throughout the reading; `None` if they changed during the reading.
    held_bytes: Option<u64>,
    /// Whether the process was observed from its start.
    from_start: bool,
    /// Whether the remainder is exactly the context of a program that does not share its GPU
    /// context: all records arrived, and no MPS server holds a shared part.
    typical: bool,
}

/// Bytes of a process on a GPU that are older than the attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeforeAttach {
    /// Number of bytes.
    pub bytes: u64,
    /// Whether the bytes include the context, because its size on this GPU is unknown.
    pub includes_context: bool,
}

/// Results of all readings so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reconciliation {
    /// Bytes from before the attach, as of the first reading without changes. Shrinks as older
    /// memory is freed.
    older_bytes: BTreeMap<(Tgid, GpuUuid), i128>,
    /// Ledger bytes throughout the last reading, if they did not change.
    held_bytes: BTreeMap<(Tgid, GpuUuid), u64>,
    /// Bytes reported by calls beyond NVML's charge.
    beyond_bytes: BTreeMap<(Tgid, GpuUuid), u64>,
    /// Smallest remainder, in a reading without changes, of any process observed from its start.
    context_bytes: BTreeMap<GpuUuid, u64>,
}

impl Reconciliation {
    /// Returns what is known of these processes, and of the devices.
    #[must_use]
    pub(crate) fn of(&self, is_one: impl Fn(Tgid) -> bool) -> Self {
        let mut own = self.clone();
        own.older_bytes.retain(|(tgid, _), _| is_one(*tgid));
        own.held_bytes.retain(|(tgid, _), _| is_one(*tgid));
        own.beyond_bytes.retain(|(tgid, _), _| is_one(*tgid));
        own
    }

    /// Compares the ledger of a process with a reading of all devices.
    pub fn compare(&mut self, process: &Process, reading: &DeviceReading) {
        // An older reading may lack allocations made before the attach, or list an earlier process
        // with this number.
        if process.observed_since_ns > reading.begin_ns {
            return;
        }
        for device in &reading.devices {
            let Some(list) = &device.processes else { continue };
            let entry = list.iter().find(|entry| entry.tgid == process.tgid);
            let held_bytes = held_during(process, &device.uuid, reading);
            // An MPS server may be charged for its clients' memory.
            if !process.checkpointed && !list.iter().any(|entry| entry.mps_client) {
                let charged_bytes = entry.map_or(Some(0), |entry| entry.used_bytes);
                self.confirm((process.tgid, device.uuid.clone()), held_bytes, charged_bytes);
            }
            match entry {
                Some(entry) => {
                    let Some(used_bytes) = entry.used_bytes else { continue };
                    let (from_start, typical) = (process.from_start, process.is_exact() && !entry.mps_client);
                    self.observe(
                        process.tgid,
                        &device.uuid,
                        ChargeReading { used_bytes, held_bytes, from_start, typical },
                    );
                }
                None => self.observe_absent(process.tgid, &device.uuid),
            }
        }
    }

    /// Compares the bytes that a process's calls report with NVML's charge: a user's own library
    /// may report anything. `None` means unknown.
    fn confirm(&mut self, key: (Tgid, GpuUuid), held_bytes: Option<u64>, charged_bytes: Option<u64>) {
        let Some((held_bytes, charged_bytes)) = held_bytes.zip(charged_bytes) else { return };
        if held_bytes > charged_bytes {
            self.beyond_bytes.insert(key, held_bytes - charged_bytes);
        } else {
            self.beyond_bytes.remove(&key);
        }
    }

    /// Returns the bytes of a process on a GPU beyond NVML's charge, as of the last reading during
    /// which they did not change.
    pub fn unconfirmed(&self, tgid: Tgid, gpu: &GpuUuid) -> u64 {
        self.beyond_bytes.get(&(tgid, gpu.clone())).copied().unwrap_or(0)
    }

    fn observe(&mut self, tgid: Tgid, gpu: &GpuUuid, reading: ChargeReading) {
        let Some(held_bytes) = reading.held_bytes else {
            self.held_bytes.remove(&(tgid, gpu.clone()));
            return;
        };
        self.held_bytes.insert((tgid, gpu.clone()), held_bytes);
        let remainder = i128::from(reading.used_bytes) - i128::from(held_bytes);
        if reading.from_start {
            self.older_bytes.insert((tgid, gpu.clone()), 0);
            // A context grows for a while and is complete once something is allocated.
            if held_bytes > 0 && reading.typical {
                self.learn_context(gpu, remainder);
            }
        } else {
            // Only bytes of the first reading are older than the attach; bytes added later are not.
            let older = self.older_bytes.entry((tgid, gpu.clone())).or_insert(remainder);
            *older = remainder.min(*older);
        }
    }

    fn learn_context(&mut self, gpu: &GpuUuid, remainder: i128) {
        if let Ok(bytes) = u64::try_from(remainder) {
            let known = self.context_bytes.entry(gpu.clone()).or_insert(bytes);
            *known = bytes.min(*known);
        }
    }

    /// Notes that NVML lists no memory of a process, so none of its memory is older than the
    /// attach.
    fn observe_absent(&mut self, tgid: Tgid, gpu: &GpuUuid) {
        self.held_bytes.remove(&(tgid, gpu.clone()));
        self.older_bytes.entry((tgid, gpu.clone())).or_insert(0);
    }

    /// Drops a process that has exited or called exec.
    pub fn forget(&mut self, tgid: Tgid) {
        self.older_bytes.retain(|(owner, _), _| *owner != tgid);
        self.held_bytes.retain(|(owner, _), _| *owner != tgid);
        self.beyond_bytes.retain(|(owner, _), _| *owner != tgid);
    }

    /// Returns the live bytes at the time of the last reading, for comparison with its used bytes;
    /// `None` if they changed during the reading.
    pub fn held_at_reading(&self, tgid: Tgid, gpu: &GpuUuid) -> Option<u64> {
        self.held_bytes.get(&(tgid, gpu.clone())).copied()
    }

    /// Returns the size of a context on this GPU, which is known once a process was observed there
    /// from its start.
    pub fn context_bytes(&self, gpu: &GpuUuid) -> Option<u64> {
        self.context_bytes.get(gpu).copied()
    }

    /// Returns the known context sizes of all GPUs.
    pub const fn contexts(&self) -> &BTreeMap<GpuUuid, u64> {
        &self.context_bytes
    }

    /// Adds context sizes learnt elsewhere, such as in a recording.
    pub fn know_contexts(&mut self, contexts: BTreeMap<GpuUuid, u64>) {
        self.context_bytes.extend(contexts);
    }

    /// Returns the bytes older than the attach; `None` before the first reading without changes.
    pub fn preexisting(&self, tgid: Tgid, gpu: &GpuUuid) -> Option<BeforeAttach> {
        let older = (*self.older_bytes.get(&(tgid, gpu.clone()))?).max(0);
        let context = self.context_bytes(gpu);
        let bytes = (older - i128::from(context.unwrap_or(0))).max(0);
        Some(BeforeAttach {
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            includes_context: context.is_none() && older > 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BeforeAttach, ChargeReading, Reconciliation};
    use crate::words::{GpuUuid, Tgid};

    fn settled(used_bytes: u64, held_bytes: u64, from_start: bool) -> ChargeReading {
        ChargeReading { used_bytes, held_bytes: Some(held_bytes), from_start, typical: true }
    }

    #[test]
    fn preexisting_bytes_are_taken_at_the_first_poll_and_shrink_with_frees() {
        let (gpu, mut reconciliation) = (GpuUuid::new("GPU-a"), Reconciliation::default());
        reconciliation.observe(Tgid(1), &gpu, settled(1000, 0, false));
        reconciliation.observe(Tgid(1), &gpu, settled(1700, 500, false));
        let before = |reconciliation: &Reconciliation| reconciliation.preexisting(Tgid(1), &gpu);
        assert_eq!(before(&reconciliation), Some(BeforeAttach { bytes: 1000, includes_context: true }));
        reconciliation.observe(Tgid(1), &gpu, settled(1100, 500, false));
        assert_eq!(before(&reconciliation), Some(BeforeAttach { bytes: 600, includes_context: true }));
        reconciliation.observe(Tgid(1), &gpu, settled(1400, 500, false));
        assert_eq!(before(&reconciliation), Some(BeforeAttach { bytes: 600, includes_context: true }));
    }

    #[test]
    fn a_process_seen_from_its_start_teaches_the_context_size_of_its_gpu() {
        let (gpu, mut reconciliation) = (GpuUuid::new("GPU-a"), Reconciliation::default());
        reconciliation.observe(Tgid(1), &gpu, settled(1000, 0, false));
        reconciliation.observe(Tgid(2), &gpu, settled(900, 300, true));
        reconciliation.observe(Tgid(2), &gpu, settled(618, 100, true));
        assert_eq!(reconciliation.context_bytes(&gpu), Some(518));
        let before = reconciliation.preexisting(Tgid(1), &gpu);
        assert_eq!(before, Some(BeforeAttach { bytes: 482, includes_context: false }));
        let before = reconciliation.preexisting(Tgid(2), &gpu);
        assert_eq!(before, Some(BeforeAttach { bytes: 0, includes_context: false }));
    }

    #[test]
    fn context_size_known_beforehand_holds_until_a_smaller_one_is_seen() {
        let (gpu, mut reconciliation) = (GpuUuid::new("GPU-a"), Reconciliation::default());
        reconciliation.know_contexts([(gpu.clone(), 518)].into());
        reconciliation.observe(Tgid(1), &gpu, settled(900, 300, true));
        assert_eq!(reconciliation.contexts(), &[(gpu.clone(), 518)].into());
        reconciliation.observe(Tgid(1), &gpu, settled(800, 300, true));
        assert_eq!(reconciliation.contexts(), &[(gpu, 500)].into());
    }

    #[test]
    fn context_size_is_not_learnt_while_growing_lossy_or_under_mps() {
        let (gpu, mut reconciliation) = (GpuUuid::new("GPU-a"), Reconciliation::default());
        reconciliation.observe(Tgid(1), &gpu, settled(40, 0, true));
        reconciliation.observe(Tgid(2), &gpu, ChargeReading { typical: false, ..settled(400, 300, true) });
        assert_eq!(reconciliation.context_bytes(&gpu), None);
    }

    #[test]
    fn an_unsettled_reading_teaches_nothing() {
        let (gpu, mut reconciliation) = (GpuUuid::new("GPU-a"), Reconciliation::default());
        reconciliation.observe(Tgid(1), &gpu, ChargeReading { held_bytes: None, ..settled(1000, 0, false) });
        assert_eq!(reconciliation.preexisting(Tgid(1), &gpu), None);
    }
}
