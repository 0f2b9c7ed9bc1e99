//! How far a forecast is to be believed: measured on recorded runs, of which it was known how they went on.
//!
//! `cargo xtask calibrate` writes the table from the runs in `tests/replays`. The ranges are from all of them; how sure they are says what
//! becomes of the forecasts of each kind of run by ranges from all other kinds. What that is worth stands in docs/analysis.md.

/// Forecasts that reach about as far ahead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// They reach less far than this: what is left of the memory, in multiples of what it has grown so far.
    pub reach_below: f64,
    /// The range begins at this part of the straight line's time.
    pub earliest: f64,
    /// And ends at this.
    pub latest: f64,
    /// The part of them that came true by ranges from other kinds of runs: the memory ran out, and within the range.
    pub confidence: f64,
    /// How many there were.
    pub given: u32,
}

/// Ranges hold this part of the forecasts of runs that ran out.
pub const WITHIN: f64 = 0.9;

/// The bin of a forecast; `None` where it reaches further than any that was measured.
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
