//! Counts of blocks allocated and freed over time: tells a queue that backs up from blocks that
//! live long. Every block of a queue is freed eventually, and yet their number can grow without
//! limit. Where blocks merely live long, the rate of frees rises until it equals the rate of
//! allocations.

use serde::{Deserialize, Serialize};

use crate::features::trend::{Trend, TrendPoint, TrendSeries, as_f64};

/// Maximum ratio of the later half's rate of frees to the earlier half's: the consumer has not
/// become faster.
const STEADY: f64 = 1.35;
/// Minimum slope of the later half, as a fraction of the whole slope: the growth does not level
/// off.
const STRAIGHT: f64 = 0.8;
/// Standard deviations by which allocations must exceed frees; random counts rarely differ by more.
const DEVIATIONS: f64 = 3.0;
/// Difference of two numbers of blocks that may be due to the moments at which they were counted.
const FEW: u64 = 2;
/// Minimum number of points of a half.
const FEWEST: usize = 4;

/// Series of the numbers of blocks allocated and freed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BlockFlow {
    came: TrendSeries,
    went: TrendSeries,
}

impl BlockFlow {
    /// Adds the numbers of blocks allocated and freed since the beginning.
    pub(super) fn push(&mut self, time_ns: u64, came: u64, went: u64) {
        self.came.push(time_ns, came);
        self.went.push(time_ns, went);
    }

    /// Returns the flow with the frees of older memory added. A late watch of a queue sees no other
    /// frees until all older blocks are gone.
    pub(super) fn with_frees_of(&self, older: &Self) -> Self {
        Self { came: self.came.clone(), went: self.went.plus(&older.went) }
    }

    /// Returns whether blocks were freed.
    pub(super) fn has_frees(&self) -> bool {
        let ends = self.went.points().first().zip(self.went.points().last());
        ends.is_some_and(|(first, last)| last.bytes > first.bytes)
    }

    /// Returns whether the number of live blocks grows, and not only their size.
    pub(super) fn grows_in_number(&self) -> bool {
        let live = |points: (&TrendPoint, &TrendPoint)| points.0.bytes.saturating_sub(points.1.bytes);
        let pairs = || self.came.points().iter().zip(self.went.points());
        let Some((first, last)) = pairs().next().map(live).zip(pairs().next_back().map(live)) else { return true };
        last > first + FEW.max(first / 4)
    }

    /// Returns whether allocations exceed frees throughout, and frees do not catch up, where the
    /// live bytes have this trend.
    pub(super) fn backs_up(&self, trend: &Trend) -> bool {
        if trend.late.bytes_per_second < STRAIGHT * trend.whole.bytes_per_second {
            return false;
        }
        // Starts at the first free: the consumer has not started before it.
        let begin = self.went.points().iter().position(|point| point.bytes > 0).unwrap_or(0);
        let (came, went) = (self.came.points().get(begin..), self.went.points().get(begin..));
        let Some(([early_in, late_in], [early_out, late_out])) = came.and_then(halves).zip(went.and_then(halves))
        else {
            return false;
        };
        let net = [early_in.number - early_out.number, late_in.number - late_out.number];
        let all = early_in.number + late_in.number + early_out.number + late_out.number;
        let grows = net.iter().all(|net| *net > 0.0) && net.iter().sum::<f64>() > DEVIATIONS * all.sqrt();
        let before = early_out.number / early_out.seconds;
        grows && before > 0.0 && late_out.number / late_out.seconds <= STEADY * before
    }
}

/// Number counted within half of the time.
#[derive(Clone, Copy, Debug)]
struct FlowHalf {
    number: f64,
    seconds: f64,
}

fn halves(points: &[TrendPoint]) -> Option<[FlowHalf; 2]> {
    let (first, last) = (points.first()?, points.last()?);
    let middle = points.get(points.len() / 2).filter(|_| points.len() >= 2 * FEWEST)?;
    let half = |from: &TrendPoint, to: &TrendPoint| FlowHalf {
        number: as_f64(to.bytes.saturating_sub(from.bytes)),
        seconds: as_f64(to.time_ns.saturating_sub(from.time_ns).max(1)) / 1e9,
    };
    Some([half(first, middle), half(middle, last)])
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use super::BlockFlow;
    use crate::features::trend::TrendSeries;

    /// Whether a queue backs up after `seconds` seconds, with `per_second` blocks a second that
    /// live for `life` ticks of 10 ms each.
    fn backs_up(seconds: u64, per_second: u64, life: impl Fn(u64) -> u64) -> bool {
        let (mut flow, mut series) = (BlockFlow::default(), TrendSeries::default());
        let (mut ends, mut came, mut went) = (BinaryHeap::new(), 0, 0);
        for tick in 0..seconds * 100 {
            for _ in 0..per_second * (tick + 1) / 100 - per_second * tick / 100 {
                ends.push(std::cmp::Reverse(tick + life(came)));
                came += 1;
            }
            while ends.peek().is_some_and(|end| end.0 <= tick) {
                ends.pop();
                went += 1;
            }
            if tick % 100 == 99 {
                flow.push(tick * 10_000_000, came, went);
                series.push(tick * 10_000_000, ends.len() as u64);
            }
        }
        flow.backs_up(&series.trend().expect("it is long enough"))
    }

    /// Exponentially distributed lifetimes with this mean.
    fn chance(mean: u64, seed: u64) -> impl Fn(u64) -> u64 {
        move |number| {
            let mixed =
                (number + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is chance"
            )]
            let life = (-((mixed >> 11) as f64 / (1_u64 << 53) as f64).max(1e-9).ln() * mean as f64) as u64;
            life
        }
    }

    #[test]
    fn a_queue_that_is_filled_faster_than_it_is_emptied_backs_up() {
        // One of two blocks is freed: each waits as long as the program had run when it was
        // allocated.
        assert!(backs_up(60, 20, |number| number * 5 + 10));
        assert!(backs_up(45, 20, |number| number * 5 + 400));
        assert!(backs_up(60, 40, |number| number / 4 + 10), "one of eleven more");
    }

    #[test]
    fn leak_flow_ignores_long_lived_blocks_freed_at_the_rate_they_appear() {
        for seed in 0..40 {
            for mean in [200, 1_000, 3_000, 6_000] {
                assert!(!backs_up(60, 20, chance(mean, seed * 1_000)), "sessions of {mean}, seed {seed}");
            }
        }
        assert!(!backs_up(60, 20, |_| 1_500), "the last ones of fifteen seconds");
        assert!(!backs_up(60, 20, |_| 5_000), "the same of fifty");
        assert!(!backs_up(60, 20, |_| u64::MAX / 2), "nothing goes at all");
    }
}
