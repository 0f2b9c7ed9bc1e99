//! Generates `docs/reference/probes.md`: the probe table with descriptions. The only place that
//! describes each [`Meaning`] for the ledger in a sentence.

use crate::table::MarkdownTable;
use memwatch_common::meaning::{
    ArrayShape, ContextCall, GraphCall, LinearKind, LinearSize, Meaning, MemoryCall, PoolCall, PoolRole, SharingCall,
    VirtualCall,
};
use memwatch_common::probes::{PROBES, When};

const HEAD: &str = "\
# Probed functions

<!-- Written by `cargo xtask docs` from memwatch-common/src/probes.rs: change the table there. -->

Every function of libcuda that memwatch probes, at its entry and at its return. Of each call it copies the six integer
argument registers, the returned status, and when it was entered and left; *captured besides* says what more. Arguments are
counted from 0. *since* is the first CUDA version whose driver exports the function: in an older one it is missing, which
`memwatch doctor` says. A function that failed changes nothing in the ledger; a refused allocation is kept with its size.

";

/// Returns the whole document.
pub(super) fn text() -> String {
    let mut table = MarkdownTable::new(&["id", "function", "since CUDA", "captured besides", "effect on the ledger"]);
    for probe in PROBES {
        table.row(vec![
            probe.id.to_string(),
            format!("`{}`", probe.symbol),
            probe.since.to_owned(),
            probe.plan.to_string(),
            words(probe.meaning) + when_words(probe.when),
        ]);
    }
    format!("{HEAD}{}", table.text())
}

/// Describes a meaning. Those without arguments are in [`plain_words`].
fn words(meaning: Meaning) -> String {
    match meaning {
        Meaning::Memory(MemoryCall::Allocate { kind, size }) => {
            format!("an allocation: {}, of {}", kind_words(kind), size_words(size))
        }
        Meaning::Pool(PoolCall::AllocateFromPool { pool: None, stream }) => {
            format!("an allocation of argument 1 bytes from the current pool of the device of stream argument {stream}")
        }
        Meaning::Pool(PoolCall::AllocateFromPool { pool: Some(pool), stream: _ }) => {
            format!("an allocation of argument 1 bytes from pool argument {pool}")
        }
        Meaning::Pool(PoolCall::GetDevicePool(role)) => format!("{} pool of device argument 1", role_words(role)),
        Meaning::Pool(PoolCall::GetLocationPool(role)) => format!("{} pool of a location", role_words(role)),
        Meaning::Memory(MemoryCall::CreateArray(shape)) => {
            format!("an array, {}; its bytes are an estimate", shape_words(shape))
        }
        Meaning::Virtual(VirtualCall::BindMulticast { device: _, offset }) => {
            let handle = offset + 1;
            format!("physical memory argument {handle} in a multicast object, which keeps it alive: 0 bytes more")
        }
        Meaning::Context(ContextCall::CreateContext { device }) => {
            format!("a new context on device argument {device}, current on the thread: its allocations are there")
        }
        plain => plain_words(plain).to_owned(),
    }
}

/// Describes meanings without arguments. There is no wildcard, so that a new meaning does not
/// compile without a description.
fn plain_words(meaning: Meaning) -> &'static str {
    match meaning {
        Meaning::Memory(call) => memory_words(call),
        Meaning::Pool(call) => pool_words(call),
        Meaning::Virtual(call) => virtual_memory_words(call),
        Meaning::Sharing(call) => sharing_words(call),
        Meaning::Graph(call) => graph_words(call),
        Meaning::Context(call) => context_words(call),
    }
}

fn memory_words(call: MemoryCall) -> &'static str {
    match call {
        MemoryCall::Initialise => "the process uses CUDA from here on",
        MemoryCall::Free => "a free of any device-side address: the allocation's kind says what it frees",
        MemoryCall::FreeHost => "a free of page-locked host memory",
        MemoryCall::RegisterHost => {
            "argument 1 bytes of the program's own memory become page-locked: registered host memory"
        }
        MemoryCall::UnregisterHost => "a registered range is page-locked no more",
        MemoryCall::DestroyArray => "a free of an array",
        MemoryCall::LoadModule => "code is loaded: memory of unknown size, counted but not in bytes",
        MemoryCall::UnloadModule => "code goes",
        MemoryCall::Checkpoint => "the memory of process argument 0 leaves the devices, by the driver's own doing",
        MemoryCall::Restore => "and comes back",
        MemoryCall::Allocate { .. } | MemoryCall::CreateArray(_) => "",
    }
}

fn pool_words(call: PoolCall) -> &'static str {
    match call {
        PoolCall::FreeAsync => "a free in stream order: counted when it is called",
        PoolCall::CreatePool => "a new pool, on a device or in host memory: 0 bytes until it is allocated from",
        PoolCall::DestroyPool => "a pool that goes with its last allocation",
        PoolCall::TrimPool => "what a pool keeps without using it may shrink",
        PoolCall::SetPoolAttribute => "how much a pool keeps without using it",
        PoolCall::GetPoolAttribute => "the driver's own word on a pool's bytes",
        PoolCall::SetDevicePool => "which pool allocations on device argument 0 come from",
        PoolCall::SetLocationPool => "which pool allocations at a location come from",
        PoolCall::ImportPool => "another process's pool: 0 bytes here",
        PoolCall::AllocateFromPool { .. } | PoolCall::GetDevicePool(_) | PoolCall::GetLocationPool(_) => "",
    }
}

fn virtual_memory_words(call: VirtualCall) -> &'static str {
    match call {
        VirtualCall::ReserveAddresses => "argument 1 bytes of addresses: no memory",
        VirtualCall::FreeAddresses => "such addresses less: nothing is freed",
        VirtualCall::CreatePhysical => "physical memory of argument 1 bytes, on a device or in host memory",
        VirtualCall::ReleasePhysical => "a reference less: the memory is free once no reference and no mapping is left",
        VirtualCall::RetainPhysical => "a reference more to the memory that is mapped at an address",
        VirtualCall::Map => "a mapping more: it keeps the physical memory alive",
        VirtualCall::Unmap => "all mappings in the range less: what has no reference either is free",
        VirtualCall::CreateMulticast => "a multicast object: no memory of its own",
        VirtualCall::UnbindMulticast => "bindings of a multicast object less: what has no reference either is free",
        VirtualCall::BindMulticast { .. } => "",
    }
}

fn sharing_words(call: SharingCall) -> &'static str {
    match call {
        SharingCall::ExportPoolAddress | SharingCall::ExportAddress => {
            "the allocation at argument 1 may be opened elsewhere"
        }
        SharingCall::ImportPoolAddress | SharingCall::OpenAlias => {
            "another process's memory at an address here: 0 bytes here"
        }
        SharingCall::ExportPhysical => "the physical memory argument 1 may be imported elsewhere",
        SharingCall::ImportPhysical => "a handle to another owner's memory: 0 bytes here",
        SharingCall::CloseAlias => "that address is gone: nothing is freed",
        SharingCall::ImportExternal => "another API's memory: 0 bytes here",
        SharingCall::MapExternal => "another API's memory at an address here: 0 bytes here",
        SharingCall::DestroyExternal => "that memory is seen no more: nothing is freed",
    }
}

fn graph_words(call: GraphCall) -> &'static str {
    match call {
        GraphCall::AddAllocationNode => "graph argument 1 allocates when it runs: no memory yet",
        GraphCall::AddFreeNode => "graph argument 1 frees what it allocated, or what was allocated before",
        GraphCall::AddNode => "a node of any kind: one that allocates or frees counts as the two above do",
        GraphCall::DestroyGraph => "a graph goes; what its executables hold stays",
        GraphCall::InstantiateGraph => "an executable of graph argument 1: memory comes with its first run",
        GraphCall::DestroyExecutable => "an executable goes; what it held is kept by the device until it is trimmed",
        GraphCall::LaunchGraph => {
            "an executable runs: the memory of its allocation nodes is there from now on, an estimate"
        }
        GraphCall::TrimGraphs => "what graphs keep on a device without using it goes",
        GraphCall::BeginCapture => "allocations on this stream become nodes of a graph: no memory yet",
        GraphCall::EndCapture => "and are allocations again; the graph is known",
    }
}

fn context_words(call: ContextCall) -> &'static str {
    match call {
        ContextCall::RetainPrimary => "the primary context of device argument 1, with one reference more",
        ContextCall::ReleasePrimary => {
            "one reference less to a primary context: the last one frees its memory, but for pools and physical memory"
        }
        ContextCall::ResetPrimary => {
            "a primary context is torn down: frees its memory, but for pools and physical memory"
        }
        ContextCall::DestroyContext => "a context is torn down: frees its memory, but for pools and physical memory",
        ContextCall::SetContext => "the thread's current context, and with it the device of its next allocations",
        ContextCall::PushContext => {
            "the thread's context stack grows: its next allocations are on that context's device"
        }
        ContextCall::PopContext => "the thread's context stack shrinks",
        ContextCall::CurrentContext | ContextCall::CurrentDevice => {
            "which device the thread allocates on, by the driver's own word"
        }
        ContextCall::CreateGreen => "a green context on device argument 2: retains the primary one",
        ContextCall::ContextOfGreen => "the context, and with it the device, that a green context stands for",
        ContextCall::DestroyGreen => "a green context goes, and its reference to the primary one",
        ContextCall::SetLimit => "how much a context takes for stacks, output or its heap: part of what is unexplained",
        ContextCall::CreateStream => "a stream of the thread's context: what is allocated on it is on that device",
        ContextCall::DeviceUuid | ContextCall::DeviceBusId => "which GPU the process means by a device number",
        ContextCall::CreateContext { .. } => "",
    }
}

const fn when_words(when: When) -> &'static str {
    match when {
        When::Always => "",
        When::ContextChanges => {
            " (not probed where a program makes so many that it would feel it, as long as no process of the library has several contexts)"
        }
        When::DeviceUnknown => {
            " (probed in processes on several GPUs, until it is known which of them their threads use)"
        }
        When::GraphMemory => " (probed in processes whose graphs allocate)",
    }
}

const fn role_words(role: PoolRole) -> &'static str {
    match role {
        PoolRole::Default => "the default",
        PoolRole::Current => "the current",
    }
}

const fn kind_words(kind: LinearKind) -> &'static str {
    match kind {
        LinearKind::Device => "device memory",
        LinearKind::Managed => "managed memory, in no GPU's sum",
        LinearKind::PinnedHost => "page-locked host memory, in no GPU's sum",
    }
}

fn size_words(size: LinearSize) -> String {
    match size {
        LinearSize::Argument(index) => format!("argument {index} bytes"),
        LinearSize::Pitched { height } => format!("the granted pitch times argument {height} rows"),
    }
}

const fn shape_words(shape: ArrayShape) -> &'static str {
    match shape {
        ArrayShape::Flat => "one- or two-dimensional",
        ArrayShape::Solid => "up to three-dimensional",
        ArrayShape::Mipmapped => "with all its mipmap levels",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_documentation_lists_each_probe_once_with_a_description() {
        let text = text();
        for probe in PROBES {
            let name = format!("| `{}` ", probe.symbol);
            assert_eq!(text.lines().filter(|line| line.contains(&name)).count(), 1, "{}", probe.symbol);
            assert!(!words(probe.meaning).is_empty(), "{}", probe.symbol);
        }
    }
}
