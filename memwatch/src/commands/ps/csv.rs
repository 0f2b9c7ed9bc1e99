//! CSV output of `memwatch ps --format csv`: one row per process and GPU, in bytes (RFC 4180,
//! UTF-8); unknown values are empty.

use memwatch_core::snapshot::{ProcessGpuView, ProcessView, Snapshot};

use crate::export::csv::quoted;
use crate::render::text::columns::{TableSelection, frameworks};
use crate::render::{owners, sentences};

const COLUMNS: [&str; 17] = [
    "pid",
    "user",
    "workload",
    "framework",
    "gpu",
    "gpu_uuid",
    "used_bytes",
    "driver_allocated_bytes",
    "peak_bytes",
    "preexisting_bytes",
    "unattributed_bytes",
    "allocations",
    "frees",
    "failed_allocations",
    "allocations_per_second",
    "ended",
    "command",
];

/// Renders the table.
pub(super) fn write(snapshot: &Snapshot, shown: &TableSelection) -> String {
    let mut text = COLUMNS.join(",") + "\r\n";
    for process in shown.sorted(snapshot) {
        let gpus: Vec<Option<&ProcessGpuView>> = match &process.gpus[..] {
            [] => vec![None],
            gpus => gpus.iter().map(Some).collect(),
        };
        for gpu in gpus {
            text.push_str(&row(snapshot, process, gpu).join(","));
            text.push_str("\r\n");
        }
    }
    text
}

fn row(snapshot: &Snapshot, process: &ProcessView, gpu: Option<&ProcessGpuView>) -> [String; COLUMNS.len()] {
    let number = |of: fn(&ProcessGpuView) -> Option<u64>| gpu.and_then(of).map_or_else(String::new, |n| n.to_string());
    let uuid = gpu.and_then(|gpu| gpu.uuid.as_ref());
    [
        process.tgid.0.to_string(),
        process.user.as_deref().map_or_else(String::new, quoted),
        owners::workload(&process.owner).map_or_else(String::new, |text| quoted(&text)),
        frameworks(process).map_or_else(String::new, |text| quoted(&text)),
        uuid.map_or_else(String::new, |uuid| sentences::gpu_number(snapshot, Some(uuid))),
        uuid.map_or_else(String::new, |uuid| uuid.as_str().to_owned()),
        number(|gpu| gpu.used_bytes),
        number(|gpu| Some(gpu.live_bytes)),
        number(|gpu| Some(gpu.peak_bytes)),
        number(|gpu| gpu.preexisting_bytes),
        gpu.and_then(|gpu| gpu.unattributed_bytes).map_or_else(String::new, |bytes| bytes.to_string()),
        number(|gpu| Some(gpu.allocations)),
        number(|gpu| Some(gpu.frees)),
        number(|gpu| Some(gpu.failed_allocations)),
        process.allocations_per_second.map_or_else(String::new, |rate| rate.to_string()),
        process.ended_ns.is_some().to_string(),
        quoted(&sentences::command(process)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::busy_node;

    #[test]
    fn ps_csv_has_a_row_per_process_and_gpu_with_unknown_cells_empty() {
        let text = write(&busy_node(), &TableSelection::default());
        let lines: Vec<_> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[1].starts_with("1234,\"alice\",,,0,GPU-8f3c2a10"), "{text}");
        assert!(lines[1].contains(&format!(",{},", 44_u64 << 30)), "{text}");
        assert!(lines[4].starts_with("4321,,,,1,") && lines[4].contains(",,0,"), "{text}");
        assert!(lines[1].ends_with(",false,\"python3 train.py --model llama-8b\""), "{text}");
    }
}
