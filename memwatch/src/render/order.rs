//! Order of the displayed processes.

use std::cmp::Reverse;

use memwatch_core::snapshot::{ProcessView, Snapshot};

/// Returns processes by used memory, largest first. Processes that have ended come last.
pub(crate) fn by_holding(snapshot: &Snapshot) -> Vec<&ProcessView> {
    let mut processes: Vec<_> = snapshot.processes.iter().collect();
    processes.sort_by_key(|process| (process.ended_ns.is_some(), Reverse(largest(process)), process.tgid));
    processes
}

/// Returns a process's largest memory on one GPU: the maximum of NVML's number and its own driver
/// allocations.
fn largest(process: &ProcessView) -> u64 {
    process.gpus.iter().map(|gpu| gpu.used_bytes.unwrap_or(0).max(gpu.confirmed_live_bytes())).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::busy_node;

    #[test]
    fn the_largest_holder_comes_first_and_the_ended_last() {
        let mut snapshot = busy_node();
        snapshot.processes.reverse();
        let tgids: Vec<_> = by_holding(&snapshot).iter().map(|process| process.tgid.0).collect();
        assert_eq!(tgids, [1234, 2002, 4321]);
    }
}
