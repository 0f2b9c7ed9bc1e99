use std::collections::BTreeMap;
use std::num::NonZeroU64;

use memwatch_core::input::{KernelCalls, LibraryCoverage};

use super::library::{FunctionReport, LibraryReport, MissingFunction};
use super::nvml::GpuReport;
use super::privilege::tests::{root, user};
use super::{
    Barrier, Budget, Check, CheckState, Diagnosis, DoctorOptions, Exit, Libraries, NvmlReport, Tgid, Topic, Traces,
    believe_trial, examine, nvml, permission, prices,
};
use crate::sources::kernel::exports::SkipReason;

const RELEASE: &str = "6.18.0";

fn function(symbol: &'static str, offset_bytes: u64) -> FunctionReport {
    FunctionReport {
        symbol,
        offset_bytes,
        instruction: "je".to_owned(),
        reason: "moved past 1 instruction".to_owned(),
        single_stepped: Some(false),
    }
}

/// Returns the report on a driver library without problems.
pub(crate) fn library() -> LibraryReport {
    LibraryReport {
        coverage: LibraryCoverage {
            path: "/usr/lib/libcuda.so.1".to_owned(),
            build_id: Some("abcd".to_owned()),
            probes_attached: 2,
            probes_moved: 2,
            probes_refused: Vec::new(),
            newer_functions: vec!["cuCtxCreate_v4".to_owned()],
            in_use: true,
            error: None,
            gap_ns: None,
            kernel_calls: Some(KernelCalls::Probed { stubs: 1 }),
        },
        deleted: false,
        tgids: vec![7, 9],
        functions: vec![function("cuMemAlloc_v2", 10), function("cuMemFree_v2", 10)],
        missing: vec![MissingFunction { symbol: "cuCtxCreate_v4", since: "12.5" }],
        unknown_exports: Vec::new(),
        left_out_exports: BTreeMap::from([(SkipReason::Reads, 7), (SkipReason::Legacy, 2)]),
    }
}

/// Returns the diagnosis for root on a machine with one GPU.
pub(crate) fn healthy() -> Diagnosis {
    let gpu = GpuReport {
        nvml_index: 0,
        mig: None,
        uuid: "GPU-1".to_owned(),
        name: "B200".to_owned(),
        total_bytes: Some(1 << 30),
        used_bytes: Some(0),
        processes: Some(2),
    };
    let nvml = Ok(NvmlReport { driver_version: Some("595.45".to_owned()), nvml_version: None, gpus: vec![gpu] });
    let libraries = Libraries { files: vec![library()], processes: 50, ..Libraries::default() };
    let mut checks = vec![Check::new(Topic::Kernel, "kernel", CheckState::Ok, "Linux 6.18.0")];
    checks.extend(permission::checks(&root()));
    checks.extend([nvml::judge_driver(Some("NVIDIA 595.45.04"), Traces::Found), libraries.judge(true, &root())]);
    checks.extend(libraries.checks(&root(), false));
    checks.extend(nvml::checks(&nvml, Some("595.45.04")));
    let program = "/usr/bin/memwatch".to_owned();
    let release = RELEASE.to_owned();
    Diagnosis { release, program, checks, mechanism: Some("uprobe_multi"), libraries, nvml, prices: None }
}

/// Returns the diagnosis for an unprivileged user on a machine whose NVML does not answer.
pub(crate) fn broken() -> Diagnosis {
    let nvml = Err("no NVIDIA driver is loaded".to_owned());
    let mut checks = permission::checks(&user());
    checks.extend(nvml::checks(&nvml, None));
    Diagnosis { checks, mechanism: None, nvml, ..healthy() }
}

/// Returns a healthy diagnosis with three selected processes: a hot one, a calm one, and one
/// without PyTorch.
pub(crate) fn priced(measured: Result<NonZeroU64, String>) -> Diagnosis {
    let named = |tgid, rate| (Tgid(tgid), "python3".to_owned(), rate);
    let reason = "PyTorch with CUDA is not loaded: there are no tensors to trace".to_owned();
    let counted = [named(7, Ok(120_000)), named(9, Ok(0)), named(11, Err(reason))];
    let prices = prices::report(Budget::default(), measured, counted.into_iter());
    Diagnosis { prices: Some(prices), ..healthy() }
}

#[test]
fn limits_do_not_stop_watching_and_barriers_do() {
    assert_eq!(healthy().exit(), Exit::Ok);
    assert_eq!(broken().exit(), Exit::NotPermitted);
    let mut both = broken();
    both.checks.push(nvml::judge_driver(None, Traces::None));
    assert_eq!(both.exit(), Exit::Unsupported);
    assert!(both.summary().starts_with("not ready: this machine cannot (driver). Next: run memwatch on the machine"));
}

#[test]
fn a_driver_without_a_job_is_ready_with_nothing_to_watch() {
    let mut diagnosis = healthy();
    diagnosis.libraries.files.clear();
    assert_eq!(diagnosis.exit(), Exit::Ok);
    assert_eq!(diagnosis.summary(), "ready, but there is no libcuda: nothing to watch yet");
}

#[test]
fn doctor_trial_success_overrides_a_failed_machine_check() {
    let missing = CheckState::Missing(Barrier::Machine);
    let mut old = Check::new(Topic::Kernel, "kernel", missing, "Linux 5.14.0-503.el9 is older than 5.15");
    believe_trial(&mut old);
    assert_eq!(old.state, CheckState::Degraded);
    assert!(old.fact.ends_with("; yet the trial run worked"));
    let mut foreign = Check::new(Topic::Permission, permission::PID_NAMESPACE, missing, "a container's");
    believe_trial(&mut foreign);
    assert_eq!(foreign.state, missing);
}

#[test]
fn doctor_examines_any_machine_without_failing() {
    let options = DoctorOptions {
        nvml_library: Some("/dev/null".into()),
        libraries: vec!["/no/such/libcuda.so".into(), "/etc/passwd".into()],
        ..DoctorOptions::default()
    };
    let diagnosis = examine(&options);
    for id in [
        "kernel",
        "architecture",
        "btf",
        "lockdown",
        "user",
        "cap_bpf",
        "kernel_half",
        "test_call",
        "framework_programs",
        "driver",
        "libcuda",
        "nvml",
    ] {
        assert_eq!(diagnosis.checks.iter().filter(|check| check.id == id).count(), 1, "{id}");
    }
    assert!(diagnosis.nvml.expect_err("/dev/null is no NVML").contains("/dev/null"));
    let left_out: Vec<_> = diagnosis.libraries.left_out.iter().map(|left_out| left_out.display.as_str()).collect();
    assert!(left_out.contains(&"/no/such/libcuda.so") && left_out.contains(&"/etc/passwd"));
}

#[test]
fn doctor_missing_checks_always_have_a_fix() {
    let options = DoctorOptions::default();
    for check in examine(&options).checks.iter().chain(&broken().checks) {
        assert!(check.state.barrier().is_none() || !check.fixes.is_empty(), "{check:?}");
    }
}
