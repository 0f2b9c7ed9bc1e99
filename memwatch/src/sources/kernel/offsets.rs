//! Offsets of members of the running kernel's structs.

use super::btf::{Btf, BtfError};

/// Returns the offsets that the kernel half needs, in bytes, by the names of its globals.
pub(super) fn offsets(btf: &Btf<'_>) -> Result<Vec<(&'static str, u32)>, BtfError> {
    let of = |structure, member| btf.member_offset_bytes(structure, member);
    let hidden = probed_returns(btf).ok();
    Ok(vec![
        ("TASK_TGID_OFFSET", of("task_struct", "tgid")?),
        ("TASK_SIGNAL_OFFSET", of("task_struct", "signal")?),
        ("SIGNAL_LIVE_OFFSET", of("signal_struct", "live")?),
        ("SIGNAL_FLAGS_OFFSET", of("signal_struct", "flags")?),
        // Linux before 5.17 calls it group_exit_task.
        (
            "SIGNAL_EXEC_OFFSET",
            of("signal_struct", "group_exec_task").or_else(|_| of("signal_struct", "group_exit_task"))?,
        ),
        ("TASK_LEADER_OFFSET", of("task_struct", "group_leader")?),
        // Linux before 5.5 calls it real_start_time.
        ("TASK_START_OFFSET", of("task_struct", "start_boottime").or_else(|_| of("task_struct", "real_start_time"))?),
        ("TASK_COMM_OFFSET", of("task_struct", "comm")?),
        ("TASK_FILES_OFFSET", of("task_struct", "files")?),
        ("FILES_TABLE_OFFSET", of("files_struct", "fdt")?),
        ("TABLE_SIZE_OFFSET", of("fdtable", "max_fds")?),
        ("TABLE_FILES_OFFSET", of("fdtable", "fd")?),
        // Without these members, native stacks end at the return address of a probed function.
        ("TASK_UPROBES_OFFSET", hidden.map_or(0, |offsets| offsets[0])),
        ("UPROBES_RETURNS_OFFSET", hidden.map_or(0, |offsets| offsets[1])),
        ("RETURN_STACK_OFFSET", hidden.map_or(0, |offsets| offsets[2])),
        ("RETURN_ADDRESS_OFFSET", hidden.map_or(0, |offsets| offsets[3])),
        ("RETURN_NEXT_OFFSET", hidden.map_or(0, |offsets| offsets[4])),
        // Without this member there are no Python stacks; everything else works.
        (
            "TASK_POINTER_OFFSET",
            of("thread_struct", THREAD_POINTER).map_or(Ok(0), |within| Ok(of("task_struct", "thread")? + within))?,
        ),
    ])
}

/// Returns the offsets of the members that lead to the return addresses replaced by return probes.
fn probed_returns(btf: &Btf<'_>) -> Result<[u32; 5], BtfError> {
    let of = |structure, member| btf.member_offset_bytes(structure, member);
    Ok([
        of("task_struct", "utask")?,
        of("uprobe_task", "return_instances")?,
        of("return_instance", "stack")?,
        of("return_instance", "orig_ret_vaddr")?,
        of("return_instance", "next")?,
    ])
}

/// Member of the kernel's `thread_struct` that holds the thread pointer. On 64-bit Arm it is the first member.
const THREAD_POINTER: &str = if cfg!(target_arch = "aarch64") { "uw" } else { "fsbase" };
