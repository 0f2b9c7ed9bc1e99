//! Determines which x86-64 instructions the kernel emulates under a uprobe.
//!
//! Facts from `arch/x86/kernel/uprobes.c` (`branch_setup_xol_ops`, `push_setup_xol_ops`):
//!
//! | instruction | emulated since |
//! |---|---|
//! | `nop` (90), `jmp`/`call` with an 8- or 32-bit offset, the 16 conditional jumps | 4.4 at the
//! latest |
//! | `push` of a 64-bit register (50–57, 41 50–57) | 5.0 |
//! | the kernel's own multi-byte nops | 6.16, commit 610f6e14c29d |
//! | every `nopl` (0f 1f /0) without segment prefix | 6.19, commit 8a5c6cbfe4a3 |
//!
//! Deliberately omitted: `pause` (f3 90), which only kernels before 6.19 emulate; 66 90, on which
//! kernels before 6.2 refuse the probe; prefixed branches, which are refused or unused; nops with a
//! segment prefix, which are refused.

use super::KernelVersion;

const PUSH: KernelVersion = KernelVersion { major: 5, minor: 0 };
const KERNEL_NOPS: KernelVersion = KernelVersion { major: 6, minor: 16 };
const ALL_NOPS: KernelVersion = KernelVersion { major: 6, minor: 19 };

/// Multi-byte nops of the kernel's table (`x86_nops`) that have no segment prefix.
const NOPS: [&[u8]; 8] = [
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

/// Whether this kernel emulates the instruction encoded by `bytes`.
pub(super) fn is_emulated(bytes: &[u8], kernel: KernelVersion) -> bool {
    match bytes {
        // nop, jcc, jmp, call: the last two and the long jcc with a 32-bit offset.
        [0x90] | [0x70..=0x7f | 0xeb, _] | [0xe8 | 0xe9, _, _, _, _] | [0x0f, 0x80..=0x8f, _, _, _, _] => true,
        [0x50..=0x57] | [0x41, 0x50..=0x57] => kernel >= PUSH,
        [0x0f, 0x1f, modrm, ..] if modrm & 0x38 == 0 && kernel >= ALL_NOPS => true,
        _ => kernel >= KERNEL_NOPS && NOPS.contains(&bytes),
    }
}
