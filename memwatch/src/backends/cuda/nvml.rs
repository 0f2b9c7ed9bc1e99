//! NVML on a thread of its own: its process list takes milliseconds and the driver's global lock, so it is asked at most once a second.

mod device;
pub(crate) mod processes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use memwatch_core::input::{DeviceReading, NvmlState};
use nvml_wrapper::Nvml;
use tokio::sync::mpsc;

use self::processes::Lists;
use crate::sources::clock;

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
    let lists = Lists::of(nvml.sys_driver_version().ok().as_deref());
    let mut devices = Vec::new();
    let mut failure = None;
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|gpu| device::read(&gpu, index, lists)) {
            Ok(found) => devices.extend(found),
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
