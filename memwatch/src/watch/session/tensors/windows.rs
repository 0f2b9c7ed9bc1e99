//! Sampling windows. A process whose continuous tracing would exceed the budget is fully traced in
//! short windows: probes are attached and removed again.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memwatch_core::input::{Input, TensorLevel, Windows};
use memwatch_core::words::Tgid;

use super::super::input_sink::InputSink;
use super::{TensorTracing, log_failure};
use crate::frameworks::probes as tensor_probes;
use crate::sources::clock;
use crate::sources::kernel::load::KernelHalf;

/// Interval for checking whether the probes are removed.
const DETACHING: Duration = Duration::from_millis(20);

/// Sampling windows of one process.
#[derive(Debug)]
pub(super) struct ProcessWindows {
    state: WindowState,
    /// When the last window was opened, or when counting to the first one began.
    since: Instant,
    /// Random factor of the interval to the next window. A program's steps are periodic, and
    /// windows at a fixed interval could show the same part of a step each time.
    part: f64,
}

#[derive(Debug)]
enum WindowState {
    Closed,
    Open,
    /// The probes are being removed.
    Closing(Option<JoinHandle<()>>),
    /// The probes are removed, and the last events have not been fetched yet.
    Ending,
}

/// Action on the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowAction {
    /// Attach them.
    Open,
    /// Remove them.
    Close,
}

impl ProcessWindows {
    /// Creates the state without an open window.
    pub(super) fn new() -> Self {
        Self { state: WindowState::Closed, since: Instant::now(), part: drawn_part() }
    }

    /// Ends the windows, since the process is traced continuously.
    pub(super) fn end(&mut self) {
        *self = Self::new();
    }

    /// Returns when work is due.
    pub(super) fn due(&self, is_read: bool, plan: Option<Windows>, now: Instant) -> Option<Instant> {
        match (&self.state, plan) {
            (WindowState::Closed, Some(plan)) if is_read => Some(self.since + self.pause(plan)),
            (WindowState::Closed, _) => None,
            (WindowState::Open, Some(plan)) => Some(self.since + Duration::from_nanos(plan.open_ns)),
            (WindowState::Closing(Some(detaching)), _) if !detaching.is_finished() => Some(now + DETACHING),
            _ => Some(now),
        }
    }

    /// Returns the time from the start of one window to the start of the next.
    fn pause(&self, plan: Windows) -> Duration {
        Duration::from_nanos(plan.every_ns).mul_f64(self.part).max(Duration::from_nanos(plan.open_ns))
    }

    /// Advances the state and returns the action that is due. All events from before the previous
    /// call must have been fetched.
    fn turn(&mut self, tgid: u32, plan: Option<Windows>, sink: &mut InputSink) -> Option<WindowAction> {
        let elapsed = self.since.elapsed();
        let report = |sink: &mut InputSink, is_open| {
            sink.step(Input::TraceWindow { tgid: Tgid(tgid), time_ns: clock::boottime_ns(), is_open });
        };
        match (&self.state, plan) {
            (WindowState::Closed, Some(plan)) if elapsed >= self.pause(plan) => {
                (self.state, self.since, self.part) = (WindowState::Open, Instant::now(), drawn_part());
                report(sink, true);
                Some(WindowAction::Open)
            }
            (WindowState::Open, plan) if plan.is_none_or(|plan| elapsed >= Duration::from_nanos(plan.open_ns)) => {
                self.state = WindowState::Closing(None);
                Some(WindowAction::Close)
            }
            (WindowState::Closing(detaching), _) if detaching.as_ref().is_none_or(JoinHandle::is_finished) => {
                self.state = WindowState::Ending;
                None
            }
            (WindowState::Ending, _) => {
                self.state = WindowState::Closed;
                report(sink, false);
                None
            }
            _ => None,
        }
    }
}

/// Returns a random factor, uniform between 0.5 and 1.5.
fn drawn_part() -> f64 {
    let drawn = RandomState::new().build_hasher().finish() % 1024;
    0.5 + f64::from(u16::try_from(drawn).unwrap_or(0)) / 1024.0
}

impl TensorTracing {
    /// Opens and closes the windows of processes that are not traced otherwise.
    pub(super) fn turn_windows(&mut self, kernel: &mut KernelHalf, sink: &mut InputSink) {
        let mut turns = Vec::new();
        for (tgid, process) in &mut self.processes {
            if process.governor.present() != TensorLevel::Read {
                process.windows.end();
                continue;
            }
            let plan = self.prices.windows(&process.governor, &process.rate);
            turns.extend(process.windows.turn(*tgid, plan, sink).map(|turn| (*tgid, turn)));
        }
        for (tgid, turn) in turns {
            self.turn_window(kernel, tgid, turn);
        }
    }

    fn turn_window(&mut self, kernel: &mut KernelHalf, tgid: u32, turn: WindowAction) {
        let begun = Instant::now();
        let detaching = match turn {
            WindowAction::Open => {
                self.torch.change(kernel, tgid, self.prices.in_window());
                self.choose_stacks(kernel, tgid);
                None
            }
            WindowAction::Close => self.torch.close(kernel, tgid),
        };
        log::debug!("process {tgid}: {turn:?} took {:?}", begun.elapsed());
        let Some(process) = self.processes.get_mut(&tgid) else { return };
        match turn {
            WindowAction::Open => {
                process.allocator_state.begin_window();
                log_failure(tgid, tensor_probes::want_statistics(kernel, tgid));
            }
            WindowAction::Close => process.windows.state = WindowState::Closing(detaching),
        }
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::Pipeline;

    use super::*;

    const PLAN: Windows = Windows { open_ns: 200_000_000, every_ns: 3_000_000_000 };

    fn turn(windows: &mut ProcessWindows, ago: Duration, plan: Option<Windows>) -> Option<WindowAction> {
        windows.since = Instant::now().checked_sub(ago).expect("the machine runs for longer than that");
        windows.part = 1.0;
        windows.turn(7, plan, &mut InputSink::new(Pipeline::new(true), None))
    }

    #[test]
    fn a_window_opens_after_its_time_and_closes_after_its_length() {
        let mut windows = ProcessWindows::new();
        assert_eq!(turn(&mut windows, Duration::from_secs(1), Some(PLAN)), None);
        assert_eq!(turn(&mut windows, Duration::from_secs(3), Some(PLAN)), Some(WindowAction::Open));
        assert_eq!(turn(&mut windows, Duration::from_millis(100), Some(PLAN)), None);
        assert_eq!(turn(&mut windows, Duration::from_millis(200), Some(PLAN)), Some(WindowAction::Close));
        assert_eq!(turn(&mut windows, Duration::from_millis(220), Some(PLAN)), None);
        assert!(matches!(windows.state, WindowState::Ending), "its last events come with the next fetch");
        assert_eq!(turn(&mut windows, Duration::from_millis(240), Some(PLAN)), None);
        assert!(matches!(windows.state, WindowState::Closed));
        assert_eq!(turn(&mut windows, Duration::from_secs(3), Some(PLAN)), Some(WindowAction::Open));
    }

    #[test]
    fn windows_are_in_step_with_no_program() {
        let mut windows = ProcessWindows::new();
        let pauses: Vec<Duration> = (0..100)
            .map(|_| {
                windows.part = drawn_part();
                windows.pause(PLAN)
            })
            .collect();
        assert!(pauses.iter().all(|pause| (1500..4500).contains(&pause.as_millis())), "{pauses:?}");
        assert!(
            pauses.iter().any(|pause| pause.as_millis() < 2500) && pauses.iter().any(|pause| pause.as_millis() > 3500)
        );
        windows.part = 0.5;
        let dense = Windows { every_ns: 250_000_000, ..PLAN };
        assert_eq!(windows.pause(dense), Duration::from_millis(200), "one ends before the next");
    }

    #[test]
    fn window_without_a_plan_stays_or_becomes_closed() {
        let mut windows = ProcessWindows::new();
        assert_eq!(turn(&mut windows, Duration::from_secs(100), None), None);
        assert_eq!(turn(&mut windows, Duration::from_secs(3), Some(PLAN)), Some(WindowAction::Open));
        assert_eq!(turn(&mut windows, Duration::ZERO, None), Some(WindowAction::Close));
        assert_eq!([turn(&mut windows, Duration::ZERO, None), turn(&mut windows, Duration::ZERO, None)], [None; 2]);
        assert!(matches!(windows.state, WindowState::Closed));
    }
}
