//! Actions of driver calls.

use memwatch_common::meaning::{LinearKind, PoolRole};
use serde::{Deserialize, Serialize};

use crate::words::{ContextHandle, Ordinal, Tgid};

/// Location of physical memory: `CUmemLocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Location {
    /// On the device with this ordinal.
    Device(Ordinal),
    /// In host memory.
    Host,
    /// The struct could not be read, or has a type unknown to this version.
    Unknown,
}

impl Location {
    /// Returns the device, for device memory.
    pub const fn device(self) -> Option<Ordinal> {
        match self {
            Self::Device(ordinal) => Some(ordinal),
            Self::Host | Self::Unknown => None,
        }
    }
}

/// Memory that a pool allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolPlace {
    /// Location of the memory.
    pub location: Location,
    /// Whether it is managed memory. Its pages may be anywhere.
    pub managed: bool,
}

/// Owner of a current and a default pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PoolSite {
    /// A device, for its own memory.
    Device(Ordinal),
    /// A location of CUDA 13: host memory, or managed memory of some location.
    Place(PoolPlace),
}

/// Stream of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// The default stream that all threads of a context share.
    Legacy,
    /// The calling thread's own default stream.
    OfThread,
    /// A created stream.
    Handle(u64),
}

/// Action requested by a call. Values returned only by a successful call (addresses, handles) are 0
/// in a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "field names are self-explanatory")]
pub enum Action {
    /// CUDA is initialised in this process.
    Initialise,
    /// Allocates linear memory.
    Allocate { kind: LinearKind, address: u64, bytes: u64 },
    /// Frees a device-side address of any kind.
    Free { address: u64 },
    /// Frees pinned host memory.
    FreeHost { address: u64 },
    /// Page-locks an existing host range.
    RegisterHost { address: u64, bytes: u64 },
    /// Unlocks a registered host range.
    UnregisterHost { address: u64 },
    /// Allocates in stream order, from this pool or the current one of the device.
    AllocateFromPool { address: u64, bytes: u64, pool: Option<u64>, stream: Stream },
    /// Frees in stream order.
    FreeAsync { address: u64, stream: Stream },
    /// Creates a pool.
    CreatePool { pool: u64, place: PoolPlace },
    /// Destroys a pool; it ends with its last allocation.
    DestroyPool { pool: u64 },
    /// Returns unused memory of a pool to the device.
    TrimPool { pool: u64, keep_bytes: u64 },
    /// Sets a `CUmemPool_attribute`.
    SetPoolAttribute { pool: u64, attribute: u32, value: u64 },
    /// Reports a `CUmemPool_attribute` to the program.
    PoolAttribute { pool: u64, attribute: u32, value: u64 },
    /// Sets the current pool.
    SetPool { site: PoolSite, pool: u64 },
    /// Reports a pool's handle to the program.
    LearnPool { site: PoolSite, pool: u64, role: PoolRole },
    /// Imports another process's pool.
    ImportPool { pool: u64 },
    /// Reserves a range of addresses without memory.
    ReserveAddresses { address: u64, bytes: u64 },
    /// Frees a reserved range of addresses.
    FreeAddresses { address: u64, bytes: u64 },
    /// Allocates physical memory.
    CreatePhysical { handle: u64, bytes: u64, location: Location },
    /// Drops a reference of a handle.
    ReleasePhysical { handle: u64 },
    /// Adds a reference, under this handle, to the memory mapped at an address.
    RetainPhysical { handle: u64, address: u64 },
    /// Maps physical memory.
    Map { address: u64, bytes: u64, handle: u64 },
    /// Ends all mappings in a range.
    Unmap { address: u64, bytes: u64 },
    /// Creates a multicast object: a handle without memory.
    CreateMulticast { handle: u64 },
    /// Binds physical memory to a multicast object, which keeps it alive.
    BindMulticast { object: u64, device: Option<Ordinal>, offset_bytes: u64, handle: u64, bytes: u64 },
    /// Unbinds physical memory from a multicast object.
    UnbindMulticast { object: u64, device: Ordinal, offset_bytes: u64, bytes: u64 },
    /// Offers memory to other processes by a handle with this digest.
    ExportAddress { address: u64, digest: Option<[u64; 2]> },
    /// Opens another process's memory. Opening it again returns the same address.
    OpenAlias { address: u64, digest: Option<[u64; 2]> },
    /// Closes an opened address once.
    CloseAlias { address: u64 },
    /// Opens another owner's memory, until the address is freed like an own one.
    ImportAddress { address: u64, digest: Option<[u64; 2]> },
    /// Offers physical memory to other processes by an open file.
    ExportPhysical { handle: u64, file: Option<u64> },
    /// Imports another owner's physical memory from an open file.
    ImportPhysical { handle: u64, file: Option<u64> },
    /// Imports an object of another API's memory.
    ImportExternal { handle: u64 },
    /// Destroys an imported external object.
    DestroyExternal { handle: u64 },
    /// Creates an array. Its size is estimated from its shape.
    CreateArray { handle: u64, estimated_bytes: u64 },
    /// Destroys an array.
    DestroyArray { handle: u64 },
    /// Adds a graph node that allocates at a fixed address when the graph runs.
    AddAllocationNode { graph: u64, address: u64, bytes: u64, device: Option<Ordinal> },
    /// Adds a graph node that frees when the graph runs.
    AddFreeNode { graph: u64, address: u64 },
    /// Adds a graph node that does not concern memory.
    AddOtherNode,
    /// Destroys a graph.
    DestroyGraph { graph: u64 },
    /// Instantiates a graph.
    InstantiateGraph { executable: u64, graph: u64 },
    /// Destroys an instantiated graph.
    DestroyExecutable { executable: u64 },
    /// Launches an instantiated graph.
    LaunchGraph { executable: u64 },
    /// Frees the memory that graphs keep unused on a device.
    TrimGraphs { device: Ordinal },
    /// Begins to capture the operations of a stream into a graph.
    BeginCapture { stream: Stream },
    /// Ends a capture; the graph is 0 if there is none.
    EndCapture { stream: Stream, graph: u64 },
    /// Adds a reference to a primary context.
    RetainPrimary { context: ContextHandle, device: Ordinal },
    /// Drops a reference to a primary context.
    ReleasePrimary { device: Ordinal },
    /// Tears down a primary context.
    ResetPrimary { device: Ordinal },
    /// Creates a context, which becomes current on the thread.
    CreateContext { context: ContextHandle, device: Ordinal },
    /// Destroys a context.
    DestroyContext { context: ContextHandle },
    /// Replaces the thread's current context; `None` pops it.
    SetContext { context: Option<ContextHandle> },
    /// Pushes a context on the thread's stack.
    PushContext { context: ContextHandle },
    /// Pops the thread's context stack.
    PopContext,
    /// Reports the thread's current context to the program.
    CurrentContext { context: Option<ContextHandle> },
    /// Reports the device of the thread's current context to the program.
    CurrentDevice { device: Ordinal },
    /// Creates a green context: a part of a device's processors, with the primary context's memory.
    CreateGreen { green: u64, device: Ordinal },
    /// Creates the context handle of a green context.
    ContextOfGreen { context: ContextHandle, green: u64 },
    /// Destroys a green context.
    DestroyGreen { green: u64 },
    /// Sets a limit of the thread's current context.
    SetLimit { limit: u32, value: u64 },
    /// Creates a stream in the thread's current context.
    CreateStream { stream: u64 },
    /// Loads code into device memory, of unknown size.
    LoadModule { module: u64 },
    /// Unloads a module.
    UnloadModule { module: u64 },
    /// Reports a device's UUID to the program.
    DeviceUuid { device: Ordinal, uuid: [u8; 16] },
    /// Reports the first bytes of a device's PCI bus id to the program.
    DeviceBusId { device: Ordinal, bus_id: [u8; 16] },
    /// Moves another process's memory off the devices.
    Checkpoint { tgid: Tgid },
    /// Moves another process's memory back to the devices.
    Restore { tgid: Tgid },
}

impl Action {
    /// Returns whether the action allocates, or may allocate, on the device of the calling thread's
    /// context. The context of a stream is often unknown.
    pub const fn is_in_context(&self) -> bool {
        match *self {
            Self::Allocate { kind, .. } => !matches!(kind, LinearKind::PinnedHost),
            Self::AllocateFromPool { .. }
            | Self::CreateArray { .. }
            | Self::CreatePhysical { location: Location::Unknown, .. } => true,
            _ => false,
        }
    }

    /// Returns the requested bytes, if a failure of the call means a lack of memory.
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
