//! Call rates of a process, from its counters at the last two ticks.

use serde::{Deserialize, Serialize};

use super::totals::DeviceTotals;

/// Calls per second over the last tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallRate {
    /// Successful allocations of device-side memory.
    pub allocations_per_second: f64,
    /// Explicit frees.
    pub frees_per_second: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CallCount {
    time_ns: u64,
    allocations: u64,
    frees: u64,
}

/// The counters of one process over time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Activity {
    previous: Option<CallCount>,
    latest: Option<CallCount>,
}

impl Activity {
    /// Records a tick at `time_ns` (`CLOCK_BOOTTIME`, nanoseconds). A tick that is not later than
    /// the previous one is ignored.
    pub fn tick(&mut self, time_ns: u64, totals: &DeviceTotals) {
        if self.latest.is_none_or(|latest| latest.time_ns < time_ns) {
            self.previous = self.latest;
            self.latest = Some(CallCount { time_ns, allocations: totals.allocations, frees: totals.frees });
        }
    }

    /// Returns the rate between the last two ticks; `None` before the second.
    pub fn rate(&self) -> Option<CallRate> {
        let (previous, latest) = (self.previous?, self.latest?);
        let elapsed_ns = latest.time_ns.saturating_sub(previous.time_ns);
        Some(CallRate {
            allocations_per_second: per_second(latest.allocations.saturating_sub(previous.allocations), elapsed_ns),
            frees_per_second: per_second(latest.frees.saturating_sub(previous.frees), elapsed_ns),
        })
    }
}

/// Returns events per second for display, with a precision of one thousandth.
fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    let thousandths = u128::from(count) * 1_000_000_000_000 / u128::from(elapsed_ns.max(1));
    f64::from(u32::try_from(thousandths).unwrap_or(u32::MAX)) / 1000.0
}
