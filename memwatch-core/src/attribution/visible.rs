//! Maps a process's device numbers to GPUs by `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`, read
//! as the driver reads them.
//!
//! Only certain results are returned. A number counts the GPUs that the driver sees: all GPUs of
//! the machine, unless a container or a job hides some. By default the driver sorts GPUs by speed,
//! in an order that only the driver knows: just GPUs of one model keep their bus order.

use crate::input::{DeviceFacts, GpuVisibility};
use crate::words::{GpuUuid, Ordinal, PciAddress, Tgid};

/// Entry of the list in `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VisibleDevice {
    /// The device with this index in the reading.
    Device(usize),
    /// An unknown device.
    Unclear,
}

/// Returns the GPU with number `ordinal` in the process; `None` if uncertain, or if NVML's process
/// lists contradict the result.
pub(super) fn gpu(
    tgid: Tgid,
    ordinal: Ordinal,
    visibility: &GpuVisibility,
    devices: &[DeviceFacts],
) -> Option<GpuUuid> {
    let order = order(visibility, devices);
    let entries = match visibility.visible_devices.as_deref() {
        Some(list) => entries(list, order.as_deref(), devices),
        None => order?.into_iter().map(VisibleDevice::Device).collect(),
    };
    let VisibleDevice::Device(place) = *entries.get(usize::try_from(ordinal.0).ok()?)? else { return None };
    let device = &devices[place];
    // NVML lists a process on each GPU where it has memory. If it is listed on a GPU that it should
    // not see, the variable was not read correctly.
    let unseen = |place| !entries.contains(&VisibleDevice::Device(place)) && !entries.contains(&VisibleDevice::Unclear);
    let contradicted = (device.processes.is_some() && !device.lists(tgid))
        || devices.iter().enumerate().any(|(place, device)| device.lists(tgid) && unseen(place));
    (!contradicted).then(|| device.uuid.clone())
}

/// Returns the indexes of the devices in the driver's order; `None` if that order is unknown.
///
/// A GPU with MIG instances has a single number, which may denote any of its instances, so the
/// order is then unknown.
fn order(visibility: &GpuVisibility, devices: &[DeviceFacts]) -> Option<Vec<usize>> {
    let by_bus = visibility.device_order.as_deref() == Some("PCI_BUS_ID");
    let alike = devices.windows(2).all(|pair| pair[0].name == pair[1].name);
    let whole = devices.iter().all(|device| device.mig.is_none());
    if !(visibility.sees_machine && whole && (by_bus || alike)) {
        return None;
    }
    let address = |place: &usize| devices[*place].pci_bus_id.as_deref().and_then(PciAddress::parse);
    let mut places: Vec<usize> = (0..devices.len()).collect();
    // NVML sorts by bus address, too.
    if places.iter().all(|place| address(place).is_some()) {
        places.sort_by_key(address);
    } else {
        places.sort_by_key(|place| devices[*place].nvml_index);
    }
    Some(places)
}

/// Parses the valid part of the list: the list ends before the first entry that names no device,
/// and is void if it names a device twice.
fn entries(list: &str, order: Option<&[usize]>, devices: &[DeviceFacts]) -> Vec<VisibleDevice> {
    let mut entries = Vec::new();
    for word in list.split(',') {
        let Some(entry) = entry(word.trim_ascii(), order, devices) else { break };
        if entry != VisibleDevice::Unclear && entries.contains(&entry) {
            return Vec::new();
        }
        entries.push(entry);
    }
    entries
}

fn entry(word: &str, order: Option<&[usize]>, devices: &[DeviceFacts]) -> Option<VisibleDevice> {
    if word.starts_with("GPU-") || word.starts_with("MIG-") {
        return by_uuid(word, devices);
    }
    let number: usize = word.parse().ok()?;
    match order {
        Some(order) => order.get(number).map(|place| VisibleDevice::Device(*place)),
        None => Some(VisibleDevice::Unclear),
    }
}

/// Finds a device by a UUID, which may be shortened. A prefix that is ambiguous on the machine may
/// be unique in a process that sees fewer devices.
fn by_uuid(word: &str, devices: &[DeviceFacts]) -> Option<VisibleDevice> {
    let begins = |text: &str| text.starts_with(word);
    let is_meant = |device: &DeviceFacts| {
        let of_parent =
            device.mig.as_ref().is_some_and(|mig| begins(mig.parent_uuid.as_str()) || is_old_name(mig, word));
        begins(device.uuid.as_str()) || of_parent
    };
    let mut meant = (0..devices.len()).filter(|place| is_meant(&devices[*place]));
    match (meant.next(), meant.next()) {
        (None, _) => None,
        (Some(place), None) => Some(VisibleDevice::Device(place)),
        (Some(_), Some(_)) => Some(VisibleDevice::Unclear),
    }
}

/// Whether `word` is the name of an instance before driver 470: `MIG-GPU-8f3c…/7/0`, with its GPU,
/// GPU instance and compute instance.
fn is_old_name(mig: &crate::input::MigFacts, word: &str) -> bool {
    let (Some(instance), Some(compute)) = (mig.gpu_instance_id, mig.compute_instance_id) else { return false };
    word == format!("MIG-{}/{instance}/{compute}", mig.parent_uuid)
}

#[cfg(test)]
mod tests;
