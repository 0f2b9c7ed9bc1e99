//! What a successful call of a probed function does, in terms of the words its plan captures.
//!
//! Struct layouts: `cuda.h` of CUDA 12.9 and 13.5.

/// What kind of memory a linear allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearKind {
    /// `cuMemAlloc` and `cuMemAllocPitch`: bytes on the current device.
    Device,
    /// `cuMemAllocManaged`: addresses whose pages move between host and devices.
    Managed,
    /// `cuMemAllocHost`, `cuMemHostAlloc`: page-locked host memory.
    PinnedHost,
}

/// Where the size of a linear allocation stands in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearSize {
    /// In an argument register, in bytes.
    Argument(u8),
    /// The pitch is the second out word, the height an argument register.
    Pitched {
        /// The argument with the number of rows.
        height: u8,
    },
}

/// The descriptor an array is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayShape {
    /// `CUDA_ARRAY_DESCRIPTOR`, three words.
    Flat,
    /// `CUDA_ARRAY3D_DESCRIPTOR`, five words.
    Solid,
    /// The same, with the number of levels in the third argument.
    Mipmapped,
}

/// Which of a device's or location's pools a function deals with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRole {
    /// The one that the driver made.
    Default,
    /// The one that allocations without a pool of their own are made from now.
    Current,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Memory with an address of its own, arrays, modules, and whole processes.
    Memory(MemoryCall),
    /// Stream-ordered memory and its pools.
    Pool(PoolCall),
    /// Addresses, physical memory, and what maps one to the other.
    Virtual(VirtualCall),
    /// Memory that several processes, or several interfaces, use.
    Sharing(SharingCall),
    /// Graphs whose nodes allocate, and captures that make such graphs.
    Graph(GraphCall),
    /// Contexts, devices and streams.
    Context(ContextCall),
}

/// Memory with an address of its own, arrays, modules, and whole processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCall {
    /// The process uses CUDA from here on.
    Initialise,
    /// A grant at the address in the first out word.
    Allocate {
        /// Kind of memory.
        kind: LinearKind,
        /// Where the size is.
        size: LinearSize,
    },
    /// Argument 0 is an address of any device-side kind: the allocation's kind decides what the free means.
    Free,
    /// Argument 0 is a pinned host address.
    FreeHost,
    /// Argument 0 is an existing host range of argument 1 bytes, now page-locked.
    RegisterHost,
    /// Argument 0 is a registered range.
    UnregisterHost,
    /// The first out word is the handle of an array of this shape, described by the peeked words.
    CreateArray(ArrayShape),
    /// Argument 0 is an array or mipmapped array handle.
    DestroyArray,
    /// The first out word is loaded code: memory of unknown size.
    LoadModule,
    /// Code argument 0 goes.
    UnloadModule,
    /// The memory of process argument 0 leaves the devices.
    Checkpoint,
    /// And comes back.
    Restore,
}

/// Stream-ordered memory and its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolCall {
    /// Stream-ordered grant of argument 1 bytes at the first out word.
    AllocateFromPool {
        /// The argument with the pool handle; without one it is the current pool of the stream's device.
        pool: Option<u8>,
        /// The argument with the stream.
        stream: u8,
    },
    /// Stream-ordered free of argument 0 on the stream in argument 1.
    FreeAsync,
    /// The first out word is a new pool; its properties are the peeked words.
    CreatePool,
    /// Pool argument 0 goes with its last allocation.
    DestroyPool,
    /// Pool argument 0 gives back what it does not use, down to argument 1 bytes.
    TrimPool,
    /// Attribute argument 1 of pool argument 0 becomes the peeked word.
    SetPoolAttribute,
    /// Attribute argument 1 of pool argument 0 is the first out word.
    GetPoolAttribute,
    /// Pool argument 1 becomes the current one of device argument 0.
    SetDevicePool,
    /// The first out word is a pool of device argument 1.
    GetDevicePool(PoolRole),
    /// Pool argument 2 becomes the current one of the peeked location for the allocation type in argument 1.
    SetLocationPool,
    /// The first out word is a pool of the peeked location, for the allocation type in argument 2.
    GetLocationPool(PoolRole),
    /// The first out word is a pool of another process.
    ImportPool,
}

/// Addresses, physical memory, and what maps one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtualCall {
    /// Argument 1 bytes of addresses at the first out word: no memory.
    ReserveAddresses,
    /// They go: argument 1 bytes at argument 0.
    FreeAddresses,
    /// Physical memory of argument 1 bytes with the handle in the first out word; its location is the peeked word.
    CreatePhysical,
    /// One handle reference less on argument 0.
    ReleasePhysical,
    /// One handle reference more on the first out word.
    RetainPhysical,
    /// Maps argument 1 bytes at argument 0 from offset argument 2 of handle argument 3.
    Map,
    /// Drops every mapping inside argument 1 bytes at argument 0.
    Unmap,
    /// The first out word is the handle of a multicast object: no memory of its own.
    CreateMulticast,
    /// Binds physical memory to multicast object argument 0, and keeps it alive.
    BindMulticast {
        /// The argument with the device ordinal, where there is one.
        device: Option<u8>,
        /// The argument with the offset in the object; the handle follows it, and the size is two after that.
        offset: u8,
    },
    /// Ends the bindings of multicast object argument 0 on device argument 1, argument 3 bytes at offset argument 2.
    UnbindMulticast,
}

/// Memory that several processes, or several interfaces, use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingCall {
    /// The peeked digest is of a handle to the pool memory at argument 1.
    ExportPoolAddress,
    /// The first out word is an address of another process's pool memory, by the handle of the peeked digest.
    ImportPoolAddress,
    /// The peeked word tells the open file that now stands for handle argument 1.
    ExportPhysical,
    /// The first out word is a handle to another owner's memory, which came by the open file that the peeked word tells.
    ImportPhysical,
    /// The peeked digest is of a handle to the memory at argument 1.
    ExportAddress,
    /// The first out word is an address of another process's memory, by the handle of the peeked digest.
    OpenAlias,
    /// Argument 0 is such an address.
    CloseAlias,
    /// The first out word is an object over another API's memory of as many bytes as the peeked word says.
    ImportExternal,
    /// The first out word is an address of such an object (argument 1); the peeked word is its size in bytes.
    MapExternal,
    /// Object argument 0 goes.
    DestroyExternal,
}

/// Graphs whose nodes allocate, and captures that make such graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphCall {
    /// Graph argument 1 allocates as many bytes as the first out word says at the address in the second.
    AddAllocationNode,
    /// Graph argument 1 frees the address in argument 4.
    AddFreeNode,
    /// A node of any kind in graph argument 1: the peeked words begin with its kind (10 allocates, 11 frees the address in the third).
    AddNode,
    /// Graph argument 0 goes.
    DestroyGraph,
    /// The first out word is an executable of graph argument 1.
    InstantiateGraph,
    /// Executable argument 0 goes.
    DestroyExecutable,
    /// Executable argument 0 runs.
    LaunchGraph,
    /// What graphs keep on device argument 0 without using it goes.
    TrimGraphs,
    /// What is allocated on stream argument 0 from here on belongs to a graph.
    BeginCapture,
    /// And no longer; the graph is the first out word.
    EndCapture,
}

/// Contexts, devices and streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextCall {
    /// The first out word is the primary context of device argument 1, with one reference more.
    RetainPrimary,
    /// One reference less on the primary context of device argument 0.
    ReleasePrimary,
    /// The primary context of device argument 0 is torn down.
    ResetPrimary,
    /// The first out word is a new context, now current on this thread.
    CreateContext {
        /// The argument with the device ordinal.
        device: u8,
    },
    /// Context argument 0 is torn down.
    DestroyContext,
    /// Context argument 0 replaces the top of this thread's context stack; null pops.
    SetContext,
    /// Context argument 0 goes on this thread's context stack.
    PushContext,
    /// The top of this thread's context stack goes.
    PopContext,
    /// The first out word is the context on top of this thread's stack.
    CurrentContext,
    /// The low half of the first out word is the device of this thread's current context.
    CurrentDevice,
    /// The first out word is a new green context on device argument 2; it retains the primary one.
    CreateGreen,
    /// The first out word is the context that stands for green context argument 1.
    ContextOfGreen,
    /// Green context argument 0 goes, and with it its reference on the primary one.
    DestroyGreen,
    /// Limit argument 0 of this thread's current context becomes argument 1.
    SetLimit,
    /// The first out word is a new stream of this thread's current context.
    CreateStream,
    /// The sixteen out bytes are the UUID of device argument 1.
    DeviceUuid,
    /// The sixteen out bytes begin with the PCI bus id of device argument 2, as text.
    DeviceBusId,
}
