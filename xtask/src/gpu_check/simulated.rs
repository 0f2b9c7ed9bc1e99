//! Runs the GPU check on the simulated GPU: exercises every question, and compares the simulator
//! with traces of a real GPU.

use super::{bundle, follow};
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::Repo;
use crate::setup;
use crate::setup::Package;
use crate::torch;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};

const TORCH: &str = "2.15.0";

/// Settings of the simulated GPU that match the measured machines: see docs/project/gpu-runs.
const AS_MEASURED: [(&str, &str); 2] = [("GPUSIM_CUBLAS_MEMORY", "1"), ("GPUSIM_FABRIC", "1")];

/// Version of the kernel driver that the simulator imitates.
const KERNEL_DRIVER: &str = "580.159.04\n";

/// Runs the whole check. Its reports stay below `target/`, separate from those of real GPUs.
pub(super) fn check(repo: &Repo, folder: &Path, words: &[String]) -> Result<ExitStatus> {
    run(repo, folder, TORCH, |command| {
        command.arg("--out").arg(repo.made("gpu-check/simulated")).args(words);
    })
}

/// Repeats the run of a trace and prints the differences.
pub(super) fn diff(repo: &Repo, folder: &Path, trace: &Path, words: &[String]) -> Result<ExitStatus> {
    let text = fs::read_to_string(trace).with_context(|| format!("cannot read {}", trace.display()))?;
    let total_mib = traced_total_mib(&text);
    let version = traced_torch(&text);
    let device = report_of(trace).map(|report| TracedDevice::of(&report)).unwrap_or_default();
    run(repo, folder, version, |command| {
        command.arg("--diff").arg(trace).args(words);
        let numbers = [
            ("GPUSIM_TOTAL_MB", total_mib),
            ("GPUSIM_RESERVED_MB", device.reserved_mib),
            ("GPUSIM_CONTEXT_MB", device.context_mib),
            ("GPUSIM_CONTEXT_DEVICE_KB", device.context_device_kib),
        ];
        command.envs(numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string()))));
    })
}

fn run(repo: &Repo, folder: &Path, torch: &str, add: impl FnOnce(&mut Command)) -> Result<ExitStatus> {
    if !setup::is_root() {
        bail!("the probes need root: run this task as root");
    }
    let driver = integration::build_simulator(repo, Prologue::Push)?;
    setup::packages(&[Package::PythonVenv])?;
    let environment = integration::torch_environment(repo, torch)?;
    let ledger = repo.made(&format!("gpu-check/ledger-{}", std::process::id()));
    let version = repo.made("gpu-check/kernel-driver-version");
    fs::write(&version, KERNEL_DRIVER).with_context(|| format!("cannot write {}", version.display()))?;
    let mut command = environment.command(&driver.join("lib"), &ledger);
    command.arg(folder.join(bundle::PROGRAM)).arg("--simulated").envs(AS_MEASURED);
    command.env("MEMWATCH_DRIVER_VERSION_FILE", version);
    add(&mut command);
    let ended = follow(&mut command);
    if ledger.exists() {
        fs::remove_file(&ledger).with_context(|| format!("cannot remove {}", ledger.display()))?;
    }
    ended
}

/// Returns the traced device's memory, so that the simulated one runs out of memory at the same
/// point.
fn traced_total_mib(trace: &str) -> Option<u64> {
    let total = trace.lines().find_map(|line| line.strip_prefix("# gpu_total_bytes: "))?;
    total.trim().parse::<u64>().ok().map(|bytes| bytes >> 20)
}

/// Returns the traced PyTorch version if there is an environment with it, else the default version.
fn traced_torch(trace: &str) -> &'static str {
    let traced = trace.lines().find_map(|line| line.strip_prefix("# torch: "));
    let is_traced = |version: &&&str| traced.is_some_and(|traced| traced.starts_with(**version));
    torch::VERSIONS.iter().find(is_traced).copied().unwrap_or(TORCH)
}

/// Returns the report of the run that a trace is from, if it is next to the trace's directory.
fn report_of(trace: &Path) -> Option<Value> {
    let folder = trace.parent()?;
    let run = folder.file_name()?.to_str()?.strip_suffix("-traces")?;
    let text = fs::read_to_string(folder.with_file_name(format!("{run}.json"))).ok()?;
    serde_json::from_str(&text).ok()
}

/// Memory numbers of the device in a report; `None` if the report lacks one.
#[derive(Debug, Default, PartialEq, Eq)]
struct TracedDevice {
    /// Memory that no program can allocate.
    reserved_mib: Option<u64>,
    /// Memory of a context, charged to its process.
    context_mib: Option<u64>,
    /// Memory of a context that is not charged to its process.
    context_device_kib: Option<u64>,
}

impl TracedDevice {
    fn of(report: &Value) -> Self {
        let step = |name: &str| {
            let mut steps = report["steps"].as_array().into_iter().flatten();
            steps.find(|step| step["name"] == name).map(|step| &step["evidence"])
        };
        let reserved = step("nvml_versions").and_then(|evidence| evidence["v2"]["reserved_bytes"].as_u64());
        let rows = step("context").and_then(|evidence| evidence["bare"].as_array());
        let bytes = |after: &str, field: &str| {
            rows?.iter().find(|row| row["after"] == after).and_then(|row| row[field].as_u64())
        };
        let with_context = |field| bytes("cuDevicePrimaryCtxRetain", field);
        let process = with_context("nvml_process_bytes");
        let device = with_context("nvml_device_bytes").zip(bytes("cuInit", "nvml_device_bytes"));
        let device = device.and_then(|(after, before)| after.checked_sub(before));
        Self {
            reserved_mib: reserved.map(|bytes| bytes >> 20),
            context_mib: process.map(|bytes| bytes >> 20),
            context_device_kib: device.zip(process).and_then(|(device, own)| Some(device.checked_sub(own)? >> 10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_compared_with_its_own_pytorch_where_that_can_be_had() {
        assert_eq!(traced_torch("# gpu: X\n# torch: 2.8.0+cu128 CUDA 12.8\n"), "2.8.0");
        assert_eq!(traced_torch("# torch: 1.0.0 CUDA 9.0\n"), TORCH);
    }

    #[test]
    fn simulated_device_takes_its_own_memory_from_the_gpu_report() {
        let run = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs/project/gpu-runs/2026-11-22-nvidia-h100-80gb-hbm3-580.159.04");
        let trace = Path::new(&format!("{}-traces", run.display())).join("oom-native.tsv");
        let device = TracedDevice::of(&report_of(&trace).expect("it lies beside the traces"));
        let wanted = TracedDevice { reserved_mib: Some(480), context_mib: Some(518), context_device_kib: Some(5696) };
        assert_eq!(device, wanted);
        assert_eq!(TracedDevice::of(&Value::Null), TracedDevice::default());
        assert_eq!(report_of(Path::new("elsewhere/oom-native.tsv")), None);
    }

    #[test]
    fn the_simulated_device_is_as_large_as_the_traced_one() {
        let trace = "# gpu: X\n# gpu_total_bytes: 85520809984\nsymbol\tstatus\n";
        assert_eq!(traced_total_mib(trace), Some(81559));
        assert_eq!(traced_total_mib("# gpu_total_bytes: None\n"), None);
    }
}
