//! Compares memwatch's report with the simulator's ledger.

use crate::ledger::{Balance, DeviceEntry, Ledger};
use crate::report::{ReportLine, ReportedGpu};
use crate::{RunningWatch, SimulatedGpu, SimulatedWorkload};

/// Numbers that must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// All numbers.
    Exact,
    /// All numbers that come from calls. NVML's numbers are ignored: they are read only once a
    /// second.
    CallsOnly,
    /// All numbers except peaks. While threads free and allocate concurrently, a reported peak may
    /// exceed the true one by the frees in flight.
    ExceptPeaks,
    /// All numbers that come from calls, except peaks.
    CallsExceptPeaks,
}

impl Agreement {
    const fn has_readings(self) -> bool {
        matches!(self, Self::Exact | Self::ExceptPeaks)
    }

    const fn has_peaks(self) -> bool {
        matches!(self, Self::Exact | Self::CallsOnly)
    }

    /// Excludes peaks, for threads that free and allocate concurrently.
    #[must_use]
    pub const fn except_peaks(self) -> Self {
        if self.has_readings() { Self::ExceptPeaks } else { Self::CallsExceptPeaks }
    }
}

/// Waits for a report made after everything the workload has done, and compares it with the
/// simulator's ledger.
///
/// # Panics
/// When a number differs or a record was lost.
pub fn assert_agrees(
    gpu: &SimulatedGpu,
    watch: &mut RunningWatch,
    workload: &SimulatedWorkload,
    agreement: Agreement,
) -> ReportLine {
    assert_all_agree(gpu, watch, &[workload], agreement)
}

/// Compares several idle workloads with the ledger, all in the same report.
///
/// # Panics
/// When a number of a workload differs or a record was lost.
pub fn assert_all_agree(
    gpu: &SimulatedGpu,
    watch: &mut RunningWatch,
    workloads: &[&SimulatedWorkload],
    agreement: Agreement,
) -> ReportLine {
    let report = if agreement.has_readings() { watch.settled() } else { watch.next_fresh() };
    let ledger = gpu.ledger();
    for workload in workloads {
        compare(&ledger, &report, workload.tgid(), agreement);
    }
    report
}

fn compare(ledger: &Ledger, report: &ReportLine, tgid: u32, agreement: Agreement) {
    let is_whole = report.is_complete() || report.lacks_only_libraries_of_others(tgid);
    assert!(is_whole, "records were lost: {report:#?}");
    compare_process(ledger, report, tgid, agreement);
}

/// Compares one process with the ledger, even if records of other processes were lost. `report`
/// must be made after everything that the workload has done.
///
/// # Panics
/// When a number differs or the process is not exact.
pub fn assert_process_agrees(
    gpu: &SimulatedGpu,
    report: &ReportLine,
    workload: &SimulatedWorkload,
    agreement: Agreement,
) {
    compare_process(&gpu.ledger(), report, workload.tgid(), agreement);
}

fn compare_process(ledger: &Ledger, report: &ReportLine, tgid: u32, agreement: Agreement) {
    let entry = ledger.process(tgid).expect("the workload is in the simulator's ledger");
    let process = report.process(tgid).unwrap_or_else(|| panic!("not reported: {report:#?}"));
    assert!(process.is_exact(), "records were lost: {report:#?}");
    for (index, device) in entry.devices.iter().enumerate() {
        let uuid = ledger.uuid(index).expect("the device is in the ledger");
        match process.on(&uuid) {
            Some(on_gpu) => compare_device(on_gpu, device, entry.suspended, (agreement, report)),
            // A context without memory shows only in NVML's list, which is read once a second.
            None if !agreement.has_readings() => {
                assert_eq!(device.owned_live_bytes, 0, "nothing is reported on {uuid}: {report:#?}");
            }
            None => assert_eq!(device.used_bytes, 0, "nothing is reported on {uuid}: {report:#?}"),
        }
    }
    let host = [
        ("pinned_live_bytes", entry.pinned_host_bytes),
        ("registered_live_bytes", entry.registered_host_bytes),
        ("physical_live_bytes", entry.physical_host_bytes),
    ];
    for (field, expected) in host {
        assert_eq!(process.host(field), expected, "{field} in {report:#?}");
    }
}

/// Compares pool memory: where memwatch calls it exact, it must equal the ledger's; an estimate
/// must be at least what is used.
fn compare_pools(on_gpu: ReportedGpu<'_>, device: &DeviceEntry, report: &ReportLine) {
    let pool = &on_gpu.0["kinds"]["pool"];
    let Some(backed) = pool["backed_bytes"].as_u64() else { return };
    if pool["backed_estimated"] == false {
        assert_eq!(backed, device.pool_backed.live_bytes, "backed: {report:#?}");
    } else {
        assert!(backed >= device.pool_used.live_bytes, "backed: {report:#?}");
    }
}

fn compare_device(
    on_gpu: ReportedGpu<'_>,
    device: &DeviceEntry,
    suspended: bool,
    (agreement, report): (Agreement, &ReportLine),
) {
    let live = if suspended { 0 } else { device.owned_live_bytes };
    assert_eq!(on_gpu.number("driver_allocated_bytes"), live, "live: {report:#?}");
    let checkpointed = suspended.then_some(device.owned_live_bytes);
    assert_eq!(on_gpu.0["checkpointed_bytes"].as_u64(), checkpointed, "checkpointed: {report:#?}");
    // NVML lists a process while the process has a context that was not moved off the device.
    let used = (device.contexts > 0 && !suspended).then_some(device.used_bytes);
    if agreement.has_readings() {
        assert_eq!(on_gpu.0["used_bytes"].as_u64(), used, "used: {report:#?}");
    }
    compare_pools(on_gpu, device, report);
    let kinds: [(&str, &Balance); 6] = [
        ("device", &device.device),
        ("pool", &device.pool_used),
        ("physical", &device.physical),
        ("managed", &device.managed),
        ("array", &device.array),
        ("graph", &device.graph),
    ];
    for (kind, balance) in kinds {
        assert_eq!(on_gpu.kind(kind, "driver_allocated_bytes"), balance.live_bytes, "{kind} live: {report:#?}");
        if agreement.has_peaks() {
            assert_eq!(on_gpu.kind(kind, "peak_bytes"), balance.peak_live_bytes, "{kind} peak: {report:#?}");
        }
    }
    if agreement.has_peaks() {
        assert_eq!(on_gpu.number("peak_bytes"), device.peak_owned_bytes, "peak: {report:#?}");
    }
}
