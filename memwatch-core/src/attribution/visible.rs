//! `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`, read as the driver reads them: which GPU has which number in a process.
//!
//! Only what is certain is answered. A number counts among the GPUs the driver sees: all of the machine, unless a container or a job
//! hides some. By default it sorts them by speed, which nobody but the driver knows: only GPUs of one model keep their order.

use crate::input::{DeviceFacts, GpuVisibility};
use crate::words::{GpuUuid, Ordinal, PciAddress, Tgid};

/// What an entry of the list says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// The device at this place of the reading.
    Device(usize),
    /// Some device, and it is not known which.
    Unclear,
}

/// The GPU that the process calls `ordinal`; `None` where that is not certain, or NVML's lists contradict it.
pub(super) fn gpu(
    tgid: Tgid,
    ordinal: Ordinal,
    visibility: &GpuVisibility,
    devices: &[DeviceFacts],
) -> Option<GpuUuid> {
    let order = order(visibility, devices);
    let entries = match visibility.visible_devices.as_deref() {
        Some(list) => entries(list, order.as_deref(), devices),
        None => order?.into_iter().map(Entry::Device).collect(),
    };
    let Entry::Device(place) = *entries.get(usize::try_from(ordinal.0).ok()?)? else { return None };
    let device = &devices[place];
    // A process with memory on a GPU is in its list. On one that it should not see, its list has others than we think.
    let unseen = |place| !entries.contains(&Entry::Device(place)) && !entries.contains(&Entry::Unclear);
    let contradicted = (device.processes.is_some() && !device.lists(tgid))
        || devices.iter().enumerate().any(|(place, device)| device.lists(tgid) && unseen(place));
    (!contradicted).then(|| device.uuid.clone())
}

/// The places of the devices in the order in which the driver numbers them; `None` where that is not known.
///
/// A GPU with MIG instances has a number of its own and each of them may stand for it, so then there is none.
fn order(visibility: &GpuVisibility, devices: &[DeviceFacts]) -> Option<Vec<usize>> {
    let by_bus = visibility.device_order.as_deref() == Some("PCI_BUS_ID");
    let alike = devices.windows(2).all(|pair| pair[0].name == pair[1].name);
    let whole = devices.iter().all(|device| device.mig.is_none());
    if !(visibility.sees_machine && whole && (by_bus || alike)) {
        return None;
    }
    let address = |place: &usize| devices[*place].pci_bus_id.as_deref().and_then(PciAddress::parse);
    let mut places: Vec<usize> = (0..devices.len()).collect();
    // NVML itself numbers by bus.
    if places.iter().all(|place| address(place).is_some()) {
        places.sort_by_key(address);
    } else {
        places.sort_by_key(|place| devices[*place].nvml_index);
    }
    Some(places)
}

/// The list as far as it is valid: it ends before the first entry that names no device, and is void with one device twice.
fn entries(list: &str, order: Option<&[usize]>, devices: &[DeviceFacts]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for word in list.split(',') {
        let Some(entry) = entry(word.trim_ascii(), order, devices) else { break };
        if entry != Entry::Unclear && entries.contains(&entry) {
            return Vec::new();
        }
        entries.push(entry);
    }
    entries
}

fn entry(word: &str, order: Option<&[usize]>, devices: &[DeviceFacts]) -> Option<Entry> {
    if word.starts_with("GPU-") || word.starts_with("MIG-") {
        return by_uuid(word, devices);
    }
    let number: usize = word.parse().ok()?;
    match order {
        Some(order) => order.get(number).map(|place| Entry::Device(*place)),
        None => Some(Entry::Unclear),
    }
}

/// A UUID may be cut short. What several devices of the machine may be meant by could be clear in a process that sees fewer.
fn by_uuid(word: &str, devices: &[DeviceFacts]) -> Option<Entry> {
    let begins = |text: &str| text.starts_with(word);
    let is_meant = |device: &DeviceFacts| {
        let of_parent =
            device.mig.as_ref().is_some_and(|mig| begins(mig.parent_uuid.as_str()) || is_old_name(mig, word));
        begins(device.uuid.as_str()) || of_parent
    };
    let mut meant = (0..devices.len()).filter(|place| is_meant(&devices[*place]));
    match (meant.next(), meant.next()) {
        (None, _) => None,
        (Some(place), None) => Some(Entry::Device(place)),
        (Some(_), Some(_)) => Some(Entry::Unclear),
    }
}

/// Before driver 470 an instance was named `MIG-GPU-8f3c…/7/0`: its GPU, its GPU instance, its compute instance.
fn is_old_name(mig: &crate::input::MigFacts, word: &str) -> bool {
    let (Some(instance), Some(compute)) = (mig.gpu_instance_id, mig.compute_instance_id) else { return false };
    word == format!("MIG-{}/{instance}/{compute}", mig.parent_uuid)
}

#[cfg(test)]
mod tests;
