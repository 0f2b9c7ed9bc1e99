//! Measures one program on one version of PyTorch: recorded once, then run with each setting.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::settings::{AllocatorSetting, RecordedPeaks, SETTINGS};
use super::{MOST_OFF, SimulationProgram};
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::run::line;
use crate::torch::TorchEnv;

const MIB: u64 = 1 << 20;
/// Memory of each simulated device.
const TOTAL_MIB: u64 = 16_384;
/// Time limit in seconds, above the longest run: a rank would wait forever for one that exited.
const TIMEOUT: &str = "120";
/// Two ranks under one parent.
const RANKS: &str = "RANK=0 \"$@\" & RANK=1 \"$@\" & wait";

/// A real and a simulated peak, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PeakCell {
    pub(super) real_bytes: u64,
    pub(super) simulated_bytes: u64,
    /// Whether the program ran out of memory, in the real run and in the simulation.
    pub(super) is_out_of_memory: (bool, bool),
}

impl PeakCell {
    /// Returns the deviation, in percent.
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    pub(super) fn off(&self) -> f64 {
        100.0 * self.real_bytes.abs_diff(self.simulated_bytes) as f64 / self.real_bytes.max(1) as f64
    }
}

/// A row: one device of a program.
#[derive(Debug)]
pub(super) struct SimulationRow {
    pub(super) title: String,
    pub(super) version: String,
    /// Cells by setting; `None` if the version does not support it.
    pub(super) cells: Vec<Option<PeakCell>>,
}

impl SimulationRow {
    /// Returns the cells with too large a deviation.
    pub(super) fn off(&self) -> Vec<String> {
        let cells = SETTINGS.iter().zip(&self.cells).filter_map(|(setting, cell)| Some((setting, cell.as_ref()?)));
        let is_wrong = |cell: &PeakCell| cell.off() > MOST_OFF || cell.is_out_of_memory.0 != cell.is_out_of_memory.1;
        let reported = |(setting, cell): (&AllocatorSetting, &PeakCell)| {
            is_wrong(cell).then(|| format!("{} on {}, {}: {cell:?}", self.title, self.version, setting.title))
        };
        cells.filter_map(reported).collect()
    }
}

/// Final numbers of a device in a run.
#[derive(Clone, Copy, Debug, Default)]
struct CheckpointNumbers {
    reserved_bytes: u64,
    allocated_bytes: u64,
    is_out_of_memory: bool,
}

/// Environment of a program.
struct Setup<'a> {
    repo: &'a Repo,
    program: &'a SimulationProgram,
    torch: TorchEnv,
    simulator: PathBuf,
    folder: PathBuf,
}

/// Measures one program on one version; returns a row for each of its devices.
pub(super) fn program(repo: &Repo, program: &SimulationProgram, version: &str) -> Result<Vec<SimulationRow>> {
    let name =
        format!("memwatch-simulations-{}-{}-{version}", std::process::id(), program.title.replace([' ', ','], "-"));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (torch, simulator) =
        (integration::torch_environment(repo, version)?, integration::simulator(repo, Prologue::Cmp));
    let setup = Setup { repo, program, torch, simulator, folder };
    let measured = setup.measure().with_context(|| format!("{} on {version}", program.title));
    drop(std::fs::remove_dir_all(&setup.folder));
    measured
}

impl Setup<'_> {
    fn measure(&self) -> Result<Vec<SimulationRow>> {
        let recorded = self.run("", None, true)?;
        let most = |of: fn(&CheckpointNumbers) -> u64| recorded.values().map(of).max().unwrap_or(0);
        let taken = RecordedPeaks {
            allocated_bytes: most(|stated| stated.allocated_bytes),
            reserved_bytes: most(|stated| stated.reserved_bytes),
        };
        let mut rows: BTreeMap<u64, Vec<Option<PeakCell>>> =
            recorded.keys().map(|device| (*device, Vec::new())).collect();
        for (index, setting) in SETTINGS.iter().enumerate() {
            let is_known = setting.only.is_empty() || setting.only == self.torch.version;
            let cells = if index == 0 {
                Some(self.compare(setting, &recorded, taken)?)
            } else if is_known {
                Some(self.compare(setting, &self.run_with(setting, taken)?, taken)?)
            } else {
                None
            };
            for (device, row) in &mut rows {
                row.push(cells.as_ref().and_then(|cells| cells.get(device)).copied());
            }
        }
        let is_alone = rows.len() == 1;
        let row = |(device, cells): (u64, Vec<Option<PeakCell>>)| SimulationRow {
            title: if is_alone { self.program.title.to_owned() } else { format!("{}: {device}", self.program.title) },
            version: self.torch.version.clone(),
            cells,
        };
        Ok(rows.into_iter().map(row).collect())
    }

    fn run_with(&self, setting: &AllocatorSetting, taken: RecordedPeaks) -> Result<BTreeMap<u64, CheckpointNumbers>> {
        let fraction = setting.fraction(taken, TOTAL_MIB * MIB);
        self.run(setting.conf, fraction.as_deref(), false)
    }

    /// Runs the program to its end, and returns its numbers for each device.
    fn run(&self, conf: &str, fraction: Option<&str>, is_recorded: bool) -> Result<BTreeMap<u64, CheckpointNumbers>> {
        let (ledger, store) = (self.folder.join("ledger"), self.folder.join("store"));
        drop(std::fs::remove_file(&ledger));
        drop(std::fs::remove_file(&store));
        let python = self.torch.command(&self.simulator.join("lib"), &ledger);
        let mut command = Command::new("timeout");
        command.arg(TIMEOUT);
        if is_recorded {
            command.arg(self.repo.memwatch(BuildProfile::Release)).arg("--nvml-lib");
            command.arg(self.simulator.join("lib/libnvidia-ml.so.1")).args(["run", "--force", "-o"]);
            command.arg(self.recording()).arg("--");
        }
        if self.program.is_ranked {
            command.args(["sh", "-c", RANKS, "sh"]);
        }
        let (script, words) = self.program.words.split_first().context("a program has a script")?;
        command.arg(python.get_program()).arg(self.repo.path("tests/workloads").join(script)).args(words);
        command.envs(python.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("GPUSIM_TOTAL_MB", TOTAL_MIB.to_string()).env("PYTORCH_CUDA_ALLOC_CONF", conf);
        if self.program.is_ranked {
            command.env("GPUSIM_DEVICES", "2").arg("--store").arg(&store);
        }
        if let Some(fraction) = fraction {
            command.args(["--fraction", fraction]);
        }
        let output = command.output().with_context(|| format!("cannot start {}", line(&command)))?;
        let stated = stated(&String::from_utf8_lossy(&output.stdout));
        let has_ended = output.status.success() || stated.values().any(|stated| stated.is_out_of_memory);
        ensure!(has_ended && !stated.is_empty(), "{}\n{}", line(&command), String::from_utf8_lossy(&output.stderr));
        Ok(stated)
    }

    fn recording(&self) -> PathBuf {
        self.folder.join("job.mwr")
    }

    /// Simulates a setting, and compares with the real numbers, by device.
    fn compare(
        &self,
        setting: &AllocatorSetting,
        stated: &BTreeMap<u64, CheckpointNumbers>,
        taken: RecordedPeaks,
    ) -> Result<BTreeMap<u64, PeakCell>> {
        let typed = setting.simulated(setting.fraction(taken, TOTAL_MIB * MIB).as_deref());
        let simulated = simulate(&self.repo.memwatch(BuildProfile::Release), &self.recording(), &typed)?;
        let devices = simulated["data"]["devices"].as_array().context("a list of devices")?;
        let cell = |device: &Value| {
            let number = device["device"].as_u64()?;
            // The first policy is PyTorch's default, the last is the given setting.
            let policy = device["policies"].as_array()?.last()?;
            let stated = stated.get(&number)?;
            let is_out_of_memory = (stated.is_out_of_memory, !policy["failure"].is_null());
            let cell = PeakCell {
                real_bytes: stated.reserved_bytes,
                simulated_bytes: policy["peak_reserved_bytes"].as_u64()?,
                is_out_of_memory,
            };
            eprintln!(
                "{} {} {device} {typed:?}: {cell:?}, {:.2} % off, {} retries, {} calls",
                self.program.title,
                self.torch.version,
                cell.off(),
                policy["retries"],
                policy["driver_allocations"],
                device = number,
            );
            Some((number, cell))
        };
        let cells: BTreeMap<u64, PeakCell> = devices.iter().filter_map(cell).collect();
        ensure!(cells.len() == stated.len(), "of {} devices, {} were simulated", stated.len(), cells.len());
        Ok(cells)
    }
}

/// Returns the last checkpoint's numbers of each device.
fn stated(output: &str) -> BTreeMap<u64, CheckpointNumbers> {
    let mut all: BTreeMap<u64, CheckpointNumbers> = BTreeMap::new();
    for checkpoint in output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        for device in checkpoint["devices"].as_array().into_iter().flatten() {
            let Some(number) = device["device"].as_u64() else { continue };
            let bytes = |field: &str| device[field].as_u64().unwrap_or(0);
            let stated = all.entry(number).or_default();
            stated.reserved_bytes = stated.reserved_bytes.max(bytes("max_memory_reserved"));
            stated.allocated_bytes = stated.allocated_bytes.max(bytes("max_memory_allocated"));
            stated.is_out_of_memory |= checkpoint["label"] == "out of memory";
        }
    }
    all
}

/// Returns the report of `memwatch simulate` on a recording.
fn simulate(memwatch: &Path, recording: &Path, setting: &str) -> Result<Value> {
    let mut command = Command::new(memwatch);
    command.args(["simulate", "--json", "--in"]).arg(recording).args(["-s", setting]);
    let output = command.output().with_context(|| format!("cannot start {}", line(&command)))?;
    ensure!(output.status.success(), "{}: {}", line(&command), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).with_context(|| format!("no report: {}", line(&command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulation_run_output_gives_the_peak_of_each_device() {
        let output = "noise\n\
            {\"label\":\"step 1\",\"devices\":[{\"device\":0,\"max_memory_reserved\":8,\"max_memory_allocated\":3}]}\n\
            {\"label\":\"out of memory\",\"devices\":[{\"device\":1,\"max_memory_reserved\":9,\"max_memory_allocated\":4}]}\n";
        let stated = stated(output);
        assert_eq!((stated[&0].reserved_bytes, stated[&0].is_out_of_memory), (8, false));
        assert_eq!((stated[&1].reserved_bytes, stated[&1].allocated_bytes, stated[&1].is_out_of_memory), (9, 4, true));
    }

    #[test]
    fn simulation_row_is_wrong_if_only_one_side_runs_out_of_memory() {
        let cell = PeakCell { real_bytes: 1000, simulated_bytes: 1005, is_out_of_memory: (false, false) };
        let off =
            |cell| SimulationRow { title: "x".into(), version: "2.15.0".into(), cells: vec![Some(cell)] }.off().len();
        assert_eq!(off(cell), 0);
        assert_eq!(off(PeakCell { simulated_bytes: 1011, ..cell }), 1);
        assert_eq!(off(PeakCell { is_out_of_memory: (true, false), ..cell }), 1);
    }
}
