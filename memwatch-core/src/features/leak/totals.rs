//! Totals of a device's tensors and of their allocator. Detects growth that no call site explains.

use serde::{Deserialize, Serialize};

use crate::allocators::{ReportedTotals, TensorLedger};
use crate::features::leak::verdict::{Verdict, judge_series};
use crate::features::trend::{Trend, TrendSeries, as_f64};
use crate::words::Ordinal;

/// Fraction of growth that has to be seen elsewhere for the growth to count as explained.
pub(super) const EXPLAINED: f64 = 0.5;

/// Totals of a device over time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DeviceSeries {
    /// Sum of what the call sites retain in each window; the allocated bytes if not all of them
    /// have a call site.
    kept: TrendSeries,
    /// Maximum bytes of tensors in each window.
    needed: TrendSeries,
    reserved: TrendSeries,
    rises: Rises,
}

/// Growth of the reserved bytes at moments at which the tensors needed more than ever before. The
/// sizes change then, and the allocator cannot reuse blocks of the smaller ones: such growth ends
/// with that of the tensors.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Rises {
    /// Maximum bytes of tensors so far.
    most_needed_bytes: u64,
    reserved_bytes: u64,
    /// Whether the need rose in the latest window; the allocator may grow a window later.
    has_risen: bool,
    /// Sum of this growth.
    grown_bytes: u64,
}

impl Rises {
    fn observe(&mut self, needed_bytes: u64, reserved_bytes: u64) {
        let rises = needed_bytes > self.most_needed_bytes;
        if rises || self.has_risen {
            self.grown_bytes += reserved_bytes.saturating_sub(self.reserved_bytes);
        }
        let most_needed_bytes = self.most_needed_bytes.max(needed_bytes);
        *self = Self { most_needed_bytes, reserved_bytes, has_risen: rises, ..*self };
    }
}

/// Growth of a whole device that no call site explains.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct UnexplainedGrowth {
    /// Growth of the tensors.
    pub(super) allocated: Option<(Verdict, Trend)>,
    /// Growth of the tensors that is undecided, because their memory is replaced too slowly.
    pub(super) undecided: Option<Trend>,
    /// Growth of the bytes reserved by the allocator while the need of the tensors is constant.
    pub(super) reserved: Option<(Verdict, Trend)>,
}

impl Default for DeviceSeries {
    fn default() -> Self {
        Self {
            kept: TrendSeries::default(),
            needed: TrendSeries::of_most(),
            reserved: TrendSeries::default(),
            rises: Rises::default(),
        }
    }
}

impl DeviceSeries {
    /// Adds the totals of a device at the end of a window.
    pub(super) fn observe(
        &mut self,
        tensors: &TensorLedger,
        (ordinal, reported): (Ordinal, &ReportedTotals),
        now_ns: u64,
    ) {
        let floors = tensors.attribution().devices().get(&ordinal).filter(|_| tensors.sampling().is_none());
        let kept = floors.map(|device| device.sites().map(|(site, _)| device.floor_bytes(site)).sum::<u64>());
        let kept = kept.unwrap_or(reported.allocated_bytes).min(reported.reserved_bytes);
        self.push(
            now_ns,
            (kept, tensors.high_water_bytes(ordinal).unwrap_or(reported.allocated_bytes), reported.reserved_bytes),
        );
    }

    fn push(&mut self, now_ns: u64, (kept, needed, reserved): (u64, u64, u64)) {
        self.kept.push(now_ns, kept);
        self.needed.push(now_ns, needed);
        self.reserved.push(now_ns, reserved);
        if self.rises.reserved_bytes == 0 {
            // What is there before the first window is no growth.
            self.rises = Rises { most_needed_bytes: needed, reserved_bytes: reserved, ..Rises::default() };
        }
        self.rises.observe(needed, reserved);
    }

    /// Returns the growth of the device beyond the growth of its call sites.
    pub(super) fn unplaced(&self, placed: Placed, has_ended: bool, threshold: f64) -> UnexplainedGrowth {
        let growing = |series: &TrendSeries| {
            judge_series(series, None, has_ended, threshold).filter(|(verdict, _)| verdict.grows())
        };
        let kept = growing(&self.kept).map(|(_, trend)| trend);
        let needed = judge_series(&self.needed, None, has_ended, threshold);
        let needed = needed.map_or(0.0, |(_, trend)| trend.whole.bytes_per_second.max(mean_rate(&trend)));
        let rate = |trend: Option<Trend>| trend.map_or(0.0, |trend| trend.whole.bytes_per_second);
        let elsewhere = placed.bytes_per_second.max(rate(kept)).max(needed);
        let is_beyond = |trend: &Trend, explained: f64| {
            let grown = as_f64(trend.last_bytes.saturating_sub(trend.first_bytes));
            explained < EXPLAINED * trend.whole.bytes_per_second && as_f64(self.rises.grown_bytes) < EXPLAINED * grown
        };
        let (allocated, undecided) = of_tensors(&self.kept, placed, has_ended, threshold);
        UnexplainedGrowth {
            allocated,
            undecided,
            reserved: growing(&self.reserved).filter(|(_, trend)| is_beyond(trend, elsewhere)),
        }
    }
}

/// Growth of the call sites of one device, and how fast the other call sites replace their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Placed {
    /// Total growth of the call sites that grow.
    pub(super) bytes_per_second: f64,
    /// Longest time within which any other call site replaces its memory, in nanoseconds; 0 if none
    /// does.
    pub(super) turnover_ns: u64,
    /// Total growth of all call sites since their first point, whether or not they still grow: a
    /// cache that fills up explains its growth.
    pub(super) grown_bytes: u64,
}

/// Judges all tensors of a device where they grow and its call sites explain less than half of it.
/// Returns a verdict, or else undecided growth.
pub(super) fn of_tensors(
    all: &TrendSeries,
    placed: Placed,
    has_ended: bool,
    threshold: f64,
) -> (Option<(Verdict, Trend)>, Option<Trend>) {
    let grows = |replaced| {
        let found = judge_series(all, replaced, has_ended, threshold).filter(|(verdict, _)| verdict.grows());
        found.filter(|(_, trend)| {
            let grown = as_f64(trend.last_bytes.saturating_sub(trend.first_bytes));
            placed.bytes_per_second < EXPLAINED * trend.whole.bytes_per_second
                && as_f64(placed.grown_bytes) < EXPLAINED * grown
        })
    };
    let sure = grows(Some((placed.turnover_ns, None)));
    (sure, grows(None).map(|(_, trend)| trend).filter(|_| sure.is_none()))
}

/// Returns the mean growth in bytes per second. The median slope of growth in steps can be 0,
/// although the tensors need the memory.
fn mean_rate(trend: &Trend) -> f64 {
    let seconds = as_f64(trend.last_ns.saturating_sub(trend.first_ns).max(1)) / 1e9;
    (as_f64(trend.last_bytes) - as_f64(trend.first_bytes)) / seconds
}

#[cfg(test)]
mod tests {
    use super::{DeviceSeries, Placed, UnexplainedGrowth, Verdict, of_tensors};
    use crate::features::trend::TrendSeries;

    const MIB: u64 = 1 << 20;
    /// 1 MiB per minute.
    const THRESHOLD: f64 = 1_048_576.0;

    fn unplaced(placed: f64, at: impl Fn(u64) -> (u64, u64, u64)) -> UnexplainedGrowth {
        let mut totals = DeviceSeries::default();
        for second in 0..45 {
            let (kept, needed, reserved) = at(second);
            totals.push(second * 1_000_000_000, (kept * MIB, needed * MIB, reserved * MIB));
        }
        totals.unplaced(Placed { bytes_per_second: placed, ..Placed::default() }, false, THRESHOLD)
    }

    fn verdicts(unplaced: &UnexplainedGrowth) -> [Option<Verdict>; 2] {
        [unplaced.allocated, unplaced.reserved].map(|found| found.map(|(verdict, _)| verdict))
    }

    #[test]
    fn reserved_growth_is_a_leak_while_tensors_need_no_additional_memory() {
        let found = unplaced(0.0, |second| (32, 96, 100 + 64 * second));
        assert_eq!(verdicts(&found), [None, Some(Verdict::Leak)]);
    }

    #[test]
    fn reserved_growth_is_explained_by_growing_tensors() {
        let batches = unplaced(0.0, |second| (32, 96 + second / 5 * 50, 110 + second / 5 * 50));
        assert_eq!(verdicts(&batches), [None, None], "batches that grow");
        // Blocks of smaller batches stay in the cache, so that it grows faster than the tensors.
        let sizes = |second: u64| (1..=second / 5 + 1).sum::<u64>() * 12;
        let leftovers = unplaced(0.0, |second| (32, 96 + second / 5 * 16, 110 + sizes(second)));
        assert_eq!(verdicts(&leftovers), [None, None], "batches that grow and leave their blocks");
        let after = unplaced(0.0, |second| (32, 96 + 16 * second.min(3), 110 + 40 * second));
        assert_eq!(verdicts(&after), [None, Some(Verdict::Leak)], "growth that goes on without them");
        let kept = unplaced(8e6, |second| (32 + 8 * second, 96 + 8 * second, 110 + 8 * second));
        assert_eq!(verdicts(&kept), [None, None], "a line that grows");
        let warm_up = unplaced(0.0, |second| (32, 96, 100 + 64 * second.min(9)));
        assert_eq!(verdicts(&warm_up), [None, None], "a cache of the allocator that has filled");
    }

    #[test]
    fn tensors_that_grow_without_a_line_that_does_are_growth_without_a_place() {
        let found = unplaced(1e6, |second| (32 + 8 * second, 96 + 8 * second, 110 + 8 * second));
        assert_eq!(verdicts(&found), [Some(Verdict::Leak), None]);
        let filled = unplaced(0.0, |second| (32 + 8 * second.min(20), 300, 500));
        assert_eq!(verdicts(&filled), [None, None]);
    }

    #[test]
    fn slow_turnover_growth_is_reported_without_a_verdict() {
        let mut all = TrendSeries::default();
        (0..45).for_each(|second| all.push(second * 1_000_000_000, second * MIB));
        let of = |turnover_ns| of_tensors(&all, Placed { turnover_ns, ..Placed::default() }, false, THRESHOLD);
        let (sure, undecided) = of(1_000_000_000);
        assert_eq!((sure.is_some(), undecided.is_some()), (true, false));
        let (sure, undecided) = of(9_000_000_000);
        assert_eq!((sure.is_some(), undecided.is_some()), (false, true));
    }

    #[test]
    fn a_cache_that_still_fills_and_has_slowed_down_is_its_own_place() {
        let mut all = TrendSeries::default();
        (0..45).for_each(|second| all.push(second * 1_000_000_000, (second * 4 - second * second / 100) * MIB));
        let of = |grown_bytes| of_tensors(&all, Placed { grown_bytes, ..Placed::default() }, false, THRESHOLD);
        assert_eq!(of(100 * MIB), (None, None));
        assert!(of(MIB).0.is_some());
        let mut slower = TrendSeries::default();
        (0..45).for_each(|second| slower.push(second * 1_000_000_000, (second * 4 - second * second / 30) * MIB));
        assert_eq!(of_tensors(&slower, Placed::default(), false, THRESHOLD), (None, None), "wherever it is");
    }
}
