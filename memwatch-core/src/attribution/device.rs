//! From a process's own name of a device to the GPU's UUID.

use std::collections::BTreeMap;

use crate::input::{DeviceFacts, DeviceReading};
use crate::ledger::pool::Backed;
use crate::ledger::totals::{DeviceRef, DeviceTotals};
use crate::words::{GpuUuid, Tgid};

use super::process::Process;

/// What a process holds on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnGpu {
    /// The GPU, or `None` where it cannot be told.
    pub uuid: Option<GpuUuid>,
    /// The ledger's totals there.
    pub totals: DeviceTotals,
    /// What pools hold there, used or not; `None` where that cannot even be estimated.
    pub pool_backed: Option<Backed>,
}

impl OnGpu {
    /// Another name of the same GPU.
    fn add(&mut self, other: &Self) {
        self.totals = self.totals.merged(&other.totals);
        self.pool_backed = self.pool_backed.zip(other.pool_backed).map(|(own, other)| Backed {
            bytes: own.bytes.saturating_add(other.bytes),
            estimated: own.estimated || other.estimated,
        });
    }
}

/// A process's totals by GPU, those of unknown devices last.
///
/// Where all of a process is on one GPU, the whole-process totals are its, peak included; where several names of one GPU have to be
/// added, the peak is an upper bound.
pub fn by_gpu(process: &Process, devices: &[DeviceFacts]) -> Vec<OnGpu> {
    let mut gpus: BTreeMap<Option<GpuUuid>, OnGpu> = BTreeMap::new();
    for (device, totals) in process.ledger.totals().devices() {
        let uuid = resolve(process, device, devices);
        let pool_backed = process.ledger.pool_backed(device);
        let own = OnGpu { uuid: uuid.clone(), totals: *totals, pool_backed };
        gpus.entry(uuid).and_modify(|sum| sum.add(&own)).or_insert(own);
    }
    if gpus.len() == 1 {
        for row in gpus.values_mut() {
            row.totals = *process.ledger.totals().whole();
        }
    }
    let mut rows: Vec<OnGpu> = gpus.into_values().collect();
    rows.sort_by_key(|row| row.uuid.is_none());
    rows
}

/// The bytes a process held on a GPU all through a reading; `None` where they changed while it was made, or where memory of the
/// process whose GPU cannot be told may be among them.
pub fn held_during(process: &Process, gpu: &GpuUuid, reading: &DeviceReading) -> Option<u64> {
    let totals = process.ledger.totals();
    let held = |device| totals.held_over(device, reading.begin_ns, reading.end_ns);
    let mut sum_bytes = 0_u64;
    for (device, _) in totals.devices() {
        match resolve(process, device, &reading.devices) {
            Some(uuid) if uuid == *gpu => sum_bytes = sum_bytes.saturating_add(held(device)?),
            Some(_) => {}
            None if held(device) == Some(0) => {}
            None => return None,
        }
    }
    Some(sum_bytes)
}

/// The GPU behind a device reference.
///
/// First what the program itself was told (`cuDeviceGetUuid`); then, where NVML shows the process on exactly one GPU or the machine
/// has but one, that one.
fn resolve(process: &Process, device: DeviceRef, devices: &[DeviceFacts]) -> Option<GpuUuid> {
    if let DeviceRef::Ordinal(ordinal) = device
        && let Some(bytes) = process.ledger.uuid_of(ordinal)
    {
        return Some(GpuUuid::from_bytes(bytes));
    }
    match devices {
        [only] => Some(only.uuid.clone()),
        _ => listed_on(process.tgid, devices),
    }
}

fn listed_on(tgid: Tgid, devices: &[DeviceFacts]) -> Option<GpuUuid> {
    let lists = |device: &&DeviceFacts| device.processes.iter().flatten().any(|entry| entry.tgid == tgid);
    let mut listing = devices.iter().filter(lists);
    match (listing.next(), listing.next()) {
        (Some(only), None) => Some(only.uuid.clone()),
        _ => None,
    }
}
