//! Labels memory of the kernel driver with its purpose, by the driver function that requested it
//! and that function's caller. The first matching rule of a table decides.
//!
//! Observed on an H100 with driver 580.159.04, in twelve programs.

use std::sync::Arc;

use memwatch_common::meaning::{ContextCall, GraphCall, Meaning, MemoryCall, PoolCall, VirtualCall};
use memwatch_common::probes::{Probe, by_id};
use serde::{Deserialize, Serialize};

use super::stacks::Caller;

/// Purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPurpose {
    /// Local memory of GPU threads, sized for the kernel that needs most. It grows and never
    /// shrinks.
    LocalMemory,
    /// Memory of a context itself.
    Context,
    /// Memory of a stream.
    Stream,
    /// Code with its constants and variables.
    Code,
    /// Memory of a stream-ordered pool.
    Pool,
    /// Memory requested by a program or library.
    Requested,
    /// Memory of another process that freed it or exited, and which is charged to this process
    /// since.
    Inherited,
    /// Any other memory of the driver.
    Driver,
}

impl MemoryPurpose {
    /// All labels.
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

    /// Name in JSON.
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

    /// Returns whether the memory serves requests of a program to libcuda by address or handle.
    pub const fn is_requested(self) -> bool {
        matches!(self, Self::Pool | Self::Requested)
    }
}

/// Confidence of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sure {
    /// Weak evidence, but nothing contradicts the label.
    Low,
    /// Most memory with this evidence has this label.
    Medium,
    /// All memory with this evidence has this label.
    High,
}

/// A label with the caller that requested the memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttributedPurpose {
    /// Purpose of the memory.
    pub label: MemoryPurpose,
    /// Caller of the driver: the name of a library, or else of the file; `None` if unknown, and for
    /// memory that serves a whole context.
    pub owner: Option<Arc<str>>,
    /// Driver function called; `None` if unknown.
    pub function: Option<Arc<str>>,
    /// Confidence of the label.
    pub sure: Sure,
}

/// Evidence for an allocation's label.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PurposeEvidence<'a> {
    /// Probe table row of the call in flight.
    pub(super) probe: Option<u16>,
    /// Caller, from the native stack of the ioctl.
    pub(super) caller: Option<&'a Caller>,
    /// Whether the same call has just freed a smaller object of a context with the same key.
    pub(super) regrown: bool,
    /// See [`super::decode::GrantedMemory::coherency_1`].
    pub(super) coherency_1: bool,
}

/// Prefixes of functions that load code onto a GPU: those that do nothing else, and those that do
/// so at the first use.
const LOADERS: [&str; 5] = ["cuKernelGetFunction", "cuLibraryGet", "cuLibraryLoad", "cuModule", "cuFuncLoad"];
const LAUNCHERS: [&str; 3] = ["cuLaunch", "cuGraphLaunch", "cuGraphInstantiate"];

type Fits = fn(&PurposeEvidence<'_>) -> bool;

/// The first matching rule decides.
const RULES: [(Fits, MemoryPurpose, Sure); 12] = [
    (|seen| seen.regrown, MemoryPurpose::LocalMemory, Sure::High),
    (|seen| seen.is(makes_context), MemoryPurpose::Context, Sure::High),
    (|seen| seen.is(sets_limit), MemoryPurpose::Context, Sure::Medium),
    (|seen| seen.is(makes_stream), MemoryPurpose::Stream, Sure::High),
    (|seen| seen.is(loads) || seen.row().is_none() && seen.begins(&LOADERS), MemoryPurpose::Code, Sure::High),
    (|seen| seen.is(runs_graph) && seen.coherency_1, MemoryPurpose::Pool, Sure::Medium),
    (|seen| seen.is(runs_graph) || seen.row().is_none() && seen.begins(&LAUNCHERS), MemoryPurpose::Code, Sure::Medium),
    (|seen| seen.is(takes_from_pool), MemoryPurpose::Pool, Sure::High),
    (|seen| seen.is(requests) && seen.caller.is_some(), MemoryPurpose::Requested, Sure::High),
    (|seen| seen.is(requests), MemoryPurpose::Requested, Sure::Medium),
    (|seen| seen.caller.is_some_and(Caller::is_graphics), MemoryPurpose::Requested, Sure::Medium),
    (|_| true, MemoryPurpose::Driver, Sure::Low),
];

impl PurposeEvidence<'_> {
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

    /// Returns the label of the allocation.
    pub(super) fn named(&self) -> AttributedPurpose {
        let (_, label, sure) = RULES.iter().find(|(fits, ..)| fits(self)).expect("the last rule fits everything");
        let is_whole = matches!(label, MemoryPurpose::Context | MemoryPurpose::LocalMemory);
        let function = match self.row() {
            Some(row) => Some(row.symbol.into()),
            None => self.caller.and_then(|caller| caller.function.clone()),
        };
        let owner = self.caller.and_then(|caller| caller.owner.clone()).filter(|_| !is_whole);
        AttributedPurpose { label: *label, owner, function, sure: *sure }
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
