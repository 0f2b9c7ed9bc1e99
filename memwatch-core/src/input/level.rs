//! How much of PyTorch is traced in a process, and why no more.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::words::{Tgid, json};

/// How much of PyTorch is traced. Each level has all that those before have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorLevel {
    /// Nothing: driver calls only.
    #[default]
    Off,
    /// No tensor that comes or goes: what its allocators have counted is read from the process's memory now and then. What is passed rarely is probed:
    /// failures and the steps of an optimizer.
    Read,
    /// What its allocators do.
    Blocks,
    /// And from which lines of Python.
    Sites,
    /// And in which stage of training and layer.
    Layers,
}

impl TensorLevel {
    /// All of them, the cheapest first.
    pub const ALL: [Self; 5] = [Self::Off, Self::Read, Self::Blocks, Self::Sites, Self::Layers];

    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Blocks => "blocks",
            Self::Sites => "sites",
            Self::Layers => "layers",
        }
    }
}

/// Of which blocks the stack is taken, where lines are traced and no modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stacks {
    /// Of large ones, and of small ones by a draw of bytes ([`memwatch_common::tensor::draw`]).
    #[default]
    ByBytes,
    /// Of all.
    All,
}

/// The level at which a process is traced from now on, and the prices that it was chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelChoice {
    /// The process.
    #[serde(serialize_with = "json::apart")]
    pub tgid: Tgid,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::since")]
    pub time_ns: u64,
    /// The level that was asked for, by name or by default.
    pub asked: TensorLevel,
    /// The level that is traced.
    pub chosen: TensorLevel,
    /// Tensors that are allocated or freed, per second.
    #[serde(serialize_with = "json::tensor_events_per_second")]
    pub events_per_second: u64,
    /// What the level that was asked for is predicted to take of one processor, nanoseconds per second.
    #[serde(serialize_with = "json::predicted_seconds_per_second_asked")]
    pub asked_ns_per_second: u64,
    /// The same of the level that is traced.
    #[serde(serialize_with = "json::predicted_seconds_per_second")]
    pub chosen_ns_per_second: u64,
    /// What tracing may take of one processor, nanoseconds per second; `None` where there is no limit, and in recordings that do not say it.
    #[serde(default)]
    #[serde(serialize_with = "json::budget_seconds_per_second")]
    pub budget_ns_per_second: Option<u64>,
    /// What a probe that only counts costs on this machine, or is assumed to where that could not be measured, nanoseconds; `None` where no price was
    /// needed, and in recordings that do not say it.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub trap_ns: Option<NonZeroU64>,
    /// Windows in which everything is traced, where no more than reading fits.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub windows: Option<Windows>,
    /// What was measured of it, where the prediction alone says too little.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub measured: Measured,
}

/// Whether tracing was measured to slow the program itself: what it takes of a processor may be time in which the program waits for its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measured {
    /// It was not: the level goes by what is predicted.
    #[default]
    Not,
    /// It is being measured.
    Now,
    /// So much of its time, and the standard error of that: parts in 10,000. Where it is within the budget, everything is traced.
    Slowdown {
        /// What tracing takes, at most.
        part: i64,
        /// The standard error.
        error: u64,
    },
}

/// Windows of tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// How long one is, nanoseconds.
    pub open_ns: u64,
    /// From the beginning of one to that of the next, nanoseconds.
    pub every_ns: u64,
}
