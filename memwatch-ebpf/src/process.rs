//! Reports fork, exec, exit and control group moves of known processes.

use aya_ebpf::programs::RawTracePointContext;
use aya_log_ebpf::debug;
use memwatch_common::capture::{CaptureKernel, ThreadKey};
use memwatch_common::loss::Loss;
use memwatch_common::record::{ProcessEvent, ProcessRecord};

use crate::kernel::Bpf;
use crate::kernel::records::{blank, emit, send};
use crate::task::{
    SIGNAL_EXEC_OFFSET, SIGNAL_FLAGS_OFFSET, SIGNAL_LIVE_OFFSET, TASK_SIGNAL_OFFSET, TASK_TGID_OFFSET, current, field,
    start_ns,
};
use crate::threads::drop_notes;
use crate::{native, python, rm, statistics, tensor};

/// `SIGNAL_GROUP_EXIT` of include/linux/sched/signal.h: the whole process is ending.
const SIGNAL_GROUP_EXIT: u32 = 4;

/// `CLONE_THREAD` of include/uapi/linux/sched.h: the new task is a thread, not a process.
const CLONE_THREAD: u64 = 0x0001_0000;

/// Handles `task_newtask(task, clone_flags)`, in the parent. A target's child process is a target
/// from its first instruction.
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

/// Handles `sched_process_exec(task, old_tid, binprm)`, in the new program. The allocations of the
/// old program are freed.
#[inline(always)]
pub(crate) fn on_exec(context: &RawTracePointContext) -> i32 {
    let thread = Bpf.thread();
    // The thread that called exec takes the leader's tid. Calls in flight under its old tid do not
    // return.
    let old_tid: u32 = context.arg(1);
    for tid in [thread.tid, old_tid] {
        Bpf::drop_in_flight(ThreadKey { tid, ..thread });
        rm::drop_in_flight(ThreadKey { tid, ..thread });
    }
    if Bpf::is_known(thread.tgid) {
        forget_tensors(thread);
        drop_notes(old_tid);
        let closed = Bpf::close_allocation_map(thread.tgid);
        report(context, ProcessEvent::Exec, thread.tgid, 0, closed);
    }
    0
}

/// Handles `sched_process_exit(task, …)`, in each exiting thread. The process exits with its last
/// thread.
#[inline(always)]
pub(crate) fn on_exit(context: &RawTracePointContext) -> i32 {
    let thread = Bpf.thread();
    // Also for an unknown process, which may exit inside its first call.
    let calls = Bpf::drop_in_flight(thread);
    let inside_ioctl = rm::drop_in_flight(thread);
    if !Bpf::is_known(thread.tgid) {
        return 0;
    }
    drop_notes(thread.tid);
    let task: *const u8 = context.arg(0);
    let signal = field::<*const u8>(task, TASK_SIGNAL_OFFSET.load());
    // do_exit() decrements signal->live before this tracepoint, so 0 means that this is the last thread.
    let live = signal.and_then(|signal| field::<i32>(signal, SIGNAL_LIVE_OFFSET.load()));
    if live == Some(0) {
        statistics::report_end(thread.tgid, Bpf.now_ns());
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

/// Drops tracing state, which is invalid in the next program and in the next process with this
/// number.
#[inline(always)]
fn forget_tensors(thread: ThreadKey) {
    drop_notes(thread.tid);
    python::forget(thread.tgid);
    statistics::forget(thread.tgid);
    tensor::forget(thread.tgid);
    native::forget(thread.tgid);
}

/// Handles `cgroup_attach_task(group, path, task, threadgroup)`, in the process that moves the
/// task. User space reads the new group.
#[inline(always)]
pub(crate) fn on_move(context: &RawTracePointContext) -> i32 {
    let task: *const u8 = context.arg(2);
    if let Some(tgid) = field::<u32>(task, TASK_TGID_OFFSET.load()).filter(|tgid| Bpf::is_known(*tgid)) {
        emit(&ProcessRecord { tgid, ..blank(ProcessEvent::Move) });
    }
    0
}

/// Whether a signal or an exec is ending all threads of this process, so that calls in flight do
/// not matter.
#[inline(always)]
fn loses_all_memory(signal: *const u8) -> bool {
    let exiting = field::<u32>(signal, SIGNAL_FLAGS_OFFSET.load()).is_some_and(|flags| flags & SIGNAL_GROUP_EXIT != 0);
    exiting || field::<*const u8>(signal, SIGNAL_EXEC_OFFSET.load()).is_some_and(|task| !task.is_null())
}

#[inline(always)]
fn report(context: &RawTracePointContext, event: ProcessEvent, tgid: u32, parent_tgid: u32, life: u32) {
    debug!(context, "process event {} of {}", event as u8, tgid);
    // The group leader of a new task is set only once the task runs, so a fork reports no start
    // time; the first call does.
    let start_ns = if parent_tgid == 0 { start_ns(current()) } else { 0 };
    send(event, tgid, parent_tgid, start_ns, life);
}
