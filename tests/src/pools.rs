//! Compares memwatch's reports on the pools of RAPIDS and CuPy with the pools' own counts.

use serde_json::Value;

use crate::gpu::SimulatedGpu;
use crate::report::ReportLine;
use crate::torch_job::{TorchAllocator, TorchJob};

/// A library with the names and the layout of a package's: its source in `tests/workloads`, and its
/// file name.
pub type PoolLibrary = (&'static str, &'static str);
/// RAPIDS' memory manager.
pub const RMM: PoolLibrary = ("rmm_pools.cpp", "librmm.so");
/// CuPy.
pub const CUPY: PoolLibrary = ("cupy_pools.cpp", "cupy/cuda/memory.cpython-fixture.so");

/// Fields that both memwatch and a pool report.
const FIELDS: [&str; 6] = ["kind", "bytes_in_use", "peak_bytes_in_use", "num_allocs", "known_blocks", "pool_bytes"];

/// Starts `pools.py` with a library and this argument. Ignores the test if PyTorch's Python or
/// a compiler is missing.
pub fn job(gpu: &SimulatedGpu, (source, name): PoolLibrary, what: &str) -> TorchJob {
    let library = gpu.compiled_library(source, name).display().to_string();
    let command = gpu.torch_command("2.15", TorchAllocator::Native, &["pools.py", &library, what]);
    TorchJob::start(command)
}

/// Returns these fields of each pool as one string, sorted.
pub fn rows(pools: &Value, fields: &[&str]) -> Vec<String> {
    let row = |pool: &Value| fields.iter().map(|field| pool[field].to_string()).collect::<Vec<_>>().join(" ");
    let mut rows: Vec<String> = pools.as_array().into_iter().flatten().map(row).collect();
    rows.sort();
    rows
}

/// Returns the pools of a process in a report of the machine or of `memwatch stats`, or null if no
/// pool is watched.
pub fn pools(report: &ReportLine, tgid: u32) -> Value {
    let process = report.process(tgid).map_or(Value::Null, |process| process.0.clone());
    let whole = if process["tensor"].is_null() { &process["pools"] } else { &process["tensor"]["pools"] };
    whole["pools"].clone()
}

/// Returns whether memwatch's numbers are exact and equal the pools' own counts.
pub fn agree(found: &Value, checkpoint: &Value) -> bool {
    let all = || found.as_array().into_iter().flatten();
    let divided: u64 = all().filter_map(|pool| pool["divided_bytes"].as_u64()).sum();
    rows(found, &FIELDS) == rows(&checkpoint["pools"], &FIELDS)
        && all().all(|pool| pool["exact"] == true && pool["device"] == 0)
        && divided == checkpoint["divided"].as_u64().unwrap_or(0)
}
