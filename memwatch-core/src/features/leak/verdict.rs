//! Does what is held somewhere grow? The verdict on one series of numbers.

use serde::{Deserialize, Serialize};

use crate::features::leak::flow::Flow;
use crate::features::trend::{Series, Trend};

/// Growth is believed where noise looks so steady less often than this.
const SURE: f64 = 0.01;
/// And its later half, which has fewer points, less often than this.
const SURE_LATE: f64 = 0.05;
/// A leak's later half grows by at least this part of the whole's rate.
const STILL: f64 = 0.6;

/// The verdict on a place, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It grows all the time, and goes on.
    Leak,
    /// It grows, by less than the threshold.
    Slow,
    /// It has grown, and does no more.
    LevelledOff,
    /// It does not grow.
    Steady,
}

impl Verdict {
    /// Whether it grows, and goes on.
    pub const fn grows(self) -> bool {
        matches!(self, Self::Leak | Self::Slow)
    }

    /// On screens: `leak`, `slow`, `levelled off`, `steady`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::Slow => "slow",
            Self::LevelledOff => "levelled off",
            Self::Steady => "steady",
        }
    }
}

/// The verdict on what a series holds, with the trend that it is of; `None` where it is too short to decide. What is held may be replaced within so many
/// nanoseconds on average (0: it is kept), by blocks of which it is known how they come and go.
pub(super) fn judge_series(
    series: &Series,
    replaced: Option<(u64, Option<&Flow>)>,
    has_ended: bool,
    threshold_bytes_per_minute: f64,
) -> Option<(Verdict, Trend)> {
    let (turnover_ns, flow) = replaced.unwrap_or_default();
    let whole = trend(series, has_ended)?;
    let apart = trend(&series.apart(turnover_ns), has_ended);
    // The longer a queue, the longer each of its blocks waits: points so far apart there will never be enough.
    let apart = apart.or_else(|| Some(whole).filter(|whole| flow.is_some_and(|flow| flow.backs_up(whole))));
    judge_replaced(whole, apart, threshold_bytes_per_minute)
}

/// How a series goes; of a program that has ended, without what it gave back as it did.
pub(super) fn trend(series: &Series, has_ended: bool) -> Option<Trend> {
    if has_ended { series.trend_of_ended() } else { series.trend() }
}

/// Where all that is held is another after a while, as in a list of the last hundred, it wanders; growth shows in points that have
/// nothing to do with each other, or not yet. With the verdict, the trend that it is of.
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

/// The verdict on what has this trend.
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
