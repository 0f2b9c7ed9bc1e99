//! Blocks that come and go somewhere, over time: does what stands grow because fewer go than come? Of a queue every block goes at some time, and still
//! its number grows for ever; where blocks merely live long, ever more of them go until as many go as come.

use serde::{Deserialize, Serialize};

use crate::features::trend::{Point, Series, Trend, as_f64};

/// The later half's rate of what goes may be so many times the earlier's: a consumer takes as many as before.
const STEADY: f64 = 1.35;
/// Growth that goes on does so at this part of the whole's rate: it does not level off.
const STRAIGHT: f64 = 0.8;
/// Numbers of what comes and goes by chance differ by more standard deviations than these seldom.
const DEVIATIONS: f64 = 3.0;
/// A half with fewer points says nothing.
const FEWEST: usize = 4;

/// How many blocks have come and gone.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Flow {
    came: Series,
    went: Series,
}

impl Flow {
    /// So many have come and gone by now, since the beginning.
    pub(super) fn push(&mut self, time_ns: u64, came: u64, went: u64) {
        self.came.push(time_ns, came);
        self.went.push(time_ns, went);
    }

    /// Whether more come than go all the time, and what goes does not catch up, where what stands has this trend.
    pub(super) fn backs_up(&self, trend: &Trend) -> bool {
        if trend.late.bytes_per_second < STRAIGHT * trend.whole.bytes_per_second {
            return false;
        }
        // Before the first goes, nobody takes any.
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

/// What was counted within half of the time.
#[derive(Clone, Copy, Debug)]
struct Half {
    number: f64,
    seconds: f64,
}

fn halves(points: &[Point]) -> Option<[Half; 2]> {
    let (first, last) = (points.first()?, points.last()?);
    let middle = points.get(points.len() / 2).filter(|_| points.len() >= 2 * FEWEST)?;
    let half = |from: &Point, to: &Point| Half {
        number: as_f64(to.bytes.saturating_sub(from.bytes)),
        seconds: as_f64(to.time_ns.saturating_sub(from.time_ns).max(1)) / 1e9,
    };
    Some([half(first, middle), half(middle, last)])
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use super::Flow;
    use crate::features::trend::Series;

    /// What is found after so many seconds of blocks that come at this rate and live so long each; `life` is in ticks of 10 ms.
    fn backs_up(seconds: u64, per_second: u64, life: impl Fn(u64) -> u64) -> bool {
        let (mut flow, mut series) = (Flow::default(), Series::default());
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

    /// Lives that are distributed as those of visitors are, with this mean.
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
        // Of two that come one goes: each waits as long as there was time before.
        assert!(backs_up(60, 20, |number| number * 5 + 10));
        assert!(backs_up(45, 20, |number| number * 5 + 400));
        assert!(backs_up(60, 40, |number| number / 4 + 10), "one of eleven more");
    }

    #[test]
    fn what_lives_long_and_goes_as_often_as_it_comes_does_not() {
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
