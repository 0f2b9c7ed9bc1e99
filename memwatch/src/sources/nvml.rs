//! NVML on a thread of its own: its process list takes milliseconds and the driver's global lock, so it is asked at most once a second.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memwatch_core::input::{DeviceFacts, DeviceReading, NvmlState, ProcessUse};
use memwatch_core::words::{GpuUuid, Tgid};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use tokio::sync::mpsc;

use super::clock;

/// The shortest time between two readings: the process query holds the driver's global lock.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Present exactly where NVIDIA's kernel driver is loaded. Asked first, because `nvmlInit` as root makes device nodes even without one.
pub(crate) const DRIVER_VERSION: &str = "/proc/driver/nvidia/version";

/// Starts the thread. It ends when the receiver is dropped.
///
/// `library` names a libnvidia-ml to use; without it, the system's is used where the driver is loaded.
pub(crate) fn start(library: Option<PathBuf>) -> mpsc::Receiver<DeviceReading> {
    let (sender, receiver) = mpsc::channel(4);
    let spawned = std::thread::Builder::new().name("nvml".to_owned()).spawn({
        let sender = sender.clone();
        move || read_forever(library.as_deref(), &sender)
    });
    if let Err(error) = spawned {
        // The channel is empty and holds four: this cannot block.
        let _ = sender.try_send(unavailable(format!("no thread for NVML: {error}")));
    }
    receiver
}

fn read_forever(library: Option<&Path>, sender: &mpsc::Sender<DeviceReading>) {
    let nvml = match open(library) {
        Ok(nvml) => nvml,
        Err(reason) => {
            let _ = sender.blocking_send(unavailable(reason));
            return;
        }
    };
    while sender.blocking_send(read(&nvml)).is_ok() {
        std::thread::sleep(SHORTEST_INTERVAL);
    }
}

/// Opens NVML, or says in a sentence why not.
pub(crate) fn open(library: Option<&Path>) -> Result<Nvml, String> {
    let opened = if let Some(path) = library {
        Nvml::builder().lib_path(path.as_os_str()).init()
    } else {
        if !Path::new(DRIVER_VERSION).exists() {
            return Err("no NVIDIA driver is loaded (there is no /proc/driver/nvidia/version)".to_owned());
        }
        Nvml::init()
    };
    opened.map_err(|error| {
        let name = library.map_or_else(|| "libnvidia-ml.so".to_owned(), |path| path.display().to_string());
        format!("{name}: {error}")
    })
}

fn unavailable(reason: String) -> DeviceReading {
    let now_ns = clock::boottime_ns();
    DeviceReading { begin_ns: now_ns, end_ns: now_ns, state: NvmlState::Unavailable(reason), devices: Vec::new() }
}

/// Reads all devices once.
pub(crate) fn read(nvml: &Nvml) -> DeviceReading {
    let begin_ns = clock::boottime_ns();
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => return unavailable(format!("device count: {error}")),
    };
    let mut devices = Vec::new();
    let mut failure = None;
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| facts(&device, index)) {
            Ok(device) => devices.push(device),
            Err(error) => failure = Some(format!("device {index}: {error}")),
        }
    }
    let state = match failure {
        // One lost GPU must not hide the others.
        Some(reason) if devices.is_empty() => NvmlState::Unavailable(reason),
        _ => NvmlState::Ok,
    };
    DeviceReading { begin_ns, end_ns: clock::boottime_ns(), state, devices }
}

fn facts(device: &Device<'_>, nvml_index: u32) -> Result<DeviceFacts, NvmlError> {
    // NOT_SUPPORTED on devices without memory of their own (GB10): absent, not 0.
    let memory = device.memory_info().ok();
    Ok(DeviceFacts {
        uuid: GpuUuid::new(&device.uuid()?),
        nvml_index,
        name: device.name().unwrap_or_default(),
        total_bytes: memory.as_ref().map(|memory| memory.total),
        used_bytes: memory.as_ref().map(|memory| memory.used),
        processes: processes(device),
    })
}

/// One of NVML's process lists.
type ProcessList = fn(&Device<'_>) -> Result<Vec<ProcessInfo>, NvmlError>;

/// All processes with memory on a device. One that is in two of NVML's lists stands in both with the same bytes, so they are not added.
fn processes(device: &Device<'_>) -> Option<Vec<ProcessUse>> {
    let lists: [ProcessList; 3] = [
        |device| device.running_compute_processes(),
        |device| device.running_graphics_processes(),
        |device| device.mps_running_compute_processes(),
    ];
    // The compute list decides whether there is a list at all; the others are often unsupported.
    let mut known = None::<BTreeMap<u32, Option<u64>>>;
    for (position, list) in lists.iter().enumerate() {
        let Ok(entries) = retrying(|| list(device)) else {
            if position == 0 {
                return None;
            }
            continue;
        };
        let known = known.get_or_insert_default();
        for entry in entries {
            let used = match entry.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let best = known.entry(entry.pid).or_insert(None);
            *best = (*best).max(used);
        }
    }
    let row = |(tgid, used_bytes)| ProcessUse { tgid: Tgid(tgid), used_bytes };
    known.map(|known| known.into_iter().map(row).collect())
}

/// A process may join between NVML's count and its list: `InsufficientSize` then, and the next try is larger.
fn retrying<T>(mut call: impl FnMut() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    let mut tries_left = 4;
    loop {
        match call() {
            Err(NvmlError::InsufficientSize(_)) if tries_left > 0 => tries_left -= 1,
            answer => return answer,
        }
    }
}
