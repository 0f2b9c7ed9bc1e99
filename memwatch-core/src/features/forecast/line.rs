//! The line that a growing need follows: its rate, between which rates that lies, and how far above the line single windows come.

use crate::features::trend::{Point, Slope, as_f64, slope, slope_of, slopes, variance};

/// With fewer points, there is no verdict.
const FEWEST: usize = 12;
/// Growth is believed where noise looks so steady less often than this, by fewer points than so many: few are looked at again and again.
const SURE: [(usize, f64); 3] = [(32, 1e-4), (64, 1e-3), (usize::MAX, 0.01)];
/// And its later half, which has fewer points, less often than this.
const SURE_LATE: f64 = 0.05;
/// The later half grows by at least this part of the whole's rate.
const STILL: f64 = 0.4;
/// How many windows must set a new maximum, and how many of them in the later half: a few jumps are no growth.
const RISES: (usize, usize) = (4, 2);
/// It has stopped where the last of these is longer ago than so many times the usual time between two.
const STOPPED: f64 = 3.0;
/// Two of these that are more than this part of all growth are jumps: something was set up.
const JUMP: f64 = 0.7;
/// Growth that slows down as it has so far comes to so much more than that says, at most.
const MARGIN: f64 = 1.5;
/// Standard deviations to either side of a normal distribution that hold 90 % of it.
const NINETY_PERCENT: f64 = 1.644_854;

/// How a need goes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// From how many windows.
    pub points: usize,
    /// From the first of them to the last, in seconds.
    pub span_seconds: f64,
    /// When the last one ended: `CLOCK_BOOTTIME`, nanoseconds.
    pub last_ns: u64,
    /// Over all of it.
    pub whole: Slope,
    /// Over its first half.
    pub early: Slope,
    /// Over its later half.
    pub late: Slope,
    /// The rate to go on with: the whole's, unless the later half has left what that can be.
    pub bytes_per_second: f64,
    /// Sen's interval of it, to 90 %: its lower end.
    pub low_bytes_per_second: f64,
    /// And its upper end.
    pub high_bytes_per_second: f64,
    /// The line's height at the last window, raised so that no window of the later half stands above it; in bytes.
    pub top_bytes: f64,
    /// How many windows needed more than any before, and how many of these lie in the later half.
    pub rises: (usize, usize),
    /// The last of these is longer ago than usual.
    pub has_stopped: bool,
    /// Two of them are most of the growth.
    pub has_jumped: bool,
}

impl Line {
    /// The line through these points; `None` where they are too few.
    pub(crate) fn through(points: &[Point]) -> Option<Self> {
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

    /// Whether it grows all the time, and goes on.
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

    /// How far the later half is from the rate of the whole: 0 for a straight line.
    pub(crate) fn bend(&self) -> f64 {
        (self.late.bytes_per_second / self.whole.bytes_per_second).ln().abs()
    }

    /// Where it ends if it slows down as it has so far, in bytes; `None` where it does not slow down.
    pub(crate) fn ceiling_bytes(&self) -> Option<f64> {
        let ratio = self.late.bytes_per_second / self.early.bytes_per_second;
        let late_bytes = self.late.bytes_per_second * self.span_seconds / 2.0;
        // The sum of what is still to come, half by half.
        (ratio > 0.0 && ratio < 1.0).then(|| self.top_bytes + MARGIN * late_bytes * ratio / (1.0 - ratio))
    }
}

/// Sen's interval: as many slopes to either side of the median as Kendall's S may stray (Hollander and Wolfe, Nonparametric Statistical
/// Methods, chapter 9).
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank between 0 and the number of slopes"
)]
fn interval(points: &[Point], slopes: &[f64]) -> (f64, f64) {
    let stray = NINETY_PERCENT * variance(points).max(0.0).sqrt();
    let count = as_f64(slopes.len() as u64);
    let rank = |rank: f64| slopes.get((rank.max(0.0) as usize).min(slopes.len().saturating_sub(1))).copied();
    let (low, high) = (rank(f64::midpoint(count, -stray)), rank(f64::midpoint(count, stray)));
    (low.unwrap_or(0.0), high.unwrap_or(0.0))
}

/// Whether [`Line::grows`] may hold for the line through these, by what is quickly found.
pub(crate) fn may_grow(points: &[Point]) -> bool {
    let rises = rises(points);
    let late = rises.iter().filter(|index| **index >= points.len() / 2).count();
    rises.len() >= RISES.0 && late >= RISES.1 && !has_stopped(&rises, points.len()) && !has_jumped(points, &rises)
}

/// Which windows needed more than any before.
fn rises(points: &[Point]) -> Vec<usize> {
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

fn has_jumped(points: &[Point], rises: &[usize]) -> bool {
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

fn seconds_between(earlier: &Point, later: &Point) -> f64 {
    as_f64(later.time_ns.saturating_sub(earlier.time_ns)) / 1e9
}

#[cfg(test)]
mod tests {
    use super::Line;
    use crate::features::trend::Point;

    const MIB: u64 = 1 << 20;

    fn line(windows: u64, bytes: impl Fn(u64) -> u64) -> Line {
        let point = |second| Point { time_ns: second * 1_000_000_000, bytes: bytes(second) };
        let points: Vec<Point> = (0..windows).map(point).collect();
        Line::through(&points).expect("it is long enough")
    }

    #[test]
    fn the_rate_lies_in_its_interval_and_the_line_above_the_windows() {
        let spiky = line(40, |second| (100 + 3 * second + if second % 10 == 9 { 50 } else { second % 2 }) * MIB);
        assert!(spiky.grows(), "{spiky:?}");
        let rate = 3.0 * 1_048_576.0;
        assert!(spiky.low_bytes_per_second <= rate && rate <= spiky.high_bytes_per_second, "{spiky:?}");
        assert!((spiky.top_bytes / 1_048_576.0 - 267.0).abs() < 3.0, "the evaluation at 39 s stands on it: {spiky:?}");
    }

    #[test]
    fn what_is_made_once_comes_and_goes_or_jumps_a_few_times_does_not_grow() {
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
    fn what_slows_down_ends_somewhere() {
        // Half of what is missing to 1 GiB in each 10 windows.
        let slowing = line(20, |second| 1024 * MIB - ((1024 * MIB) >> (second / 10)) / (1 + second % 10 / 5));
        assert!(slowing.ceiling_bytes().is_some_and(|bytes| bytes < 1_600.0 * 1_048_576.0), "{slowing:?}");
        assert_eq!(line(20, |second| second * 10 * MIB).ceiling_bytes(), None);
    }

    #[test]
    fn what_grows_every_third_window_or_faster_and_faster_grows() {
        assert!(line(30, |second| second / 3 * 100 * MIB).grows());
        let faster = line(30, |second| second * second * MIB);
        assert!(faster.grows() && faster.bend() > 0.2, "{faster:?}");
        assert!(faster.bytes_per_second > faster.whole.bytes_per_second, "{faster:?}");
    }
}
