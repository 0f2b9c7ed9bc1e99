//! How sure a number of an allocator is, and why it is no surer.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// How sure a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// It is what the allocator itself would say.
    Exact,
    /// It follows from what is seen under an assumption that may fail.
    Derived,
    /// It is not known.
    Unknown,
}

/// Why a number is not exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Doubt {
    /// The program was there before the watch, and the allocator's own numbers were not read yet.
    NotRead,
    /// Events were lost since the allocator's own numbers were read.
    EventsLost,
    /// An event did not fit to the ones before since the allocator's own numbers were read.
    OutOfStep,
    /// What is next to memory from before the watch is not known.
    OlderNeighbours,
    /// Something of a block from before the watch is not known.
    OlderBlocks,
    /// Private pools from before the watch, or before a loss, are not known.
    OlderPools,
    /// It is not known which pools segments from before the watch were in.
    OlderSegments,
    /// This build shows rounded sizes only.
    RoundedOnly,
    /// This build does not show whether another stream still uses a block that was given back.
    StreamsUnseen,
    /// This build does not show how many segments were given back.
    SegmentsUnseen,
    /// This build shows the driver's calls for an expandable segment, of which the allocator counts several as one.
    CallsUnseen,
    /// This build does not show it; it is as it was when the allocator's own numbers were read.
    AsRead,
    /// This build does not show when the program resets its peaks and totals.
    ResetsUnseen,
    /// Peaks were reset in memwatch's counters, and what came since was not all followed.
    PeaksMissed,
    /// This build does not show it.
    Unseen,
    /// This version does not count it.
    NotCounted,
}

impl Doubt {
    /// All.
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

    /// How sure a number is that has this doubt.
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

    /// Its name in JSON.
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

/// A number and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The number; without meaning where it is unknown.
    pub value: i64,
    /// Why it is not exact; `None` where it is.
    pub doubt: Option<Doubt>,
}

impl Trust {
    /// How sure it is.
    pub fn certainty(self) -> Certainty {
        self.doubt.map_or(Certainty::Exact, Doubt::certainty)
    }

    /// The number, where it is known.
    pub fn known(self) -> Option<i64> {
        (self.certainty() != Certainty::Unknown).then_some(self.value)
    }
}

/// A number under PyTorch's key.
pub type Named = (Cow<'static, str>, Trust);

/// What the events so far have shown that they show.
#[expect(clippy::struct_excessive_bools, reason = "each is something that was seen or not")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sight {
    /// Reports: totals may be known from a reading before there is one.
    pub reports: bool,
    /// The allocator's trace.
    pub trace: bool,
    /// Attempts to get a segment.
    pub attempts: bool,
    /// Blocks that go back into their pool.
    pub block_frees: bool,
}
