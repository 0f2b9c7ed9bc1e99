//! Requests to NVIDIA's kernel driver: which ioctls matter, the layout of their arguments, and the
//! record made of one.
//!
//! libcuda and the graphics libraries take memory from the kernel driver's resource manager (RM)
//! with ioctls. Requests, classes and layouts are those of NVIDIA's open-gpu-kernel-modules, the
//! same in 515.43.04 to 595.45.04 except where two versions are listed here: `nv_escape.h`,
//! `nv-ioctl.h`, `nvos.h`, `cl0080.h`, `uvm_ioctl.h`. The kernel driver selects by a request's
//! number and size only.

pub mod capture;
mod plans;

use crate::record::words::{RecordKind, WordReader};

pub use plans::{CLASSES, CONTROLS, Does, PLANS, RmClass, RmPlan, RmStatusOffset, class, plan};

/// The argument could not be read at entry: the request is not known.
pub const FLAG_ASKED_UNREADABLE: u8 = 1;
/// The argument could not be read at return: the result of the call is not known.
pub const FLAG_ARGUMENT_UNREADABLE: u8 = 2;
/// The memory that the argument points to could not be read at return: the granted size is not
/// known.
pub const FLAG_PARAMS_UNREADABLE: u8 = 4;
/// The request was wrapped in [`XFER`].
pub const FLAG_WRAPPED: u8 = 8;

/// Maximum number of argument bytes in a record: those of VID_HEAP_CONTROL up to `attr2`.
pub const ARGUMENT_BYTES: usize = 152;
/// Maximum number of argument bytes of the other requests (NVOS02_PARAMETERS with its descriptor).
pub const SHORT_ARGUMENT_BYTES: usize = 56;
/// Maximum number of bytes of an allocation's own parameters: NV_MEMORY_ALLOCATION_PARAMS up to
/// `hVASpace`.
pub const PARAMS_BYTES: usize = 120;
/// Offset of an allocation's own parameters in [`RmRecord::payload`].
pub const PARAMS_OFFSET: usize = SHORT_ARGUMENT_BYTES;
/// Size of [`RmRecord::payload`], in bytes.
pub const PAYLOAD_BYTES: usize = SHORT_ARGUMENT_BYTES + PARAMS_BYTES;

/// `_IOC_TYPE` of the driver's requests.
pub const MAGIC: u8 = b'F';
/// Number of the request that wraps another: NV_ESC_IOCTL_XFER_CMD.
pub const XFER: u8 = 0xd3;

/// A returned ioctl to the kernel driver.
///
/// [`Self::payload`] begins with the argument at return. An allocation's own parameters follow at
/// [`PARAMS_OFFSET`]. For UVM's MAP_EXTERNAL_ALLOCATION it contains base, length and offset, then
/// client and memory at their places in each of the two layouts ([`Does::Map`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RmRecord {
    /// [`RecordKind::Rm`].
    pub kind: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// Number of the request: `_IOC_NR`, or UVM's whole request.
    pub nr: u8,
    /// Always zero.
    pub reserved: u8,
    /// Size of the argument: `_IOC_SIZE`; 0 for UVM.
    pub size: u16,
    /// Row of the driver's probe table for the innermost call that the thread was in; 0 for none.
    pub probe: u16,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Return value of the ioctl: 0 or -1.
    pub answer: i32,
    /// User charged while the record waits for room in the ring ([`crate::shares`]); otherwise 0.
    pub owner: u32,
    /// Time of entry: `CLOCK_BOOTTIME`, nanoseconds.
    pub entered_ns: u64,
    /// Time of return: `CLOCK_BOOTTIME`, nanoseconds.
    pub returned_ns: u64,
    /// Time at which the call of [`Self::probe`] was entered: `CLOCK_BOOTTIME`, nanoseconds; 0 for
    /// none. Together with the thread id, it identifies that call's record.
    pub call_entered_ns: u64,
    /// Requested size of a memory allocation, in bytes; 0 for other requests.
    pub asked_bytes: u64,
    /// Copy of the thread's stack, by its [`crate::native::NativeRecord::id`]; 0 for none.
    pub stack: u64,
    /// The bytes that were read.
    pub payload: [u8; PAYLOAD_BYTES],
}

/// Size of an [`RmRecord`] in the ring, in bytes.
pub const RM_RECORD_BYTES: usize = 64 + PAYLOAD_BYTES;

const _: () = assert!(size_of::<RmRecord>() == RM_RECORD_BYTES);
const _: () = assert!(RM_RECORD_BYTES <= 264 && ARGUMENT_BYTES <= PAYLOAD_BYTES);

/// Reads an [`RmRecord`]. The caller has checked the length.
pub(crate) fn read_rm(mut words: WordReader<'_>) -> RmRecord {
    RmRecord {
        kind: words.u8(),
        flags: words.u8(),
        nr: words.u8(),
        reserved: words.u8(),
        size: words.u16(),
        probe: words.u16(),
        tgid: words.u32(),
        tid: words.u32(),
        answer: words.i32(),
        owner: words.u32(),
        entered_ns: words.u64(),
        returned_ns: words.u64(),
        call_entered_ns: words.u64(),
        asked_bytes: words.u64(),
        stack: words.u64(),
        payload: words.take(),
    }
}

const _: () = assert!(RecordKind::Rm as u8 == 8);

#[cfg(test)]
mod tests {
    use super::{PAYLOAD_BYTES, RM_RECORD_BYTES};
    use crate::record::{Item, RecordError};

    #[test]
    fn a_record_of_the_kernel_driver_is_read_field_by_field() {
        let mut bytes: [u8; RM_RECORD_BYTES] =
            core::array::from_fn(|index| u8::try_from(index % 256).expect("below 256"));
        bytes[0] = 8;
        let Ok(Item::Rm(record)) = Item::from_bytes(&bytes) else { panic!("it must be read") };
        assert_eq!((record.flags, record.nr, record.size), (1, 2, u16::from_ne_bytes([4, 5])));
        assert_eq!(
            (record.tgid, record.answer),
            (u32::from_ne_bytes([8, 9, 10, 11]), i32::from_ne_bytes([16, 17, 18, 19]))
        );
        assert_eq!(record.stack, u64::from_ne_bytes([56, 57, 58, 59, 60, 61, 62, 63]));
        assert_eq!((record.payload[0], record.payload[PAYLOAD_BYTES - 1]), (64, 239));
        let short = Item::from_bytes(&bytes[..64]);
        assert_eq!(short, Err(RecordError::Length { expected: RM_RECORD_BYTES, got: 64 }));
    }
}
