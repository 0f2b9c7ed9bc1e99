//! Pushes the metrics at intervals to a receiver of OpenTelemetry's protocol, OTLP.
//!
//! Pushing runs in a task: the task requests snapshots like any client, formats them on another
//! thread, and has a time limit per push. A failed push loses one sample; counters are cumulative
//! and lose nothing.

pub(super) mod args;
mod delivery;
pub(super) mod receiver;

use std::io::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;
use prost::Message as _;
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::receiver::Receiver;
use super::metrics::otlp::CounterStates;
use super::metrics::otlp::requests::{Reporter, requests};
use super::metrics::{Metrics, PushState};
use super::publish::{Published, SnapshotSource};
use crate::render::output::host_name;
use crate::sources::servers::Trouble;

/// Time limit for a snapshot.
const TIMEOUT: Duration = Duration::from_secs(5);
/// File with the machine's id: machine-id(5).
const MACHINE_ID: &str = "/etc/machine-id";
/// Variable from which all programs with OpenTelemetry read further attributes.
const ATTRIBUTES_VARIABLE: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Outcomes of the pushes.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    last: AtomicU8,
    failures_total: AtomicU64,
}

/// Outcome of the last push. Before the first one has ended there is none.
const NONE_YET: u8 = 0;
const ACCEPTED: u8 = 1;
const FAILED: u8 = 2;

impl Pushes {
    /// Returns the current state of the pushes.
    pub(super) fn state(&self) -> PushState {
        let last = self.last.load(Ordering::Relaxed);
        let is_up = (last != NONE_YET).then_some(last == ACCEPTED);
        PushState { is_up, failures_total: self.failures_total.load(Ordering::Relaxed) }
    }

    /// Counts an outcome. Returns whether it differs from the last one.
    fn note(&self, is_accepted: bool) -> bool {
        if !is_accepted {
            self.failures_total.fetch_add(1, Ordering::Relaxed);
        }
        let now = if is_accepted { ACCEPTED } else { FAILED };
        self.last.swap(now, Ordering::Relaxed) != now
    }
}

/// Receiver, interval and state of the pushes.
pub(super) struct Pusher {
    receiver: Receiver,
    every: Duration,
    pushes: Arc<Pushes>,
    writer: Arc<Mutex<PushEncoder>>,
}

impl Pusher {
    /// Creates a pusher. The largest `processes` pairs of a process and a GPU get separate series.
    pub(super) fn new(receiver: Receiver, every: Duration, processes: usize) -> Self {
        let reporter = Reporter::of(&host_name(), &std::fs::read_to_string(MACHINE_ID).unwrap_or_default());
        let further = std::env::var(ATTRIBUTES_VARIABLE).unwrap_or_default();
        let reporter = reporter.clone().with(&further).unwrap_or_else(|why| {
            eprintln!("memwatch: {ATTRIBUTES_VARIABLE} is not used: {why}");
            reporter
        });
        let writer = PushEncoder { metrics: Metrics::new(processes), series: CounterStates::default(), reporter };
        Self { receiver, every, pushes: Arc::default(), writer: Arc::new(Mutex::new(writer)) }
    }

    /// Returns the outcomes of its pushes.
    pub(super) fn pushes(&self) -> Arc<Pushes> {
        Arc::clone(&self.pushes)
    }

    /// Pushes until the agent exits.
    pub(super) async fn push(self, source: SnapshotSource) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let outcome = self.once(&source).await;
            if self.pushes.note(outcome.is_ok()) {
                self.report(outcome);
            }
        }
    }

    async fn once(&self, source: &SnapshotSource) -> Result<(), Trouble> {
        let published = timeout(TIMEOUT, source.latest()).await.unwrap_or_default();
        let published = published.ok_or_else(|| Trouble::bare("the agent does not answer"))?;
        let writer = Arc::clone(&self.writer);
        // Formatting thousands of series takes milliseconds, so it does not run on the session's
        // thread.
        let written = tokio::task::spawn_blocking(move || {
            writer.lock().unwrap_or_else(PoisonError::into_inner).bodies(&published)
        });
        let bodies = written.await.map_err(|error| Trouble::bare(format!("the metrics cannot be written: {error}")))?;
        delivery::deliver(&self.receiver, bodies, delivery::LONGEST).await
    }

    fn report(&self, outcome: Result<(), Trouble>) {
        let (receiver, seconds) = (&self.receiver, self.every.as_secs_f64());
        match outcome {
            Ok(()) => eprintln!("memwatch: pushing metrics to {receiver} every {seconds} s"),
            Err(Trouble { what, fix }) => {
                let fix = fix.map(|fix| format!(" {fix}")).unwrap_or_default();
                eprintln!(
                    "memwatch: metrics cannot be pushed to {receiver}: {what}. The next attempt follows in {seconds} s.{fix}"
                );
            }
        }
    }
}

/// Formats the metrics of snapshots, in time order.
struct PushEncoder {
    metrics: Metrics,
    series: CounterStates,
    reporter: Reporter,
}

impl PushEncoder {
    /// Returns the bodies of the requests, compressed with gzip.
    fn bodies(&mut self, published: &Published) -> Vec<Bytes> {
        let driver_version = super::driver_version();
        let metrics = self.metrics.messages(&published.facts(&driver_version), &mut self.series);
        requests(metrics, &self.reporter).iter().map(|request| compressed(&request.encode_to_vec())).collect()
    }
}

fn compressed(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a Vec takes any bytes").into()
}

#[cfg(test)]
mod tests;
