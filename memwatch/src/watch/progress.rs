//! Progress line on standard error, rewritten each second if standard error is a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use memwatch_core::snapshot::{ProcessView, SiteView, Snapshot};
use tokio::time::Instant;

use crate::render::format::{bytes, count, known};
use crate::render::places;
use crate::watch::session::Session;

/// Interval between two writes of the line.
const RHYTHM: Duration = Duration::from_secs(1);

/// Progress line and the time at which it was last written.
pub(crate) struct Progress {
    begin: Instant,
    length: Option<Duration>,
    is_terminal: bool,
    last: Option<Instant>,
}

impl Progress {
    /// Starts the progress line of a session of this length.
    pub(crate) fn new(length: Option<Duration>) -> Self {
        Self { begin: Instant::now(), length, is_terminal: io::stderr().is_terminal(), last: None }
    }

    /// Writes the line if due.
    pub(crate) fn show(&mut self, session: &Session) {
        if !self.is_terminal || self.last.is_some_and(|last| last.elapsed() < RHYTHM) {
            return;
        }
        self.last = Some(Instant::now());
        let line = line(self.begin.elapsed(), self.length, &session.pipeline().snapshot());
        eprint!("\r\x1b[K{line}");
        // A failed write to the terminal is ignored.
        let _ = io::stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.last.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Formats the line: `watching 4/10 s · 6 steps · top: train.py:10 Net.forward 26.50 GiB`.
fn line(elapsed: Duration, length: Option<Duration>, snapshot: &Snapshot) -> String {
    let time = match length {
        Some(length) => format!("watching {}/{} s", elapsed.as_secs(), length.as_secs_f64().ceil()),
        None => format!("watching {} s, Ctrl-C to stop", elapsed.as_secs()),
    };
    let mut parts = vec![time];
    let tensors = || snapshot.processes.iter().filter_map(|process| process.tensors.as_ref());
    let steps: u64 = tensors().filter_map(|tensors| tensors.attribution.steps).sum();
    if steps > 0 {
        parts.push(format!("{} steps", count(steps)));
    }
    if let Some(site) = top(&snapshot.processes) {
        parts.push(format!("top: {} {}", places::site_and_library(&site), bytes(site.sum.live_bytes)));
    } else {
        let gpus = snapshot.gpus.iter().take(4);
        parts.extend(gpus.map(|gpu| format!("GPU {}: {} used", gpu.nvml_index, known(gpu.used_bytes, bytes))));
    }
    parts.join(" · ")
}

/// Returns the Python line with the most live memory.
fn top(processes: &[ProcessView]) -> Option<SiteView> {
    let tensors = processes.iter().filter_map(|process| process.tensors.as_ref());
    let devices = tensors.flat_map(|tensors| &tensors.attribution.devices);
    let sites = devices
        .flat_map(|device| &device.sites)
        .filter(|site| site.line.is_some())
        .filter(|site| site.sum.live_bytes > 0);
    sites.max_by_key(|site| site.sum.live_bytes).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture;

    #[test]
    fn the_line_says_how_far_it_is_and_what_holds_most() {
        let training = line(Duration::from_millis(4_200), Some(Duration::from_secs(10)), &fixture::training_node());
        assert!(training.starts_with("watching 4/10 s · "), "{training}");
        assert!(training.contains(" · top: ") && training.contains(".py:"), "{training}");
        let open = line(Duration::from_secs(61), None, &fixture::busy_node());
        assert_eq!(open, "watching 61 s, Ctrl-C to stop · GPU 0: 78.00 GiB used · GPU 1: 21.00 GiB used");
    }
}
