//! What memory of the kernel driver is for: by the driver's function that asked for it, and by who called that. A table, of which the first rule that
//! fits counts.
//!
//! Seen on an H100 with driver 580.159.04, in twelve programs.

use std::sync::Arc;

use memwatch_common::meaning::{ContextCall, GraphCall, Meaning, MemoryCall, PoolCall, VirtualCall};
use memwatch_common::probes::{Probe, by_id};
use serde::{Deserialize, Serialize};

use super::stacks::Caller;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    /// Memory of each GPU thread's own, for the kernel that needs most: it grows, and never shrinks.
    LocalMemory,
    /// A context's own.
    Context,
    /// A stream's.
    Stream,
    /// Code and its constants and variables.
    Code,
    /// A pool that memory is allocated from in the order of a stream.
    Pool,
    /// What a program or a library has asked for.
    Requested,
    /// Memory of another process, who has given it up or has ended: it is charged to this one since.
    Inherited,
    /// The driver's for anything else.
    Driver,
}

impl Label {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::LocalMemory,
        Self::Context,
        Self::Stream,
        Self::Code,
        Self::Pool,
        Self::Requested,
        Self::Inherited,
        Self::Driver,
    ];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LocalMemory => "local_memory",
            Self::Context => "context",
            Self::Stream => "stream",
            Self::Code => "code",
            Self::Pool => "pool",
            Self::Requested => "requested",
            Self::Inherited => "inherited",
            Self::Driver => "driver",
        }
    }

    /// Whether it is there for what a program asks libcuda for by address or handle.
    pub const fn is_requested(self) -> bool {
        matches!(self, Self::Pool | Self::Requested)
    }
}

/// How well what was seen decides a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sure {
    /// Nothing contradicts it, and little decides it.
    Low,
    /// Most of what has such marks is this.
    Medium,
    /// All that has such marks is this.
    High,
}

/// A label, with whose it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Named {
    /// What it is for.
    pub label: Label,
    /// Who called the driver: a library by its name, or the file's own name; `None` where that is not known, and of what is the whole context's.
    pub owner: Option<Arc<str>>,
    /// The driver's function; `None` where that is not known.
    pub function: Option<Arc<str>>,
    /// How sure the label is.
    pub sure: Sure,
}

/// What is known of an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence<'a> {
    /// The row of the probe table that was in flight.
    pub(super) probe: Option<u16>,
    /// From its native stack.
    pub(super) caller: Option<&'a Caller>,
    /// The same call has just freed less of a context under the same name.
    pub(super) regrown: bool,
    /// See [`super::decode::Granted::coherency_1`].
    pub(super) coherency_1: bool,
}

/// Functions that bring code to a GPU, by the beginnings of their names: the ones that do nothing else, and the ones that do so when it is used first.
const LOADERS: [&str; 5] = ["cuKernelGetFunction", "cuLibraryGet", "cuLibraryLoad", "cuModule", "cuFuncLoad"];
const LAUNCHERS: [&str; 3] = ["cuLaunch", "cuGraphLaunch", "cuGraphInstantiate"];

type Fits = fn(&Evidence<'_>) -> bool;

/// The first rule that fits counts.
const RULES: [(Fits, Label, Sure); 12] = [
    (|seen| seen.regrown, Label::LocalMemory, Sure::High),
    (|seen| seen.is(makes_context), Label::Context, Sure::High),
    (|seen| seen.is(sets_limit), Label::Context, Sure::Medium),
    (|seen| seen.is(makes_stream), Label::Stream, Sure::High),
    (|seen| seen.is(loads) || seen.row().is_none() && seen.begins(&LOADERS), Label::Code, Sure::High),
    (|seen| seen.is(runs_graph) && seen.coherency_1, Label::Pool, Sure::Medium),
    (|seen| seen.is(runs_graph) || seen.row().is_none() && seen.begins(&LAUNCHERS), Label::Code, Sure::Medium),
    (|seen| seen.is(takes_from_pool), Label::Pool, Sure::High),
    (|seen| seen.is(requests) && seen.caller.is_some(), Label::Requested, Sure::High),
    (|seen| seen.is(requests), Label::Requested, Sure::Medium),
    (|seen| seen.caller.is_some_and(Caller::is_graphics), Label::Requested, Sure::Medium),
    (|_| true, Label::Driver, Sure::Low),
];

impl Evidence<'_> {
    fn row(&self) -> Option<&'static Probe> {
        self.probe.and_then(by_id)
    }

    fn is(&self, meaning: fn(Meaning) -> bool) -> bool {
        self.row().is_some_and(|row| meaning(row.meaning))
    }

    fn begins(&self, with: &[&str]) -> bool {
        let function = self.caller.and_then(|caller| caller.function.as_deref());
        function.is_some_and(|function| with.iter().any(|beginning| function.starts_with(beginning)))
    }

    /// What it is for.
    pub(super) fn named(&self) -> Named {
        let (_, label, sure) = RULES.iter().find(|(fits, ..)| fits(self)).expect("the last rule fits everything");
        let is_whole = matches!(label, Label::Context | Label::LocalMemory);
        let function = match self.row() {
            Some(row) => Some(row.symbol.into()),
            None => self.caller.and_then(|caller| caller.function.clone()),
        };
        let owner = self.caller.and_then(|caller| caller.owner.clone()).filter(|_| !is_whole);
        Named { label: *label, owner, function, sure: *sure }
    }
}

const fn makes_context(meaning: Meaning) -> bool {
    use ContextCall::{ContextOfGreen, CreateContext, CreateGreen, RetainPrimary};
    matches!(meaning, Meaning::Context(RetainPrimary | CreateContext { .. } | CreateGreen | ContextOfGreen))
}

const fn sets_limit(meaning: Meaning) -> bool {
    matches!(meaning, Meaning::Context(ContextCall::SetLimit))
}

const fn makes_stream(meaning: Meaning) -> bool {
    matches!(meaning, Meaning::Context(ContextCall::CreateStream))
}

const fn loads(meaning: Meaning) -> bool {
    matches!(meaning, Meaning::Memory(MemoryCall::LoadModule))
}

const fn runs_graph(meaning: Meaning) -> bool {
    matches!(meaning, Meaning::Graph(GraphCall::InstantiateGraph | GraphCall::LaunchGraph))
}

const fn takes_from_pool(meaning: Meaning) -> bool {
    matches!(meaning, Meaning::Pool(PoolCall::AllocateFromPool { .. }))
}

const fn requests(meaning: Meaning) -> bool {
    use MemoryCall::{Allocate, CreateArray, RegisterHost};
    matches!(
        meaning,
        Meaning::Memory(Allocate { .. } | CreateArray(_) | RegisterHost)
            | Meaning::Virtual(VirtualCall::CreatePhysical)
    )
}

#[cfg(test)]
#[path = "tests/labels.rs"]
mod tests;
