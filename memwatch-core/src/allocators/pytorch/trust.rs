//! Certainty of an allocator's statistics, and reasons for doubt.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Certainty of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// Equal to the allocator's own number.
    Exact,
    /// Derived from observations under an assumption that may be wrong.
    Derived,
    /// Unknown.
    Unknown,
}

/// Reason why a number is not exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Doubt {
    /// The program allocated before the attach, and the allocator's statistics have not been read.
    NotRead,
    /// Events were lost since the allocator's statistics were read.
    EventsLost,
    /// Since the allocator's statistics were read, an event contradicted earlier ones.
    OutOfStep,
    /// The neighbours of memory from before the attach are unknown.
    OlderNeighbours,
    /// Properties of a block from before the attach are unknown.
    OlderBlocks,
    /// Private pools from before the attach, or before a loss, are unknown.
    OlderPools,
    /// The pools of segments from before the attach are unknown.
    OlderSegments,
    /// This build shows only rounded sizes.
    RoundedOnly,
    /// This build does not show whether a stream still uses a freed block.
    StreamsUnseen,
    /// This build does not show how many segments were freed.
    SegmentsUnseen,
    /// This build shows the driver calls for an expandable segment, several of which the allocator
    /// counts as one.
    CallsUnseen,
    /// This build does not show the number. It is as last read from the allocator's statistics.
    AsRead,
    /// This build does not show when the program resets its peaks and totals.
    ResetsUnseen,
    /// Peaks were reset in memwatch's counters, and not everything since was observed.
    PeaksMissed,
    /// This build does not show the number.
    Unseen,
    /// This version does not count it.
    NotCounted,
}

impl Doubt {
    /// All reasons.
    pub const ALL: [Self; 16] = [
        Self::NotRead,
        Self::EventsLost,
        Self::OutOfStep,
        Self::OlderNeighbours,
        Self::OlderBlocks,
        Self::OlderPools,
        Self::OlderSegments,
        Self::RoundedOnly,
        Self::StreamsUnseen,
        Self::SegmentsUnseen,
        Self::CallsUnseen,
        Self::AsRead,
        Self::ResetsUnseen,
        Self::PeaksMissed,
        Self::Unseen,
        Self::NotCounted,
    ];

    /// Returns the certainty of a number with this doubt.
    pub const fn certainty(self) -> Certainty {
        match self {
            Self::EventsLost
            | Self::OutOfStep
            | Self::OlderNeighbours
            | Self::OlderBlocks
            | Self::OlderSegments
            | Self::AsRead
            | Self::CallsUnseen
            | Self::ResetsUnseen
            | Self::PeaksMissed
            | Self::StreamsUnseen
            | Self::SegmentsUnseen => Certainty::Derived,
            Self::NotRead | Self::OlderPools | Self::RoundedOnly | Self::Unseen | Self::NotCounted => {
                Certainty::Unknown
            }
        }
    }

    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotRead => "not_read_yet",
            Self::EventsLost => "events_lost",
            Self::OutOfStep => "out_of_step",
            Self::OlderNeighbours => "older_neighbours",
            Self::OlderBlocks => "older_blocks",
            Self::OlderPools => "older_pools",
            Self::OlderSegments => "older_segments",
            Self::RoundedOnly => "rounded_only",
            Self::CallsUnseen => "calls_unseen",
            Self::AsRead => "as_read",
            Self::ResetsUnseen => "resets_unseen",
            Self::PeaksMissed => "peaks_missed",
            Self::StreamsUnseen => "streams_unseen",
            Self::SegmentsUnseen => "segments_unseen",
            Self::Unseen => "unseen",
            Self::NotCounted => "not_counted",
        }
    }
}

/// A number with its certainty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatedNumber {
    /// The number; meaningless if unknown.
    pub value: i64,
    /// Reason why the number is not exact; `None` if it is.
    pub doubt: Option<Doubt>,
}

impl RatedNumber {
    /// Returns the certainty of the number.
    pub fn certainty(self) -> Certainty {
        self.doubt.map_or(Certainty::Exact, Doubt::certainty)
    }

    /// Returns the number, if known.
    pub fn known(self) -> Option<i64> {
        (self.certainty() != Certainty::Unknown).then_some(self.value)
    }
}

/// A number with PyTorch's key.
pub type NamedNumber = (Cow<'static, str>, RatedNumber);

/// Kinds of events that have been observed so far.
#[expect(clippy::struct_excessive_bools, reason = "each is something that was seen or not")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObservedEvents {
    /// Reports. Totals may be known from a reading before the first one.
    pub reports: bool,
    /// Entries of the allocator's trace.
    pub trace: bool,
    /// Attempts to allocate a segment.
    pub attempts: bool,
    /// Blocks returning to their pool.
    pub block_frees: bool,
}
