//! Tables of the requests and the object classes that are recorded.

/// Effect of a request, with the offsets of the fields in its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Does {
    /// RM_ALLOC: makes an object. client 0, parent 4, object 8 (0: RM chooses it), class 12,
    /// pointer to its parameters 16.
    Alloc = 1,
    /// RM_FREE: frees an object and all its descendants. client 0, parent 4, object 8; status 12.
    Free = 2,
    /// RM_ALLOC_MEMORY: pins host memory. client 0, parent 4, object 8, class 12, flags 16, address
    /// 24, size - 1 at 32; status 40.
    AllocMemory = 3,
    /// RM_VID_HEAP_CONTROL: client 0, parent 4, function 8; status 20. Function 2 (ALLOC_SIZE):
    /// object 44, type 48, flags 52, attr 56, size 88, attr2 144. Function 3 (FREE): object 44.
    /// Function 27 (OS descriptor): object 40, limit 72.
    Heap = 4,
    /// RM_DUP_OBJECT: client 0, parent 4, object 8, source client 12, source object 16; status 24.
    Dup = 5,
    /// RM_CONTROL: client 0, object 4, command 8, pointer to its parameters 16, their size 24;
    /// status 28. Only [`CONTROLS`] are recorded.
    Control = 6,
    /// UVM's MAP_EXTERNAL_ALLOCATION: base 0, length 8, offset 16. In the payload, client and
    /// memory follow twice: at 24 and 28 from offset 1188 of the argument (515 to 550.40.07), and
    /// at 32 and 36 from offset 9252 (550.40.53 to 595).
    Map = 7,
    /// UVM's FREE and UNMAP_EXTERNAL: base 0, length 8 (FREE has none from 590 on).
    Unmap = 8,
}

/// Location of a request's status; status 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmStatusOffset {
    /// Status at this offset.
    At(u8),
    /// Status at one of these offsets, depending on the kernel driver's version: success needs zero
    /// in both.
    OneOf(u8, u8),
    /// No status is needed: the ioctl's return value says it.
    None,
}

/// A request that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmPlan {
    /// `_IOC_NR`, or UVM's whole request.
    pub nr: u8,
    /// `_IOC_SIZE`; 0 for UVM, which encodes no size.
    pub size: u16,
    /// Effect of the request.
    pub does: Does,
    /// Number of bytes of the argument that are read at return, from its beginning.
    pub argument_bytes: u8,
    /// Location of the status.
    pub status: RmStatusOffset,
}

const fn row(nr: u8, size: u16, does: Does, argument_bytes: u8, status: RmStatusOffset) -> RmPlan {
    RmPlan { nr, size, does, argument_bytes, status }
}

/// All requests that are recorded. A request of the driver with one of these numbers and another
/// size has an unknown layout.
pub const PLANS: &[RmPlan] = &[
    // 535 and later; 525 and 530 (status 36) or 515 and 520 (status 32); NVOS21.
    row(0x2b, 48, Does::Alloc, 48, RmStatusOffset::At(40)),
    row(0x2b, 40, Does::Alloc, 40, RmStatusOffset::OneOf(32, 36)),
    row(0x2b, 32, Does::Alloc, 32, RmStatusOffset::OneOf(24, 28)),
    row(0x29, 16, Does::Free, 16, RmStatusOffset::At(12)),
    row(0x27, 56, Does::AllocMemory, 56, RmStatusOffset::At(40)),
    row(0x4a, 184, Does::Heap, 152, RmStatusOffset::At(20)),
    row(0x34, 28, Does::Dup, 28, RmStatusOffset::At(24)),
    row(0x2a, 32, Does::Control, 32, RmStatusOffset::At(28)),
    row(33, 0, Does::Map, 24, RmStatusOffset::None),
    row(34, 0, Does::Unmap, 16, RmStatusOffset::None),
    row(66, 0, Does::Unmap, 16, RmStatusOffset::None),
];

/// Returns the plan of a request; `None` if it is not recorded.
pub fn plan(nr: u8, size: u16) -> Option<&'static RmPlan> {
    PLANS.iter().find(|plan| plan.nr == nr && plan.size == size)
}

/// Controls that are recorded, with the number of bytes of their parameters: GET_GID_INFO (flags 4,
/// length 8, data 12), and the client's GET_ID_INFO (gpuId 0, deviceInstance 8).
pub const CONTROLS: &[(u32, u8)] = &[(0x2080_014a, 56), (0x205, 32)];

/// An object class that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmClass {
    /// Number of the class.
    pub number: u32,
    /// Number of bytes of its parameters that are read at return; 0 for none.
    pub params_bytes: u8,
    /// Whether the class is memory and has the size at 64 of its parameters: the requested one, and
    /// after success the granted one.
    pub is_memory: bool,
}

const fn of(number: u32, params_bytes: u8, is_memory: bool) -> RmClass {
    RmClass { number, params_bytes, is_memory }
}

/// All classes that are recorded.
pub const CLASSES: &[RmClass] = &[
    // The client itself.
    of(0x0, 0, false),
    of(0x1, 0, false),
    of(0x41, 0, false),
    // A device (deviceId 0), and a subdevice (subDeviceId 0).
    of(0x80, 8, false),
    of(0x2080, 8, false),
    // A GPU instance (swizzId 8), a compute instance (execPartitionId 8), a client of MPS.
    of(0xc637, 16, false),
    of(0xc638, 16, false),
    of(0x900e, 0, false),
    // Host memory, memory without an object, and video memory: NV_MEMORY_ALLOCATION_PARAMS.
    of(0x3e, 120, true),
    of(0x3f, 120, true),
    of(0x40, 120, true),
    // Host memory by an OS descriptor (limit 24).
    of(0x71, 48, false),
    // Memory lists, and memory that is not counted.
    of(0x82, 0, false),
    of(0x83, 0, false),
    of(0xc2, 0, false),
    // Fabric (hVidMem 40) and multicast.
    of(0xf8, 48, false),
    of(0xfd, 0, false),
];

/// Returns the entry of a class; `None` if it is not recorded.
pub fn class(number: u32) -> Option<&'static RmClass> {
    CLASSES.iter().find(|class| class.number == number)
}

#[cfg(test)]
mod tests {
    use super::{CLASSES, CONTROLS, Does, PLANS, RmStatusOffset, class, plan};
    use crate::rm::{ARGUMENT_BYTES, PARAMS_BYTES, SHORT_ARGUMENT_BYTES};

    #[test]
    fn every_row_fits_into_a_record_and_has_its_status_in_what_is_read() {
        for plan in PLANS {
            let most = if plan.does == Does::Heap { ARGUMENT_BYTES } else { SHORT_ARGUMENT_BYTES };
            assert!(usize::from(plan.argument_bytes) <= most, "{plan:?}");
            let last = match plan.status {
                RmStatusOffset::At(at) | RmStatusOffset::OneOf(_, at) => at + 4,
                RmStatusOffset::None => 0,
            };
            assert!(last <= plan.argument_bytes, "{plan:?}");
        }
        assert!(CLASSES.iter().all(|class| usize::from(class.params_bytes) <= PARAMS_BYTES));
        assert!(CONTROLS.iter().all(|(_, bytes)| usize::from(*bytes) <= PARAMS_BYTES));
    }

    #[test]
    fn a_request_and_a_class_are_found_by_their_numbers_alone() {
        for (index, row) in PLANS.iter().enumerate() {
            assert_eq!(plan(row.nr, row.size), PLANS.get(index));
        }
        assert!(CLASSES.iter().all(|row| class(row.number) == Some(row)));
        assert_eq!((plan(0x2b, 47), class(0x50a0)), (None, None));
    }
}
