//! Kernel half of memwatch. It copies the data of a probed call and does not interpret the call.
//!
//! Two programs serve each probe table, that of the driver and that of PyTorch's allocator; the
//! attach cookie holds the capture plan. Two programs serve the requests to the kernel driver
//! (`rm`), one counts tensors and one names operators. Each has two sections: for `uprobe_multi`
//! links and for classic uprobes. Four raw tracepoints report process events; they need no tracefs.
//! Tables that any user can fill have a share per owner (`shares`).
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "the atomic add of the kernel's counters has no stable name on this target")]
#![expect(clippy::needless_pass_by_value, reason = "aya's macros hand each program its context by value")]

mod arena;
mod block;
mod codes;
mod counter;
mod kernel;
mod native;
mod operator;
mod pool;
mod process;
mod python;
mod rm;
mod shares;
mod statistics;
mod task;
mod tensor;
mod threads;
mod variable;
mod walk;
mod window;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::{raw_tracepoint, uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext, RetProbeContext};
use memwatch_common::capture::{on_enter, on_return};
use memwatch_common::native::Registers;
use memwatch_common::tensor::HoldingRegister;

use crate::kernel::Bpf;

#[uprobe(multi)]
fn mw_call_enter(context: ProbeContext) -> u32 {
    enter(&context)
}

#[uretprobe(multi)]
fn mw_call_return(context: RetProbeContext) -> u32 {
    leave(&context)
}

#[uprobe]
fn mw_enter_classic(context: ProbeContext) -> u32 {
    enter(&context)
}

#[uretprobe]
fn mw_return_classic(context: RetProbeContext) -> u32 {
    leave(&context)
}

#[uprobe(multi)]
fn mw_ioctl_enter(context: ProbeContext) -> u32 {
    ioctl_enter(&context)
}

#[uretprobe(multi)]
fn mw_ioctl_return(context: RetProbeContext) -> u32 {
    ioctl_leave(&context)
}

#[uprobe]
fn mw_ioctl_enter_classic(context: ProbeContext) -> u32 {
    ioctl_enter(&context)
}

#[uretprobe]
fn mw_ioctl_return_classic(context: RetProbeContext) -> u32 {
    ioctl_leave(&context)
}

#[uprobe(multi)]
fn mw_tensor_enter(context: ProbeContext) -> u32 {
    tensor_enter(&context)
}

#[uretprobe(multi)]
fn mw_tensor_return(context: RetProbeContext) -> u32 {
    tensor_leave(&context)
}

#[uprobe]
fn mw_tensor_enter_classic(context: ProbeContext) -> u32 {
    tensor_enter(&context)
}

#[uretprobe]
fn mw_tensor_return_classic(context: RetProbeContext) -> u32 {
    tensor_leave(&context)
}

#[uprobe(multi)]
fn mw_tensor_count(_context: ProbeContext) -> u32 {
    tensor::count();
    0
}

#[uprobe]
fn mw_tensor_count_classic(_context: ProbeContext) -> u32 {
    tensor::count();
    0
}

#[uprobe(multi)]
fn mw_block_enter(context: ProbeContext) -> u32 {
    block_enter(&context)
}

#[uprobe]
fn mw_block_enter_classic(context: ProbeContext) -> u32 {
    block_enter(&context)
}

#[uprobe(multi)]
fn mw_operator_enter(context: ProbeContext) -> u32 {
    operator_enter(&context)
}

#[uprobe]
fn mw_operator_enter_classic(context: ProbeContext) -> u32 {
    operator_enter(&context)
}

#[raw_tracepoint(tracepoint = "task_newtask")]
fn mw_fork(context: RawTracePointContext) -> i32 {
    process::on_new_task(&context)
}

#[raw_tracepoint(tracepoint = "sched_process_exec")]
fn mw_exec(context: RawTracePointContext) -> i32 {
    process::on_exec(&context)
}

#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn mw_exit(context: RawTracePointContext) -> i32 {
    process::on_exit(&context)
}

#[raw_tracepoint(tracepoint = "cgroup_attach_task")]
fn mw_move(context: RawTracePointContext) -> i32 {
    process::on_move(&context)
}

/// Run by user space (`BPF_PROG_TEST_RUN`), never attached to a tracepoint.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn mw_give_back(context: RawTracePointContext) -> i32 {
    shares::give_back(&context)
}

#[inline(always)]
fn enter(context: &ProbeContext) -> u32 {
    // SAFETY: a uprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    // The verifier refuses a run-time index into the context, so all six are copied by name.
    on_enter(&Bpf, cookie(context), &arguments(registers), stack_pointer(registers));
    0
}

#[inline(always)]
fn leave(context: &RetProbeContext) -> u32 {
    // SAFETY: a uretprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    on_return(&Bpf, cookie(context), return_value(registers), stack_pointer(registers));
    0
}

#[inline(always)]
fn ioctl_enter(context: &ProbeContext) -> u32 {
    // SAFETY: a uprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    let [_, request, argument, ..] = arguments(registers);
    rm::on_enter(cookie(context), (request, argument), stack_pointer(registers));
    0
}

#[inline(always)]
fn ioctl_leave(context: &RetProbeContext) -> u32 {
    // SAFETY: a uretprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    rm::on_return(return_value(registers), stack_pointer(registers));
    0
}

#[inline(always)]
fn tensor_enter(context: &ProbeContext) -> u32 {
    // SAFETY: a uprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    tensor::on_enter(cookie(context), registers);
    0
}

#[inline(always)]
fn block_enter(context: &ProbeContext) -> u32 {
    // SAFETY: a uprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    block::on_enter(cookie(context), registers);
    0
}

#[inline(always)]
fn operator_enter(context: &ProbeContext) -> u32 {
    // SAFETY: a uprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    operator::on_enter(cookie(context), &arguments(registers), instruction(registers));
    0
}

#[inline(always)]
fn tensor_leave(context: &RetProbeContext) -> u32 {
    // SAFETY: a uretprobe's context is a pt_regs.
    let registers = unsafe { &*context.regs };
    tensor::on_return(cookie(context), return_value(registers));
    0
}

#[inline(always)]
fn cookie(context: &impl EbpfContext) -> u64 {
    // SAFETY: the helper takes the program's own context.
    unsafe { bpf_get_attach_cookie(context.as_ptr()) }
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn arguments(registers: &pt_regs) -> [u64; 6] {
    [registers.rdi, registers.rsi, registers.rdx, registers.rcx, registers.r8, registers.r9]
}

/// Address of the probed instruction.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn instruction(registers: &pt_regs) -> u64 {
    registers.rip
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn stack_pointer(registers: &pt_regs) -> u64 {
    registers.rsp
}

/// Reads the register that a plan names.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn held(registers: &pt_regs, register: HoldingRegister) -> u64 {
    // SAFETY: the reference to the register is valid for reads.
    let read = |register: &u64| unsafe { core::ptr::read_volatile(register) };
    match register {
        HoldingRegister::Rax => read(&registers.rax),
        HoldingRegister::Rbx => read(&registers.rbx),
        HoldingRegister::Rbp => read(&registers.rbp),
        HoldingRegister::R12 => read(&registers.r12),
        HoldingRegister::R13 => read(&registers.r13),
        HoldingRegister::R14 => read(&registers.r14),
        HoldingRegister::R15 => read(&registers.r15),
    }
}

/// Reads the registers needed to unwind the innermost frame. They are read with `read_volatile`,
/// since the compiler would otherwise keep an address within the context, which the verifier
/// refuses.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn kept(registers: &pt_regs) -> Registers {
    // SAFETY: the reference to the register is valid for reads.
    let read = |register: &u64| unsafe { core::ptr::read_volatile(register) };
    Registers {
        rbx: read(&registers.rbx),
        rbp: read(&registers.rbp),
        rsp: read(&registers.rsp),
        r12_to_r15: [read(&registers.r12), read(&registers.r13), read(&registers.r14), read(&registers.r15)],
        rip: read(&registers.rip),
    }
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn return_value(registers: &pt_regs) -> u64 {
    registers.rax
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn arguments(registers: &pt_regs) -> [u64; 6] {
    let r = &registers.regs;
    [r[0], r[1], r[2], r[3], r[4], r[5]]
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn instruction(registers: &pt_regs) -> u64 {
    registers.pc
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn stack_pointer(registers: &pt_regs) -> u64 {
    registers.sp
}

/// Unused on this architecture: plans by register exist for x86-64 only.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn held(_registers: &pt_regs, _register: HoldingRegister) -> u64 {
    0
}

/// Unused on this architecture: native frames are not copied.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn kept(registers: &pt_regs) -> Registers {
    Registers { rbx: 0, rbp: 0, rsp: stack_pointer(registers), r12_to_r15: [0; 4], rip: 0 }
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn return_value(registers: &pt_regs) -> u64 {
    registers.regs[0]
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier proves that this is unreachable.
    loop {}
}

/// Helpers marked GPL-only (`bpf_probe_read_user`, `bpf_probe_read_kernel`) refuse a program
/// without this license.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
