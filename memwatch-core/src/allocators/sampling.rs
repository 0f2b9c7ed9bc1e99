//! Estimates the bytes allocated by each call site, phase and module from windows in which events
//! are traced, with standard errors.
//!
//! The share of a call site in a window is taken as its share of all allocations: the allocator
//! counts all bytes itself, also between windows. With b the bytes of a call site in a window and a
//! the bytes of all call sites, the estimate is A * sum(b) / sum(a), where A is the allocator's
//! count over the whole time. This is a ratio estimator over windows as clusters (W. G. Cochran,
//! Sampling Techniques, 3rd edition, 6.3 and 9A). The variance over the windows alone is too small
//! for programs, which do rare things in bursts: on recorded runs, the true value was within two
//! standard errors for 68 to 83 % of the call sites. One additional window of the mean size,
//! assumed to hold only one call site chosen by its share, raises this to 96 to 99 %.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::{ModuleKey, SiteKey};
use super::places::PhaseRow;
use super::threads::Attribution;
use crate::words::Ordinal;

/// Subject of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SampleKey {
    /// A call site.
    Site(SiteKey),
    /// A phase.
    Phase(PhaseRow),
    /// A module.
    Module(ModuleKey),
}

/// Observations of one key over all windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct WindowTotals {
    bytes: f64,
    squares: f64,
    /// Sum over windows of the key's bytes times the window's total bytes.
    products: f64,
    /// Number of windows in which the key allocated.
    windows: u64,
}

/// Estimate of the bytes allocated over the whole time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Estimated bytes.
    pub bytes: u64,
    /// Standard error in bytes; `None` if there was only one window.
    pub standard_error_bytes: Option<u64>,
}

impl Estimate {
    /// Returns an estimate without error, for a value known exactly.
    #[must_use]
    pub const fn exactly(bytes: u64) -> Self {
        Self { bytes, standard_error_bytes: Some(0) }
    }

    /// Returns the sum of two estimates. The errors are added, which is an upper bound: a larger
    /// share of one means a smaller share of the other, so errors may cancel out.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let errors = self.standard_error_bytes.zip(other.standard_error_bytes);
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            standard_error_bytes: errors.map(|(one, other)| one.saturating_add(other)),
        }
    }
}

/// Observations on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct DeviceSample {
    /// Bytes counted by the allocator when the first window opened.
    begun_bytes: Option<u64>,
    now: BTreeMap<SampleKey, u64>,
    now_bytes: u64,
    all: BTreeMap<SampleKey, WindowTotals>,
    bytes: f64,
    squares: f64,
    /// Number of windows with allocations on the device.
    windows: u64,
}

/// Sampling windows of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    opened_ns: Option<u64>,
    /// Number of events lost before the current window opened.
    lost_before: u64,
    windows: u64,
    discarded: u64,
    open_ns: u64,
    devices: BTreeMap<Ordinal, DeviceSample>,
}

impl Sampling {
    /// Returns when the current window opened: `CLOCK_BOOTTIME`, nanoseconds; `None` between
    /// windows.
    pub const fn opened_ns(&self) -> Option<u64> {
        self.opened_ns
    }

    /// Returns the number of windows counted.
    pub const fn windows(&self) -> u64 {
        self.windows
    }

    /// Returns the number of windows discarded because events were lost in them.
    pub const fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Returns the total length of the windows in nanoseconds.
    pub const fn open_ns(&self) -> u64 {
        self.open_ns
    }

    /// Returns the number of events lost before the current window.
    pub(super) const fn lost_before(&self) -> u64 {
        self.lost_before
    }

    pub(super) fn open(&mut self, time_ns: u64, lost: u64) {
        (self.opened_ns, self.lost_before) = (Some(time_ns), lost);
        for device in self.devices.values_mut() {
            device.forget_window();
        }
    }

    /// Closes the window. A window in which events were lost is discarded.
    pub(super) fn close(&mut self, time_ns: u64, lost: u64) {
        let Some(opened_ns) = self.opened_ns.take() else { return };
        if lost > self.lost_before {
            self.discarded += 1;
            self.devices.values_mut().for_each(DeviceSample::forget_window);
            return;
        }
        self.windows += 1;
        self.open_ns = self.open_ns.saturating_add(time_ns.saturating_sub(opened_ns));
        self.devices.values_mut().for_each(DeviceSample::keep_window);
    }

    /// Sets the allocator's cumulative byte count at the start of the first window on a device.
    pub(super) fn count_from(&mut self, ordinal: Ordinal, allocated_bytes: u64) {
        self.devices.entry(ordinal).or_default().begun_bytes.get_or_insert(allocated_bytes);
    }

    /// Adds a block, if a window is open.
    pub(super) fn grant(&mut self, ordinal: Ordinal, bytes: u64, whose: &Attribution) {
        if self.opened_ns.is_none() {
            return;
        }
        let device = self.devices.entry(ordinal).or_default();
        device.now_bytes = device.now_bytes.saturating_add(bytes);
        let keys =
            [SampleKey::Site(whose.site), SampleKey::Phase(PhaseRow::of(whose)), SampleKey::Module(whose.module)];
        for key in keys {
            let own = device.now.entry(key).or_default();
            *own = own.saturating_add(bytes);
        }
    }

    /// Returns the bytes observed for a key in all windows.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sums of whole bytes that are not below 0"
    )]
    pub fn seen_bytes(&self, ordinal: Ordinal, key: SampleKey) -> u64 {
        let Some(device) = self.devices.get(&ordinal) else { return 0 };
        let before = device.all.get(&key).map_or(0, |seen| seen.bytes as u64);
        before.saturating_add(device.now.get(&key).copied().unwrap_or(0))
    }

    /// Estimates the bytes a key allocated since the first window opened, given the allocator's
    /// current count.
    pub fn estimate(&self, ordinal: Ordinal, key: SampleKey, counted_bytes: u64) -> Option<Estimate> {
        let device = self.devices.get(&ordinal)?;
        let whole_bytes = counted_bytes.checked_sub(device.begun_bytes?)?;
        device.estimate(key, whole_bytes, self.windows)
    }
}

impl DeviceSample {
    fn forget_window(&mut self) {
        self.now.clear();
        self.now_bytes = 0;
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate needs no sixteen digits")]
    fn keep_window(&mut self) {
        let all = self.now_bytes as f64;
        (self.bytes, self.squares) = (self.bytes + all, self.squares + all * all);
        self.windows += u64::from(self.now_bytes > 0);
        for (key, bytes) in std::mem::take(&mut self.now) {
            let (seen, bytes) = (self.all.entry(key).or_default(), bytes as f64);
            seen.bytes += bytes;
            seen.squares += bytes * bytes;
            seen.products += bytes * all;
            seen.windows += 1;
        }
        self.now_bytes = 0;
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate needs no sixteen digits, and is not below 0"
    )]
    fn estimate(&self, key: SampleKey, whole_bytes: u64, windows: u64) -> Option<Estimate> {
        if self.bytes <= 0.0 {
            return None;
        }
        let seen = self.all.get(&key).copied().unwrap_or_default();
        let whole = whole_bytes as f64;
        let ratio = seen.bytes / self.bytes;
        // The variation between windows, scaled to the bytes outside of all windows.
        let residual = ratio.mul_add(ratio * self.squares, seen.squares) - 2.0 * ratio * seen.products;
        let unseen = (1.0 - self.bytes / whole).clamp(0.0, 1.0);
        let count = windows as f64;
        // Rare allocations may fall between all windows. This adds one window of the mean size that
        // holds only this key with a probability equal to its share, and otherwise nothing of it.
        let mean = self.bytes / self.windows as f64;
        let rare = mean * mean * ratio * (1.0 - ratio);
        let variance = (residual.max(0.0) * count / (count - 1.0) + rare) * unseen;
        let error = (windows > 1).then(|| (variance.sqrt() * whole / self.bytes).round() as u64);
        Some(Estimate { bytes: (ratio * whole).round() as u64, standard_error_bytes: error })
    }
}

#[cfg(test)]
#[path = "tests/sampling.rs"]
pub(crate) mod tests;

#[cfg(test)]
#[path = "tests/sampled_runs.rs"]
mod sampled_runs;
