//! What a successful call of a probed function does, in terms of the words its plan captures.
//!
//! Struct layouts: `cuda.h` of CUDA 12.9 and 13.5.

/// Memory kind of a linear allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearKind {
    /// `cuMemAlloc` and `cuMemAllocPitch`: bytes on the current device.
    Device,
    /// `cuMemAllocManaged`: pages that move between host and devices.
    Managed,
    /// `cuMemAllocHost`, `cuMemHostAlloc`: page-locked host memory.
    PinnedHost,
}

/// Location of a linear allocation's size in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearSize {
    /// In an argument register, in bytes.
    Argument(u8),
    /// The pitch is the second out word, the height an argument register.
    Pitched {
        /// Argument with the number of rows.
        height: u8,
    },
}

/// Descriptor that an array is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayShape {
    /// `CUDA_ARRAY_DESCRIPTOR`, three words.
    Flat,
    /// `CUDA_ARRAY3D_DESCRIPTOR`, five words.
    Solid,
    /// `CUDA_ARRAY3D_DESCRIPTOR`, five words, with the number of levels in the third argument.
    Mipmapped,
}

/// Which pool of a device or location a function sets or returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRole {
    /// The pool that the driver made.
    Default,
    /// The pool that allocations without an explicit pool are made from.
    Current,
}

/// Effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Memory with an address of its own, arrays, modules, and whole processes.
    Memory(MemoryCall),
    /// Stream-ordered memory and its pools.
    Pool(PoolCall),
    /// Address ranges, physical memory, and mappings between them.
    Virtual(VirtualCall),
    /// Memory that several processes or several interfaces use.
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
        /// Location of the size.
        size: LinearSize,
    },
    /// Argument 0 is an address of any device-side kind: the allocation's kind decides what the
    /// free means.
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
    /// The code in argument 0 is unloaded.
    UnloadModule,
    /// The memory of process argument 0 is moved off the devices.
    Checkpoint,
    /// The memory of process argument 0 is moved back to the devices.
    Restore,
}

/// Stream-ordered memory and its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolCall {
    /// Stream-ordered grant of argument 1 bytes at the first out word.
    AllocateFromPool {
        /// Argument with the pool handle; without one, the pool is the current one of the stream's
        /// device.
        pool: Option<u8>,
        /// Argument with the stream.
        stream: u8,
    },
    /// Stream-ordered free of argument 0 on the stream in argument 1.
    FreeAsync,
    /// The first out word is a new pool; its properties are the peeked words.
    CreatePool,
    /// Pool argument 0 is destroyed once its last allocation is freed.
    DestroyPool,
    /// Pool argument 0 releases unused memory down to argument 1 bytes.
    TrimPool,
    /// Attribute argument 1 of pool argument 0 becomes the peeked word.
    SetPoolAttribute,
    /// Attribute argument 1 of pool argument 0 is the first out word.
    GetPoolAttribute,
    /// Pool argument 1 becomes the current pool of device argument 0.
    SetDevicePool,
    /// The first out word is a pool of device argument 1.
    GetDevicePool(PoolRole),
    /// Pool argument 2 becomes the current pool of the peeked location for the allocation type in
    /// argument 1.
    SetLocationPool,
    /// The first out word is a pool of the peeked location, for the allocation type in argument 2.
    GetLocationPool(PoolRole),
    /// The first out word is a pool of another process.
    ImportPool,
}

/// Address ranges, physical memory, and mappings between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtualCall {
    /// Reserves argument 1 bytes of addresses at the first out word, without memory.
    ReserveAddresses,
    /// Frees a reservation of argument 1 bytes of addresses at argument 0.
    FreeAddresses,
    /// Physical memory of argument 1 bytes with the handle in the first out word; its location is
    /// the peeked word.
    CreatePhysical,
    /// Drops one reference on handle argument 0.
    ReleasePhysical,
    /// Adds one reference on the handle in the first out word.
    RetainPhysical,
    /// Maps argument 1 bytes at argument 0 from offset argument 2 of handle argument 3.
    Map,
    /// Drops every mapping inside argument 1 bytes at argument 0.
    Unmap,
    /// The first out word is the handle of a multicast object: no memory of its own.
    CreateMulticast,
    /// Binds physical memory to multicast object argument 0, which keeps the memory alive.
    BindMulticast {
        /// Argument with the device ordinal, if the function has one.
        device: Option<u8>,
        /// Argument with the offset in the object; the handle is the next argument, and the size is
        /// two after the handle.
        offset: u8,
    },
    /// Ends the bindings of multicast object argument 0 on device argument 1, argument 3 bytes at
    /// offset argument 2.
    UnbindMulticast,
}

/// Memory that several processes or several interfaces use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingCall {
    /// The peeked digest is that of a handle to the pool memory at argument 1.
    ExportPoolAddress,
    /// The first out word is an address of another process's pool memory, imported by the handle of
    /// the peeked digest.
    ImportPoolAddress,
    /// The peeked word identifies the open file that represents handle argument 1.
    ExportPhysical,
    /// The first out word is a handle to another owner's memory, imported from the open file that
    /// the peeked word identifies.
    ImportPhysical,
    /// The peeked digest is that of a handle to the memory at argument 1.
    ExportAddress,
    /// The first out word is an address of another process's memory, opened by the handle of the
    /// peeked digest.
    OpenAlias,
    /// Argument 0 is an address that [`Self::OpenAlias`] returned.
    CloseAlias,
    /// The first out word is an object over another API's memory; the peeked word is its size in
    /// bytes.
    ImportExternal,
    /// The first out word is an address in external object argument 1; the peeked word is the size
    /// in bytes.
    MapExternal,
    /// External object argument 0 is destroyed.
    DestroyExternal,
}

/// Graphs whose nodes allocate, and captures that make such graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphCall {
    /// Graph argument 1 allocates as many bytes as the first out word at the address in the second.
    AddAllocationNode,
    /// Graph argument 1 frees the address in argument 4.
    AddFreeNode,
    /// A node of any kind in graph argument 1: the peeked words begin with its kind (10 allocates,
    /// 11 frees the address in the third).
    AddNode,
    /// Graph argument 0 is destroyed.
    DestroyGraph,
    /// The first out word is an executable of graph argument 1.
    InstantiateGraph,
    /// Executable argument 0 is destroyed.
    DestroyExecutable,
    /// Executable argument 0 is launched.
    LaunchGraph,
    /// The memory that graphs keep unused on device argument 0 is released.
    TrimGraphs,
    /// Capture starts on stream argument 0: allocations on it belong to a graph until it ends.
    BeginCapture,
    /// Capture ends; the graph is the first out word.
    EndCapture,
}

/// Contexts, devices and streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextCall {
    /// The first out word is the primary context of device argument 1, with one more reference.
    RetainPrimary,
    /// Drops one reference on the primary context of device argument 0.
    ReleasePrimary,
    /// The primary context of device argument 0 is torn down.
    ResetPrimary,
    /// The first out word is a new context, which becomes current on this thread.
    CreateContext {
        /// Argument with the device ordinal.
        device: u8,
    },
    /// Context argument 0 is torn down.
    DestroyContext,
    /// Context argument 0 replaces the top of this thread's context stack; null pops.
    SetContext,
    /// Context argument 0 is pushed on this thread's context stack.
    PushContext,
    /// The top of this thread's context stack is popped.
    PopContext,
    /// The first out word is the context on top of this thread's stack.
    CurrentContext,
    /// The low half of the first out word is the device of this thread's current context.
    CurrentDevice,
    /// The first out word is a new green context on device argument 2; it retains the primary one.
    CreateGreen,
    /// The first out word is the context that represents green context argument 1.
    ContextOfGreen,
    /// Green context argument 0 is destroyed and drops its reference on the primary context.
    DestroyGreen,
    /// Sets limit argument 0 of this thread's current context to argument 1.
    SetLimit,
    /// The first out word is a new stream of this thread's current context.
    CreateStream,
    /// The sixteen out bytes are the UUID of device argument 1.
    DeviceUuid,
    /// The sixteen out bytes begin with the PCI bus id of device argument 2, as text.
    DeviceBusId,
}
