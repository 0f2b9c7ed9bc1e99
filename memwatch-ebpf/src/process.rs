//! Fork, exec, exit and moves between control groups of the processes memwatch knows.

use aya_ebpf::Global;
use aya_ebpf::helpers::generated::{bpf_get_current_cgroup_id, bpf_get_current_task};
use aya_ebpf::helpers::{bpf_get_current_uid_gid, bpf_probe_read_kernel};
use aya_ebpf::programs::RawTracePointContext;
use aya_log_ebpf::debug;
use memwatch_common::capture::{Kernel, Thread};
use memwatch_common::loss::Loss;
use memwatch_common::record::{COMM_BYTES, ProcessEvent, ProcessRecord, RecordKind};

use crate::kernel::Bpf;
use crate::threads::drop_notes;
use crate::{native, python, rm, statistics, tensor};

/// Offset of `tgid` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TASK_TGID_OFFSET: Global<u32> = Global::new(0);
/// Offset of `signal` in `task_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static TASK_SIGNAL_OFFSET: Global<u32> = Global::new(0);
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
static SIGNAL_LIVE_OFFSET: Global<u32> = Global::new(0);

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
static SIGNAL_FLAGS_OFFSET: Global<u32> = Global::new(0);
/// Offset of `group_exec_task` in `signal_struct`, from the running kernel's BTF.
#[unsafe(no_mangle)]
static SIGNAL_EXEC_OFFSET: Global<u32> = Global::new(0);

/// Offset of what holds a thread's thread pointer in `task_struct`, from the running kernel's BTF; 0 where it does not say.
#[unsafe(no_mangle)]
static TASK_POINTER_OFFSET: Global<u32> = Global::new(0);

/// Offset of `utask` in `task_struct`, from the running kernel's BTF; 0 where it does not say.
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

/// `SIGNAL_GROUP_EXIT` of include/linux/sched/signal.h: the whole process is ending.
const SIGNAL_GROUP_EXIT: u32 = 4;

/// `CLONE_THREAD` of include/uapi/linux/sched.h: the new task is a thread, not a process.
const CLONE_THREAD: u64 = 0x0001_0000;

/// `task_newtask(task, clone_flags)`, in the parent: a target's child process is a target from its first instruction.
#[inline(always)]
pub(crate) fn on_new_task(context: &RawTracePointContext) -> i32 {
    let child: *const u8 = context.arg(0);
    let clone_flags: u64 = context.arg(1);
    let parent = Bpf.thread();
    if clone_flags & CLONE_THREAD != 0 || !(Bpf::is_target(parent.tgid) || Bpf::is_known(parent.tgid)) {
        return 0;
    }
    let Some(tgid) = field::<u32>(child, TASK_TGID_OFFSET.load()) else { return 0 };
    if Bpf::is_target(parent.tgid) {
        Bpf::make_target(tgid);
    }
    report(context, ProcessEvent::Fork, tgid, parent.tgid, 0);
    0
}

/// `sched_process_exec(task, old_tid, binprm)`, in the new image: allocations of the old one are gone.
#[inline(always)]
pub(crate) fn on_exec(context: &RawTracePointContext) -> i32 {
    let thread = Bpf.thread();
    // The thread that called exec has the leader's tid from here on: what it was inside of under its old one is gone as well.
    let old_tid: u32 = context.arg(1);
    for tid in [thread.tid, old_tid] {
        Bpf::drop_in_flight(Thread { tid, ..thread });
        rm::drop_in_flight(Thread { tid, ..thread });
    }
    if Bpf::is_known(thread.tgid) {
        forget_tensors(thread);
        drop_notes(old_tid);
        let closed = Bpf::close_allocation_map(thread.tgid);
        report(context, ProcessEvent::Exec, thread.tgid, 0, closed);
    }
    0
}

/// `sched_process_exit(task, …)`, in each ending thread: the process ends with its last thread.
#[inline(always)]
pub(crate) fn on_exit(context: &RawTracePointContext) -> i32 {
    let thread = Bpf.thread();
    // Also of a process not known yet: it may end inside its first call.
    let calls = Bpf::drop_in_flight(thread);
    let inside_ioctl = rm::drop_in_flight(thread);
    if !Bpf::is_known(thread.tgid) {
        return 0;
    }
    drop_notes(thread.tid);
    let task: *const u8 = context.arg(0);
    let signal = field::<*const u8>(task, TASK_SIGNAL_OFFSET.load());
    // do_exit() lowers signal->live before it reaches this tracepoint, so 0 means that no thread is left to run.
    let live = signal.and_then(|signal| field::<i32>(signal, SIGNAL_LIVE_OFFSET.load()));
    if live == Some(0) {
        let closed = Bpf::close_allocation_map(thread.tgid);
        report(context, ProcessEvent::Exit, thread.tgid, 0, closed);
        Bpf::forget(thread.tgid);
        forget_tensors(thread);
        return 0;
    }
    let goes_on = !signal.is_some_and(loses_all_memory);
    if inside_ioctl && goes_on {
        Bpf.lose(thread.tgid, Loss::RmRecordLost);
    }
    if let Some(inside_call) = calls {
        if inside_call && goes_on {
            Bpf.lose(thread.tgid, Loss::ThreadEndedInCall);
        }
        send(ProcessEvent::ThreadEnd, thread.tgid, thread.tid, 0, 0);
    }
    0
}

/// Where things lie in a process is another matter in its next image, and in the next process of its number.
#[inline(always)]
fn forget_tensors(thread: Thread) {
    drop_notes(thread.tid);
    python::forget(thread.tgid);
    statistics::forget(thread.tgid);
    tensor::forget(thread.tgid);
    native::forget(thread.tgid);
}

/// `cgroup_attach_task(group, path, task, threadgroup)`, in whoever moves the task: user space looks where it is now.
#[inline(always)]
pub(crate) fn on_move(context: &RawTracePointContext) -> i32 {
    let task: *const u8 = context.arg(2);
    if let Some(tgid) = field::<u32>(task, TASK_TGID_OFFSET.load()).filter(|tgid| Bpf::is_known(*tgid)) {
        emit(&ProcessRecord { tgid, ..blank(ProcessEvent::Move) });
    }
    0
}

/// Whether all threads of this process are being ended, by a signal or by an exec: what one of them was doing is of no account.
#[inline(always)]
fn loses_all_memory(signal: *const u8) -> bool {
    let exiting = field::<u32>(signal, SIGNAL_FLAGS_OFFSET.load()).is_some_and(|flags| flags & SIGNAL_GROUP_EXIT != 0);
    exiting || field::<*const u8>(signal, SIGNAL_EXEC_OFFSET.load()).is_some_and(|task| !task.is_null())
}

#[inline(always)]
fn field<T: Copy>(base: *const u8, offset: u32) -> Option<T> {
    // SAFETY: the helper checks the kernel address itself and fails on a bad one.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<T>()) }.ok()
}

/// When a process started, by its first thread.
#[inline(always)]
fn start_ns(task: *const u8) -> u64 {
    leader(task).and_then(|leader| field::<u64>(leader, TASK_START_OFFSET.load())).unwrap_or(0)
}

/// A process's name: that of its first thread.
#[inline(always)]
fn comm(task: *const u8) -> [u8; COMM_BYTES] {
    leader(task)
        .and_then(|leader| field::<[u8; COMM_BYTES]>(leader, TASK_COMM_OFFSET.load()))
        .unwrap_or([0; COMM_BYTES])
}

#[inline(always)]
fn leader(task: *const u8) -> Option<*const u8> {
    field::<*const u8>(task, TASK_LEADER_OFFSET.load())
}

/// The `struct file` behind a descriptor of the running process, as a number.
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

/// A call with a return probe that the running thread is inside of: the kernel has put an address of its own in the place of the return address.
#[derive(Clone, Copy)]
pub(crate) struct ProbedReturn {
    /// Where on the stack.
    pub(crate) stack: u64,
    /// The return address.
    pub(crate) address: u64,
    next: *const u8,
}

impl ProbedReturn {
    /// Of the innermost such call.
    #[inline(always)]
    pub(crate) fn innermost() -> Option<Self> {
        if TASK_UPROBES_OFFSET.load() == 0 {
            return None;
        }
        let uprobes = field::<*const u8>(current(), TASK_UPROBES_OFFSET.load()).filter(|found| !found.is_null())?;
        Self::at(field(uprobes, UPROBES_RETURNS_OFFSET.load())?)
    }

    /// Of the one that it is inside of.
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

/// The running thread's thread pointer; `None` where the kernel does not report.
#[inline(always)]
pub(crate) fn thread_pointer() -> Option<u64> {
    let offset_bytes = Some(TASK_POINTER_OFFSET.load()).filter(|offset_bytes| *offset_bytes != 0)?;
    field::<u64>(current(), offset_bytes).filter(|pointer| *pointer != 0)
}

/// The running task.
#[inline(always)]
fn current() -> *const u8 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_current_task() as *const u8 }
}

/// Informs user space that the running process is about to report its first call.
#[inline(always)]
pub(crate) fn announce(tgid: u32) {
    send(ProcessEvent::FirstCall, tgid, 0, start_ns(current()), 0);
}

#[inline(always)]
fn report(context: &RawTracePointContext, event: ProcessEvent, tgid: u32, parent_tgid: u32, life: u32) {
    debug!(context, "process event {} of {}", event as u8, tgid);
    // A new task's leader is itself only once it runs: a fork has no start to report: its first call has one.
    let start_ns = if parent_tgid == 0 { start_ns(current()) } else { 0 };
    send(event, tgid, parent_tgid, start_ns, life);
}

#[inline(always)]
fn send(event: ProcessEvent, tgid: u32, parent_tgid: u32, start_ns: u64, life: u32) {
    emit(&ProcessRecord {
        tgid,
        parent_tgid,
        life,
        // SAFETY: the helper has no preconditions.
        cgroup_id: unsafe { bpf_get_current_cgroup_id() },
        start_ns,
        comm: comm(current()),
        uid: user(),
        ..blank(event)
    });
}

/// The real user id of the running process.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "two 32-bit numbers in one word: the upper half is the group")]
fn user() -> u32 {
    bpf_get_current_uid_gid() as u32
}

#[inline(always)]
fn blank(event: ProcessEvent) -> ProcessRecord {
    ProcessRecord {
        kind: RecordKind::Process as u8,
        event: event as u8,
        reserved: 0,
        tgid: 0,
        parent_tgid: 0,
        life: 0,
        time_ns: Bpf.now_ns(),
        cgroup_id: 0,
        start_ns: 0,
        comm: [0; COMM_BYTES],
        uid: 0,
        unused: 0,
    }
}

#[inline(always)]
fn emit(record: &ProcessRecord) {
    // Nobody waits for the end of a thread; where a process was moved to can be read later as well.
    let urgent = record.event != ProcessEvent::ThreadEnd as u8 && record.event != ProcessEvent::Move as u8;
    if !Bpf::output(record, urgent) {
        Bpf.lose(record.tgid, Loss::RingFull);
    }
}
