//! Merges NVML's process lists into one list of processes with memory on a device.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use memwatch_core::input::ProcessUse;
use memwatch_core::words::Tgid;
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

/// Driver versions with longer entries in the current lists than declared: from 535.43 up to, not
/// including, 535.104.05. Everything after the first entry is garbage, and with enough processes
/// they write past the end.
const GARBLED: (NvmlDriverVersion, NvmlDriverVersion) = ((535, 43), (535, 104));
/// Number of retries if a list has grown since it was counted.
const TRIES: usize = 4;
/// Maximum entries of a list; the driver's lists end after 950 processes (open-gpu-kernel-modules
/// 595.45.04, `gpuFindClientInfoWithPidIterator`).
const MOST_PROCESSES: usize = 1024;

/// First two numbers of a driver version.
pub(crate) type NvmlDriverVersion = (u32, u32);

/// Parses a driver version; `None` if it has anything but numbers and dots.
pub(crate) fn version(text: &str) -> Option<NvmlDriverVersion> {
    let mut numbers = text.split('.');
    let version = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    numbers.all(|number| number.parse::<u32>().is_ok()).then_some(version)
}

/// Version of the process lists that a driver fills in correctly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// The current version.
    Present,
    /// The previous version, with the same entries.
    Earlier,
}

impl Lists {
    /// Chooses by the driver version, if NVML returns one.
    pub(crate) fn of(driver: Option<&str>) -> Self {
        let garbled = driver.and_then(version).is_some_and(|version| (GARBLED.0..GARBLED.1).contains(&version));
        if garbled { Self::Earlier } else { Self::Present }
    }
}

/// One of NVML's process lists.
type ProcessListQuery = fn(&Device<'_>) -> Result<Vec<ProcessInfo>, NvmlError>;

/// Returns all processes with memory on a device; `None` if there is no complete list.
///
/// A process in several lists has the same bytes in each, so they are not added.
pub(crate) fn read(device: &Device<'_>, lists: Lists) -> Option<Vec<ProcessUse>> {
    let [compute, graphics, mps]: [ProcessListQuery; 3] = match lists {
        Lists::Present => [
            |device| device.running_compute_processes(),
            |device| device.running_graphics_processes(),
            |device| device.mps_running_compute_processes(),
        ],
        Lists::Earlier => [
            |device| device.running_compute_processes_v2(),
            |device| device.running_graphics_processes_v2(),
            earlier_mps_processes,
        ],
    };
    let mut union = Union::default();
    // Every device with any list supports compute processes; the other lists are often not
    // supported.
    union.add(entries(retrying(|| compute(device)).ok()?), false);
    union.add(entries(if_supported(retrying(|| graphics(device)))?), false);
    union.add(entries(if_supported(retrying(|| mps(device)))?), true);
    Some(union.processes())
}

fn entries(list: Vec<ProcessInfo>) -> impl Iterator<Item = (u32, UsedGpuMemory)> {
    list.into_iter().map(|info| (info.pid, info.used_gpu_memory))
}

/// A process, merged from the lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcessListEntry {
    used_bytes: Option<u64>,
    mps_client: bool,
}

#[derive(Debug, Default)]
struct Union(BTreeMap<u32, ProcessListEntry>);

impl Union {
    fn add(&mut self, list: impl IntoIterator<Item = (u32, UsedGpuMemory)>, mps_client: bool) {
        for (tgid, used) in list {
            let used_bytes = match used {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let entry = self.0.entry(tgid).or_default();
            entry.used_bytes = entry.used_bytes.max(used_bytes);
            entry.mps_client |= mps_client;
        }
    }

    fn processes(self) -> Vec<ProcessUse> {
        let process = |(tgid, ProcessListEntry { used_bytes, mps_client })| ProcessUse {
            tgid: Tgid(tgid),
            used_bytes,
            mps_client,
        };
        self.0.into_iter().map(process).collect()
    }
}

/// Treats an unsupported list as empty; `None` for one that could not be read.
fn if_supported(list: Result<Vec<ProcessInfo>, NvmlError>) -> Option<Vec<ProcessInfo>> {
    match list {
        Ok(list) => Some(list),
        Err(
            NvmlError::NotSupported
            | NvmlError::InvalidArg
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_),
        ) => Some(Vec::new()),
        Err(_) => None,
    }
}

/// Retries after `InsufficientSize`, which means that a process joined between NVML's count and its
/// list; the next attempt is larger.
fn retrying<T>(mut call: impl FnMut() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    let mut tries_left = TRIES;
    loop {
        match call() {
            Err(NvmlError::InsufficientSize(_)) if tries_left > 0 => tries_left -= 1,
            answer => return answer,
        }
    }
}

/// Reads the previous version of the MPS list, which nvml-wrapper lacks.
fn earlier_mps_processes(device: &Device<'_>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMPSComputeRunningProcesses_v2.as_ref())?;
    let mut list = Vec::with_capacity(MOST_PROCESSES);
    let mut count = c_uint::try_from(MOST_PROCESSES).unwrap_or(0);
    // SAFETY: the handle belongs to this library, and the list has capacity for `count` entries.
    nvml_try(unsafe { call(device.handle(), &raw mut count, list.as_mut_ptr()) })?;
    // SAFETY: NVML has initialised `count` entries, which are plain numbers, within the capacity.
    unsafe { list.set_len((count as usize).min(MOST_PROCESSES)) };
    Ok(list.into_iter().map(ProcessInfo::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvml_process_lists_are_merged_by_largest_bytes_and_mps_flag() {
        let mut union = Union::default();
        union.add(vec![(7, UsedGpuMemory::Used(5)), (8, UsedGpuMemory::Unavailable)], false);
        union.add(vec![(7, UsedGpuMemory::Used(5)), (8, UsedGpuMemory::Used(3))], false);
        union.add(vec![(7, UsedGpuMemory::Unavailable), (9, UsedGpuMemory::Used(2))], true);
        let rows: Vec<_> =
            union.processes().iter().map(|entry| (entry.tgid.0, entry.used_bytes, entry.mps_client)).collect();
        assert_eq!(rows, [(7, Some(5), true), (8, Some(3), false), (9, Some(2), true)]);
    }

    #[test]
    fn a_list_that_grows_is_asked_for_again_and_not_for_ever() {
        let grows = |times: usize| {
            let mut left = times;
            retrying(move || {
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
                Err(NvmlError::InsufficientSize(None))
            })
        };
        assert!(grows(TRIES).is_ok() && grows(TRIES + 1).is_err());
    }

    #[test]
    fn nvml_unsupported_list_is_empty_and_a_failed_one_unknown() {
        assert!(if_supported(Err(NvmlError::NotSupported)).is_some_and(|list| list.is_empty()));
        assert!(if_supported(Err(NvmlError::InsufficientSize(None))).is_none());
        assert!(if_supported(Err(NvmlError::GpuLost)).is_none());
    }

    #[test]
    fn only_the_drivers_with_longer_entries_are_asked_for_the_earlier_lists() {
        for garbled in ["535.43.02", "535.54.03", "535.86.10", "535.98"] {
            assert_eq!(Lists::of(Some(garbled)), Lists::Earlier, "{garbled}");
        }
        for right in ["535.104.05", "535.261.03", "530.41", "550.163.01", "595.45.04", "?"] {
            assert_eq!(Lists::of(Some(right)), Lists::Present, "{right}");
        }
        assert_eq!(Lists::of(None), Lists::Present);
    }
}
