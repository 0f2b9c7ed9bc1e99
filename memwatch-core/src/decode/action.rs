//! What a call asks for, in the words of the dictionary.

use memwatch_common::meaning::{LinearKind, PoolRole};
use serde::{Deserialize, Serialize};

use crate::words::{ContextHandle, Ordinal, Tgid};

/// Where physical memory lies: `CUmemLocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Location {
    /// On the device with this ordinal.
    Device(Ordinal),
    /// In host memory.
    Host,
    /// The struct could not be read, or names a type this version does not know.
    Unknown,
}

impl Location {
    /// The device, if it is one.
    pub const fn device(self) -> Option<Ordinal> {
        match self {
            Self::Device(ordinal) => Some(ordinal),
            Self::Host | Self::Unknown => None,
        }
    }
}

/// What a pool hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolPlace {
    /// Where.
    pub location: Location,
    /// Managed memory, whose pages may be anywhere.
    pub managed: bool,
}

/// What has a current and a default pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PoolSite {
    /// A device, for its own memory.
    Device(Ordinal),
    /// A place of CUDA 13: host memory, or managed memory of some location.
    Place(PoolPlace),
}

/// The stream a call is made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// The default stream that all threads of a context share.
    Legacy,
    /// The calling thread's own default stream.
    OfThread,
    /// One that was created.
    Handle(u64),
}

/// What a call asked for. Words that only a successful call yields (addresses, handles) are 0 in a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the words of the dictionary")]
pub enum Action {
    /// CUDA starts in this process.
    Initialise,
    /// A linear grant.
    Allocate { kind: LinearKind, address: u64, bytes: u64 },
    /// Free of a device-side address of any kind.
    Free { address: u64 },
    /// Free of pinned host memory.
    FreeHost { address: u64 },
    /// Page-locks an existing host range.
    RegisterHost { address: u64, bytes: u64 },
    /// Ends that.
    UnregisterHost { address: u64 },
    /// Stream-ordered grant; without a pool from the current one of the device.
    AllocateFromPool { address: u64, bytes: u64, pool: Option<u64>, stream: Stream },
    /// Stream-ordered free.
    FreeAsync { address: u64, stream: Stream },
    /// A new pool.
    CreatePool { pool: u64, place: PoolPlace },
    /// A pool that goes with its last allocation.
    DestroyPool { pool: u64 },
    /// What a pool does not use goes back to the device.
    TrimPool { pool: u64, keep_bytes: u64 },
    /// `CUmemPool_attribute` set by the program.
    SetPoolAttribute { pool: u64, attribute: u32, value: u64 },
    /// What the program is shown.
    PoolAttribute { pool: u64, attribute: u32, value: u64 },
    /// Another pool becomes the current one.
    SetPool { site: PoolSite, pool: u64 },
    /// The program learnt a pool's handle, and so do we.
    LearnPool { site: PoolSite, pool: u64, role: PoolRole },
    /// Another process's pool.
    ImportPool { pool: u64 },
    /// A range of addresses without memory.
    ReserveAddresses { address: u64, bytes: u64 },
    /// And its end.
    FreeAddresses { address: u64, bytes: u64 },
    /// Physical memory.
    CreatePhysical { handle: u64, bytes: u64, location: Location },
    /// A handle reference less.
    ReleasePhysical { handle: u64 },
    /// A handle reference more, on the memory that is mapped at an address.
    RetainPhysical { handle: u64, address: u64 },
    /// A mapping more.
    Map { address: u64, bytes: u64, handle: u64 },
    /// All mappings in a range less.
    Unmap { address: u64, bytes: u64 },
    /// A multicast object: a handle without memory.
    CreateMulticast { handle: u64 },
    /// Physical memory bound to one, and kept alive by it.
    BindMulticast { object: u64, device: Option<Ordinal>, offset_bytes: u64, handle: u64, bytes: u64 },
    /// And no longer.
    UnbindMulticast { object: u64, device: Ordinal, offset_bytes: u64, bytes: u64 },
    /// Memory is offered to other processes by a handle with this digest.
    ExportAddress { address: u64, digest: Option<[u64; 2]> },
    /// Another process's memory becomes visible here; opened again, it is the same address.
    OpenAlias { address: u64, digest: Option<[u64; 2]> },
    /// And once less.
    CloseAlias { address: u64 },
    /// Another owner's memory becomes visible here, until the address is freed like an own one.
    ImportAddress { address: u64, digest: Option<[u64; 2]> },
    /// Physical memory is offered to other processes by an open file.
    ExportPhysical { handle: u64, file: Option<u64> },
    /// A handle to another owner's memory, which came by an open file.
    ImportPhysical { handle: u64, file: Option<u64> },
    /// An object over another API's memory.
    ImportExternal { handle: u64 },
    /// And its end.
    DestroyExternal { handle: u64 },
    /// An array; its size is an estimate from its shape.
    CreateArray { handle: u64, estimated_bytes: u64 },
    /// An array less.
    DestroyArray { handle: u64 },
    /// A graph that will allocate at a fixed address when it runs.
    AddAllocationNode { graph: u64, address: u64, bytes: u64, device: Option<Ordinal> },
    /// A graph that will free when it runs.
    AddFreeNode { graph: u64, address: u64 },
    /// A graph node that has nothing to do with memory.
    AddOtherNode,
    /// A graph less.
    DestroyGraph { graph: u64 },
    /// A graph made ready to run.
    InstantiateGraph { executable: u64, graph: u64 },
    /// And no longer.
    DestroyExecutable { executable: u64 },
    /// It runs.
    LaunchGraph { executable: u64 },
    /// What graphs keep unused on a device goes.
    TrimGraphs { device: Ordinal },
    /// What a stream is asked to do goes into a graph from here on.
    BeginCapture { stream: Stream },
    /// And no longer; 0 where there is no graph.
    EndCapture { stream: Stream, graph: u64 },
    /// A primary context reference more.
    RetainPrimary { context: ContextHandle, device: Ordinal },
    /// A primary context reference less.
    ReleasePrimary { device: Ordinal },
    /// A primary context torn down.
    ResetPrimary { device: Ordinal },
    /// A new context, current on the thread.
    CreateContext { context: ContextHandle, device: Ordinal },
    /// A context torn down.
    DestroyContext { context: ContextHandle },
    /// The thread's current context replaced; `None` pops.
    SetContext { context: Option<ContextHandle> },
    /// The thread's context stack grows.
    PushContext { context: ContextHandle },
    /// The thread's context stack shrinks.
    PopContext,
    /// The program learnt its thread's current context, and so do we.
    CurrentContext { context: Option<ContextHandle> },
    /// The program learnt the device of its thread's current context, and so do we.
    CurrentDevice { device: Ordinal },
    /// A share of a device's processors, with the primary context's memory.
    CreateGreen { green: u64, device: Ordinal },
    /// The context that stands for it.
    ContextOfGreen { context: ContextHandle, green: u64 },
    /// And its end.
    DestroyGreen { green: u64 },
    /// A limit of the thread's current context.
    SetLimit { limit: u32, value: u64 },
    /// A stream of the thread's current context.
    CreateStream { stream: u64 },
    /// Code in device memory, of unknown size.
    LoadModule { module: u64 },
    /// And its end.
    UnloadModule { module: u64 },
    /// The program learnt a device's UUID, and so do we.
    DeviceUuid { device: Ordinal, uuid: [u8; 16] },
    /// The program learnt the first bytes of a device's PCI bus id, and so do we.
    DeviceBusId { device: Ordinal, bus_id: [u8; 16] },
    /// Another process's memory leaves the devices.
    Checkpoint { tgid: Tgid },
    /// And comes back.
    Restore { tgid: Tgid },
}

impl Action {
    /// Whether it allocates on the device of the calling thread's context, or may: of a stream it is often not known whose it is.
    pub const fn is_in_context(&self) -> bool {
        match *self {
            Self::Allocate { kind, .. } => !matches!(kind, LinearKind::PinnedHost),
            Self::AllocateFromPool { .. }
            | Self::CreateArray { .. }
            | Self::CreatePhysical { location: Location::Unknown, .. } => true,
            _ => false,
        }
    }

    /// The bytes asked for, where the call is one whose failure means that memory was not to be had.
    pub const fn requested_bytes(&self) -> Option<u64> {
        match *self {
            Self::Allocate { bytes, .. }
            | Self::AllocateFromPool { bytes, .. }
            | Self::CreatePhysical { bytes, .. }
            | Self::CreateArray { estimated_bytes: bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}
