//! The table: one row per probed function. A row is all there is to a probe; the kernel half never sees this file.
//!
//! Symbols, argument registers and struct offsets: `cuda.h` and `cudaTypedefs.h` of CUDA 12.9 and 13.5; presence checked in the
//! `.dynsym` of drivers 470.256.02 to 595.99.02. Ids are stable: they stand in recordings, and a removed row keeps its number.

use crate::capture::CapturePlan;

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

/// What a successful call does, in terms of the words its plan captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
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
    /// Stream-ordered grant of argument 1 bytes at the first out word.
    AllocateFromPool {
        /// The argument with the pool handle; without one it is the current pool of the stream's device.
        pool: Option<u8>,
        /// The argument with the stream.
        stream: u8,
    },
    /// Stream-ordered free of argument 0.
    FreeAsync,
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
    /// The first out word is a handle to another owner's memory.
    ImportPhysical,
    /// The first out word is an address of another process's memory.
    OpenAlias,
    /// Argument 0 is such an address.
    CloseAlias,
    /// The first out word is the handle of an array of this shape, described by the peeked words.
    CreateArray(ArrayShape),
    /// Argument 0 is an array or mipmapped array handle.
    DestroyArray,
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
    /// The sixteen out bytes are the UUID of device argument 1.
    DeviceUuid,
}

/// One probed function of libcuda.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Stable number: the low 16 bits of the attach cookie, and [`crate::record::CallRecord::probe`].
    pub id: u16,
    /// Exported symbol.
    pub symbol: &'static str,
    /// First CUDA version whose driver has it.
    pub since: &'static str,
    /// What to capture.
    pub plan: CapturePlan,
    /// What the captured words mean.
    pub meaning: Meaning,
}

impl Probe {
    /// The attach cookie for both of this row's uprobes.
    pub const fn cookie(&self) -> u64 {
        self.plan.cookie(self.id)
    }
}

const fn row(id: u16, symbol: &'static str, since: &'static str, plan: CapturePlan, meaning: Meaning) -> Probe {
    Probe { id, symbol, since, plan, meaning }
}

const fn linear(kind: LinearKind) -> Meaning {
    Meaning::Allocate { kind, size: LinearSize::Argument(1) }
}

const REGISTERS: CapturePlan = CapturePlan::registers();
const OUT: CapturePlan = CapturePlan::registers().out(0);
const DEFAULT_POOL: Meaning = Meaning::AllocateFromPool { pool: None, stream: 2 };
const GIVEN_POOL: Meaning = Meaning::AllocateFromPool { pool: Some(2), stream: 3 };
const PITCHED: Meaning = Meaning::Allocate { kind: LinearKind::Device, size: LinearSize::Pitched { height: 3 } };
/// `CUmemAllocationProp.location` is at 8: type, then id, four bytes each.
const OUT_AND_LOCATION: CapturePlan = OUT.peek(2, 8, 1);

/// The probed functions, by id.
pub const PROBES: &[Probe] = &[
    row(1, "cuMemAlloc_v2", "3.2", OUT, linear(LinearKind::Device)),
    row(2, "cuMemAllocPitch_v2", "3.2", OUT.out(1), PITCHED),
    row(3, "cuMemFree_v2", "3.2", REGISTERS, Meaning::Free),
    row(4, "cuMemAllocManaged", "6.0", OUT, linear(LinearKind::Managed)),
    row(5, "cuMemAllocHost_v2", "3.2", OUT, linear(LinearKind::PinnedHost)),
    row(6, "cuMemHostAlloc", "2.2", OUT, linear(LinearKind::PinnedHost)),
    row(7, "cuMemFreeHost", "2.0", REGISTERS, Meaning::FreeHost),
    row(8, "cuMemHostRegister_v2", "6.5", REGISTERS, Meaning::RegisterHost),
    row(9, "cuMemHostUnregister", "4.0", REGISTERS, Meaning::UnregisterHost),
    row(10, "cuMemAllocAsync", "11.2", OUT, DEFAULT_POOL),
    row(11, "cuMemAllocAsync_ptsz", "11.2", OUT, DEFAULT_POOL),
    row(12, "cuMemAllocFromPoolAsync", "11.2", OUT, GIVEN_POOL),
    row(13, "cuMemAllocFromPoolAsync_ptsz", "11.2", OUT, GIVEN_POOL),
    row(14, "cuMemFreeAsync", "11.2", REGISTERS, Meaning::FreeAsync),
    row(15, "cuMemFreeAsync_ptsz", "11.2", REGISTERS, Meaning::FreeAsync),
    row(16, "cuMemCreate", "10.2", OUT_AND_LOCATION, Meaning::CreatePhysical),
    row(17, "cuMemRelease", "10.2", REGISTERS, Meaning::ReleasePhysical),
    row(18, "cuMemRetainAllocationHandle", "11.0", OUT, Meaning::RetainPhysical),
    row(19, "cuMemMap", "10.2", REGISTERS, Meaning::Map),
    row(20, "cuMemUnmap", "10.2", REGISTERS, Meaning::Unmap),
    row(21, "cuMemImportFromShareableHandle", "10.2", OUT, Meaning::ImportPhysical),
    row(22, "cuIpcOpenMemHandle_v2", "11.0", OUT, Meaning::OpenAlias),
    row(23, "cuIpcCloseMemHandle", "4.1", REGISTERS, Meaning::CloseAlias),
    row(24, "cuArrayCreate_v2", "3.2", OUT.peek(1, 0, 3), Meaning::CreateArray(ArrayShape::Flat)),
    row(25, "cuArray3DCreate_v2", "3.2", OUT.peek(1, 0, 5), Meaning::CreateArray(ArrayShape::Solid)),
    row(26, "cuArrayDestroy", "2.0", REGISTERS, Meaning::DestroyArray),
    row(27, "cuMipmappedArrayCreate", "5.0", OUT.peek(1, 0, 5), Meaning::CreateArray(ArrayShape::Mipmapped)),
    row(28, "cuMipmappedArrayDestroy", "5.0", REGISTERS, Meaning::DestroyArray),
    row(29, "cuDevicePrimaryCtxRetain", "7.0", OUT, Meaning::RetainPrimary),
    row(30, "cuDevicePrimaryCtxRelease_v2", "11.0", REGISTERS, Meaning::ReleasePrimary),
    row(31, "cuDevicePrimaryCtxReset_v2", "11.0", REGISTERS, Meaning::ResetPrimary),
    row(32, "cuCtxCreate_v2", "3.2", OUT, Meaning::CreateContext { device: 2 }),
    row(33, "cuCtxCreate_v3", "11.4", OUT, Meaning::CreateContext { device: 4 }),
    row(34, "cuCtxCreate_v4", "12.5", OUT, Meaning::CreateContext { device: 3 }),
    row(35, "cuCtxDestroy_v2", "4.0", REGISTERS, Meaning::DestroyContext),
    row(36, "cuCtxSetCurrent", "4.0", REGISTERS, Meaning::SetContext),
    row(37, "cuCtxPushCurrent_v2", "4.0", REGISTERS, Meaning::PushContext),
    row(38, "cuCtxPopCurrent_v2", "4.0", OUT, Meaning::PopContext),
    row(39, "cuDeviceGetUuid", "9.2", REGISTERS.out_16(0), Meaning::DeviceUuid),
    row(40, "cuDeviceGetUuid_v2", "11.4", REGISTERS.out_16(0), Meaning::DeviceUuid),
];

/// The row with this id.
pub fn by_id(id: u16) -> Option<&'static Probe> {
    // Ids are dense and in order (a test holds them to it), so the row is where its number says.
    PROBES.get(usize::from(id).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::{PROBES, by_id};
    use crate::capture::CapturePlan;

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
    fn no_symbol_stands_twice() {
        for (index, probe) in PROBES.iter().enumerate() {
            assert!(PROBES[..index].iter().all(|other| other.symbol != probe.symbol), "{} stands twice", probe.symbol);
        }
    }

    #[test]
    fn every_meaning_finds_its_words_captured() {
        use super::{ArrayShape, LinearSize, Meaning};
        for probe in PROBES {
            let words = match probe.meaning {
                Meaning::Allocate { size: LinearSize::Pitched { .. }, .. } | Meaning::DeviceUuid => 2,
                Meaning::Allocate { .. }
                | Meaning::AllocateFromPool { .. }
                | Meaning::CreatePhysical
                | Meaning::RetainPhysical
                | Meaning::ImportPhysical
                | Meaning::OpenAlias
                | Meaning::CreateArray(_)
                | Meaning::RetainPrimary
                | Meaning::CreateContext { .. } => 1,
                _ => 0,
            };
            assert!(probe.plan.out_words() >= words, "{} captures too few out words", probe.symbol);
            let peeked = match probe.meaning {
                Meaning::CreatePhysical => 1,
                Meaning::CreateArray(ArrayShape::Flat) => 3,
                Meaning::CreateArray(_) => 5,
                _ => 0,
            };
            assert_eq!(probe.plan.peek_words(), peeked, "{}", probe.symbol);
        }
    }
}
