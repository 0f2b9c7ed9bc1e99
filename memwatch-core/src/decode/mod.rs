//! Decodes records into calls. The only module that knows argument positions.

mod action;
mod array;
mod buffer;
mod chunk;
mod node;
mod pool;
mod tensor;

use memwatch_common::meaning::{
    ContextCall, GraphCall, LinearSize, Meaning, MemoryCall, PoolCall, SharingCall, VirtualCall,
};
use memwatch_common::probes::{self, Probe};
use memwatch_common::record::{CallRecord, FLAG_OUT_UNREADABLE, FLAG_PEEK_UNREADABLE};

use crate::words::{CallSpan, ContextHandle, Ordinal, Tgid, Tid};

pub use action::{Action, Location, PoolPlace, PoolSite, Stream};
pub use buffer::{BufferChange, BufferTurn, BufferUsage, TensorName, TensorPlace};
pub use chunk::{ArenaChunkReport, ChunkGoes, ChunkNamed};
pub use node::{NodeLayout, NodeWords};
pub use pool::{PoolBlock, PoolChange, PoolCounter, PoolKind, PoolTurn};
pub use tensor::block::{BlockReport, BlockRequest, BlockTotals, BlockTurn, PendingBlocks};
pub use tensor::{StackRef, TensorChange, TensorEvent, TraceAction, Traced, decode_tensor};

/// A returned call and its action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The calling process.
    pub tgid: Tgid,
    /// The calling thread.
    pub tid: Tid,
    /// Name of the driver function.
    pub symbol: &'static str,
    /// `CLOCK_BOOTTIME` at entry, nanoseconds.
    pub entered_ns: u64,
    /// `CLOCK_BOOTTIME` at return, nanoseconds.
    pub returned_ns: u64,
    /// `CUresult`; 0 is success.
    pub status: i32,
    /// Action requested by the call.
    pub action: Action,
}

impl Call {
    /// Returns the time span of the call in the driver.
    pub const fn span(&self) -> CallSpan {
        CallSpan { entered_ns: self.entered_ns, returned_ns: self.returned_ns }
    }
}

/// Error for a record that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The probe id is not in the table.
    #[error("record of probe {0}, which is not in the table")]
    UnknownProbe(u16),
    /// The call succeeded, but the address or handle that it returned could not be read.
    #[error("the result of {} could not be read", .0.symbol)]
    ResultUnreadable(&'static Probe),
}

/// Decodes a record by the probe table row of its function.
///
/// # Errors
/// [`DecodeError`]; the effect of the call is then unknown.
pub fn decode(record: &CallRecord) -> Result<Call, DecodeError> {
    let probe = probes::by_id(record.probe).ok_or(DecodeError::UnknownProbe(record.probe))?;
    let unreadable = record.status == 0 && record.flags & FLAG_OUT_UNREADABLE != 0;
    if unreadable && needs_result(probe.meaning, record) {
        return Err(DecodeError::ResultUnreadable(probe));
    }
    Ok(Call {
        tgid: Tgid(record.tgid),
        tid: Tid(record.tid),
        symbol: probe.symbol,
        entered_ns: record.entered_ns,
        returned_ns: record.returned_ns,
        status: record.status,
        action: action(probe, record),
    })
}

/// Returns the address that a call allocates or frees, for the kinds of memory of which there may
/// be millions. Equals the result of [`decode`] but is cheaper.
pub fn address(record: &CallRecord) -> Option<u64> {
    match probes::by_id(record.probe)?.meaning {
        Meaning::Memory(MemoryCall::Allocate { .. }) | Meaning::Pool(PoolCall::AllocateFromPool { .. }) => {
            Some(record.out[0])
        }
        Meaning::Memory(MemoryCall::Free | MemoryCall::FreeHost) | Meaning::Pool(PoolCall::FreeAsync) => {
            Some(record.args[0])
        }
        _ => None,
    }
}

/// Returns whether a call cannot be decoded without the words behind its out-pointers.
fn needs_result(meaning: Meaning, record: &CallRecord) -> bool {
    match meaning {
        Meaning::Context(ContextCall::PopContext) | Meaning::Sharing(SharingCall::ExportPhysical) => false,
        Meaning::Graph(GraphCall::AddNode) => low_u32(record.peek[0]) == ALLOCATION_NODE,
        _ => true,
    }
}

fn action(probe: &Probe, record: &CallRecord) -> Action {
    match probe.meaning {
        Meaning::Memory(call) => memory_action(call, record),
        Meaning::Pool(call) => pool_action(call, probe, record),
        Meaning::Virtual(call) => virtual_memory_action(call, record),
        Meaning::Sharing(call) => sharing_action(call, record),
        Meaning::Graph(call) => graph_action(call, probe, record),
        Meaning::Context(call) => context_action(call, record),
    }
}

fn memory_action(call: MemoryCall, record: &CallRecord) -> Action {
    let args = &record.args;
    let out = record.out[0];
    match call {
        MemoryCall::Initialise => Action::Initialise,
        MemoryCall::Allocate { kind, size } => {
            Action::Allocate { kind, address: out, bytes: linear_bytes(size, record) }
        }
        MemoryCall::Free => Action::Free { address: args[0] },
        MemoryCall::FreeHost => Action::FreeHost { address: args[0] },
        MemoryCall::RegisterHost => Action::RegisterHost { address: args[0], bytes: args[1] },
        MemoryCall::UnregisterHost => Action::UnregisterHost { address: args[0] },
        MemoryCall::CreateArray(shape) => {
            Action::CreateArray { handle: out, estimated_bytes: array::estimated_bytes(shape, record) }
        }
        MemoryCall::DestroyArray => Action::DestroyArray { handle: args[0] },
        MemoryCall::LoadModule => Action::LoadModule { module: out },
        MemoryCall::UnloadModule => Action::UnloadModule { module: args[0] },
        MemoryCall::Checkpoint => Action::Checkpoint { tgid: Tgid(low_u32(args[0])) },
        MemoryCall::Restore => Action::Restore { tgid: Tgid(low_u32(args[0])) },
    }
}

fn pool_action(call: PoolCall, probe: &Probe, record: &CallRecord) -> Action {
    let args = &record.args;
    let out = record.out[0];
    match call {
        PoolCall::AllocateFromPool { pool, stream } => Action::AllocateFromPool {
            address: out,
            bytes: args[1],
            pool: pool.map(|index| argument(record, index)),
            stream: stream_of(probe, argument(record, stream)),
        },
        PoolCall::FreeAsync => Action::FreeAsync { address: args[0], stream: stream_of(probe, args[1]) },
        PoolCall::CreatePool => Action::CreatePool {
            pool: out,
            // `CUmemPoolProps`: the allocation type is the low half of the first word, the location
            // the second word.
            place: PoolPlace { location: location(record, 1), managed: low_u32(record.peek[0]) == MANAGED },
        },
        PoolCall::DestroyPool => Action::DestroyPool { pool: args[0] },
        PoolCall::TrimPool => Action::TrimPool { pool: args[0], keep_bytes: args[1] },
        PoolCall::SetPoolAttribute => {
            Action::SetPoolAttribute { pool: args[0], attribute: low_u32(args[1]), value: record.peek[0] }
        }
        PoolCall::GetPoolAttribute => {
            Action::PoolAttribute { pool: args[0], attribute: low_u32(args[1]), value: record.out[0] }
        }
        PoolCall::SetDevicePool => Action::SetPool { site: PoolSite::Device(ordinal(args[0])), pool: args[1] },
        PoolCall::GetDevicePool(role) => {
            Action::LearnPool { site: PoolSite::Device(ordinal(args[1])), pool: out, role }
        }
        PoolCall::SetLocationPool => Action::SetPool { site: pool_site(record, args[1]), pool: args[2] },
        PoolCall::GetLocationPool(role) => Action::LearnPool { site: pool_site(record, args[2]), pool: out, role },
        PoolCall::ImportPool => Action::ImportPool { pool: out },
    }
}

fn virtual_memory_action(call: VirtualCall, record: &CallRecord) -> Action {
    let args = &record.args;
    let out = record.out[0];
    match call {
        VirtualCall::ReserveAddresses => Action::ReserveAddresses { address: out, bytes: args[1] },
        VirtualCall::FreeAddresses => Action::FreeAddresses { address: args[0], bytes: args[1] },
        VirtualCall::CreatePhysical => {
            Action::CreatePhysical { handle: out, bytes: args[1], location: location(record, 0) }
        }
        VirtualCall::ReleasePhysical => Action::ReleasePhysical { handle: args[0] },
        VirtualCall::RetainPhysical => Action::RetainPhysical { handle: out, address: args[1] },
        VirtualCall::Map => Action::Map { address: args[0], bytes: args[1], handle: args[3] },
        VirtualCall::Unmap => Action::Unmap { address: args[0], bytes: args[1] },
        VirtualCall::CreateMulticast => Action::CreateMulticast { handle: out },
        VirtualCall::BindMulticast { device, offset } => Action::BindMulticast {
            object: args[0],
            device: device.map(|index| ordinal(argument(record, index))),
            offset_bytes: argument(record, offset),
            handle: argument(record, offset + 1),
            bytes: argument(record, offset + 3),
        },
        VirtualCall::UnbindMulticast => {
            Action::UnbindMulticast { object: args[0], device: ordinal(args[1]), offset_bytes: args[2], bytes: args[3] }
        }
    }
}

fn sharing_action(call: SharingCall, record: &CallRecord) -> Action {
    let args = &record.args;
    let out = record.out[0];
    let readable = record.flags & FLAG_PEEK_UNREADABLE == 0;
    let digest = readable.then_some([record.peek[0], record.peek[1]]);
    let file = Some(record.peek[0]).filter(|file| *file != 0);
    match call {
        SharingCall::ExportAddress | SharingCall::ExportPoolAddress => {
            Action::ExportAddress { address: args[1], digest }
        }
        SharingCall::OpenAlias => Action::OpenAlias { address: out, digest },
        SharingCall::CloseAlias => Action::CloseAlias { address: args[0] },
        SharingCall::ImportPoolAddress => Action::ImportAddress { address: out, digest },
        SharingCall::ExportPhysical => Action::ExportPhysical { handle: args[1], file },
        SharingCall::ImportPhysical => Action::ImportPhysical { handle: out, file },
        SharingCall::ImportExternal => Action::ImportExternal { handle: out },
        SharingCall::MapExternal => Action::ImportAddress { address: out, digest: None },
        SharingCall::DestroyExternal => Action::DestroyExternal { handle: args[0] },
    }
}

fn graph_action(call: GraphCall, probe: &Probe, record: &CallRecord) -> Action {
    let args = &record.args;
    let [first, second] = record.out;
    match call {
        GraphCall::AddAllocationNode => {
            let device = location(record, 1).device();
            Action::AddAllocationNode { graph: args[1], address: second, bytes: first, device }
        }
        GraphCall::AddFreeNode => Action::AddFreeNode { graph: args[1], address: args[4] },
        GraphCall::AddNode => match low_u32(record.peek[0]) {
            ALLOCATION_NODE => {
                let device = location(record, 3).device();
                Action::AddAllocationNode { graph: args[1], address: second, bytes: first, device }
            }
            FREE_NODE => Action::AddFreeNode { graph: args[1], address: record.peek[2] },
            _ => Action::AddOtherNode,
        },
        GraphCall::DestroyGraph => Action::DestroyGraph { graph: args[0] },
        GraphCall::InstantiateGraph => Action::InstantiateGraph { executable: first, graph: args[1] },
        GraphCall::DestroyExecutable => Action::DestroyExecutable { executable: args[0] },
        GraphCall::LaunchGraph => Action::LaunchGraph { executable: args[0] },
        GraphCall::TrimGraphs => Action::TrimGraphs { device: ordinal(args[0]) },
        GraphCall::BeginCapture => Action::BeginCapture { stream: stream_of(probe, args[0]) },
        GraphCall::EndCapture => Action::EndCapture { stream: stream_of(probe, args[0]), graph: first },
    }
}

fn context_action(call: ContextCall, record: &CallRecord) -> Action {
    let args = &record.args;
    let context = ContextHandle(args[0]);
    let created = ContextHandle(record.out[0]);
    match call {
        ContextCall::RetainPrimary => Action::RetainPrimary { context: created, device: ordinal(args[1]) },
        ContextCall::ReleasePrimary => Action::ReleasePrimary { device: ordinal(args[0]) },
        ContextCall::ResetPrimary => Action::ResetPrimary { device: ordinal(args[0]) },
        ContextCall::CreateContext { device } => {
            Action::CreateContext { context: created, device: ordinal(argument(record, device)) }
        }
        ContextCall::DestroyContext => Action::DestroyContext { context },
        ContextCall::SetContext => Action::SetContext { context: (args[0] != 0).then_some(context) },
        ContextCall::PushContext => Action::PushContext { context },
        ContextCall::CurrentContext => Action::CurrentContext { context: (record.out[0] != 0).then_some(created) },
        ContextCall::CurrentDevice => Action::CurrentDevice { device: ordinal(record.out[0]) },
        ContextCall::CreateGreen => Action::CreateGreen { green: record.out[0], device: ordinal(args[2]) },
        ContextCall::ContextOfGreen => Action::ContextOfGreen { context: created, green: args[1] },
        ContextCall::DestroyGreen => Action::DestroyGreen { green: args[0] },
        ContextCall::SetLimit => Action::SetLimit { limit: low_u32(args[0]), value: args[1] },
        ContextCall::CreateStream => Action::CreateStream { stream: record.out[0] },
        ContextCall::DeviceUuid => Action::DeviceUuid { device: ordinal(args[1]), uuid: out_bytes(record) },
        ContextCall::DeviceBusId => Action::DeviceBusId { device: ordinal(args[2]), bus_id: out_bytes(record) },
        ContextCall::PopContext => Action::PopContext,
    }
}

fn argument(record: &CallRecord, index: u8) -> u64 {
    record.args.get(usize::from(index)).copied().unwrap_or(0)
}

/// Returns the low four bytes of a register. The upper half of a 32-bit argument is undefined.
fn low_u32(register: u64) -> u32 {
    let [a, b, c, d, ..] = register.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn ordinal(register: u64) -> Ordinal {
    Ordinal(low_u32(register).cast_signed())
}

fn linear_bytes(size: LinearSize, record: &CallRecord) -> u64 {
    match size {
        LinearSize::Argument(index) => argument(record, index),
        LinearSize::Pitched { height } => {
            // A failed call returns no pitch; the width in bytes (argument 2) is then its best
            // known lower bound.
            let pitch = if record.status == 0 { record.out[1] } else { record.args[2] };
            pitch.saturating_mul(argument(record, height))
        }
    }
}

/// Returns the sixteen bytes of both out words.
fn out_bytes(record: &CallRecord) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&record.out[0].to_le_bytes());
    bytes[8..].copy_from_slice(&record.out[1].to_le_bytes());
    bytes
}

/// `CU_MEM_ALLOCATION_TYPE_MANAGED` (cuda.h 13.0).
const MANAGED: u32 = 2;

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC` (cuda.h).
const ALLOCATION_NODE: u32 = 10;
/// `CU_GRAPH_NODE_TYPE_MEM_FREE` (cuda.h).
const FREE_NODE: u32 = 11;

/// Suffix of functions for which a null stream means the thread's own default stream
/// (`CUDA_API_PER_THREAD_DEFAULT_STREAM` of cuda.h).
const PER_THREAD: &str = "_ptsz";

/// Decodes a stream handle. `CU_STREAM_LEGACY` is 1, `CU_STREAM_PER_THREAD` is 2 (cuda.h).
fn stream_of(probe: &Probe, handle: u64) -> Stream {
    match handle {
        0 if probe.symbol.ends_with(PER_THREAD) => Stream::OfThread,
        0 | 1 => Stream::Legacy,
        2 => Stream::OfThread,
        handle => Stream::Handle(handle),
    }
}

fn pool_site(record: &CallRecord, allocation_type: u64) -> PoolSite {
    let place = PoolPlace { location: location(record, 0), managed: low_u32(allocation_type) == MANAGED };
    match place {
        PoolPlace { location: Location::Device(ordinal), managed: false } => PoolSite::Device(ordinal),
        place => PoolSite::Place(place),
    }
}

/// Decodes a `CUmemLocation` in a peeked word: the type in the low half, the id in the high half
/// (cuda.h 13.5).
fn location(record: &CallRecord, word: usize) -> Location {
    let word = record.peek.get(word).copied().unwrap_or(0);
    if record.flags & FLAG_PEEK_UNREADABLE != 0 {
        return Location::Unknown;
    }
    let id = low_u32(word >> 32);
    match low_u32(word) {
        1 => Location::Device(Ordinal(id.cast_signed())),
        2..=4 => Location::Host,
        // DEVICE_LOCALITY_DOMAIN: the device is the low byte of the id.
        6 => Location::Device(Ordinal(id.cast_signed() & 0xFF)),
        _ => Location::Unknown,
    }
}

#[cfg(test)]
#[path = "../tests/decode.rs"]
mod tests;
