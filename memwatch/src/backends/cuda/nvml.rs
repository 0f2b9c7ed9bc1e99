//! Reads NVML on a separate thread, at most once a second: the process list takes milliseconds and
//! the driver's global lock.

mod device;
pub(crate) mod processes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memwatch_core::input::{DeviceReading, NvmlState};
use nvml_wrapper::Nvml;
use tokio::sync::mpsc;

use self::processes::Lists;
use crate::backends::readings::{DeviceLibrary, ReadingPace, Readings};
use crate::sources::clock;

/// Minimum interval between two readings: the process query holds the driver's global lock.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Exists exactly if NVIDIA's kernel driver is loaded. Checked first, because `nvmlInit` as root
/// creates device nodes even without the driver.
pub(crate) const DRIVER_VERSION: &str = "/proc/driver/nvidia/version";

/// Pause after the first failure. Doubles after each further one up to [`LONGEST_RETRY`]. Without
/// the driver an attempt costs one `stat(2)`.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Starts the reading thread, which ends when the returned value is dropped.
pub(crate) fn start(library: DeviceLibrary) -> Readings {
    let (sender, receiver) = mpsc::channel(4);
    let pace = Arc::<ReadingPace>::default();
    let readings = Readings::new(receiver, Arc::clone(&pace));
    let file = match library {
        DeviceLibrary::System => None,
        DeviceLibrary::File(file) => Some(file),
        DeviceLibrary::Off => {
            // The channel is empty and holds four readings, so this cannot fail.
            let _ = sender.try_send(unavailable("switched off by --no-nvml".to_owned()));
            return readings;
        }
    };
    let spawned = std::thread::Builder::new().name("nvml".to_owned()).spawn({
        let sender = sender.clone();
        move || read_forever(|| open(file.as_deref()), read, |pause| pace.wait(pause), &sender)
    });
    if let Err(error) = spawned {
        let _ = sender.try_send(unavailable(format!("cannot start the NVML thread: {error}")));
    }
    readings
}

/// Opens NVML and reads it periodically. After a failure NVML is opened again after a pause: the
/// driver may be loaded or its library installed long after memwatch has started, and both may be
/// replaced while it runs.
fn read_forever<N>(
    mut open: impl FnMut() -> Result<N, String>,
    read: impl Fn(&N) -> DeviceReading,
    mut sleep: impl FnMut(Duration),
    sender: &mpsc::Sender<DeviceReading>,
) {
    let mut retry = FIRST_RETRY;
    loop {
        let failure = match open() {
            Err(reason) => unavailable(reason),
            Ok(nvml) => loop {
                let reading = read(&nvml);
                if reading.state != NvmlState::Ok {
                    break reading;
                }
                if sender.blocking_send(reading).is_err() {
                    return;
                }
                retry = FIRST_RETRY;
                sleep(SHORTEST_INTERVAL);
            },
        };
        if sender.blocking_send(failure).is_err() {
            return;
        }
        sleep(retry);
        retry = (2 * retry).min(LONGEST_RETRY);
    }
}

/// Opens NVML. The error is a message that explains the failure.
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;

    use super::*;

    fn reading(state: NvmlState) -> DeviceReading {
        DeviceReading { begin_ns: 1, end_ns: 2, state, devices: Vec::new() }
    }

    /// Runs the loop with an NVML that opens as in `opens` and answers the given number of times
    /// each. Returns the states and pauses.
    fn outcome(opens: Vec<Result<usize, &str>>) -> (Vec<NvmlState>, Vec<u64>) {
        let (sender, mut receiver) = mpsc::channel(64);
        let receiver = RefCell::new(&mut receiver);
        let (mut opens, mut pauses) = (opens.into_iter(), Vec::new());
        let open = || {
            let Some(opened) = opens.next() else {
                // The session has ended.
                receiver.borrow_mut().close();
                return Err("closed".to_owned());
            };
            opened.map(Cell::new).map_err(str::to_owned)
        };
        let read = |left: &Cell<usize>| {
            let state = if left.get() == 0 { NvmlState::Unavailable("lost".to_owned()) } else { NvmlState::Ok };
            left.set(left.get().saturating_sub(1));
            reading(state)
        };
        read_forever(open, read, |pause| pauses.push(pause.as_secs()), &sender);
        let mut states = Vec::new();
        while let Ok(reading) = receiver.borrow_mut().try_recv() {
            states.push(reading.state);
        }
        (states, pauses)
    }

    #[test]
    fn nvml_is_retried_with_delays_growing_to_thirty_seconds() {
        let (states, pauses) = outcome([vec![Err("no driver"); 7], vec![Ok(2)]].concat());
        let no_driver = NvmlState::Unavailable("no driver".to_owned());
        assert_eq!(states[..7], vec![no_driver; 7]);
        assert_eq!(states[7..9], [NvmlState::Ok, NvmlState::Ok]);
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 1, 1, 1]);
    }

    #[test]
    fn nvml_that_stops_answering_is_opened_again() {
        let (states, pauses) = outcome(vec![Ok(1), Err("unloaded"), Ok(1)]);
        let down = |why: &str| NvmlState::Unavailable(why.to_owned());
        assert_eq!(states, [NvmlState::Ok, down("lost"), down("unloaded"), NvmlState::Ok, down("lost")]);
        assert_eq!(pauses, [1, 1, 2, 1, 1]);
    }

    #[test]
    fn an_nvml_that_is_switched_off_is_reported_once_and_never_loaded() {
        let mut readings = start(DeviceLibrary::Off);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut next = || runtime.block_on(poll_fn(|context| readings.poll_recv(context)));
        let reading = next().expect("a reading");
        assert!(matches!(&reading.state, NvmlState::Unavailable(why) if why.contains("--no-nvml")), "{reading:?}");
        assert!(next().is_none(), "nobody asks");
    }
}
