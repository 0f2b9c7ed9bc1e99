//! Readings of devices on their way to a watch, which says how often it wants them.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use memwatch_core::input::DeviceReading;
use tokio::sync::mpsc;

/// Between two readings for a watch that rests: nobody uses a GPU, and nobody asks. The numbers stand still then, and are believed for 10 s.
pub(crate) const AT_REST: Duration = Duration::from_secs(5);

/// Which library reads the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceLibrary {
    /// The system's, where the driver is loaded.
    #[default]
    System,
    /// This file.
    File(PathBuf),
    /// None: the devices are not read.
    Off,
}

/// The readings of all devices. Who makes them ends when this is dropped.
pub(crate) struct Readings {
    readings: mpsc::Receiver<DeviceReading>,
    pace: Arc<Pace>,
}

/// How often the devices are read.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    rests: Mutex<bool>,
    changed: Condvar,
}

impl Readings {
    /// As they come, from somebody who keeps this pace.
    pub(crate) const fn new(readings: mpsc::Receiver<DeviceReading>, pace: Arc<Pace>) -> Self {
        Self { readings, pace }
    }

    /// The next one; `None` where there will be no more. Dropped while it waits, it has taken nothing.
    pub(crate) async fn recv(&mut self) -> Option<DeviceReading> {
        self.readings.recv().await
    }

    /// Whether they are wanted rarely. Where they no longer are, one that would have come long ago comes at once.
    pub(crate) fn rest(&self, rests: bool) {
        let mut now = self.pace.rests.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *now, rests) && !rests {
            self.pace.changed.notify_all();
        }
    }
}

impl Pace {
    /// Waits for so long, and longer while the watch rests.
    pub(crate) fn wait(&self, least: Duration) {
        std::thread::sleep(least);
        let rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        let most = AT_REST.saturating_sub(least);
        let waited = self.changed.wait_timeout_while(rests, most, |rests| *rests);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_rests_is_waited_for_until_he_no_longer_does() {
        let pace = Arc::<Pace>::default();
        let (_sender, receiver) = mpsc::channel(1);
        let readings = Readings::new(receiver, Arc::clone(&pace));
        pace.wait(Duration::ZERO);
        readings.rest(true);
        let (done, waited) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            pace.wait(Duration::ZERO);
            done.send(()).expect("somebody listens");
        });
        assert!(waited.try_recv().is_err());
        readings.rest(false);
        waited.recv_timeout(AT_REST * 10).expect("it ends");
        waiting.join().expect("it has ended");
    }
}
