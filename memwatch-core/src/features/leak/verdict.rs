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
    /// Grew earlier and has stopped growing.
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
    let goes_on = trend.late.p < SURE_LATE && trend.late.bytes_per_second >= STILL * trend.whole.bytes_per_second;
    match (grows && goes_on, has_grown) {
        (true, _) if per_minute >= threshold_bytes_per_minute => Verdict::Leak,
        (true, _) => Verdict::Slow,
        (false, true) => Verdict::LevelledOff,
        (false, false) => Verdict::Steady,
    }
}
