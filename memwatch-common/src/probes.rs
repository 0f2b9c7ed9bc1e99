//! The table of driver probes: one row per probed function. A row fully describes a probe; the
//! kernel half does not use this file.
//!
//! Symbols, argument registers and struct offsets: `cuda.h` and `cudaTypedefs.h` of CUDA 12.9 and
//! 13.5; presence checked in the `.dynsym` of drivers 470.256.02 to 595.99.02. Ids are stable
//! because recordings contain them: a removed row keeps its number.

use crate::meaning::{
    ArrayShape, ContextCall, GraphCall, LinearKind, LinearSize, Meaning, MemoryCall, PoolCall, PoolRole, SharingCall,
    VirtualCall,
};
use crate::plan::{CapturePlan, MapUpdate, ON_STACK};

/// Condition under which a row's probes are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// In every process that uses the library.
    Always,
    /// In every process that uses the library, with one exception: if a process calls these
    /// functions at a rate at which it would notice the probes, and no process with the library has
    /// more than one context. With a single context, it does not matter which one is current.
    ContextChanges,
    /// In processes on several GPUs, until the GPU of each of their threads is known. Programs call
    /// these functions constantly.
    DeviceUnknown,
    /// In processes that have executable graphs with allocations in them.
    GraphMemory,
}

/// A probed function of libcuda.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Stable number: the low 16 bits of the attach cookie, and
    /// [`crate::record::CallRecord::probe`].
    pub id: u16,
    /// Exported symbol.
    pub symbol: &'static str,
    /// First CUDA version with the function in its driver.
    pub since: &'static str,
    /// What to capture.
    pub plan: CapturePlan,
    /// What the captured words mean.
    pub meaning: Meaning,
    /// Condition under which it is probed.
    pub when: When,
}

impl Probe {
    /// Makes the row conditional.
    const fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Returns the attach cookie for both of this row's uprobes.
    pub const fn cookie(&self) -> u64 {
        self.plan.cookie(self.id)
    }
}

const fn row(id: u16, symbol: &'static str, since: &'static str, plan: CapturePlan, meaning: Meaning) -> Probe {
    Probe { id, symbol, since, plan, meaning, when: When::Always }
}

const fn linear(kind: LinearKind) -> Meaning {
    Meaning::Memory(MemoryCall::Allocate { kind, size: LinearSize::Argument(1) })
}

const REGISTERS: CapturePlan = CapturePlan::registers();
const OUT: CapturePlan = CapturePlan::registers().out(0);
/// Allocation of argument 1 bytes at an address of its own.
const GRANT: CapturePlan = OUT.book(MapUpdate::Credit);
/// Free of such an allocation.
const RETURN: CapturePlan = REGISTERS.book(MapUpdate::Debit);
const TEARDOWN: CapturePlan = REGISTERS.book(MapUpdate::Teardown);
const DEFAULT_POOL: Meaning = Meaning::Pool(PoolCall::AllocateFromPool { pool: None, stream: 2 });
const GIVEN_POOL: Meaning = Meaning::Pool(PoolCall::AllocateFromPool { pool: Some(2), stream: 3 });
const PITCHED: Meaning =
    Meaning::Memory(MemoryCall::Allocate { kind: LinearKind::Device, size: LinearSize::Pitched { height: 3 } });
/// `CUmemAllocationProp.location` is at 8: type, then id, four bytes each.
const OUT_AND_LOCATION: CapturePlan = OUT.peek(2, 8, 1);
/// `CUDA_MEM_ALLOC_NODE_PARAMS`: pool properties at 0, size at 104, address at 112.
const ALLOCATION_NODE: CapturePlan = REGISTERS.out_16(4, 104).peek(4, 0, 3);
/// `CUgraphNodeParams`: type at 0; of a free node the address at 16; of an allocation node the pool
/// properties at 16, size at 120, address at 128.
const fn any_node(parameters: u8) -> CapturePlan {
    // Which fields a program initialises depends on the node's type, the first word. The memory
    // behind them may never have been touched.
    REGISTERS.out_16(parameters, 120).peek(parameters, 0, 5).tolerant()
}

/// The probed functions, by id.
#[rustfmt::skip]
pub const PROBES: &[Probe] = &[
    row(1, "cuMemAlloc_v2", "3.2", GRANT, linear(LinearKind::Device)),
    row(2, "cuMemAllocPitch_v2", "3.2", OUT.out(1).book(MapUpdate::CreditRows), PITCHED),
    row(3, "cuMemFree_v2", "3.2", RETURN, Meaning::Memory(MemoryCall::Free)),
    row(4, "cuMemAllocManaged", "6.0", GRANT, linear(LinearKind::Managed)),
    row(5, "cuMemAllocHost_v2", "3.2", GRANT, linear(LinearKind::PinnedHost)),
    row(6, "cuMemHostAlloc", "2.2", GRANT, linear(LinearKind::PinnedHost)),
    row(7, "cuMemFreeHost", "2.0", RETURN, Meaning::Memory(MemoryCall::FreeHost)),
    row(8, "cuMemHostRegister_v2", "6.5", REGISTERS, Meaning::Memory(MemoryCall::RegisterHost)),
    row(9, "cuMemHostUnregister", "4.0", REGISTERS, Meaning::Memory(MemoryCall::UnregisterHost)),
    row(10, "cuMemAllocAsync", "11.2", GRANT, DEFAULT_POOL),
    row(11, "cuMemAllocAsync_ptsz", "11.2", GRANT, DEFAULT_POOL),
    row(12, "cuMemAllocFromPoolAsync", "11.2", GRANT, GIVEN_POOL),
    row(13, "cuMemAllocFromPoolAsync_ptsz", "11.2", GRANT, GIVEN_POOL),
    row(14, "cuMemFreeAsync", "11.2", RETURN, Meaning::Pool(PoolCall::FreeAsync)),
    row(15, "cuMemFreeAsync_ptsz", "11.2", RETURN, Meaning::Pool(PoolCall::FreeAsync)),
    row(16, "cuMemCreate", "10.2", OUT_AND_LOCATION, Meaning::Virtual(VirtualCall::CreatePhysical)),
    row(17, "cuMemRelease", "10.2", REGISTERS, Meaning::Virtual(VirtualCall::ReleasePhysical)),
    row(18, "cuMemRetainAllocationHandle", "11.0", OUT, Meaning::Virtual(VirtualCall::RetainPhysical)),
    row(19, "cuMemMap", "10.2", REGISTERS, Meaning::Virtual(VirtualCall::Map)),
    row(20, "cuMemUnmap", "10.2", REGISTERS, Meaning::Virtual(VirtualCall::Unmap)),
    row(21, "cuMemImportFromShareableHandle", "10.2", OUT.file_in_argument_1(), Meaning::Sharing(SharingCall::ImportPhysical)),
    row(22, "cuIpcOpenMemHandle_v2", "11.0", OUT.digest(ON_STACK), Meaning::Sharing(SharingCall::OpenAlias)),
    row(23, "cuIpcCloseMemHandle", "4.1", REGISTERS, Meaning::Sharing(SharingCall::CloseAlias)),
    row(24, "cuArrayCreate_v2", "3.2", OUT.peek(1, 0, 3), Meaning::Memory(MemoryCall::CreateArray(ArrayShape::Flat))),
    row(25, "cuArray3DCreate_v2", "3.2", OUT.peek(1, 0, 5), Meaning::Memory(MemoryCall::CreateArray(ArrayShape::Solid))),
    row(26, "cuArrayDestroy", "2.0", REGISTERS, Meaning::Memory(MemoryCall::DestroyArray)),
    row(27, "cuMipmappedArrayCreate", "5.0", OUT.peek(1, 0, 5), Meaning::Memory(MemoryCall::CreateArray(ArrayShape::Mipmapped))),
    row(28, "cuMipmappedArrayDestroy", "5.0", REGISTERS, Meaning::Memory(MemoryCall::DestroyArray)),
    row(29, "cuDevicePrimaryCtxRetain", "7.0", OUT, Meaning::Context(ContextCall::RetainPrimary)),
    row(30, "cuDevicePrimaryCtxRelease_v2", "11.0", TEARDOWN, Meaning::Context(ContextCall::ReleasePrimary)),
    row(31, "cuDevicePrimaryCtxReset_v2", "11.0", TEARDOWN, Meaning::Context(ContextCall::ResetPrimary)),
    row(32, "cuCtxCreate_v2", "3.2", OUT, Meaning::Context(ContextCall::CreateContext { device: 2 })),
    row(33, "cuCtxCreate_v3", "11.4", OUT, Meaning::Context(ContextCall::CreateContext { device: 4 })),
    row(34, "cuCtxCreate_v4", "12.5", OUT, Meaning::Context(ContextCall::CreateContext { device: 3 })),
    row(35, "cuCtxDestroy_v2", "4.0", TEARDOWN, Meaning::Context(ContextCall::DestroyContext)),
    row(36, "cuCtxSetCurrent", "4.0", REGISTERS, Meaning::Context(ContextCall::SetContext)).when(When::ContextChanges),
    row(37, "cuCtxPushCurrent_v2", "4.0", REGISTERS, Meaning::Context(ContextCall::PushContext)).when(When::ContextChanges),
    row(38, "cuCtxPopCurrent_v2", "4.0", OUT, Meaning::Context(ContextCall::PopContext)).when(When::ContextChanges),
    row(39, "cuDeviceGetUuid", "9.2", REGISTERS.out_16(0, 0), Meaning::Context(ContextCall::DeviceUuid)),
    row(40, "cuDeviceGetUuid_v2", "11.4", REGISTERS.out_16(0, 0), Meaning::Context(ContextCall::DeviceUuid)),
    row(41, "cuDeviceGetPCIBusId", "4.1", REGISTERS.out_16(0, 0), Meaning::Context(ContextCall::DeviceBusId)),
    row(42, "cuInit", "2.0", REGISTERS, Meaning::Memory(MemoryCall::Initialise)),
    // CUmemPoolProps: allocation type at 0, location at 8, largest size at 24.
    row(43, "cuMemPoolCreate", "11.2", OUT.peek(1, 0, 5), Meaning::Pool(PoolCall::CreatePool)),
    row(44, "cuMemPoolDestroy", "11.2", REGISTERS, Meaning::Pool(PoolCall::DestroyPool)),
    row(45, "cuMemPoolTrimTo", "11.2", REGISTERS, Meaning::Pool(PoolCall::TrimPool)),
    row(46, "cuMemPoolSetAttribute", "11.2", REGISTERS.peek(2, 0, 1), Meaning::Pool(PoolCall::SetPoolAttribute)),
    row(47, "cuMemPoolGetAttribute", "11.2", REGISTERS.out(2), Meaning::Pool(PoolCall::GetPoolAttribute)),
    row(48, "cuDeviceSetMemPool", "11.2", REGISTERS, Meaning::Pool(PoolCall::SetDevicePool)),
    row(49, "cuDeviceGetDefaultMemPool", "11.2", OUT, Meaning::Pool(PoolCall::GetDevicePool(PoolRole::Default))),
    row(50, "cuDeviceGetMemPool", "11.2", OUT, Meaning::Pool(PoolCall::GetDevicePool(PoolRole::Current))),
    row(51, "cuMemGetDefaultMemPool", "13.0", OUT.peek(1, 0, 1), Meaning::Pool(PoolCall::GetLocationPool(PoolRole::Default))),
    row(52, "cuMemGetMemPool", "13.0", OUT.peek(1, 0, 1), Meaning::Pool(PoolCall::GetLocationPool(PoolRole::Current))),
    row(53, "cuMemSetMemPool", "13.0", REGISTERS.peek(0, 0, 1), Meaning::Pool(PoolCall::SetLocationPool)),
    row(54, "cuMemPoolImportFromShareableHandle", "11.2", OUT, Meaning::Pool(PoolCall::ImportPool)),
    row(55, "cuMemPoolExportPointer", "11.2", REGISTERS.digest_out(0), Meaning::Sharing(SharingCall::ExportPoolAddress)),
    row(56, "cuMemPoolImportPointer", "11.2", OUT.digest(2), Meaning::Sharing(SharingCall::ImportPoolAddress)),
    row(57, "cuMemAddressReserve", "10.2", OUT, Meaning::Virtual(VirtualCall::ReserveAddresses)),
    row(58, "cuMemAddressFree", "10.2", REGISTERS, Meaning::Virtual(VirtualCall::FreeAddresses)),
    row(59, "cuMemExportToShareableHandle", "10.2", OUT.file_in_out_word(), Meaning::Sharing(SharingCall::ExportPhysical)),
    row(60, "cuMulticastCreate", "12.1", OUT, Meaning::Virtual(VirtualCall::CreateMulticast)),
    row(61, "cuMulticastBindMem", "12.1", REGISTERS, Meaning::Virtual(VirtualCall::BindMulticast { device: None, offset: 1 })),
    row(62, "cuMulticastBindMem_v2", "13.1", REGISTERS, Meaning::Virtual(VirtualCall::BindMulticast { device: Some(1), offset: 2 })),
    row(63, "cuMulticastUnbind", "12.1", REGISTERS, Meaning::Virtual(VirtualCall::UnbindMulticast)),
    row(64, "cuIpcGetMemHandle", "4.1", REGISTERS.digest_out(0), Meaning::Sharing(SharingCall::ExportAddress)),
    // CUDA_EXTERNAL_MEMORY_HANDLE_DESC: size at 24. CUDA_EXTERNAL_MEMORY_BUFFER_DESC: size at 8.
    row(65, "cuImportExternalMemory", "10.0", OUT.peek(1, 24, 1), Meaning::Sharing(SharingCall::ImportExternal)),
    row(66, "cuExternalMemoryGetMappedBuffer", "10.0", OUT.peek(2, 8, 1), Meaning::Sharing(SharingCall::MapExternal)),
    row(67, "cuDestroyExternalMemory", "10.0", REGISTERS, Meaning::Sharing(SharingCall::DestroyExternal)),
    row(68, "cuGraphAddMemAllocNode", "11.4", ALLOCATION_NODE, Meaning::Graph(GraphCall::AddAllocationNode)),
    row(69, "cuGraphAddMemFreeNode", "11.4", REGISTERS, Meaning::Graph(GraphCall::AddFreeNode)),
    row(70, "cuGraphAddNode", "12.2", any_node(4), Meaning::Graph(GraphCall::AddNode)),
    row(71, "cuGraphAddNode_v2", "12.3", any_node(5), Meaning::Graph(GraphCall::AddNode)),
    row(72, "cuGraphDestroy", "10.0", REGISTERS, Meaning::Graph(GraphCall::DestroyGraph)),
    row(73, "cuGraphInstantiate", "10.0", OUT, Meaning::Graph(GraphCall::InstantiateGraph)),
    row(74, "cuGraphInstantiateWithFlags", "11.4", OUT, Meaning::Graph(GraphCall::InstantiateGraph)),
    row(75, "cuGraphInstantiateWithParams", "12.0", OUT, Meaning::Graph(GraphCall::InstantiateGraph)),
    row(76, "cuGraphInstantiateWithParams_ptsz", "12.0", OUT, Meaning::Graph(GraphCall::InstantiateGraph)),
    row(77, "cuGraphExecDestroy", "10.0", REGISTERS, Meaning::Graph(GraphCall::DestroyExecutable)),
    row(78, "cuGraphLaunch", "10.0", REGISTERS, Meaning::Graph(GraphCall::LaunchGraph)).when(When::GraphMemory),
    row(79, "cuGraphLaunch_ptsz", "10.0", REGISTERS, Meaning::Graph(GraphCall::LaunchGraph)).when(When::GraphMemory),
    row(80, "cuDeviceGraphMemTrim", "11.4", REGISTERS, Meaning::Graph(GraphCall::TrimGraphs)),
    row(81, "cuCtxGetCurrent", "4.0", OUT, Meaning::Context(ContextCall::CurrentContext)).when(When::DeviceUnknown),
    row(82, "cuCtxGetDevice", "2.0", OUT, Meaning::Context(ContextCall::CurrentDevice)).when(When::DeviceUnknown),
    row(83, "cuGreenCtxCreate", "12.4", OUT, Meaning::Context(ContextCall::CreateGreen)),
    row(84, "cuCtxFromGreenCtx", "12.4", OUT, Meaning::Context(ContextCall::ContextOfGreen)),
    row(85, "cuGreenCtxDestroy", "12.4", TEARDOWN, Meaning::Context(ContextCall::DestroyGreen)),
    row(86, "cuCtxSetLimit", "3.1", REGISTERS, Meaning::Context(ContextCall::SetLimit)),
    row(87, "cuStreamCreate", "2.0", OUT, Meaning::Context(ContextCall::CreateStream)),
    row(88, "cuStreamCreateWithPriority", "5.5", OUT, Meaning::Context(ContextCall::CreateStream)),
    row(89, "cuStreamBeginCapture_v2", "10.1", REGISTERS, Meaning::Graph(GraphCall::BeginCapture)),
    row(90, "cuStreamBeginCapture_v2_ptsz", "10.1", REGISTERS, Meaning::Graph(GraphCall::BeginCapture)),
    row(91, "cuStreamEndCapture", "10.0", REGISTERS.out(1), Meaning::Graph(GraphCall::EndCapture)),
    row(92, "cuStreamEndCapture_ptsz", "10.0", REGISTERS.out(1), Meaning::Graph(GraphCall::EndCapture)),
    row(93, "cuModuleLoad", "2.0", OUT, Meaning::Memory(MemoryCall::LoadModule)),
    row(94, "cuModuleLoadData", "2.0", OUT, Meaning::Memory(MemoryCall::LoadModule)),
    row(95, "cuModuleLoadDataEx", "2.1", OUT, Meaning::Memory(MemoryCall::LoadModule)),
    row(96, "cuModuleLoadFatBinary", "2.0", OUT, Meaning::Memory(MemoryCall::LoadModule)),
    row(97, "cuModuleUnload", "2.0", REGISTERS, Meaning::Memory(MemoryCall::UnloadModule)),
    row(98, "cuLibraryLoadData", "12.0", OUT, Meaning::Memory(MemoryCall::LoadModule)),
    row(99, "cuLibraryLoadFromFile", "12.0", OUT, Meaning::Memory(MemoryCall::LoadModule)),
    row(100, "cuLibraryUnload", "12.0", REGISTERS, Meaning::Memory(MemoryCall::UnloadModule)),
    row(101, "cuCheckpointProcessCheckpoint", "12.8", REGISTERS, Meaning::Memory(MemoryCall::Checkpoint)),
    row(102, "cuCheckpointProcessRestore", "12.8", REGISTERS, Meaning::Memory(MemoryCall::Restore)),
];

/// Returns the row with this id.
pub fn by_id(id: u16) -> Option<&'static Probe> {
    // Ids are dense and ordered (a test checks this), so the row's index is its id - 1.
    PROBES.get(usize::from(id).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CapturePlan;

    #[test]
    fn every_row_is_found_by_its_id_and_survives_its_cookie() {
        for probe in PROBES {
            assert_eq!(by_id(probe.id), Some(probe), "{}", probe.symbol);
            assert_eq!(CapturePlan::from_cookie(probe.cookie()), (probe.id, probe.plan), "{}", probe.symbol);
        }
        assert_eq!(by_id(0), None);
        assert_eq!(by_id(999), None);
    }

    #[test]
    fn probe_table_lists_each_symbol_once() {
        for (index, probe) in PROBES.iter().enumerate() {
            assert!(PROBES[..index].iter().all(|other| other.symbol != probe.symbol), "{} stands twice", probe.symbol);
        }
    }

    /// Number of out words that the decoder reads.
    const fn outs_of(meaning: Meaning) -> usize {
        match meaning {
            Meaning::Memory(MemoryCall::Allocate { size: LinearSize::Pitched { .. }, .. })
            | Meaning::Context(ContextCall::DeviceUuid | ContextCall::DeviceBusId)
            | Meaning::Graph(GraphCall::AddAllocationNode | GraphCall::AddNode) => 2,
            Meaning::Memory(MemoryCall::Allocate { .. } | MemoryCall::CreateArray(_) | MemoryCall::LoadModule)
            | Meaning::Pool(
                PoolCall::AllocateFromPool { .. }
                | PoolCall::CreatePool
                | PoolCall::GetPoolAttribute
                | PoolCall::GetDevicePool(_)
                | PoolCall::GetLocationPool(_)
                | PoolCall::ImportPool,
            )
            | Meaning::Sharing(
                SharingCall::ImportPoolAddress
                | SharingCall::ExportPhysical
                | SharingCall::ImportPhysical
                | SharingCall::OpenAlias
                | SharingCall::ImportExternal
                | SharingCall::MapExternal,
            )
            | Meaning::Virtual(
                VirtualCall::ReserveAddresses
                | VirtualCall::CreatePhysical
                | VirtualCall::RetainPhysical
                | VirtualCall::CreateMulticast,
            )
            | Meaning::Graph(GraphCall::InstantiateGraph | GraphCall::EndCapture)
            | Meaning::Context(
                ContextCall::RetainPrimary
                | ContextCall::CreateContext { .. }
                | ContextCall::PopContext
                | ContextCall::CurrentContext
                | ContextCall::CurrentDevice
                | ContextCall::CreateGreen
                | ContextCall::ContextOfGreen
                | ContextCall::CreateStream,
            ) => 1,
            _ => 0,
        }
    }

    /// Number of peeked words that the decoder reads.
    const fn peeks_of(meaning: Meaning) -> usize {
        match meaning {
            Meaning::Pool(PoolCall::CreatePool)
            | Meaning::Graph(GraphCall::AddNode)
            | Meaning::Memory(MemoryCall::CreateArray(ArrayShape::Solid | ArrayShape::Mipmapped)) => 5,
            Meaning::Memory(MemoryCall::CreateArray(ArrayShape::Flat))
            | Meaning::Graph(GraphCall::AddAllocationNode) => 3,
            Meaning::Sharing(
                SharingCall::ExportPoolAddress
                | SharingCall::ImportPoolAddress
                | SharingCall::ExportAddress
                | SharingCall::OpenAlias,
            ) => 2,
            Meaning::Virtual(VirtualCall::CreatePhysical)
            | Meaning::Pool(PoolCall::SetPoolAttribute | PoolCall::SetLocationPool | PoolCall::GetLocationPool(_))
            | Meaning::Sharing(
                SharingCall::ExportPhysical
                | SharingCall::ImportPhysical
                | SharingCall::ImportExternal
                | SharingCall::MapExternal,
            ) => 1,
            _ => 0,
        }
    }

    #[test]
    fn every_meaning_finds_its_words_captured() {
        for probe in PROBES {
            assert_eq!(probe.plan.out_words(), outs_of(probe.meaning), "{}", probe.symbol);
            assert_eq!(probe.plan.peek_words(), peeks_of(probe.meaning), "{}", probe.symbol);
        }
    }
}
