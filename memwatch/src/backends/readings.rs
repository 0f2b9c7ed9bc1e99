//! Channel of device readings to a session, which controls their rate.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use memwatch_core::input::DeviceReading;
use tokio::sync::mpsc;

/// Interval between two readings while the session is idle: no process uses a GPU and no client
/// waits for values. The values do not change then, and are considered valid for 10 s.
pub(crate) const AT_REST: Duration = Duration::from_secs(5);

/// Library that reads the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceLibrary {
    /// The system's library, if the driver is loaded.
    #[default]
    System,
    /// The library in this file.
    File(PathBuf),
    /// No library: the devices are not read.
    Off,
}

/// Readings of all devices. The reading thread ends when this is dropped.
pub(crate) struct Readings {
    readings: mpsc::Receiver<DeviceReading>,
    pace: Arc<ReadingPace>,
}

/// Rate at which the devices are read, shared with the reading thread.
#[derive(Debug, Default)]
pub(crate) struct ReadingPace {
    rests: Mutex<bool>,
    changed: Condvar,
}

impl Readings {
    /// Creates the receiver of readings from a thread that keeps this pace.
    pub(crate) const fn new(readings: mpsc::Receiver<DeviceReading>, pace: Arc<ReadingPace>) -> Self {
        Self { readings, pace }
    }

    /// Polls for the next reading; `None` once the reading thread has ended.
    pub(crate) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<DeviceReading>> {
        self.readings.poll_recv(context)
    }

    /// Sets whether readings are needed rarely. After a change to frequent readings an overdue one
    /// is made at once.
    pub(crate) fn rest(&self, rests: bool) {
        let mut now = self.pace.rests.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *now, rests) && !rests {
            self.pace.changed.notify_all();
        }
    }
}

impl ReadingPace {
    /// Waits for `least`, and up to [`AT_REST`] while the session is idle.
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
    fn reading_pace_waits_while_the_watch_is_idle() {
        let pace = Arc::<ReadingPace>::default();
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
