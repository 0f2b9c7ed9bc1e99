//! Fits a line to a growing need: its rate, the confidence interval of the rate, and the height of
//! the highest windows above the line.

use crate::features::trend::{Slope, TrendPoint, as_f64, slope, slope_of, slopes, variance};

/// Minimum number of points for a line.
const FEWEST: usize = 12;
/// Significance level by the number of points (below): growth counts if noise alone would look this
/// steady less often. It is stricter for few points, which are tested again and again.
const SURE: [(usize, f64); 3] = [(32, 1e-4), (64, 1e-3), (usize::MAX, 0.01)];
/// Significance level of the later half, which has fewer points.
const SURE_LATE: f64 = 0.05;
/// Minimum rate of the later half, as a fraction of the whole rate.
const STILL: f64 = 0.4;
/// Minimum number of windows that set a new maximum, in all and in the later half: a few jumps are
/// no growth.
const RISES: (usize, usize) = (4, 2);
/// Growth has stopped if the last new maximum is longer ago than this multiple of the mean time
/// between two of them.
const STOPPED: f64 = 3.0;
/// Maximum fraction of all growth in the two largest rises; beyond it the growth is set-up.
const JUMP: f64 = 0.7;
/// Factor on the predicted remaining growth of a need that slows down.
const MARGIN: f64 = 1.5;
/// Standard deviations on either side that contain 90 % of a normal distribution.
const NINETY_PERCENT: f64 = 1.644_854;

/// Trend of a need.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NeedTrend {
    /// Number of windows.
    pub points: usize,
    /// Time from the first window to the last, in seconds.
    pub span_seconds: f64,
    /// End of the last window: `CLOCK_BOOTTIME`, in nanoseconds.
    pub last_ns: u64,
    /// Slope of the whole series.
    pub whole: Slope,
    /// Slope of the first half.
    pub early: Slope,
    /// Slope of the later half.
    pub late: Slope,
    /// Rate to extrapolate with: the whole's rate, or the later half's if that is outside of the
    /// whole's interval.
    pub bytes_per_second: f64,
    /// Lower end of Sen's 90 % interval of the rate.
    pub low_bytes_per_second: f64,
    /// Upper end of Sen's 90 % interval of the rate.
    pub high_bytes_per_second: f64,
    /// Height of the line at the last window, in bytes, raised so that no window of the later half
    /// is above the line.
    pub top_bytes: f64,
    /// Number of windows that set a new maximum, in all and in the later half.
    pub rises: (usize, usize),
    /// The last new maximum is longer ago than usual.
    pub has_stopped: bool,
    /// Two rises make up most of the growth.
    pub has_jumped: bool,
}

impl NeedTrend {
    /// Fits a line through the points; `None` if there are too few.
    pub(crate) fn through(points: &[TrendPoint]) -> Option<Self> {
        let [first, .., last] = points else { return None };
        if points.len() < FEWEST {
            return None;
        }
        let late = points.get(points.len() / 2..)?;
        let (all_slopes, late_slopes) = (slopes(points), slopes(late));
        let (whole_slope, late_slope) = (slope_of(points, &all_slopes), slope_of(late, &late_slopes));
        let (low, high) = interval(points, &all_slopes);
        let rises = rises(points);
        let in_late = rises.iter().filter(|index| **index >= points.len() / 2).count();
        let is_usual = (low..=high).contains(&late_slope.bytes_per_second);
        let rate = if is_usual { whole_slope.bytes_per_second } else { late_slope.bytes_per_second };
        let (low, high) = if is_usual { (low, high) } else { interval(late, &late_slopes) };
        let tops = late.iter().map(|point| as_f64(point.bytes) + rate * seconds_between(point, last));
        Some(Self {
            points: points.len(),
            span_seconds: seconds_between(first, last),
            last_ns: last.time_ns,
            whole: whole_slope,
            early: slope(points.get(..points.len() / 2)?),
            late: late_slope,
            bytes_per_second: rate,
            low_bytes_per_second: low,
            high_bytes_per_second: high,
            top_bytes: tops.fold(0.0, f64::max),
            rises: (rises.len(), in_late),
            has_stopped: has_stopped(&rises, points.len()),
            has_jumped: has_jumped(points, &rises),
        })
    }

    /// Returns whether the need grows steadily and still grows.
    pub fn grows(&self) -> bool {
        let (rises, late_rises) = self.rises;
        let sure = SURE.iter().find(|(points, _)| self.points < *points).map_or(0.0, |(_, sure)| *sure);
        self.whole.bytes_per_second > 0.0
            && self.whole.p < sure
            && self.late.p < SURE_LATE
            && self.late.bytes_per_second >= STILL * self.whole.bytes_per_second
            && !self.has_stopped
            && !self.has_jumped
            && rises >= RISES.0
            && late_rises >= RISES.1
    }

    /// Returns how far the later half's rate is from the whole's: 0 for a straight line.
    pub(crate) fn bend(&self) -> f64 {
        (self.late.bytes_per_second / self.whole.bytes_per_second).ln().abs()
    }

    /// Returns the height in bytes at which growth ends if it keeps slowing down at the same ratio;
    /// `None` if it does not slow down.
    pub(crate) fn ceiling_bytes(&self) -> Option<f64> {
        let ratio = self.late.bytes_per_second / self.early.bytes_per_second;
        let late_bytes = self.late.bytes_per_second * self.span_seconds / 2.0;
        // Geometric series of the remaining growth per half.
        (ratio > 0.0 && ratio < 1.0).then(|| self.top_bytes + MARGIN * late_bytes * ratio / (1.0 - ratio))
    }
}

/// Returns Sen's interval: as many slopes on either side of the median as Kendall's S may deviate
/// (Hollander and Wolfe, Nonparametric Statistical Methods, chapter 9).
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank between 0 and the number of slopes"
)]
fn interval(points: &[TrendPoint], slopes: &[f64]) -> (f64, f64) {
    let stray = NINETY_PERCENT * variance(points).max(0.0).sqrt();
    let count = as_f64(slopes.len() as u64);
    let rank = |rank: f64| slopes.get((rank.max(0.0) as usize).min(slopes.len().saturating_sub(1))).copied();
    let (low, high) = (rank(f64::midpoint(count, -stray)), rank(f64::midpoint(count, stray)));
    (low.unwrap_or(0.0), high.unwrap_or(0.0))
}

/// Returns whether [`NeedTrend::grows`] may hold for these points, by its cheap conditions only.
pub(crate) fn may_grow(points: &[TrendPoint]) -> bool {
    let rises = rises(points);
    let late = rises.iter().filter(|index| **index >= points.len() / 2).count();
    rises.len() >= RISES.0 && late >= RISES.1 && !has_stopped(&rises, points.len()) && !has_jumped(points, &rises)
}

/// Returns the indices of the windows that set a new maximum.
fn rises(points: &[TrendPoint]) -> Vec<usize> {
    let mut most = points.first().map_or(0, |point| point.bytes);
    let mut rises = Vec::new();
    for (index, point) in points.iter().enumerate() {
        if point.bytes > most {
            most = point.bytes;
            rises.push(index);
        }
    }
    rises
}

fn has_stopped(rises: &[usize], points: usize) -> bool {
    let [first, .., last] = rises else { return true };
    let usual = as_f64((last - first) as u64) / as_f64(rises.len() as u64 - 1);
    as_f64((points - 1 - last) as u64) > STOPPED * usual
}

fn has_jumped(points: &[TrendPoint], rises: &[usize]) -> bool {
    let first = points.first().map_or(0, |point| point.bytes);
    let heights =
        std::iter::once(first).chain(rises.iter().filter_map(|index| points.get(*index)).map(|point| point.bytes));
    let heights: Vec<u64> = heights.collect();
    let mut jumps: Vec<u64> = heights.windows(2).map(|pair| pair[1] - pair[0]).collect();
    jumps.sort_unstable();
    let largest = jumps.iter().rev().take(2).sum();
    let all = heights.last().map_or(0, |last| last - first);
    as_f64(largest) > JUMP * as_f64(all)
}

fn seconds_between(earlier: &TrendPoint, later: &TrendPoint) -> f64 {
    as_f64(later.time_ns.saturating_sub(earlier.time_ns)) / 1e9
}

#[cfg(test)]
mod tests {
    use super::NeedTrend;
    use crate::features::trend::TrendPoint;

    const MIB: u64 = 1 << 20;

    fn line(windows: u64, bytes: impl Fn(u64) -> u64) -> NeedTrend {
        let point = |second| TrendPoint { time_ns: second * 1_000_000_000, bytes: bytes(second) };
        let points: Vec<TrendPoint> = (0..windows).map(point).collect();
        NeedTrend::through(&points).expect("it is long enough")
    }

    #[test]
    fn forecast_interval_contains_the_rate_and_its_line_tops_the_windows() {
        let spiky = line(40, |second| (100 + 3 * second + if second % 10 == 9 { 50 } else { second % 2 }) * MIB);
        assert!(spiky.grows(), "{spiky:?}");
        let rate = 3.0 * 1_048_576.0;
        assert!(spiky.low_bytes_per_second <= rate && rate <= spiky.high_bytes_per_second, "{spiky:?}");
        assert!((spiky.top_bytes / 1_048_576.0 - 267.0).abs() < 3.0, "the evaluation at 39 s stands on it: {spiky:?}");
    }

    #[test]
    fn forecast_sees_no_growth_in_warm_up_caches_and_spikes() {
        assert!(!line(30, |_| 500 * MIB).grows());
        assert!(!line(30, |second| if second < 4 { second * 100 * MIB } else { 400 * MIB }).grows(), "warm-up");
        assert!(!line(30, |second| if second % 7 == 6 { 900 * MIB } else { 100 * MIB }).grows(), "evaluation");
        assert!(!line(30, |second| second / 8 * 100 * MIB).grows(), "three jumps");
        assert!(!line(40, |second| second.min(18) * 10 * MIB).grows(), "a cache that is full");
        assert!(!line(16, |second| second.min(11) * 10 * MIB).grows(), "a cache that has just become full");
        assert!(!line(30, |second| (60 - second) * MIB).grows());
        let set_up = |second| if second < 12 { 10 * MIB } else { (400 + second * 7 % 11 + second / 4) * MIB };
        assert!(!line(30, set_up).grows(), "set-up, and noise after it");
    }

    #[test]
    fn forecast_of_slowing_growth_has_a_ceiling() {
        // Each 10 windows fill half of the remaining distance to 1 GiB.
        let slowing = line(20, |second| 1024 * MIB - ((1024 * MIB) >> (second / 10)) / (1 + second % 10 / 5));
        assert!(slowing.ceiling_bytes().is_some_and(|bytes| bytes < 1_600.0 * 1_048_576.0), "{slowing:?}");
        assert_eq!(line(20, |second| second * 10 * MIB).ceiling_bytes(), None);
    }

    #[test]
    fn forecast_finds_stepwise_and_accelerating_growth() {
        assert!(line(30, |second| second / 3 * 100 * MIB).grows());
        let faster = line(30, |second| second * second * MIB);
        assert!(faster.grows() && faster.bend() > 0.2, "{faster:?}");
        assert!(faster.bytes_per_second > faster.whole.bytes_per_second, "{faster:?}");
    }
}
