//! SIGINT, SIGTERM and SIGHUP, and optional deadlines.

use crate::exit::ExitFailure;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

/// Waits until the deadline, or forever without one.
pub(crate) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Receiver of SIGINT, SIGTERM and SIGHUP.
pub(crate) struct TerminationSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl TerminationSignals {
    /// Starts receiving the signals, which from then on do not end the program by themselves.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn listen() -> Result<Self, ExitFailure> {
        let listen = |kind| signal(kind).map_err(|error| ExitFailure::from(anyhow::Error::from(error)));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn any(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        }
    }
}
