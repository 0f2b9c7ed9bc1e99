//! Consistency checks: each report is checked before it is printed, and a report that contradicts
//! itself says so.

mod counts;

use serde::{Deserialize, Serialize};

use crate::features::balance::BalanceView;
use crate::features::causes::{Cause, CauseKind};
use crate::features::holdings::view::{DeviceHoldingsView, HoldingsView};
use crate::features::leak::view::LeaksView;
use crate::features::oom::view::OomView;
use crate::snapshot::{DeviceAttributionView, PREEXISTING, Snapshot};
use crate::words::Tgid;

pub use counts::ContradictionCounts;

/// Growth of the total that must have a growing part: more than 1 / `SEEN_PART` of the first reading,
/// and more than `SEEN_BYTES` bytes.
const SEEN_PART: u64 = 4;
const SEEN_BYTES: u64 = 64 << 20;
/// Number of readings that is enough for a verdict.
const ENOUGH: u64 = 11;

/// Kind of contradiction between two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContradictionKind {
    /// The rows and the remainder do not add up to the total.
    PartsAndTotal,
    /// A total grows, and none of its parts does.
    GrowthWithoutPart,
    /// Memory that existed before the session grows.
    OlderGrows,
    /// A report claims to be complete although records were lost.
    CompleteAndLost,
    /// At least as many bytes were free as the failed request wanted, and no reason is known.
    FreeAndRefused,
    /// One report has a failure that another one lacks.
    FailureInOne,
    /// A smaller batch is recommended beside growth that ends in a failure with any batch.
    SmallerBatchBesideLeak,
}

impl ContradictionKind {
    /// All kinds, in order.
    pub const ALL: [Self; 7] = [
        Self::PartsAndTotal,
        Self::GrowthWithoutPart,
        Self::OlderGrows,
        Self::CompleteAndLost,
        Self::FreeAndRefused,
        Self::FailureInOne,
        Self::SmallerBatchBesideLeak,
    ];

    /// Returns the name of the kind in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PartsAndTotal => "parts_and_total",
            Self::GrowthWithoutPart => "growth_without_part",
            Self::OlderGrows => "older_grows",
            Self::CompleteAndLost => "complete_and_lost",
            Self::FreeAndRefused => "free_and_refused",
            Self::FailureInOne => "failure_in_one",
            Self::SmallerBatchBesideLeak => "smaller_batch_beside_leak",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// Kinds that [`of_snapshot`] finds.
pub const OF_SNAPSHOT: [ContradictionKind; 2] = [ContradictionKind::PartsAndTotal, ContradictionKind::CompleteAndLost];
/// Kinds that [`of_leaks`] finds.
pub const OF_LEAKS: [ContradictionKind; 2] = [ContradictionKind::GrowthWithoutPart, ContradictionKind::OlderGrows];

/// A contradiction in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportContradiction {
    /// Kind of contradiction.
    pub kind: ContradictionKind,
    /// The process; `None` for the whole machine.
    pub tgid: Option<Tgid>,
    /// The two numbers that do not agree: bytes or counts.
    pub numbers: [i128; 2],
}

fn found(kind: ContradictionKind, tgid: Option<Tgid>, numbers: [i128; 2]) -> ReportContradiction {
    ReportContradiction { kind, tgid, numbers }
}

/// Returns the contradictions in a snapshot.
pub fn of_snapshot(snapshot: &Snapshot) -> Vec<ReportContradiction> {
    let mut all = Vec::new();
    let lost = snapshot.losses.values().sum::<u64>();
    if snapshot.complete && lost > 0 {
        all.push(found(ContradictionKind::CompleteAndLost, None, [1, i128::from(lost)]));
    }
    for process in &snapshot.processes {
        let lost = process.losses.values().sum::<u64>();
        if process.exact && lost > 0 {
            all.push(found(ContradictionKind::CompleteAndLost, Some(process.tgid), [1, i128::from(lost)]));
        }
        let devices = process.tensors.iter().flat_map(|tensors| &tensors.attribution.devices);
        let of = |(rows, total)| found(ContradictionKind::PartsAndTotal, Some(process.tgid), [rows, total]);
        all.extend(devices.filter_map(parts).map(of));
    }
    all
}

/// Returns the sum of the call sites with the unplaced bytes, and the total of the allocator, if
/// they differ.
fn parts(device: &DeviceAttributionView) -> Option<(i128, i128)> {
    let lines: i128 = device.sites.iter().map(|site| i128::from(site.sum.live_bytes)).sum();
    let (rows, total) = (lines + i128::from(device.unplaced_bytes), i128::from(device.allocated_bytes));
    // The snapshot may leave the lists out.
    (!device.sites.is_empty() && rows != total).then_some((rows, total))
}

/// Returns the contradictions in a leak report.
pub fn of_leaks(leaks: &LeaksView) -> Vec<ReportContradiction> {
    let mut all = Vec::new();
    let is_older = |kind: Option<&str>| kind == Some(PREEXISTING);
    for finding in leaks.findings.iter().filter(|finding| finding.verdict.grows() && is_older(finding.kind.as_deref()))
    {
        let numbers = [i128::from(finding.first_bytes), i128::from(finding.last_bytes)];
        all.push(found(ContradictionKind::OlderGrows, Some(leaks.tgid), numbers));
    }
    let readings = leaks.readings.as_ref().filter(|readings| readings.count >= ENOUGH && readings.standing == 0);
    let ends = readings.and_then(|readings| readings.first_bytes.zip(readings.last_bytes));
    // Memory that has grown and levelled off is a part that grew.
    let has_part = leaks.findings.iter().any(|finding| finding.last_bytes > finding.first_bytes);
    if let Some((first, last)) = ends
        && last.saturating_sub(first) > SEEN_BYTES.max(first / SEEN_PART)
        && !has_part
        && leaks.undecided.is_empty()
        && leaks.too_short == 0
    {
        let numbers = [i128::from(first), i128::from(last)];
        all.push(found(ContradictionKind::GrowthWithoutPart, Some(leaks.tgid), numbers));
    }
    all
}

/// Returns the contradictions in a list of live objects: all sums cover the same blocks, and no
/// device has more allocated than reserved bytes.
pub fn of_holdings(view: &HoldingsView) -> Vec<ReportContradiction> {
    let sum = |parts: &mut dyn Iterator<Item = u64>| parts.map(i128::from).sum::<i128>();
    let total = i128::from(view.allocated_bytes);
    let classes = sum(&mut view.classes.iter().map(|class| class.bytes));
    let devices = sum(&mut view.devices.iter().map(|device| device.allocated_bytes));
    let groups = sum(&mut view.groups.iter().map(|group| group.bytes));
    let groups = if view.more_groups > 0 { total } else { groups };
    // If the process runs during the reading, the two numbers are of different moments.
    let at_rest = |device: &&DeviceHoldingsView| device.changing_bytes.is_none() && device.later_bytes.is_none();
    let beyond = view.devices.iter().filter(at_rest).filter(|device| device.allocated_bytes > device.reserved_bytes);
    let beyond = beyond.map(|device| [i128::from(device.allocated_bytes), i128::from(device.reserved_bytes)]);
    let differing = [classes, devices, groups].into_iter().filter(|part| *part != total).map(|part| [part, total]);
    differing.chain(beyond).map(|numbers| found(ContradictionKind::PartsAndTotal, Some(view.tgid), numbers)).collect()
}

/// Returns the contradiction in a balance sheet whose rows do not add up to the charge.
pub fn of_balance(view: &BalanceView) -> Option<ReportContradiction> {
    let rows: i128 = view.roles.iter().map(|row| i128::from(row.bytes)).sum();
    let total = view.used_bytes.map(i128::from).filter(|total| *total != rows)?;
    Some(found(ContradictionKind::PartsAndTotal, Some(view.tgid), [rows, total]))
}

/// Returns the contradictions between failures and what is reported beside them.
pub fn of_failures(failures: &[OomView], causes: &[Cause], snapshot: &Snapshot) -> Vec<ReportContradiction> {
    let mut all = Vec::new();
    for failure in failures {
        let own: Vec<&Cause> = causes.iter().filter(|cause| cause.tgid == failure.tgid).collect();
        if let Some(free) = free_bytes(failure).filter(|free| *free >= failure.wanted_bytes)
            && own.is_empty()
            && failure.refused.is_empty()
            && failure.snapshot.complete
        {
            let numbers = [i128::from(free), i128::from(failure.wanted_bytes)];
            all.push(found(ContradictionKind::FreeAndRefused, Some(failure.tgid), numbers));
        }
        let grows = own.iter().find(|cause| cause.bytes_per_minute.is_some());
        let shrinks = own.iter().find(|cause| cause.kind == CauseKind::Activations);
        if let (Some(grows), Some(shrinks)) = (grows, shrinks) {
            let numbers = [i128::from(grows.bytes), i128::from(shrinks.bytes)];
            all.push(found(ContradictionKind::SmallerBatchBesideLeak, Some(failure.tgid), numbers));
        }
    }
    for process in &snapshot.processes {
        let refused = process.tensors.as_ref().map_or(0, |tensors| tensors.attribution.refusals.len());
        if refused > 0 && !failures.iter().any(|failure| failure.tgid == process.tgid) {
            let numbers = [0, i128::try_from(refused).unwrap_or(i128::MAX)];
            all.push(found(ContradictionKind::FailureInOne, Some(process.tgid), numbers));
        }
    }
    all
}

/// Returns the GPU's free bytes in the driver's reading next to a failure.
fn free_bytes(failure: &OomView) -> Option<u64> {
    let gpu = failure.snapshot.gpus.iter().find(|gpu| failure.uuid.as_ref() == Some(&gpu.uuid))?;
    // An older reading does not show that moment.
    (failure.time_ns.abs_diff(gpu.sampled_ns) < 100_000_000)
        .then(|| gpu.total_bytes.zip(gpu.used_bytes))?
        .map(|(total, used)| total.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::causes::Confidence;
    use crate::features::holdings::view;
    use crate::features::holdings::view::HoldingGrouping;
    use crate::features::leak::model::Verdict;
    use crate::features::leak::view::{LeakView, ReadingsView};
    use crate::features::oom::fixture::{self, GIB, failure, sum};
    use crate::features::trend::Trend;
    use crate::input::holdings::{Holding, Holdings};
    use crate::snapshot::{RefusalView, SiteView};
    use crate::words::Ordinal;

    fn cause(kind: CauseKind, bytes_per_minute: Option<f64>) -> Cause {
        Cause {
            kind,
            tgid: Tgid(7),
            bytes: GIB,
            bytes_per_minute,
            count: None,
            subject: None,
            line: None,
            wanted_bytes: None,
            kv_cache: None,
            period_ns: None,
            confidence: Confidence::Shown,
        }
    }

    fn site(live_bytes: u64) -> SiteView {
        SiteView {
            kind: "line".into(),
            file: Some("train.py".to_owned()),
            line: Some(12),
            function: None,
            held: None,
            library_lines: Vec::new(),
            sum: sum(live_bytes, live_bytes),
        }
    }

    fn leaks(level: &str, kind: Option<&'static str>, verdict: Verdict) -> LeaksView {
        let trend = Trend { first_bytes: 1 << 20, last_bytes: 900 << 20, ..Trend::default() };
        let finding = LeakView { kind: kind.map(Into::into), ..LeakView::of(level, verdict, &trend) };
        LeaksView { findings: vec![finding], ..LeaksView::default() }
    }

    fn kinds(all: &[ReportContradiction]) -> Vec<ContradictionKind> {
        all.iter().map(|one| one.kind).collect()
    }

    #[test]
    fn check_reports_growth_of_preexisting_memory() {
        let older = |verdict| of_leaks(&leaks("tensor", Some(PREEXISTING), verdict));
        assert_eq!(kinds(&older(Verdict::Leak)), [ContradictionKind::OlderGrows]);
        assert_eq!(older(Verdict::LevelledOff), []);
        assert_eq!(of_leaks(&leaks("tensor", Some("line"), Verdict::Leak)), []);
    }

    #[test]
    fn sums_of_a_reading_are_of_the_same_blocks() {
        let of = |allocated_bytes, reserved_bytes, changing_bytes| {
            let (ordinal, later_bytes) = (Ordinal(0), None);
            let device = DeviceHoldingsView { ordinal, allocated_bytes, reserved_bytes, changing_bytes, later_bytes };
            let read = Holdings { tgid: Tgid(7), rows: vec![Holding::unknown(ordinal, 0, 9)], ..Holdings::default() };
            kinds(&of_holdings(&HoldingsView { devices: vec![device], ..view(&read, &[], HoldingGrouping::Name, 9) }))
        };
        assert_eq!(of(9, 20, None), []);
        assert_eq!(of(8, 20, None), [ContradictionKind::PartsAndTotal]);
        assert_eq!(of(9, 8, None), [ContradictionKind::PartsAndTotal], "more than it has of the driver");
        assert_eq!(of(9, 8, Some(1)), [], "it was read while the program went on");
    }

    #[test]
    fn rows_of_a_process_are_its_total_with_what_has_no_line() {
        let of = |line: u64, unplaced: i64, total: u64| {
            let mut failed = failure(GIB).in_phases(0, &[]);
            let process = failed.snapshot.processes.iter_mut().find(|process| process.tgid == Tgid(7));
            let device =
                &mut process.and_then(|process| process.tensors.as_mut()).expect("it has PyTorch").attribution.devices
                    [0];
            (device.allocated_bytes, device.unplaced_bytes) = (total, unplaced);
            device.sites.extend((line > 0).then(|| site(line)));
            of_snapshot(&failed.snapshot)
        };
        assert_eq!(of(600, 30, 630), []);
        let wrong = of(600, 0, 630);
        assert_eq!((kinds(&wrong), wrong[0].numbers), (vec![ContradictionKind::PartsAndTotal], [600, 630]));
        assert_eq!(of(600, -30, 570), [], "frees were lost");
        assert_eq!(of(0, 0, 630), [], "its lines were not asked for");
    }

    #[test]
    fn check_reports_complete_snapshots_with_losses() {
        let of = |complete, exact, lost| {
            let mut snapshot = fixture::snapshot();
            snapshot.complete = complete;
            snapshot.losses.insert("ring_full".into(), lost);
            snapshot.processes[0].exact = exact;
            snapshot.processes[0].losses.insert("ring_full".into(), lost);
            kinds(&of_snapshot(&snapshot))
        };
        assert_eq!(of(true, true, 0), []);
        assert_eq!(of(false, false, 5), []);
        assert_eq!(of(true, false, 5), [ContradictionKind::CompleteAndLost]);
        assert_eq!(of(false, true, 5), [ContradictionKind::CompleteAndLost]);
    }

    #[test]
    fn check_reports_refusals_with_enough_free_memory_and_no_cause() {
        let of = |failed: OomView, causes: &[Cause]| {
            let failed = OomView { tgid: Tgid(7), ..failed };
            kinds(&of_failures(std::slice::from_ref(&failed), causes, &failed.snapshot))
        };
        let cause = cause(CauseKind::OwnLimit, None);
        // 8 of 80 GiB are free.
        assert_eq!(of(failure(GIB), &[]), [ContradictionKind::FreeAndRefused]);
        assert_eq!(of(failure(GIB), std::slice::from_ref(&cause)), []);
        assert_eq!(of(failure(9 * GIB), &[]), []);
        let mut lossy = failure(GIB);
        lossy.snapshot.complete = false;
        assert_eq!(of(lossy, &[]), []);
    }

    #[test]
    fn a_failure_that_the_allocator_reports_is_in_every_report() {
        let mut failed = failure(9 * GIB).in_phases(0, &[]);
        let uuid = failed.uuid.clone();
        let process = failed.snapshot.processes.iter_mut().find(|process| process.tgid == Tgid(7));
        let refusal =
            RefusalView { device: 0, wanted_bytes: 9 * GIB, time_ns: 1, whose: fixture::whose("forward", "a.py:1") };
        process
            .and_then(|process| process.tensors.as_mut())
            .expect("it has PyTorch")
            .attribution
            .refusals
            .push(refusal);
        let of = |failures: &[OomView]| kinds(&of_failures(failures, &[], &failed.snapshot));
        assert_eq!(of(&[]), [ContradictionKind::FailureInOne]);
        assert_eq!(of(&[OomView { uuid, ..failure(9 * GIB) }]), []);
    }

    #[test]
    fn check_reports_smaller_batch_advice_beside_unbounded_growth() {
        let failed = failure(9 * GIB);
        let of = |causes: &[Cause]| kinds(&of_failures(std::slice::from_ref(&failed), causes, &failed.snapshot));
        let activations = cause(CauseKind::Activations, None);
        assert_eq!(
            of(&[cause(CauseKind::Unbounded, Some(9e8)), activations.clone()]),
            [ContradictionKind::SmallerBatchBesideLeak]
        );
        assert_eq!(of(&[activations]), []);
    }

    #[test]
    fn each_kind_is_counted_under_a_name_of_its_own() {
        for (index, kind) in ContradictionKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(serde_json::to_string(&kind).expect("a word"), format!("{:?}", kind.name()));
        }
        let counted = OF_SNAPSHOT.into_iter().chain(OF_LEAKS).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(counted.len(), 4);
    }

    #[test]
    fn where_all_blocks_grow_some_name_does() {
        let of = |last: u64, findings: Vec<LeakView>| {
            let (first_bytes, last_bytes) = (Some(100 << 20), Some(last << 20));
            let readings = Some(ReadingsView { count: 20, first_bytes, last_bytes, ..ReadingsView::default() });
            kinds(&of_leaks(&LeaksView { readings, findings, ..LeaksView::default() }))
        };
        assert_eq!(of(541, Vec::new()), [ContradictionKind::GrowthWithoutPart]);
        assert_eq!(of(120, Vec::new()), []);
        assert_eq!(of(541, leaks("name", None, Verdict::Leak).findings), []);
    }
}
