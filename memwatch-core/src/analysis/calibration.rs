//! How far a forecast is to be believed: measured on recorded runs, of which it was known how they went on.
//!
//! `cargo xtask calibrate` writes the table from the runs in `tests/replays`; how well a table from all others does on each of them stands
//! in docs/analysis.md.

/// Forecasts that reach about as far ahead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// They reach less far than this: what is left of the memory, in multiples of what it has grown so far.
    pub reach_below: f64,
    /// The range begins at this part of the straight line's time.
    pub earliest: f64,
    /// And ends at this.
    pub latest: f64,
    /// The part of them that came true: the memory ran out, and within the range.
    pub confidence: f64,
    /// How many there were.
    pub given: u32,
}

/// The range that holds this part of the runs that ran out.
pub const WITHIN: f64 = 0.9;

/// The bin of a forecast; `None` where it reaches further than any that was measured.
pub fn bin(reach: f64) -> Option<&'static Bin> {
    BINS.iter().find(|bin| reach < bin.reach_below)
}

// Written by `cargo xtask calibrate`: from here on.
/// By how far they reach.
pub const BINS: &[Bin] = &[
    Bin { reach_below: 0.5, earliest: 0.62, latest: 1.31, confidence: 0.89, given: 141 },
    Bin { reach_below: 1.0, earliest: 0.7, latest: 1.66, confidence: 0.9, given: 63 },
    Bin { reach_below: 2.0, earliest: 0.72, latest: 1.05, confidence: 0.88, given: 60 },
    Bin { reach_below: 4.0, earliest: 0.64, latest: 1.0, confidence: 0.9, given: 21 },
];
