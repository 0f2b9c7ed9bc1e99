//! A number of bytes over time: sampled at regular times, with exact peaks and averages between the
//! samples.

/// Maximum number of points; beyond it the interval is doubled.
const POINTS: usize = 1 << 13;

/// A sample of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesSample {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    pub time_ns: u64,
    /// Value at that time, in bytes.
    pub bytes: u64,
    /// Maximum value since the previous point, in bytes.
    pub most_bytes: u64,
    /// Time that the point represents, in nanoseconds: back to the previous point, or to the start.
    pub weight_ns: u64,
}

/// A number over time that keeps its value from one change to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteSeries {
    points: Vec<SeriesSample>,
    begun_ns: u64,
    /// Time of the last change.
    changed_ns: u64,
    bytes: u64,
    most_bytes: u64,
    peak: Peak,
    /// Bytes times nanoseconds up to the last change.
    area: u128,
    /// Last value and time of the end, if the number has ended.
    ended: Option<(u64, u64)>,
    /// Time between ends and restarts, in nanoseconds.
    gap_ns: u64,
}

/// Peak of the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Value in bytes.
    pub bytes: u64,
    /// Time of the first occurrence: `CLOCK_BOOTTIME`, in nanoseconds.
    pub time_ns: u64,
}

/// Statistics of a number over time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SeriesSummary {
    /// Current value; the last value if the number has ended.
    pub current_bytes: u64,
    /// Exact time average; `None` if no time has passed.
    pub average_bytes: Option<u64>,
    /// Minimum of the samples.
    pub minimum_bytes: u64,
    /// Maximum of the samples.
    pub maximum_bytes: u64,
    /// Peak at any time, also between samples.
    pub peak: Peak,
    /// 50th, 90th, 95th and 99th percentile over time, from the samples.
    pub percentiles: [u64; 4],
    /// Number of samples; the last one is at the end.
    pub samples: u64,
    /// Start: `CLOCK_BOOTTIME`, in nanoseconds.
    pub begun_ns: u64,
    /// End, or the time of the summary: `CLOCK_BOOTTIME`, in nanoseconds.
    pub last_ns: u64,
}

/// Reported percentiles, in hundredths.
pub const PERCENTILES: [u64; 4] = [50, 90, 95, 99];

impl ByteSeries {
    /// Starts a number at this time.
    pub fn begin(time_ns: u64, bytes: u64) -> Self {
        Self {
            points: Vec::new(),
            begun_ns: time_ns,
            changed_ns: time_ns,
            bytes,
            most_bytes: bytes,
            peak: Peak { bytes, time_ns },
            area: 0,
            ended: None,
            gap_ns: 0,
        }
    }

    /// Returns the current value in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the peak.
    pub const fn peak(&self) -> Peak {
        self.peak
    }

    /// Returns the start: `CLOCK_BOOTTIME`, in nanoseconds.
    pub const fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    /// Sets the value. Times may decrease slightly, because records can arrive out of order.
    pub fn set(&mut self, time_ns: u64, bytes: u64) {
        if bytes == self.bytes && self.ended.is_none() {
            return;
        }
        self.pass(time_ns);
        if let Some((_, ended_ns)) = self.ended.take() {
            self.gap_ns += time_ns.saturating_sub(ended_ns);
        }
        self.bytes = bytes;
        self.most_bytes = self.most_bytes.max(bytes);
        if bytes > self.peak.bytes {
            self.peak = Peak { bytes, time_ns };
        }
    }

    /// Ends the number.
    pub fn end(&mut self, time_ns: u64) {
        if self.ended.is_none() {
            self.pass(time_ns);
            self.ended = Some((self.bytes, time_ns));
            self.bytes = 0;
        }
    }

    /// Returns the time of the end, if the number has ended.
    pub fn ended_ns(&self) -> Option<u64> {
        self.ended.map(|(_, time_ns)| time_ns)
    }

    /// Takes a sample.
    pub fn look(&mut self, time_ns: u64) {
        if self.ended.is_none() && time_ns > self.last_ns() {
            self.points.push(self.point(time_ns));
            self.most_bytes = self.bytes;
        }
    }

    /// Returns whether the number of points has reached its maximum.
    pub fn is_full(&self) -> bool {
        self.points.len() >= POINTS
    }

    /// Merges points at other times than multiples of `interval_ns` into the next point, after the
    /// interval was doubled.
    pub fn thin(&mut self, interval_ns: u64) {
        let mut kept: Vec<SeriesSample> = Vec::with_capacity(self.points.len() / 2 + 1);
        let mut open: Option<SeriesSample> = None;
        for point in self.points.drain(..) {
            let point = open.take().map_or(point, |before| SeriesSample {
                most_bytes: point.most_bytes.max(before.most_bytes),
                weight_ns: point.weight_ns + before.weight_ns,
                ..point
            });
            if point.time_ns.is_multiple_of(interval_ns) {
                kept.push(point);
            } else {
                open = Some(point);
            }
        }
        // The next point also covers the last point that was not kept.
        if let Some(point) = open {
            self.most_bytes = self.most_bytes.max(point.most_bytes);
        }
        self.points = kept;
    }

    /// Returns all points, with a last one now or at the end.
    pub fn points(&self, now_ns: u64) -> Vec<SeriesSample> {
        let (bytes, end_ns) = self.ended.unwrap_or((self.bytes, now_ns.max(self.changed_ns)));
        let mut points = self.points.clone();
        if end_ns > self.last_ns() || points.is_empty() {
            points.push(SeriesSample { bytes, most_bytes: self.most_bytes.max(bytes), ..self.point(end_ns) });
        }
        points
    }

    /// Returns the statistics up to now.
    pub fn summary(&self, now_ns: u64) -> SeriesSummary {
        let points = self.points(now_ns);
        let (current_bytes, last_ns) = self.ended.unwrap_or((self.bytes, now_ns.max(self.changed_ns)));
        let area = self.area + self.area_until(last_ns);
        let passed_ns = last_ns.saturating_sub(self.begun_ns).saturating_sub(self.gap_ns);
        let average = area.checked_div(u128::from(passed_ns));
        let looks = || points.iter().map(|point| point.bytes);
        let weighed: Vec<(u64, u64)> = points.iter().map(|point| (point.bytes, point.weight_ns)).collect();
        SeriesSummary {
            current_bytes,
            average_bytes: average.and_then(|bytes| u64::try_from(bytes).ok()),
            minimum_bytes: looks().min().unwrap_or(current_bytes),
            maximum_bytes: looks().max().unwrap_or(current_bytes),
            peak: self.peak,
            percentiles: percentiles(weighed, Ord::cmp).unwrap_or([current_bytes; 4]),
            samples: points.len() as u64,
            begun_ns: self.begun_ns,
            last_ns,
        }
    }

    fn pass(&mut self, time_ns: u64) {
        if self.ended.is_none() {
            self.area += self.area_until(time_ns);
        }
        self.changed_ns = self.changed_ns.max(time_ns);
    }

    fn area_until(&self, time_ns: u64) -> u128 {
        let is_going = self.ended.is_none();
        if is_going { u128::from(self.bytes) * u128::from(time_ns.saturating_sub(self.changed_ns)) } else { 0 }
    }

    fn last_ns(&self) -> u64 {
        self.points.last().map_or(self.begun_ns, |point| point.time_ns)
    }

    fn point(&self, time_ns: u64) -> SeriesSample {
        let weight_ns = time_ns.saturating_sub(self.last_ns());
        SeriesSample { time_ns, bytes: self.bytes, most_bytes: self.most_bytes, weight_ns }
    }
}

/// Returns the [`PERCENTILES`] of values that are weighted by the time that each represents. If no
/// time has passed, all values have the same weight. Returns `None` without values.
pub fn percentiles<T: Copy>(
    mut values: Vec<(T, u64)>,
    order: impl Fn(&T, &T) -> std::cmp::Ordering,
) -> Option<[T; PERCENTILES.len()]> {
    values.sort_by(|(one, _), (other, _)| order(one, other));
    if values.iter().all(|(_, weight)| *weight == 0) {
        for (_, weight) in &mut values {
            *weight = 1;
        }
    }
    let total: u128 = values.iter().map(|(_, weight)| u128::from(*weight)).sum();
    let (most, _) = *values.last()?;
    Some(PERCENTILES.map(|part| {
        let mut sum = 0;
        let reached = values.iter().find(|(_, weight)| {
            sum += u128::from(*weight);
            sum * 100 >= total * u128::from(part)
        });
        reached.map_or(most, |(value, _)| *value)
    }))
}

#[cfg(test)]
mod tests {
    use super::{ByteSeries, POINTS, Peak, percentiles};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_average_and_the_peak_are_exact_between_two_looks() {
        let mut course = ByteSeries::begin(0, 0);
        course.set(SECOND / 4, 400);
        course.set(SECOND / 2, 100);
        course.look(SECOND);
        course.look(2 * SECOND);
        let summary = course.summary(2 * SECOND);
        assert_eq!(summary.average_bytes, Some(u64::midpoint(400 / 4, 3 * 100 / 2)));
        assert_eq!(summary.peak, Peak { bytes: 400, time_ns: SECOND / 4 });
        assert_eq!((summary.maximum_bytes, summary.current_bytes, summary.samples), (100, 100, 2));
        let most: Vec<u64> = course.points(2 * SECOND).iter().map(|point| point.most_bytes).collect();
        assert_eq!(most, [400, 100]);
    }

    #[test]
    fn percentiles_go_by_time_and_not_by_the_number_of_looks() {
        let mut course = ByteSeries::begin(0, 10);
        course.look(90 * SECOND);
        course.set(90 * SECOND, 1000);
        course.look(91 * SECOND);
        course.look(92 * SECOND);
        let summary = course.summary(100 * SECOND);
        assert_eq!((summary.percentiles, summary.samples), ([10, 10, 1000, 1000], 4));
        assert_eq!(percentiles(vec![(3, 0), (1, 0)], u64::cmp), Some([1, 3, 3, 3]), "no time has passed");
        assert_eq!(percentiles(Vec::<(u64, u64)>::new(), u64::cmp), None);
    }

    #[test]
    fn time_series_that_ended_counts_to_its_end_and_may_resume() {
        let mut course = ByteSeries::begin(0, 100);
        course.look(SECOND);
        course.end(3 * SECOND / 2);
        course.look(5 * SECOND);
        let summary = course.summary(9 * SECOND);
        assert_eq!((summary.current_bytes, summary.average_bytes, summary.last_ns), (100, Some(100), 3 * SECOND / 2));
        assert_eq!(course.points(9 * SECOND).len(), 2);
        course.set(10 * SECOND, 100);
        assert_eq!((course.ended_ns(), course.summary(10 * SECOND).current_bytes), (None, 100));
        assert_eq!(course.summary(20 * SECOND).average_bytes, Some(100), "the time between does not count");
    }

    #[test]
    fn thinned_points_keep_what_was_the_most_and_their_times() {
        let mut course = ByteSeries::begin(0, 0);
        for second in 1..=8 {
            course.set(second * SECOND - SECOND / 2, second * 100);
            course.set(second * SECOND - SECOND / 4, second);
            course.look(second * SECOND);
        }
        let before = course.summary(8 * SECOND);
        course.thin(2 * SECOND);
        let points = course.points(8 * SECOND);
        let reported: Vec<_> = points.iter().map(|one| (one.time_ns / SECOND, one.bytes, one.most_bytes)).collect();
        assert_eq!(reported, [(2, 2, 200), (4, 4, 400), (6, 6, 600), (8, 8, 800)]);
        assert!(points.iter().all(|point| point.weight_ns == 2 * SECOND));
        let after = course.summary(8 * SECOND);
        assert_eq!((after.average_bytes, after.peak), (before.average_bytes, before.peak));
        assert!(!course.is_full() && POINTS > 1);
    }

    #[test]
    fn a_number_seen_for_no_time_has_no_average() {
        let course = ByteSeries::begin(SECOND, 7);
        let summary = course.summary(SECOND);
        assert_eq!((summary.average_bytes, summary.percentiles, summary.samples), (None, [7; 4], 1));
    }
}
