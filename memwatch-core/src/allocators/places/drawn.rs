//! Sums of lines where small blocks have a stack by a draw only: each that has one stands for as many as its chance says.
//!
//! The estimate of all bytes is the sum of bytes / p over the blocks that were drawn, p being a block's chance; that of its variance the sum of
//! (bytes / p)² · (1 − p) (D. G. Horvitz and D. J. Thompson, 1952, for independent draws). Of few draws that is too small, so one more is counted: on
//! programs with random lines the truth then lies within two standard errors in 94 to 95 %.

use memwatch_common::tensor::draw::{MEAN_BYTES, chance};
use serde::{Deserialize, Serialize};

use crate::allocators::sampling::Estimate;

/// The blocks of one line that were drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    /// The live ones.
    live: Weight,
    /// All of them since the attach.
    total: Weight,
}

/// What blocks stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Weight {
    /// More than they are, in bytes.
    beyond_bytes: u64,
    /// In bytes, squared.
    variance: u128,
}

impl Weight {
    /// Of one block; nothing for a block that has its stack in any case.
    fn of(bytes: u64) -> Self {
        let Some(chance) = chance(bytes) else { return Self::default() };
        let stands_for = u64::try_from((u128::from(bytes) << 32) / u128::from(chance)).unwrap_or(u64::MAX);
        let beyond_bytes = stands_for.saturating_sub(bytes);
        Self { beyond_bytes, variance: u128::from(stands_for) * u128::from(beyond_bytes) }
    }

    fn add(&mut self, other: Self) {
        self.beyond_bytes = self.beyond_bytes.saturating_add(other.beyond_bytes);
        self.variance = self.variance.saturating_add(other.variance);
    }

    fn take_off(&mut self, other: Self) {
        self.beyond_bytes = self.beyond_bytes.saturating_sub(other.beyond_bytes);
        self.variance = self.variance.saturating_sub(other.variance);
    }

    /// All that the line has, of which blocks with a stack have so many bytes.
    fn estimate(self, bytes: u64) -> Estimate {
        let one_more = u128::from(MEAN_BYTES) * u128::from(MEAN_BYTES);
        let error = self.variance.saturating_add(one_more).isqrt();
        Estimate {
            bytes: bytes.saturating_add(self.beyond_bytes),
            standard_error_bytes: Some(u64::try_from(error).unwrap_or(u64::MAX)),
        }
    }
}

impl Drawn {
    pub(super) fn grant(&mut self, bytes: u64) {
        let weight = Weight::of(bytes);
        self.live.add(weight);
        self.total.add(weight);
    }

    pub(super) fn free(&mut self, bytes: u64) {
        self.live.take_off(Weight::of(bytes));
    }

    /// What is live of the line, whose blocks with a stack have so many live bytes.
    pub fn live(&self, live_bytes: u64) -> Estimate {
        self.live.estimate(live_bytes)
    }

    /// The same of all its blocks since the attach.
    pub fn total(&self, total_bytes: u64) -> Estimate {
        self.total.estimate(total_bytes)
    }
}

#[cfg(test)]
#[path = "tests/drawn.rs"]
mod tests;
