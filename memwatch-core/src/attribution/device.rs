//! Resolves a process's device references to GPU UUIDs.

use std::collections::{BTreeMap, BTreeSet};

use crate::input::{DeviceFacts, DeviceReading};
use crate::kernel_driver::objects::DriverDevice;
use crate::kernel_driver::process_ledger::DriverLedger;
use crate::ledger::context::DeviceAnswers;
use crate::ledger::pool::Backed;
use crate::ledger::refusals::Refusals;
use crate::ledger::totals::{DeviceRef, DeviceTotals};
use crate::words::{GpuUuid, PciAddress, Tgid};

use super::process::Process;
use super::visible;

/// Memory of a process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnGpu {
    /// UUID of the GPU; `None` if unknown.
    pub uuid: Option<GpuUuid>,
    /// Totals of the ledger on this GPU.
    pub totals: DeviceTotals,
    /// Bytes that pools hold, used or not; `None` if that cannot even be estimated.
    pub pool_backed: Option<Backed>,
    /// Requests that the driver refused.
    pub refusals: Refusals,
}

impl OnGpu {
    /// Merges another reference to the same GPU.
    fn add(&mut self, other: &Self) {
        self.totals = self.totals.merged(&other.totals);
        self.refusals.add(&other.refusals);
        self.pool_backed = self.pool_backed.zip(other.pool_backed).map(|(own, other)| Backed {
            bytes: own.bytes.saturating_add(other.bytes),
            estimated: own.estimated || other.estimated,
        });
    }
}

/// Returns the totals of a process by GPU, with unknown devices last.
///
/// If all memory of a process is on one GPU, that GPU gets the whole-process totals, including the
/// peak. If several references to one GPU have to be added, the peak is an upper bound.
pub fn by_gpu(process: &Process, devices: &[DeviceFacts]) -> Vec<OnGpu> {
    let mut gpus: BTreeMap<Option<GpuUuid>, OnGpu> = BTreeMap::new();
    for (device, totals) in process.ledger.totals().devices() {
        let uuid = resolve(process, device, devices);
        let pool_backed = process.ledger.pool_backed(device);
        let refusals = process.ledger.totals().refusals(device).cloned().unwrap_or_default();
        let own = OnGpu { uuid: uuid.clone(), totals: *totals, pool_backed, refusals };
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

/// Returns the bytes that a process held on a GPU throughout a reading; `None` if they changed
/// during the reading, or if memory of the process on an unknown GPU may be among them.
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

/// Returns the video memory in bytes that a process had from the kernel driver on a GPU throughout
/// a reading; `None` if it changed during the reading, or if memory on an unknown GPU may be part
/// of it.
pub fn charged_during(ledger: &DriverLedger, tgid: Tgid, gpu: &GpuUuid, reading: &DeviceReading) -> Option<u64> {
    let mut sum_bytes = 0_u64;
    for (place, held_bytes) in ledger.held_over(reading.begin_ns, reading.end_ns) {
        match resolve_place(place, tgid, &reading.devices) {
            Some(uuid) if uuid == *gpu => sum_bytes = sum_bytes.saturating_add(held_bytes?),
            Some(_) => {}
            None if held_bytes == Some(0) => {}
            None => return None,
        }
    }
    Some(sum_bytes)
}

/// Returns the GPU of a kernel driver device: from its own ioctls, or its MIG instance; otherwise
/// the only GPU of the machine, or the only one on which NVML lists the process.
pub fn resolve_place(place: &DriverDevice, tgid: Tgid, devices: &[DeviceFacts]) -> Option<GpuUuid> {
    if place.contradictory {
        return None;
    }
    let candidates: Vec<_> = match &place.uuid {
        Some(uuid) if devices.iter().any(|device| device.uuid == *uuid) => return Some(uuid.clone()),
        Some(uuid) => devices.iter().filter(|device| is_instance(device, uuid, place)).collect(),
        None => devices.iter().collect(),
    };
    // Without NVML, the identity that the device reported is all that is known.
    let unlisted = || place.uuid.clone().filter(|_| candidates.is_empty());
    only(&candidates).or_else(|| listed_on(tgid, &candidates)).or_else(unlisted)
}

fn is_instance(device: &DeviceFacts, parent: &GpuUuid, place: &DriverDevice) -> bool {
    let is_same = |own: Option<u32>, seen: Option<u32>| own.zip(seen).is_none_or(|(own, seen)| own == seen);
    device.mig.as_ref().is_some_and(|mig| {
        mig.parent_uuid == *parent
            && is_same(mig.gpu_instance_id, place.gpu_instance)
            && is_same(mig.compute_instance_id, place.compute_instance)
    })
}

/// Stores the GPUs of a living process for the time after its exit, when NVML does not list it.
pub fn remember(process: &mut Process, devices: &[DeviceFacts]) {
    let known =
        process.ledger.totals().devices().filter_map(|(device, _)| Some((device, resolve(process, device, devices)?)));
    let known: Vec<_> = known.collect();
    process.last_gpus.extend(known);
}

/// Returns the GPU of a device reference; `None` without proof.
///
/// The driver's answers to the program (`cuDeviceGetUuid`, `cuDeviceGetPCIBusId`) come first. Next,
/// if NVML lists the process on exactly one GPU or the machine has only one GPU, it is that one.
/// Last comes the program's `CUDA_VISIBLE_DEVICES`, unless NVML contradicts it.
pub fn resolve(process: &Process, device: DeviceRef, devices: &[DeviceFacts]) -> Option<GpuUuid> {
    let reported = match device {
        DeviceRef::Ordinal(ordinal) => process.ledger.reported(ordinal),
        DeviceRef::Unknown => None,
    };
    let candidates = match reported.map_or(DriverAnswer::Silent, |reported| by_answers(reported, devices)) {
        DriverAnswer::Gpu(uuid) => return Some(uuid),
        DriverAnswer::Elsewhere => return None,
        DriverAnswer::OneOf(instances) => instances,
        DriverAnswer::Silent => devices.iter().collect(),
    };
    if process.ended.is_some() {
        return process.last_gpus.get(&device).cloned().or_else(|| only(&candidates));
    }
    only(&candidates).or_else(|| listed_on(process.tgid, &candidates)).or_else(|| {
        let DeviceRef::Ordinal(ordinal) = device else { return None };
        let visibility = process.facts.as_ref()?.visibility.as_ref()?;
        let named = visible::gpu(process.tgid, ordinal, visibility, devices)?;
        candidates.iter().any(|device| device.uuid == named).then_some(named)
    })
}

/// Checks whether NVML lists the process on several devices while the device of some of its threads
/// is unknown.
///
/// A process attached late is assumed to have such threads until shown otherwise.
pub fn is_unplaced(process: &Process, devices: &[DeviceFacts]) -> Option<UnplacedThreads> {
    let unplaced = match process.ledger.knows_devices() {
        Some(true) => None,
        Some(false) => Some(UnplacedThreads::Allocating),
        None => (!process.from_start).then_some(UnplacedThreads::Quiet),
    };
    let several = || devices.iter().filter(|device| device.lists(process.tgid)).nth(1).is_some();
    unplaced.filter(|_| several())
}

/// Returns the processes that NVML lists on several devices, the only candidates for
/// [`is_unplaced`].
pub fn on_several(devices: &[DeviceFacts]) -> BTreeSet<Tgid> {
    let mut seen = BTreeSet::new();
    let mut several = BTreeSet::new();
    for list in devices.iter().filter_map(|device| device.processes.as_ref()) {
        let here: BTreeSet<Tgid> = list.iter().map(|entry| entry.tgid).collect();
        for tgid in here {
            if !seen.insert(tgid) {
                several.insert(tgid);
            }
        }
    }
    several
}

/// State of threads with an unknown device, in a process on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnplacedThreads {
    /// No such thread has allocated yet.
    Quiet,
    /// A thread has allocated, and its memory has no known device.
    Allocating,
}

/// Device according to the driver's answers to the program.
enum DriverAnswer<'a> {
    /// A known GPU.
    Gpu(GpuUuid),
    /// One of these MIG instances.
    OneOf(Vec<&'a DeviceFacts>),
    /// A GPU that is not known.
    Elsewhere,
    /// The driver gave no answer.
    Silent,
}

fn by_answers<'a>(reported: &DeviceAnswers, devices: &'a [DeviceFacts]) -> DriverAnswer<'a> {
    let latest_first = || reported.uuids.iter().rev().copied();
    let named = latest_first().find_map(|bytes| devices.iter().find(|device| device.uuid.spells(bytes)));
    if let Some(device) = named {
        return DriverAnswer::Gpu(device.uuid.clone());
    }
    let is_parent = |device: &DeviceFacts, bytes| device.mig.as_ref().is_some_and(|mig| mig.parent_uuid.spells(bytes));
    let instances: Vec<_> =
        devices.iter().filter(|device| latest_first().any(|bytes| is_parent(device, bytes))).collect();
    if !instances.is_empty() {
        return DriverAnswer::OneOf(instances);
    }
    match (reported.uuids.as_slice(), reported.pci) {
        // The GPU is unknown to NVML, or NVML is not available.
        ([uuid], _) => DriverAnswer::Gpu(GpuUuid::from_bytes(*uuid)),
        // The answers name a MIG instance and its GPU, which cannot be distinguished.
        ([_, ..], _) => DriverAnswer::Elsewhere,
        ([], Some(pci)) => by_bus_id(pci, devices),
        ([], None) => DriverAnswer::Silent,
    }
}

fn by_bus_id(pci: PciAddress, devices: &[DeviceFacts]) -> DriverAnswer<'_> {
    let sits_there = |device: &&DeviceFacts| device.pci_bus_id.as_deref().and_then(PciAddress::parse) == Some(pci);
    let there: Vec<_> = devices.iter().filter(sits_there).collect();
    match there.as_slice() {
        [] => DriverAnswer::Silent,
        [one] if one.mig.is_none() => DriverAnswer::Gpu(one.uuid.clone()),
        _ => DriverAnswer::OneOf(there),
    }
}

fn only(candidates: &[&DeviceFacts]) -> Option<GpuUuid> {
    match candidates {
        [only] => Some(only.uuid.clone()),
        _ => None,
    }
}

fn listed_on(tgid: Tgid, candidates: &[&DeviceFacts]) -> Option<GpuUuid> {
    let mut listing = candidates.iter().filter(|device| device.lists(tgid));
    match (listing.next(), listing.next()) {
        (Some(only), None) => Some(only.uuid.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
