//! Trend of a series of numbers, by statistics that assume no shape of the noise.
//!
//! * **Mann–Kendall**: the number of pairs that grow minus the number that shrink, with ties, in
//!   the usual normal approximation (Kendall, Rank Correlation Methods, chapter 4). Its `p` is the
//!   probability that noise alone would look so steady.
//! * **Theil–Sen**: the median of the slopes of all pairs, which jumps and spikes do not change.
//! * **Laplace**: whether growth slows down. The times at which a series rises are spread evenly if
//!   it grows at a constant rate; their mean is then normally distributed about the middle.

use serde::{Deserialize, Serialize};

/// Maximum number of points; beyond it neighbouring points are merged in pairs.
const POINTS: usize = 128;
/// Minimum number of points for a trend.
const FEWEST: usize = 10;
/// Beginning of a series that does not count as growth that slows down, as a fraction of its
/// duration: programs allocate more while they start.
const START: f64 = 0.1;
/// Maximum weight of one rise, in median rises, so that a jump counts for no more than a few.
const RISE_LIMIT: u64 = 2;
/// Significance level of growth that slows down.
const SLOWS: f64 = 0.05;

/// Maximum time, in nanoseconds, between the last use of memory and the exit of a program that frees
/// it because it ends.
const LONGEST_END_NS: u64 = 5_000_000_000;

/// A number over time that keeps the minimum, or the maximum, of the observations merged into a
/// point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrendSeries {
    points: Vec<TrendPoint>,
    keeps_most: bool,
    /// Number of observations per point.
    every: usize,
    /// Observations of the incomplete point, and their number.
    pending: Option<(TrendPoint, usize)>,
}

/// Value of a series at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrendPoint {
    pub(super) time_ns: u64,
    pub(super) bytes: u64,
}

/// Trend of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trend {
    /// Number of points.
    pub points: usize,
    /// Time of the first point: `CLOCK_BOOTTIME`, in nanoseconds.
    pub first_ns: u64,
    /// Time of the last point: `CLOCK_BOOTTIME`, in nanoseconds.
    pub last_ns: u64,
    /// Bytes at the first point.
    pub first_bytes: u64,
    /// Bytes at the last point.
    pub last_bytes: u64,
    /// Minimum bytes of the later half.
    pub late_least_bytes: u64,
    /// Slope of the whole series.
    pub whole: Slope,
    /// Slope of the later half.
    pub late: Slope,
    /// Whether growth slows down after the start: a constant rate would look so seldom.
    pub slows: bool,
}

/// A slope and its significance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slope {
    /// Theil–Sen slope.
    pub bytes_per_second: f64,
    /// Two-sided Mann–Kendall `p`: 1 if there is no trend at all.
    pub p: f64,
}

impl TrendSeries {
    /// Creates an empty series that keeps the maximum of merged observations.
    pub fn of_most() -> Self {
        Self { keeps_most: true, ..Self::default() }
    }

    /// Returns the points so far.
    pub(super) fn points(&self) -> &[TrendPoint] {
        &self.points
    }

    /// Adds an observation. Times must not decrease.
    pub fn push(&mut self, time_ns: u64, bytes: u64) {
        let kept = if self.keeps_most { u64::max } else { u64::min };
        let (point, count) = match self.pending {
            Some((point, count)) => (TrendPoint { time_ns, bytes: kept(point.bytes, bytes) }, count + 1),
            None => (TrendPoint { time_ns, bytes }, 1),
        };
        self.pending = Some((point, count));
        if count >= self.every.max(1) {
            self.points.push(point);
            self.pending = None;
        }
        if self.points.len() >= POINTS {
            let halved = self.points.chunks(2).filter_map(|pair| {
                let bytes = pair.iter().map(|point| point.bytes).reduce(kept)?;
                Some(TrendPoint { time_ns: pair.last()?.time_ns, bytes })
            });
            self.points = halved.collect();
            self.every = self.every.max(1) * 2;
        }
    }

    /// Returns the trend; `None` if the series is too short to decide.
    pub fn trend(&self) -> Option<Trend> {
        trend_of(&self.points)
    }

    /// Returns the sum of this series and the latest values of another one at the same times.
    #[must_use]
    pub(super) fn plus(&self, other: &Self) -> Self {
        let at = |time_ns: u64| {
            let after = other.points.partition_point(|point| point.time_ns <= time_ns);
            after.checked_sub(1).and_then(|last| other.points.get(last)).map_or(0, |point| point.bytes)
        };
        let point = |point: &TrendPoint| TrendPoint { bytes: point.bytes.saturating_add(at(point.time_ns)), ..*point };
        Self { points: self.points.iter().map(point).collect(), ..self.clone() }
    }

    /// Returns a series with one point per `span_ns` nanoseconds. Its points are independent if the
    /// memory is replaced within that span.
    #[must_use]
    pub fn apart(&self, span_ns: u64) -> Self {
        let kept = if self.keeps_most { u64::max } else { u64::min };
        let mut points: Vec<TrendPoint> = Vec::new();
        let mut begin_ns = 0_u64;
        for point in &self.points {
            match points.last_mut() {
                Some(last) if point.time_ns < begin_ns.saturating_add(span_ns) => {
                    *last = TrendPoint { time_ns: point.time_ns, bytes: kept(last.bytes, point.bytes) };
                }
                _ => {
                    begin_ns = point.time_ns;
                    points.push(*point);
                }
            }
        }
        Self { points, ..self.clone() }
    }

    /// Returns the trend of a program that has ended, without the points of its end: those of the last
    /// seconds at which nothing was left, and one before them at which memory was being freed. A
    /// program that dies of an exception frees its memory some time before it exits.
    pub fn trend_of_ended(&self) -> Option<Trend> {
        let end_ns = self.points.last()?.time_ns;
        let used = self.points.iter().rposition(|point| point.bytes > 0);
        let used = used.filter(|last| end_ns.saturating_sub(self.points[*last].time_ns) <= LONGEST_END_NS);
        match used.map_or(&self.points[..], |last| &self.points[..=last]) {
            [all @ .., before, last] if last.bytes < before.bytes => trend_of(&self.points[..=all.len()]),
            all => trend_of(all),
        }
    }
}

fn trend_of(points: &[TrendPoint]) -> Option<Trend> {
    let [first, .., last] = points else { return None };
    let late = points.get(points.len() / 2..)?;
    (points.len() >= FEWEST).then(|| Trend {
        points: points.len(),
        first_ns: first.time_ns,
        last_ns: last.time_ns,
        first_bytes: first.bytes,
        last_bytes: last.bytes,
        late_least_bytes: late.iter().map(|point| point.bytes).min().unwrap_or(0),
        whole: slope(points),
        late: slope(late),
        slows: slows(points),
    })
}

/// Returns whether the growth of these points slows down, by Laplace's test on the times at which
/// they rise above everything before.
fn slows(points: &[TrendPoint]) -> bool {
    let [first, .., last] = points else { return false };
    let seconds = |from: u64, to: u64| as_f64(to.saturating_sub(from)) / 1e9;
    let start = START * seconds(first.time_ns, last.time_ns);
    let begins = points.partition_point(|point| seconds(first.time_ns, point.time_ns) < start);
    let [first, later @ ..] = points.get(begins..).unwrap_or_default() else { return false };
    let span = seconds(first.time_ns, last.time_ns);
    let mut most_bytes = first.bytes;
    let rises: Vec<(f64, u64)> = later
        .iter()
        .filter_map(|point| {
            let rise_bytes = point.bytes.saturating_sub(most_bytes);
            most_bytes = most_bytes.max(point.bytes);
            (rise_bytes > 0).then(|| (seconds(first.time_ns, point.time_ns) / span, rise_bytes))
        })
        .collect();
    let mut sizes: Vec<u64> = rises.iter().map(|(_, bytes)| *bytes).collect();
    sizes.sort_unstable();
    let Some(median) = sizes.get(sizes.len() / 2) else { return false };
    let weight = |bytes: u64| as_f64(bytes.min(median.saturating_mul(RISE_LIMIT)));
    let (mut all, mut squares, mut moment) = (0.0, 0.0, 0.0);
    for (when, bytes) in rises {
        let weight = weight(bytes);
        all += weight;
        squares += weight * weight;
        moment += weight * when;
    }
    // A point stands for the time since the one before.
    let middle = 0.5 + 0.5 / as_f64(later.len() as u64);
    // The mean of n evenly distributed times has the variance 1 / 12n.
    let deviations = (moment / all - middle) * (12.0 * all * all / squares).sqrt();
    deviations < 0.0 && two_tails(-deviations) / 2.0 < SLOWS
}

/// Returns the slope of these points.
pub(super) fn slope(points: &[TrendPoint]) -> Slope {
    slope_of(points, &slopes(points))
}

/// Returns the slope of these points from the sorted slopes of all pairs.
pub(super) fn slope_of(points: &[TrendPoint], slopes: &[f64]) -> Slope {
    let bytes_per_second = slopes.get(slopes.len() / 2).copied().unwrap_or(0.0);
    Slope { bytes_per_second, p: chance(balance(points), points) }
}

/// Returns the slopes of all pairs, sorted.
pub(super) fn slopes(points: &[TrendPoint]) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, earlier) in points.iter().enumerate() {
        for later in points.iter().skip(index + 1) {
            let seconds = as_f64(later.time_ns.saturating_sub(earlier.time_ns)) / 1e9;
            if seconds > 0.0 {
                slopes.push((as_f64(later.bytes) - as_f64(earlier.bytes)) / seconds);
            }
        }
    }
    slopes.sort_by(f64::total_cmp);
    slopes
}

/// Returns Kendall's S: the number of pairs that grow minus the number that shrink.
fn balance(points: &[TrendPoint]) -> i64 {
    let later = |index: usize| points.iter().skip(index + 1);
    let pairs = points.iter().enumerate().flat_map(|(index, earlier)| later(index).map(move |later| (earlier, later)));
    let sign = |(earlier, later): (&TrendPoint, &TrendPoint)| match later.bytes.cmp(&earlier.bytes) {
        std::cmp::Ordering::Greater => 1,
        std::cmp::Ordering::Equal => 0,
        std::cmp::Ordering::Less => -1,
    };
    pairs.map(sign).sum()
}

/// Returns the probability that points in random order have at least this balance, in either
/// direction.
fn chance(balance: i64, points: &[TrendPoint]) -> f64 {
    let variance = variance(points);
    if variance <= 0.0 || balance == 0 {
        return 1.0;
    }
    // Continuity correction.
    let deviations = (as_f64(balance.unsigned_abs()) - 1.0) / variance.sqrt();
    two_tails(deviations)
}

/// Returns the variance of Kendall's S without a trend, corrected for ties.
pub(super) fn variance(points: &[TrendPoint]) -> f64 {
    let part = |count: usize| {
        let count = as_f64(count as u64);
        count * (count - 1.0) * (2.0 * count + 5.0)
    };
    let mut values: Vec<u64> = points.iter().map(|point| point.bytes).collect();
    values.sort_unstable();
    let ties: f64 = values.chunk_by(|one, other| one == other).map(|equal| part(equal.len())).sum();
    (part(points.len()) - ties) / 18.0
}

/// Returns the probability of a normal distribution beyond this many standard deviations on both
/// sides: Abramowitz and Stegun 26.2.17, accurate to 1e-7.
fn two_tails(deviations: f64) -> f64 {
    const POWERS: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * deviations);
    let sum = POWERS.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let density = (-deviations * deviations / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    (2.0 * density * sum).clamp(0.0, 1.0)
}

/// Converts to `f64`. Bytes and times are far below 2^53, or need not be exact.
#[expect(clippy::cast_precision_loss, reason = "a slope needs no sixteen digits")]
pub(crate) const fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::{POINTS, TrendSeries, two_tails};

    const SECOND: u64 = 1_000_000_000;

    fn series(values: impl IntoIterator<Item = u64>) -> TrendSeries {
        let mut series = TrendSeries::default();
        for (second, value) in (1..).zip(values) {
            series.push(second * SECOND, value);
        }
        series
    }

    /// Pseudo-random numbers, the same on each run.
    fn noise(index: u64) -> u64 {
        (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 1_000
    }

    #[test]
    fn steady_growth_has_its_slope_and_no_doubt() {
        let trend = series((0..30).map(|second| 5_000 + 100 * second)).trend().expect("it is long enough");
        assert!((trend.whole.bytes_per_second - 100.0).abs() < 1e-9, "{trend:?}");
        assert!(trend.whole.p < 1e-6 && trend.late.p < 1e-3, "{trend:?}");
        assert_eq!((trend.points, trend.first_bytes, trend.last_bytes), (30, 5_000, 7_900));
    }

    #[test]
    fn noise_a_jump_and_spikes_are_no_growth() {
        let noisy = series((0..40).map(noise)).trend().expect("it is long enough");
        assert!(noisy.whole.p > 0.05, "{noisy:?}");
        let jump = series((0..40).map(|second| if second < 3 { 0 } else { 9_000 })).trend().expect("it is long enough");
        assert!(jump.whole.bytes_per_second.abs() < 1e-9 && jump.late.p > 0.99, "{jump:?}");
        let spikes = series((0..40).map(|second| if second % 8 == 7 { 90_000 } else { 10 })).trend().expect("long");
        assert!(spikes.whole.bytes_per_second.abs() < 1e-9 && spikes.whole.p > 0.05, "{spikes:?}");
        let flat = series([7; 40]).trend().expect("it is long enough");
        assert!((flat.whole.p - 1.0).abs() < 1e-9 && flat.whole.bytes_per_second.abs() < 1e-9, "{flat:?}");
    }

    #[test]
    fn trend_finds_noisy_growth_and_judges_levelling_off_by_its_later_half() {
        let leak = series((0..60).map(|second| 50 * second + noise(second))).trend().expect("it is long enough");
        assert!(leak.whole.p < 1e-4 && (30.0..70.0).contains(&leak.whole.bytes_per_second), "{leak:?}");
        let full = series((0..60).map(|second| 100 * second.min(25))).trend().expect("it is long enough");
        assert!(full.whole.p < 1e-4 && full.late.bytes_per_second.abs() < 1e-9, "{full:?}");
    }

    #[test]
    fn trend_of_an_ended_program_excludes_its_final_frees() {
        let ended = series((0..30).map(|second| 100 * second).chain([0]));
        let trend = ended.trend_of_ended().expect("it is long enough");
        assert_eq!((trend.points, trend.last_bytes, trend.late_least_bytes), (30, 2_900, 1_500));
        let failed = series((0..30).map(|second| 100 * second).chain([700, 0, 0]));
        assert_eq!(failed.trend_of_ended(), ended.trend_of_ended());
        let went_on = series((0..30).map(|second| 100 * second).chain([0; 10]));
        assert_eq!(went_on.trend_of_ended(), went_on.trend());
        let rests = series((0..30).map(|second| 100 * second));
        assert_eq!(rests.trend_of_ended(), rests.trend());
    }

    /// A series in which a block comes at each of these seconds.
    fn blocks(seconds: u64, times: &[u64]) -> TrendSeries {
        series((0..seconds).map(|second| 24 * times.iter().filter(|time| **time <= second).count() as u64))
    }

    #[test]
    fn growth_slows_down_where_rises_get_rarer_and_not_after_a_start() {
        let slows = |series: &TrendSeries| series.trend().expect("it is long enough").slows;
        let at = |from: u64, every: u64| (0..10).map(move |number| from + number * every);
        let even: Vec<u64> = at(4, 6).collect();
        assert!(!slows(&blocks(64, &even)));
        let started: Vec<u64> = (0..5).chain(at(8, 6)).collect();
        assert!(!slows(&blocks(64, &started)), "a program that starts, then loses a block every six seconds");
        let cache: Vec<u64> = (0..20).chain((20..40).step_by(3)).chain((40..64).step_by(8)).collect();
        assert!(slows(&blocks(64, &cache)), "a cache: a hit is likelier the fuller it is");
        let jump = series((0..60).map(|second| 24 * second + if second > 20 { 90_000 } else { 0 }));
        assert!(!slows(&jump), "one jump says nothing of the rate");
        let noisy = series((0..60).map(|second| 50 * second + noise(second)));
        assert!(!slows(&noisy));
        assert!(!slows(&series([7; 40])) && !slows(&series((0..40).map(|second| second * second))));
    }

    #[test]
    fn a_long_series_keeps_few_points_and_its_slope() {
        let long = series((0..10_000).map(|second| 3 * second));
        let trend = long.trend().expect("it is long enough");
        assert!(trend.points < POINTS && (trend.whole.bytes_per_second - 3.0).abs() < 0.1, "{trend:?}");
        assert_eq!(trend.first_bytes, 0, "of neighbours the least is kept");
        assert_eq!(series(0..9).trend(), None);
    }

    #[test]
    fn thinned_trend_points_are_the_minimum_of_their_span() {
        let wanders = series([5, 3, 8, 9, 7, 1, 4]);
        let all: Vec<u64> = wanders.apart(3 * SECOND).points.iter().map(|point| point.bytes).collect();
        assert_eq!(all, [3, 1, 4]);
        assert_eq!(wanders.apart(0), wanders);
    }

    #[test]
    fn normal_tail_probabilities_match_the_tables() {
        for (deviations, tails) in [(0.0, 1.0), (1.0, 0.317_310_5), (1.959_964, 0.05), (3.290_527, 0.001)] {
            assert!((two_tails(deviations) - tails).abs() < 1e-6, "{deviations}: {}", two_tails(deviations));
        }
    }
}
