//! Builds calls for tests, as the kernel half would report them. Each function is named after the
//! driver's, without its prefix.

#[path = "rm.rs"]
pub(crate) mod rm;

use memwatch_common::probes::PROBES;
use memwatch_common::record::{CallRecord, RecordKind, RingRecord};

use crate::input::Input;
pub(crate) use crate::words::OUT_OF_MEMORY;

/// Process and thread of a call that sets no other.
pub(crate) const TGID: u32 = 100;
pub(crate) const TID: u32 = 101;

/// `CUresult` of a call with a bad argument.
pub(crate) const INVALID_VALUE: i32 = 1;

/// Values of `CUmemLocationType`.
pub(crate) const ON_DEVICE: u32 = 1;
pub(crate) const ON_HOST: u32 = 2;

/// A call under construction. Unless set otherwise it succeeds, is made by [`TGID`] and [`TID`],
/// and returns at time 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestCall(pub(crate) CallRecord);

/// Returns a call by symbol with its first argument registers.
pub(crate) fn call<const N: usize>(symbol: &str, first_args: [u64; N]) -> TestCall {
    let probe = PROBES.iter().find(|probe| probe.symbol == symbol).unwrap_or_else(|| panic!("no row for {symbol}"));
    let mut args = [0; 6];
    args[..N].copy_from_slice(&first_args);
    let kind = RecordKind::Call as u8;
    TestCall(CallRecord { kind, probe: probe.id, tgid: TGID, tid: TID, args, ..CallRecord::default() })
}

impl TestCall {
    pub(crate) fn out(mut self, words: [u64; 2]) -> Self {
        self.0.out = words;
        self
    }

    pub(crate) fn peek<const N: usize>(mut self, words: [u64; N]) -> Self {
        self.0.peek[..N].copy_from_slice(&words);
        self
    }

    pub(crate) fn flagged(mut self, flag: u8) -> Self {
        self.0.flags |= flag;
        self
    }

    /// Makes the call fail. A failed call returns no values.
    pub(crate) fn failing(mut self, status: i32) -> Self {
        self.0.status = status;
        self.out([0, 0])
    }

    pub(crate) fn process(mut self, tgid: u32) -> Self {
        self.0.tgid = tgid;
        self
    }

    pub(crate) fn thread(mut self, tid: u32) -> Self {
        self.0.tid = tid;
        self
    }

    pub(crate) fn at(mut self, entered_ns: u64, returned_ns: u64) -> Self {
        (self.0.entered_ns, self.0.returned_ns) = (entered_ns, returned_ns);
        self
    }

    pub(crate) fn input(self) -> Input {
        Input::Record(RingRecord::Call(self.0))
    }
}

/// Packs two 32-bit words into one register or struct word.
pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(crate) fn mem_alloc(address: u64, bytes: u64) -> TestCall {
    call("cuMemAlloc_v2", [0x7fff_0000, bytes]).out([address, 0])
}

pub(crate) fn mem_alloc_managed(address: u64, bytes: u64) -> TestCall {
    call("cuMemAllocManaged", [0x7fff_0000, bytes, 1]).out([address, 0])
}

pub(crate) fn mem_host_alloc(address: u64, bytes: u64) -> TestCall {
    call("cuMemHostAlloc", [0x7fff_0000, bytes, 3]).out([address, 0])
}

pub(crate) fn mem_alloc_async(address: u64, bytes: u64) -> TestCall {
    call("cuMemAllocAsync", [0x7fff_0000, bytes, 0]).out([address, 0])
}

pub(crate) fn mem_alloc_from_pool_async(address: u64, bytes: u64, pool: u64) -> TestCall {
    call("cuMemAllocFromPoolAsync", [0x7fff_0000, bytes, pool, 0]).out([address, 0])
}

pub(crate) fn mem_free(address: u64) -> TestCall {
    call("cuMemFree_v2", [address])
}

pub(crate) fn mem_free_host(address: u64) -> TestCall {
    call("cuMemFreeHost", [address])
}

pub(crate) fn mem_free_async(address: u64) -> TestCall {
    call("cuMemFreeAsync", [address, 0])
}

pub(crate) fn mem_host_register(address: u64, bytes: u64) -> TestCall {
    call("cuMemHostRegister_v2", [address, bytes, 0])
}

pub(crate) fn mem_host_unregister(address: u64) -> TestCall {
    call("cuMemHostUnregister", [address])
}

/// `location` is a `CUmemLocation`: its type and id.
pub(crate) fn mem_create(handle: u64, bytes: u64, location: (u32, u32)) -> TestCall {
    call("cuMemCreate", [0x7fff_0000, bytes, 0x7fff_1000, 0]).out([handle, 0]).peek([pair(location.0, location.1)])
}

pub(crate) fn mem_release(handle: u64) -> TestCall {
    call("cuMemRelease", [handle])
}

pub(crate) fn mem_retain(handle: u64, address: u64) -> TestCall {
    call("cuMemRetainAllocationHandle", [0x7fff_0000, address]).out([handle, 0])
}

pub(crate) fn mem_import(handle: u64) -> TestCall {
    call("cuMemImportFromShareableHandle", [0x7fff_0000, 7, 1]).out([handle, 0])
}

pub(crate) fn mem_map(address: u64, bytes: u64, offset_bytes: u64, handle: u64) -> TestCall {
    call("cuMemMap", [address, bytes, offset_bytes, handle, 0])
}

pub(crate) fn mem_unmap(address: u64, bytes: u64) -> TestCall {
    call("cuMemUnmap", [address, bytes])
}

/// Creates an array of one row of `width` single bytes.
pub(crate) fn array_create(handle: u64, width: u64) -> TestCall {
    call("cuArrayCreate_v2", [0x7fff_0000, 0x7fff_1000]).out([handle, 0]).peek([width, 0, pair(1, 1)])
}

pub(crate) fn array_destroy(handle: u64) -> TestCall {
    call("cuArrayDestroy", [handle])
}

pub(crate) fn primary_ctx_retain(context: u64, device: u32) -> TestCall {
    call("cuDevicePrimaryCtxRetain", [0x7fff_0000, u64::from(device)]).out([context, 0])
}

pub(crate) fn primary_ctx_release(device: u32) -> TestCall {
    call("cuDevicePrimaryCtxRelease_v2", [u64::from(device)])
}

pub(crate) fn primary_ctx_reset(device: u32) -> TestCall {
    call("cuDevicePrimaryCtxReset_v2", [u64::from(device)])
}

pub(crate) fn ctx_create(context: u64, device: u32) -> TestCall {
    call("cuCtxCreate_v2", [0x7fff_0000, 0, u64::from(device)]).out([context, 0])
}

pub(crate) fn ctx_destroy(context: u64) -> TestCall {
    call("cuCtxDestroy_v2", [context])
}

pub(crate) fn ctx_get_device(device: u32) -> TestCall {
    call("cuCtxGetDevice", [0x7fff_0000]).out([u64::from(device), 0])
}

pub(crate) fn ctx_set_current(context: u64) -> TestCall {
    call("cuCtxSetCurrent", [context])
}

pub(crate) fn ctx_push(context: u64) -> TestCall {
    call("cuCtxPushCurrent_v2", [context])
}

pub(crate) fn ctx_pop(context: u64) -> TestCall {
    call("cuCtxPopCurrent_v2", [0x7fff_0000]).out([context, 0])
}

/// Answers with the PCI bus id of a device. `text` has the id.
pub(crate) fn device_get_pci_bus_id(device: u32, text: &str) -> TestCall {
    let mut bytes = [0; 16];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes"));
    call("cuDeviceGetPCIBusId", [0x7fff_0000, 64, u64::from(device)]).out([word(&bytes[..8]), word(&bytes[8..])])
}

pub(crate) fn device_get_uuid(device: u32, byte: u8) -> TestCall {
    let word = u64::from_le_bytes([byte; 8]);
    call("cuDeviceGetUuid_v2", [0x7fff_0000, u64::from(device)]).out([word, word])
}

/// Allocates on a stream; stream 0 is the default one.
pub(crate) fn mem_alloc_async_on(address: u64, bytes: u64, stream: u64) -> TestCall {
    call("cuMemAllocAsync", [0x7fff_0000, bytes, stream]).out([address, 0])
}

pub(crate) fn mem_alloc_from_pool_async_on(address: u64, bytes: u64, pool: u64, stream: u64) -> TestCall {
    call("cuMemAllocFromPoolAsync", [0x7fff_0000, bytes, pool, stream]).out([address, 0])
}

pub(crate) fn mem_free_async_on(address: u64, stream: u64) -> TestCall {
    call("cuMemFreeAsync", [address, stream])
}

pub(crate) fn stream_create(stream: u64) -> TestCall {
    call("cuStreamCreate", [0x7fff_0000, 0]).out([stream, 0])
}

/// `allocation_type` is a `CUmemAllocationType`, `location` a `CUmemLocation`.
pub(crate) fn mem_pool_create(pool: u64, allocation_type: u32, location: (u32, u32)) -> TestCall {
    let words = [pair(allocation_type, 0), pair(location.0, location.1), 0, 0, 0];
    call("cuMemPoolCreate", [0x7fff_0000, 0x7fff_0100]).out([pool, 0]).peek(words)
}

pub(crate) fn mem_pool_destroy(pool: u64) -> TestCall {
    call("cuMemPoolDestroy", [pool])
}

pub(crate) fn mem_pool_trim_to(pool: u64, keep_bytes: u64) -> TestCall {
    call("cuMemPoolTrimTo", [pool, keep_bytes])
}

/// `attribute` is a `CUmemPool_attribute`.
pub(crate) fn mem_pool_set_attribute(pool: u64, attribute: u64, value: u64) -> TestCall {
    call("cuMemPoolSetAttribute", [pool, attribute, 0x7fff_0000]).peek([value])
}

pub(crate) fn mem_pool_get_attribute(pool: u64, attribute: u64, value: u64) -> TestCall {
    call("cuMemPoolGetAttribute", [pool, attribute, 0x7fff_0000]).out([value, 0])
}

pub(crate) fn mem_pool_import(pool: u64) -> TestCall {
    call("cuMemPoolImportFromShareableHandle", [0x7fff_0000, 5, 1, 0]).out([pool, 0])
}

pub(crate) fn mem_pool_import_pointer(address: u64, pool: u64) -> TestCall {
    call("cuMemPoolImportPointer", [0x7fff_0000, pool, 0x7fff_0100]).out([address, 0])
}

pub(crate) fn device_set_mem_pool(device: u32, pool: u64) -> TestCall {
    call("cuDeviceSetMemPool", [u64::from(device), pool])
}

pub(crate) fn device_get_mem_pool(device: u32, pool: u64) -> TestCall {
    call("cuDeviceGetMemPool", [0x7fff_0000, u64::from(device)]).out([pool, 0])
}

pub(crate) fn device_get_default_mem_pool(device: u32, pool: u64) -> TestCall {
    call("cuDeviceGetDefaultMemPool", [0x7fff_0000, u64::from(device)]).out([pool, 0])
}

pub(crate) fn ipc_open(address: u64) -> TestCall {
    call("cuIpcOpenMemHandle_v2", [0x7fff_0000, 1]).out([address, 0])
}

pub(crate) fn ipc_close(address: u64) -> TestCall {
    call("cuIpcCloseMemHandle", [address])
}

pub(crate) fn external_memory_get_mapped_buffer(address: u64) -> TestCall {
    call("cuExternalMemoryGetMappedBuffer", [0x7fff_0000, 0xe7, 0x7fff_0100]).out([address, 0])
}

pub(crate) fn multicast_create(handle: u64) -> TestCall {
    call("cuMulticastCreate", [0x7fff_0000, 0x7fff_0100]).out([handle, 0])
}

/// Binds memory to a multicast object. The first version of the call takes no device.
pub(crate) fn multicast_bind(object: u64, device: Option<u32>, offset: u64, handle: u64, bytes: u64) -> TestCall {
    match device {
        None => call("cuMulticastBindMem", [object, offset, handle, 0, bytes, 0]),
        Some(device) => call("cuMulticastBindMem_v2", [object, u64::from(device), offset, handle, 0, bytes]),
    }
}

pub(crate) fn multicast_unbind(object: u64, device: u32, offset: u64, bytes: u64) -> TestCall {
    call("cuMulticastUnbind", [object, u64::from(device), offset, bytes])
}

pub(crate) fn mem_address_reserve(address: u64, bytes: u64) -> TestCall {
    call("cuMemAddressReserve", [0x7fff_0000, bytes, 0, 0, 0]).out([address, 0])
}

pub(crate) fn mem_address_free(address: u64, bytes: u64) -> TestCall {
    call("cuMemAddressFree", [address, bytes])
}

pub(crate) fn library_load_data(library: u64) -> TestCall {
    call("cuLibraryLoadData", [0x7fff_0000, 0x7fff_0100]).out([library, 0])
}

pub(crate) fn library_unload(library: u64) -> TestCall {
    call("cuLibraryUnload", [library])
}

pub(crate) fn green_ctx_create(green: u64, device: u32) -> TestCall {
    call("cuGreenCtxCreate", [0x7fff_0000, 0, u64::from(device), 1]).out([green, 0])
}

pub(crate) fn ctx_from_green_ctx(context: u64, green: u64) -> TestCall {
    call("cuCtxFromGreenCtx", [0x7fff_0000, green]).out([context, 0])
}

pub(crate) fn green_ctx_destroy(green: u64) -> TestCall {
    call("cuGreenCtxDestroy", [green])
}

pub(crate) fn stream_begin_capture(stream: u64) -> TestCall {
    call("cuStreamBeginCapture_v2", [stream, 0])
}

pub(crate) fn stream_end_capture(stream: u64, graph: u64) -> TestCall {
    call("cuStreamEndCapture", [stream, 0x7fff_0000]).out([graph, 0])
}

pub(crate) fn graph_add_mem_alloc_node(graph: u64, address: u64, bytes: u64, device: u32) -> TestCall {
    let words = [1, pair(ON_DEVICE, device), 0];
    call("cuGraphAddMemAllocNode", [0x7fff_0000, graph, 0, 0, 0x7fff_0100]).out([bytes, address]).peek(words)
}

pub(crate) fn graph_add_mem_free_node(graph: u64, address: u64) -> TestCall {
    call("cuGraphAddMemFreeNode", [0x7fff_0000, graph, 0, 0, address])
}

pub(crate) fn graph_instantiate(executable: u64, graph: u64) -> TestCall {
    call("cuGraphInstantiateWithFlags", [0x7fff_0000, graph, 0]).out([executable, 0])
}

pub(crate) fn graph_launch(executable: u64) -> TestCall {
    call("cuGraphLaunch", [executable, 0])
}

pub(crate) fn graph_exec_destroy(executable: u64) -> TestCall {
    call("cuGraphExecDestroy", [executable])
}

pub(crate) fn graph_destroy(graph: u64) -> TestCall {
    call("cuGraphDestroy", [graph])
}

pub(crate) fn device_graph_mem_trim(device: u32) -> TestCall {
    call("cuDeviceGraphMemTrim", [u64::from(device)])
}
