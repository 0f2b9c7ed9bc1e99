//! Verdict on one series: whether it grows.

use serde::{Deserialize, Serialize};

use crate::features::leak::flow::BlockFlow;
use crate::features::trend::{Trend, TrendSeries};

/// Significance level of the whole trend: growth counts if noise alone would look this steady less
/// often.
const SURE: f64 = 0.01;
/// Significance level of the later half, which has fewer points.
const SURE_LATE: f64 = 0.05;
/// Minimum slope of a leak's later half, as a fraction of the whole slope.
const STILL: f64 = 0.6;

/// Verdict on a growth source; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Grows steadily and still grows.
    Leak,
    /// Grows by less than the threshold.
    Slow,
    /// Grew earlier, and has stopped or slows down.
    LevelledOff,
    /// Does not grow.
    Steady,
}

impl Verdict {
    /// Returns whether the memory still grows.
    pub const fn grows(self) -> bool {
        matches!(self, Self::Leak | Self::Slow)
    }

    /// Returns the word on screens: `leak`, `slow`, `levelled off`, `steady`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::Slow => "slow",
            Self::LevelledOff => "levelled off",
            Self::Steady => "steady",
        }
    }
}

/// Returns the verdict on a series and the trend that it is based on; `None` if the series is too
/// short to decide. `replaced` holds the average time in nanoseconds within which the memory is
/// replaced (0 if it is retained), and the counts of allocated and freed blocks if they are known.
pub(super) fn judge_series(
    series: &TrendSeries,
    replaced: Option<(u64, Option<&BlockFlow>)>,
    has_ended: bool,
    threshold_bytes_per_minute: f64,
) -> Option<(Verdict, Trend)> {
    let (turnover_ns, flow) = replaced.unwrap_or_default();
    let whole = trend(series, has_ended)?;
    let apart = trend(&series.apart(turnover_ns), has_ended);
    // The longer a queue, the longer each of its blocks waits, so that there are never enough
    // points that far apart.
    let apart = apart.or_else(|| Some(whole).filter(|whole| flow.is_some_and(|flow| flow.backs_up(whole))));
    judge_replaced(whole, apart, threshold_bytes_per_minute)
}

/// Judges a series together with the memory that is older than the watch. What is replaced frees its
/// oldest blocks first: until all older ones are gone, what came since is kept although nothing
/// grows, and a queue that backs up frees none of it.
pub(super) fn judge_with_older(
    found: Option<(Verdict, Trend)>,
    (series, flow): (&TrendSeries, &BlockFlow),
    (older, older_flow): (&TrendSeries, &BlockFlow),
    has_ended: bool,
    threshold_bytes_per_minute: f64,
) -> Option<(Verdict, Trend)> {
    let grows = |trend: &Trend| judge(trend, threshold_bytes_per_minute).grows();
    if found.is_some_and(|(verdict, _)| !verdict.grows()) || !older_flow.has_frees() {
        return found;
    }
    let own = trend(series, has_ended)?;
    let whole = trend(&series.plus(older), has_ended)?;
    if !grows(&own) || !grows(&whole) {
        return None;
    }
    let is_queue = flow.with_frees_of(older_flow).backs_up(&whole);
    found.or_else(|| is_queue.then(|| (judge(&own, threshold_bytes_per_minute), own)))
}

/// Returns the trend of a series; for a program that has ended, without the memory freed at exit.
pub(super) fn trend(series: &TrendSeries, has_ended: bool) -> Option<Trend> {
    if has_ended { series.trend_of_ended() } else { series.trend() }
}

/// Judges a trend of memory that may be replaced. Where all blocks are replaced after a while,
/// as in a list of the last hundred tensors, the live bytes fluctuate without a trend. Their
/// growth is judged by the independent points in `replaced`, and is undecided without them.
/// Returns the verdict and the trend that it is based on.
pub(super) fn judge_replaced(
    trend: Trend,
    replaced: Option<Trend>,
    threshold_bytes_per_minute: f64,
) -> Option<(Verdict, Trend)> {
    match judge(&trend, threshold_bytes_per_minute) {
        Verdict::Leak | Verdict::Slow => replaced.map(|trend| (judge(&trend, threshold_bytes_per_minute), trend)),
        settled => Some((settled, trend)),
    }
}

/// Returns the verdict on a trend.
pub(super) fn judge(trend: &Trend, threshold_bytes_per_minute: f64) -> Verdict {
    let per_minute = trend.whole.bytes_per_second * 60.0;
    let has_grown = trend.late_least_bytes > trend.first_bytes;
    let grows = per_minute > 0.0 && trend.whole.p < SURE;
    let is_steep = trend.late.bytes_per_second >= STILL * trend.whole.bytes_per_second;
    let goes_on = trend.late.p < SURE_LATE && is_steep && !trend.slows;
    match (grows && goes_on, has_grown) {
        (true, _) if per_minute >= threshold_bytes_per_minute => Verdict::Leak,
        (true, _) => Verdict::Slow,
        (false, true) => Verdict::LevelledOff,
        (false, false) => Verdict::Steady,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdicts on a line without and with the memory that is older than a watch of this many
    /// seconds. Each second `came` blocks are allocated and `went` freed, the oldest first, and
    /// `older` exist at the beginning.
    fn verdicts(seconds: u64, (came, went, older): (u64, u64, u64)) -> [Option<Verdict>; 2] {
        const BLOCK_BYTES: u64 = 8 << 20;
        let [mut own, mut before] = [(); 2].map(|()| (TrendSeries::default(), BlockFlow::default()));
        for second in 1..=seconds {
            let time_ns = second * 1_000_000_000;
            let gone = (went * second).min(older);
            let (all, freed) = (came * second, (went * second - gone).min(came * second));
            own.0.push(time_ns, (all - freed) * BLOCK_BYTES);
            own.1.push(time_ns, all, freed);
            before.0.push(time_ns, (older - gone) * BLOCK_BYTES);
            before.1.push(time_ns, 0, gone);
        }
        let turnover_ns = if went * seconds > older { 4_000_000_000 } else { 0 };
        let found = judge_series(&own.0, Some((turnover_ns, Some(&own.1))), false, 1e6);
        let both = judge_with_older(found, (&own.0, &own.1), (&before.0, &before.1), false, 1e6);
        [found, both].map(|found| found.map(|(verdict, _)| verdict))
    }

    #[test]
    fn late_watch_of_a_queue_sees_that_its_older_blocks_go_first() {
        assert_eq!(verdicts(20, (10, 5, 60)), [None, Some(Verdict::Leak)]);
        for older in [5, 25, 40, 99] {
            assert_eq!(verdicts(20, (10, 5, older))[1], Some(Verdict::Leak), "{older}");
        }
    }

    #[test]
    fn older_memory_that_goes_as_fast_as_new_memory_comes_is_no_growth() {
        // Twenty seconds of the last hundred blocks, and of a server whose sessions end.
        assert_eq!(verdicts(20, (5, 5, 100)), [Some(Verdict::Leak), None]);
        assert_eq!(verdicts(20, (5, 8, 200)), [Some(Verdict::Leak), None]);
        assert_eq!(verdicts(20, (0, 5, 100)), [Some(Verdict::Steady); 2]);
    }

    #[test]
    fn leak_beside_older_memory_is_one_whether_that_stays_or_goes_once() {
        assert_eq!(verdicts(20, (5, 0, 100)), [Some(Verdict::Leak); 2]);
        assert_eq!(verdicts(20, (50, 4, 12)), [Some(Verdict::Leak); 2], "it went in the first seconds");
    }
}
