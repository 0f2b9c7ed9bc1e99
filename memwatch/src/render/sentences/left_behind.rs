//! Memory that NVML charges to processes that have ended, and the processes that keep it.

use memwatch_core::snapshot::{GpuView, LeftBehindView, ProcessView, Snapshot};
use memwatch_core::words::Tgid;

use super::gpu_number;
use crate::render::format::bytes;

/// Returns for each GPU why NVML still charges a process that has ended.
pub(crate) fn remarks(snapshot: &Snapshot, process: &ProcessView) -> Vec<String> {
    let Some(left) = process.left_behind.as_deref() else { return Vec::new() };
    let was_seen = process.ended_ns.is_some_and(|ended_ns| ended_ns >= snapshot.attached_ns);
    let of = |(uuid, used_bytes)| sentence(used_bytes, &gpu_number(snapshot, Some(uuid)), (&left.forked, was_seen));
    left.gpus.iter().map(|own| of((&own.uuid, own.used_bytes))).collect()
}

/// `GPU 0  NVML still charges it 646.0 MiB: PID 453, which it forked, has its driver files
/// open and keeps this memory until it exits`.
///
/// `was_seen` is false if the process ended before the attach: its forks were not observed then.
pub(crate) fn sentence(used_bytes: u64, gpu: &str, (retainers, was_seen): (&[Tgid], bool)) -> String {
    let pids: Vec<_> = retainers.iter().map(|child| child.0.to_string()).collect();
    let who = match (pids.as_slice(), was_seen) {
        ([], _) => "a process that it forked".to_owned(),
        ([one], true) => format!("PID {one}, which it forked,"),
        ([one], false) => format!("PID {one}, which is charged nothing,"),
        (several, true) => format!("a process that it forked (one of PID {})", several.join(", ")),
        (several, false) => format!("one of PID {}, which are charged nothing,", several.join(", ")),
    };
    format!(
        "GPU {gpu}  NVML still charges it {}: {who} has its driver files open and keeps this memory until it exits",
        bytes(used_bytes)
    )
}

/// `11.51 GiB of it left by PID 19833, which has ended, and kept by PID 19853`: the part of a GPU's
/// used memory that ended processes left behind; `None` if there is none.
pub(crate) fn on_gpu(snapshot: &Snapshot, gpu: &GpuView) -> Option<String> {
    let of = |process: &ProcessView, left: &LeftBehindView| {
        let own = left.gpus.iter().find(|own| own.uuid == gpu.uuid)?;
        let pids: Vec<_> = left.forked.iter().map(|child| child.0.to_string()).collect();
        let by = if pids.is_empty() { String::new() } else { format!(", and kept by PID {}", pids.join(" or ")) };
        Some(format!("{} of it left by PID {}, which has ended{by}", bytes(own.used_bytes), process.tgid.0))
    };
    let all: Vec<_> =
        snapshot.processes.iter().filter_map(|process| of(process, process.left_behind.as_deref()?)).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn left_behind_sentence_names_the_processes_that_keep_the_memory() {
        let text = |retainers: &[u32], was_seen| {
            sentence(646 * MIB, "0", (&retainers.iter().copied().map(Tgid).collect::<Vec<_>>(), was_seen))
        };
        let forked = "GPU 0  NVML still charges it 646.0 MiB: PID 453, which it forked, has its driver files open and keeps this memory until it exits";
        assert_eq!(text(&[453], true), forked);
        assert!(text(&[453, 454], true).contains("a process that it forked (one of PID 453, 454) has"));
        assert!(text(&[453], false).contains(": PID 453, which is charged nothing, has its driver files open"));
        assert!(text(&[], true).contains(": a process that it forked has"));
    }
}
