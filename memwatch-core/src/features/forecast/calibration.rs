//! Confidence of forecasts, measured on recorded runs with a known outcome.
//!
//! `cargo xtask calibrate` writes the table from the runs in `tests/replays`. The ranges come from
//! all runs. The confidence of a range is cross-validated: forecasts of each kind of run are tested
//! against ranges from all other kinds. docs/project/verdicts.md discusses the limits of the method.

/// Forecasts with a similar reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// Upper bound of the reach: bytes left, in multiples of the growth so far.
    pub reach_below: f64,
    /// Start of the range, as a multiple of the straight line's time.
    pub earliest: f64,
    /// End of the range, as a multiple of the straight line's time.
    pub latest: f64,
    /// Fraction of the forecasts that came true by ranges from other kinds of runs: the memory ran
    /// out within the range.
    pub confidence: f64,
    /// Number of forecasts in the bin.
    pub given: u32,
}

/// Fraction of the forecasts of runs that ran out of memory that the ranges contain.
pub const WITHIN: f64 = 0.9;

/// Returns the bin of a forecast; `None` if it reaches further than every measured forecast.
pub fn bin(reach: f64) -> Option<&'static Bin> {
    BINS.iter().find(|bin| reach < bin.reach_below)
}

// Written by `cargo xtask calibrate`: from here on.
/// By how far they reach.
pub const BINS: &[Bin] = &[
    Bin { reach_below: 0.5, earliest: 0.48, latest: 1.29, confidence: 0.86, given: 374 },
    Bin { reach_below: 1.0, earliest: 0.67, latest: 1.25, confidence: 0.9, given: 209 },
    Bin { reach_below: 2.0, earliest: 0.65, latest: 1.26, confidence: 0.7, given: 199 },
    Bin { reach_below: 4.0, earliest: 0.61, latest: 1.19, confidence: 0.61, given: 137 },
    Bin { reach_below: 8.0, earliest: 0.56, latest: 1.0, confidence: 0.74, given: 61 },
];
