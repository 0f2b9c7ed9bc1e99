//! Reads fields of a task at the offsets of the running kernel's BTF.

use aya_ebpf::Global;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_get_current_task_btf, bpf_task_pt_regs};
use memwatch_common::native::Registers;
use memwatch_common::record::COMM_BYTES;

/// Offset of `tgid` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
pub(crate) static TASK_TGID_OFFSET: Global<u32> = Global::new(0);
/// Offset of `signal` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
pub(crate) static TASK_SIGNAL_OFFSET: Global<u32> = Global::new(0);
/// Offset of `group_leader` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TASK_LEADER_OFFSET: Global<u32> = Global::new(0);
/// Offset of `start_boottime` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TASK_START_OFFSET: Global<u32> = Global::new(0);
/// Offset of `comm` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TASK_COMM_OFFSET: Global<u32> = Global::new(0);
/// Offset of `live` in `signal_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
pub(crate) static SIGNAL_LIVE_OFFSET: Global<u32> = Global::new(0);

/// Offset of `files` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TASK_FILES_OFFSET: Global<u32> = Global::new(0);
/// Offset of `fdt` in `files_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static FILES_TABLE_OFFSET: Global<u32> = Global::new(0);
/// Offset of `max_fds` in `fdtable`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TABLE_SIZE_OFFSET: Global<u32> = Global::new(0);
/// Offset of `fd` in `fdtable`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TABLE_FILES_OFFSET: Global<u32> = Global::new(0);

/// Offset of `flags` in `signal_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
pub(crate) static SIGNAL_FLAGS_OFFSET: Global<u32> = Global::new(0);
/// Offset of `group_exec_task` in `signal_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
pub(crate) static SIGNAL_EXEC_OFFSET: Global<u32> = Global::new(0);

/// Offset of the thread pointer in `task_struct`, from the running kernel's BTF; 0 if unknown.
#[unsafe(no_mangle)]
static TASK_POINTER_OFFSET: Global<u32> = Global::new(0);

/// Offset of `utask` in `task_struct`, from the running kernel's BTF; 0 if unknown.
#[unsafe(no_mangle)]
static TASK_UPROBES_OFFSET: Global<u32> = Global::new(0);
/// Offset of `return_instances` in `uprobe_task`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static UPROBES_RETURNS_OFFSET: Global<u32> = Global::new(0);
/// Offset of `stack` in `return_instance`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static RETURN_STACK_OFFSET: Global<u32> = Global::new(0);
/// Offset of `orig_ret_vaddr` in `return_instance`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static RETURN_ADDRESS_OFFSET: Global<u32> = Global::new(0);
/// Offset of `next` in `return_instance`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static RETURN_NEXT_OFFSET: Global<u32> = Global::new(0);

#[inline(always)]
pub(crate) fn field<T: Copy>(base: *const u8, offset: u32) -> Option<T> {
    // SAFETY: the helper checks the kernel address itself and fails on a bad one.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<T>()) }.ok()
}

/// Returns the start time of a process, from its main thread.
#[inline(always)]
pub(crate) fn start_ns(task: *const u8) -> u64 {
    leader(task).and_then(|leader| field::<u64>(leader, TASK_START_OFFSET.load())).unwrap_or(0)
}

/// Returns the name of a process, from its main thread.
#[inline(always)]
pub(crate) fn comm(task: *const u8) -> [u8; COMM_BYTES] {
    leader(task)
        .and_then(|leader| field::<[u8; COMM_BYTES]>(leader, TASK_COMM_OFFSET.load()))
        .unwrap_or([0; COMM_BYTES])
}

#[inline(always)]
fn leader(task: *const u8) -> Option<*const u8> {
    field::<*const u8>(task, TASK_LEADER_OFFSET.load())
}

/// Returns the address of the `struct file` behind a descriptor of the running process.
#[inline(always)]
pub(crate) fn open_file(descriptor: u32) -> Option<u64> {
    let files = field::<*const u8>(current(), TASK_FILES_OFFSET.load())?;
    let table = field::<*const u8>(files, FILES_TABLE_OFFSET.load())?;
    if descriptor >= field::<u32>(table, TABLE_SIZE_OFFSET.load())? {
        return None;
    }
    let all = field::<*const u8>(table, TABLE_FILES_OFFSET.load())?;
    field::<u64>(all.wrapping_add(descriptor as usize * 8), 0)
}

/// Returns the registers that the running thread had in user space at the probe
/// (`bpf_task_pt_regs`, Linux 5.15).
#[inline(always)]
fn at_probe() -> *const pt_regs {
    // SAFETY: the helpers have no preconditions. The kernel knows the type of the second helper's
    // result, which lives as long as the task.
    unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) as *const pt_regs }
}

/// Returns [`crate::kept`] of the running thread.
#[inline(always)]
pub(crate) fn kept_at_probe() -> Registers {
    // SAFETY: as in `at_probe`.
    crate::kept(unsafe { &*at_probe() })
}

/// Returns the running thread's stack pointer at the probe.
#[inline(always)]
pub(crate) fn stack_pointer_at_probe() -> u64 {
    // SAFETY: as in `at_probe`.
    crate::stack_pointer(unsafe { &*at_probe() })
}

/// A call in flight with a return probe, whose return address the kernel has replaced.
#[derive(Clone, Copy)]
pub(crate) struct ProbedReturn {
    /// Position on the stack.
    pub(crate) stack: u64,
    /// Original return address.
    pub(crate) address: u64,
    next: *const u8,
}

impl ProbedReturn {
    /// Returns the innermost call with a return probe.
    #[inline(always)]
    pub(crate) fn innermost() -> Option<Self> {
        if TASK_UPROBES_OFFSET.load() == 0 {
            return None;
        }
        let uprobes = field::<*const u8>(current(), TASK_UPROBES_OFFSET.load()).filter(|found| !found.is_null())?;
        Self::at(field(uprobes, UPROBES_RETURNS_OFFSET.load())?)
    }

    /// Returns the next enclosing call with a return probe.
    #[inline(always)]
    pub(crate) fn next(self) -> Option<Self> {
        Self::at(self.next)
    }

    #[inline(always)]
    fn at(instance: *const u8) -> Option<Self> {
        if instance.is_null() {
            return None;
        }
        Some(Self {
            stack: field(instance, RETURN_STACK_OFFSET.load())?,
            address: field(instance, RETURN_ADDRESS_OFFSET.load())?,
            next: field(instance, RETURN_NEXT_OFFSET.load())?,
        })
    }
}

/// Returns the running thread's thread pointer; `None` if unknown.
#[inline(always)]
pub(crate) fn thread_pointer() -> Option<u64> {
    let offset_bytes = Some(TASK_POINTER_OFFSET.load()).filter(|offset_bytes| *offset_bytes != 0)?;
    field::<u64>(current(), offset_bytes).filter(|pointer| *pointer != 0)
}

/// Returns the running task.
#[inline(always)]
pub(crate) fn current() -> *const u8 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_current_task() as *const u8 }
}
