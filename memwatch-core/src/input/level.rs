//! Tracing levels of PyTorch, and how a level is chosen.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::words::{Tgid, json};

/// Tracing level of PyTorch. Each level includes all lower ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorLevel {
    /// Driver calls only.
    #[default]
    Off,
    /// No event per tensor. The allocators' counters are read from the process's memory
    /// periodically. Only rare events are probed: failures and optimizer steps.
    Read,
    /// Events of the allocators.
    Blocks,
    /// Call sites in Python of the events.
    Lines,
    /// Phase of training and module of the events.
    Modules,
}

impl TensorLevel {
    /// All levels, the cheapest first.
    pub const ALL: [Self; 5] = [Self::Off, Self::Read, Self::Blocks, Self::Lines, Self::Modules];

    /// Name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Blocks => "blocks",
            Self::Lines => "lines",
            Self::Modules => "modules",
        }
    }
}

/// Selects the blocks for which a stack is taken when call sites but no modules are traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackSelection {
    /// Large blocks, and small ones by sampling of bytes ([`memwatch_common::tensor::draw`]).
    #[default]
    ByBytes,
    /// All blocks.
    All,
}

/// Tracing level of a process from now on, and the predicted overhead that decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelChoice {
    /// Traced process.
    #[serde(serialize_with = "json::apart")]
    pub tgid: Tgid,
    /// Time of the decision: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::since")]
    pub time_ns: u64,
    /// Requested level, by name or by default.
    pub asked: TensorLevel,
    /// Level in effect.
    pub chosen: TensorLevel,
    /// Tensors allocated or freed per second.
    #[serde(serialize_with = "json::tensor_events_per_second")]
    pub events_per_second: u64,
    /// Predicted overhead of the requested level, nanoseconds of one processor per second.
    #[serde(serialize_with = "json::predicted_seconds_per_second_asked")]
    pub asked_ns_per_second: u64,
    /// Predicted overhead of the level in effect, nanoseconds of one processor per second.
    #[serde(serialize_with = "json::predicted_seconds_per_second")]
    pub chosen_ns_per_second: u64,
    /// Limit of the overhead, nanoseconds of one processor per second; `None` without a limit, and
    /// in recordings that lack it.
    #[serde(default)]
    #[serde(serialize_with = "json::budget_seconds_per_second")]
    pub budget_ns_per_second: Option<u64>,
    /// Cost of a probe that only counts on this machine, measured or assumed, nanoseconds; `None`
    /// if no prediction was needed, and in recordings that lack it.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub trap_ns: Option<NonZeroU64>,
    /// Windows in which everything is traced, if only reading fits the budget otherwise.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub windows: Option<Windows>,
    /// Measured slowdown, if the prediction alone is not sufficient.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub measured: MeasuredSlowdown,
}

/// Whether tracing was measured to slow down the program. Processor time of tracing may coincide
/// with time in which the program waits for its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeasuredSlowdown {
    /// Not measured: the prediction decides the level.
    #[default]
    Not,
    /// The measurement is running.
    Now,
    /// Measured slowdown and its standard error, in parts of 10,000. If the slowdown is within the
    /// budget, everything is traced.
    Slowdown {
        /// Upper bound of the slowdown.
        part: i64,
        /// Standard error.
        error: u64,
    },
}

/// Periodic windows of tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// Length of a window, nanoseconds.
    pub open_ns: u64,
    /// Period from the start of one window to the start of the next, nanoseconds.
    pub every_ns: u64,
}
