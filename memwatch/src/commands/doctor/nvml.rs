//! Checks of the NVIDIA kernel module and of NVML, and what memwatch can do without them.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use memwatch_core::input::{DeviceReading, MigFacts, NvmlState, place};
use memwatch_core::kernel_driver;
use serde::Serialize;

use super::check::{Barrier, Check, CheckState, Topic, count};
use crate::backends::cuda::nvml::processes::{Lists, version};
use crate::backends::cuda::nvml::{DRIVER_VERSION, open, read};
use crate::render::format::bytes;

/// A driver in trouble can block NVML forever, but a diagnosis must end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answers of NVML.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NvmlReport {
    /// Version of the driver.
    pub(crate) driver_version: Option<String>,
    /// Version of the NVML library.
    pub(crate) nvml_version: Option<String>,
    /// The GPUs and MIG instances.
    pub(crate) gpus: Vec<GpuReport>,
}

/// A GPU or MIG instance.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GpuReport {
    /// NVML's index; for a MIG instance, the index of its GPU.
    pub(crate) nvml_index: u32,
    /// The instance's place in its GPU, if it is a MIG instance.
    pub(crate) mig: Option<MigFacts>,
    /// UUID.
    pub(crate) uuid: String,
    /// Marketing name.
    pub(crate) name: String,
    /// Total memory in bytes, if NVML reports it.
    pub(crate) total_bytes: Option<u64>,
    /// Memory in use in bytes, if NVML reports it.
    pub(crate) used_bytes: Option<u64>,
    /// Number of processes with memory on the device; `None` if NVML gives no list.
    pub(crate) processes: Option<usize>,
}

/// Reads the version text of the driver, if its kernel module is loaded.
pub(crate) fn driver_version() -> Option<String> {
    std::fs::read_to_string(DRIVER_VERSION).ok()
}

/// Queries NVML once, on a separate thread that is left behind if it does not answer.
///
/// # Errors
/// Why there is no answer, in a sentence.
pub(crate) fn ask(library: Option<PathBuf>) -> Result<NvmlReport, String> {
    let (sender, receiver) = mpsc::channel();
    let answer = move || {
        // The receiver may have given up.
        let _ = sender.send(ask_here(library.as_deref()));
    };
    std::thread::Builder::new()
        .name("nvml".to_owned())
        .spawn(answer)
        .map_err(|error| format!("cannot start the NVML thread: {error}"))?;
    receiver
        .recv_timeout(TIMEOUT)
        .unwrap_or_else(|_| Err(format!("NVML has not answered for {} s: the driver may hang", TIMEOUT.as_secs())))
}

fn ask_here(library: Option<&Path>) -> Result<NvmlReport, String> {
    let nvml = open(library)?;
    let DeviceReading { state, devices, begin_ns: _, end_ns: _ } = read(&nvml);
    if let NvmlState::Unavailable(reason) = state {
        return Err(reason);
    }
    let gpu = |device: memwatch_core::input::DeviceFacts| GpuReport {
        nvml_index: device.nvml_index,
        mig: device.mig,
        uuid: device.uuid.to_string(),
        name: device.name,
        total_bytes: device.total_bytes,
        used_bytes: device.used_bytes,
        processes: device.processes.map(|processes| processes.len()),
    };
    Ok(NvmlReport {
        driver_version: nvml.sys_driver_version().ok(),
        nvml_version: nvml.sys_nvml_version().ok(),
        gpus: devices.into_iter().map(gpu).collect(),
    })
}

/// Traces of a driver without a loaded kernel module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traces {
    /// A libcuda, or an NVML that answers.
    Found,
    /// None, but some processes could not be examined.
    Unknown,
    /// None at all.
    None,
}

/// Checks whether the kernel module is loaded.
pub(crate) fn judge_driver(version: Option<&str>, traces: Traces) -> Check {
    let check = |state, fact: String| Check::new(Topic::Driver, "driver", state, fact);
    match (version, traces) {
        (Some(text), _) => {
            let number = number(text);
            let mut check =
                check(CheckState::Ok, number.map_or_else(|| "loaded".to_owned(), |number| format!("{number} is loaded")));
            check.details.push(layouts(number));
            check
        }
        (None, Traces::Found) => {
            check(CheckState::Degraded, format!("no NVIDIA kernel driver is loaded: there is no {DRIVER_VERSION}"))
                .fix("sudo modprobe nvidia")
        }
        (None, Traces::Unknown) => {
            check(CheckState::Degraded, "no NVIDIA driver in sight, but not every process could be looked at".to_owned())
        }
        (None, Traces::None) => check(CheckState::Missing(Barrier::Machine), "no NVIDIA driver here, and no libcuda".to_owned())
            .fix("run memwatch on the machine that has the GPU, with NVIDIA's driver installed and loaded (nvidia-smi shows it)")
            .fix("name a driver library: memwatch doctor --libcuda /path/to/libcuda.so.1"),
    }
}

/// Describes whether the request layouts of this kernel driver version are known.
fn layouts(version: Option<&str>) -> String {
    let understood = "request layouts are known: memwatch explain can attribute used memory";
    if version.is_some_and(kernel_driver::knows) {
        understood.to_owned()
    } else {
        "request layouts are unknown: memwatch explain cannot attribute memory with this driver".to_owned()
    }
}

/// Returns the checks of NVML's answer.
pub(crate) fn checks(answer: &Result<NvmlReport, String>, driver: Option<&str>) -> Vec<Check> {
    match answer {
        Ok(report) => vec![judge_answer(report), judge_lists(report)],
        Err(reason) => vec![
            judge_silence(reason, driver.is_some()),
            Check::new(Topic::Nvml, "nvml_processes", CheckState::NotChecked, "needs NVML"),
        ],
    }
}

/// NVML does not answer. Without the kernel module no NVML works, except a given library that does
/// not need the module.
fn judge_silence(reason: &str, driver: bool) -> Check {
    let fact =
        format!("{reason}. Allocations are traced without it; used bytes of GPUs and pre-existing memory are unknown");
    let check = Check::new(Topic::Nvml, "nvml", CheckState::Degraded, fact);
    let check = if driver {
        check.fix("install the libnvidia-ml.so.1 that belongs to the driver (nvidia-smi works once it is there)")
    } else {
        check.fix("sudo modprobe nvidia")
    };
    check.fix("name another: memwatch doctor --nvml-lib /path/to/libnvidia-ml.so.1")
}

fn judge_answer(report: &NvmlReport) -> Check {
    let versions = [("NVML", &report.nvml_version), ("driver", &report.driver_version)];
    let versions =
        versions.iter().filter_map(|(what, version)| version.as_ref().map(|version| format!("{what} {version}, ")));
    let fact = format!("{}{}", versions.collect::<String>(), count(report.gpus.len(), "GPU"));
    let state = if report.gpus.is_empty() { CheckState::Degraded } else { CheckState::Ok };
    let mut check = Check::new(Topic::Nvml, "nvml", state, fact);
    check.details = report.gpus.iter().map(GpuReport::line).collect();
    check
}

fn judge_lists(report: &NvmlReport) -> Check {
    let check = |state, fact: String| Check::new(Topic::Nvml, "nvml_processes", state, fact);
    let without: Vec<String> =
        report.gpus.iter().filter(|gpu| gpu.processes.is_none()).map(GpuReport::number).collect();
    if report.gpus.is_empty() {
        check(CheckState::NotChecked, "no GPU to ask about".to_owned())
    } else if !without.is_empty() {
        check(
            CheckState::Degraded,
            format!("GPU {} gives no list of processes: used bytes are per GPU only", without.join(", ")),
        )
        .fix("nothing to change here: some virtual GPUs and WSL do not offer it")
    } else if Lists::of(report.driver_version.as_deref()) == Lists::Earlier {
        let fact = "used bytes per process on every GPU, by NVML's earlier call: this driver's present one is wrong";
        check(CheckState::Ok, fact.to_owned())
    } else {
        check(CheckState::Ok, "used bytes per process on every GPU".to_owned())
    }
}

impl GpuReport {
    fn line(&self) -> String {
        let total = self.total_bytes.map_or_else(String::new, |total| format!("{}, ", bytes(total)));
        let name: String = self.name.chars().filter(|character| !character.is_control()).collect();
        let processes = self.processes.map_or_else(String::new, |number| format!(", {}", count(number, "process")));
        format!("GPU {}: {name}, {total}{}{processes}", self.number(), self.uuid)
    }

    fn number(&self) -> String {
        place(self.nvml_index, self.mig.as_ref())
    }
}

/// Returns the version number in the driver's text: the first word of numbers and dots.
fn number(text: &str) -> Option<&str> {
    text.split_ascii_whitespace().find(|word| version(word).is_some())
}

#[cfg(test)]
mod tests {
    use super::{Barrier, CheckState, GpuReport, NvmlReport, Traces, checks, judge_driver, number};

    fn report(driver: &str, processes: Option<usize>) -> NvmlReport {
        let gpu = GpuReport {
            nvml_index: 0,
            mig: None,
            uuid: "GPU-1".to_owned(),
            name: "A\u{1b}[31mB".to_owned(),
            total_bytes: Some(25 << 28),
            used_bytes: None,
            processes,
        };
        NvmlReport { driver_version: Some(driver.to_owned()), nvml_version: None, gpus: vec![gpu] }
    }

    #[test]
    fn the_driver_is_named_by_its_version_in_both_flavours() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build\n";
        assert_eq!(number(closed), Some("535.104.05"));
        assert_eq!(number(open), Some("595.45.04"));
        assert_eq!(judge_driver(Some("?"), Traces::None).fact, "loaded");
    }

    #[test]
    fn doctor_unknown_kernel_driver_is_ok_and_named() {
        for (text, known) in [(open_module("595.45.04"), true), (open_module("600.10"), false), ("?".to_owned(), false)]
        {
            let check = judge_driver(Some(&text), Traces::None);
            let is_known = check.details.iter().any(|line| line.contains("layouts are known"));
            assert_eq!((check.state, is_known), (CheckState::Ok, known), "{text}");
        }
    }

    fn open_module(version: &str) -> String {
        format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n")
    }

    #[test]
    fn no_driver_is_only_missing_where_nothing_else_of_it_is_there() {
        assert_eq!(judge_driver(None, Traces::None).state, CheckState::Missing(Barrier::Machine));
        assert_eq!(judge_driver(None, Traces::Found).state, CheckState::Degraded);
        assert_eq!(judge_driver(None, Traces::Unknown).state, CheckState::Degraded);
    }

    #[test]
    fn without_nvml_watching_still_works() {
        let checks = checks(&Err("libnvidia-ml.so: not found".to_owned()), Some("595.45.04"));
        assert_eq!((checks[0].state, checks[1].state), (CheckState::Degraded, CheckState::NotChecked));
        assert!(checks[0].fact.contains("Allocations are traced without it"));
    }

    #[test]
    fn process_lists_are_judged_by_what_the_driver_gives() {
        let state = |driver, processes| checks(&Ok(report(driver, processes)), None)[1].state;
        assert_eq!(state("595.45.04", Some(0)), CheckState::Ok);
        assert_eq!(state("595.45.04", None), CheckState::Degraded);
        let fact = |driver| checks(&Ok(report(driver, Some(3))), None)[1].fact.clone();
        assert!(fact("535.86.10").contains("this driver's present one is wrong"));
        assert_eq!(fact("535.104.05"), "used bytes per process on every GPU");
        let none = NvmlReport { gpus: Vec::new(), ..report("595.45.04", None) };
        assert_eq!(checks(&Ok(none), None)[1].state, CheckState::NotChecked);
    }

    #[test]
    fn a_name_from_the_driver_cannot_command_the_terminal() {
        let checks = checks(&Ok(report("595.45.04", Some(1))), None);
        assert_eq!(checks[0].details, ["GPU 0: A[31mB, 6.25 GiB, GPU-1, 1 process"]);
    }
}
