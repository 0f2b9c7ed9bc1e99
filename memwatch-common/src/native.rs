//! Copies of a thread's stack for its native frames: thread ids, registers, and the bytes from the
//! stack pointer up.

use crate::record::words::{RecordKind, WordReader};

/// Bytes copied at once; the copy ends at the first piece that cannot be read.
pub const PIECE_BYTES: usize = 1 << 10;
/// Maximum size of a stack copy, in bytes. Measured in PyTorch, down to the outermost frame: 8.7 to
/// 13.8 KiB for a Python thread, 3.5 to 10 KiB for a thread of the autograd engine.
pub const COPY_BYTES: usize = 16 << 10;

/// The thread does not run Python, so the id is the copy's own.
pub const FLAG_WITHOUT_PYTHON: u8 = 2;
/// The Python stack was copied before; this copy checks whether its native frames are still the
/// same.
pub const FLAG_AGAIN: u8 = 4;

/// Registers needed to unwind to a frame's caller, in the order of [`NativeRecord::registers`]: the
/// callee-saved registers, the stack pointer and the instruction pointer (System V ABI, AMD64
/// supplement, figure 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// `rbx`.
    pub rbx: u64,
    /// `rbp`.
    pub rbp: u64,
    /// `rsp`.
    pub rsp: u64,
    /// `r12` to `r15`.
    pub r12_to_r15: [u64; 4],
    /// `rip`.
    pub rip: u64,
}

/// A copy of a thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct NativeRecord {
    /// [`RecordKind::Native`].
    pub kind: u8,
    /// [`FLAG_WITHOUT_PYTHON`], [`FLAG_AGAIN`].
    pub flags: u8,
    /// Always zero.
    pub reserved: u16,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Number of bytes copied to `stack`; the rest of it is undefined.
    pub bytes: u32,
    /// The thread's Python stack, by its [`crate::tensor::StackRecord::id`]; without Python, a
    /// number of the copy's own. Never 0.
    pub id: u64,
    /// Time of the copy: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The registers.
    pub registers: Registers,
    /// The stack from [`Registers::rsp`] up.
    pub stack: [u8; COPY_BYTES],
}

/// Size of a [`NativeRecord`] in the ring, in bytes.
pub const NATIVE_RECORD_BYTES: usize = 96 + COPY_BYTES;

const _: () = assert!(size_of::<NativeRecord>() == NATIVE_RECORD_BYTES);
const _: () = assert!(RecordKind::Native as u8 == 7);

/// A copy of a thread's stack in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeItem<'a> {
    /// [`FLAG_WITHOUT_PYTHON`], [`FLAG_AGAIN`].
    pub flags: u8,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// See [`NativeRecord::id`].
    pub id: u64,
    /// Time of the copy: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The registers.
    pub registers: Registers,
    /// The copied bytes, from [`Registers::rsp`] up.
    pub stack: &'a [u8],
}

impl NativeItem<'_> {
    /// Whether the Python stack was copied before.
    pub const fn is_again(&self) -> bool {
        self.flags & FLAG_AGAIN != 0
    }

    /// Whether the thread runs no Python, so that the id is the copy's own.
    pub const fn is_without_python(&self) -> bool {
        self.flags & FLAG_WITHOUT_PYTHON != 0
    }
}

/// Reads a [`NativeRecord`]. The caller has checked the length.
pub(crate) fn read_native(mut words: WordReader<'_>) -> NativeItem<'_> {
    let (_kind, flags, _reserved) = (words.u8(), words.u8(), words.u16());
    let (tgid, thread, bytes, id, time_ns) = (words.u32(), words.u32(), words.u32(), words.u64(), words.u64());
    let registers = Registers {
        rbx: words.u64(),
        rbp: words.u64(),
        rsp: words.u64(),
        r12_to_r15: core::array::from_fn(|_| words.u64()),
        rip: words.u64(),
    };
    let stack = words.0;
    let stack = stack.get(..bytes as usize).unwrap_or(stack);
    NativeItem { flags, tgid, tid: thread, id, time_ns, registers, stack }
}

/// State of stack copying in one process; its presence turns copying on. Created by user space,
/// changed only by the kernel half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CopyState {
    /// Start of the current budget window: `CLOCK_BOOTTIME`, nanoseconds.
    pub window_start_ns: u64,
    /// Copies of threads without Python in the current window.
    pub window_copies: u64,
    /// User charged for the entry ([`crate::shares`]).
    pub owner: u64,
}

/// Budget window for copies of threads without Python, in nanoseconds.
pub const WINDOW_NS: u64 = 100_000_000;
/// Maximum number of such copies per process and window. Each takes 16 KiB of the ring, and
/// memwatch time to unwind.
pub const WINDOW_COPIES: u64 = 128;

#[cfg(test)]
mod tests {
    use super::{COPY_BYTES, NATIVE_RECORD_BYTES};
    use crate::record::{Item, RecordError};

    #[test]
    #[expect(clippy::large_stack_arrays, reason = "a record as it is, in a crate without a heap")]
    fn native_copy_length_is_capped_at_the_record_size() {
        let mut bytes = [0; NATIVE_RECORD_BYTES];
        (bytes[0], bytes[1], bytes[4], bytes[16], bytes[88], bytes[96]) = (7, 1, 9, 11, 13, 15);
        bytes[12..16].copy_from_slice(&24_u32.to_ne_bytes());
        let Ok(Item::Native(copy)) = Item::from_bytes(&bytes) else { panic!("a copy must be read") };
        assert_eq!((copy.flags, copy.tgid, copy.id, copy.registers.rip), (1, 9, 11, 13));
        assert_eq!((copy.stack.len(), copy.stack[0]), (24, 15));
        bytes[12..16].fill(0xFF);
        let Ok(Item::Native(copy)) = Item::from_bytes(&bytes) else { panic!("a copy must be read") };
        assert_eq!(copy.stack.len(), COPY_BYTES);
        let short = Item::from_bytes(&bytes[..96]);
        assert_eq!(short, Err(RecordError::Length { expected: NATIVE_RECORD_BYTES, got: 96 }));
    }
}
