//! What no report may say together: each report is asked before it is printed, and what contradicts itself is reported as such.

use serde::{Deserialize, Serialize};

use crate::features::causes::{Cause, CauseKind};
use crate::features::leak::view::LeaksView;
use crate::features::oom::view::OomView;
use crate::snapshot::{DevicePlacesView, PREEXISTING, Snapshot};
use crate::words::Tgid;

/// Growth that somebody would see: this part of what there was, and so many bytes.
const SEEN_PART: u64 = 4;
const SEEN_BYTES: u64 = 64 << 20;
/// So many readings are enough for a verdict.
const ENOUGH: u64 = 11;

/// Two things that cannot both be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContradictionKind {
    /// Rows and what is in none of them are not the total.
    PartsAndTotal,
    /// A total grows, and none of its parts does.
    GrowthWithoutPart,
    /// What was there before the watch grows.
    OlderGrows,
    /// Everything is complete, and records were lost.
    CompleteAndLost,
    /// As much was free as was wanted, and no reason is known.
    FreeAndRefused,
    /// One report has a failure that another has not.
    FailureInOne,
    /// A smaller batch is recommended beside growth that ends in a failure with any.
    SmallerBatchBesideLeak,
}

/// A contradiction of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    /// What it is.
    pub kind: ContradictionKind,
    /// The process; `None` where it is of the machine.
    pub tgid: Option<Tgid>,
    /// The two numbers that do not agree: bytes, or numbers of things.
    pub numbers: [i128; 2],
}

fn found(kind: ContradictionKind, tgid: Option<Tgid>, numbers: [i128; 2]) -> Contradiction {
    Contradiction { kind, tgid, numbers }
}

/// What of a snapshot contradicts itself.
pub fn of_snapshot(snapshot: &Snapshot) -> Vec<Contradiction> {
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
        let devices = process.tensors.iter().flat_map(|tensors| &tensors.places.devices);
        let of = |(rows, total)| found(ContradictionKind::PartsAndTotal, Some(process.tgid), [rows, total]);
        all.extend(devices.filter_map(parts).map(of));
    }
    all
}

/// What lines have together with what has none, and what the allocator has, where these differ.
fn parts(device: &DevicePlacesView) -> Option<(i128, i128)> {
    let lines: i128 = device.sites.iter().map(|site| i128::from(site.sum.live_bytes)).sum();
    let (rows, total) = (lines + i128::from(device.unplaced_bytes), i128::from(device.allocated_bytes));
    // Lists may be left out.
    (!device.sites.is_empty() && rows != total).then_some((rows, total))
}

/// What of a report on growth contradicts itself.
pub fn of_leaks(leaks: &LeaksView) -> Vec<Contradiction> {
    let mut all = Vec::new();
    let is_older = |kind: Option<&str>| kind == Some(PREEXISTING);
    for finding in leaks.findings.iter().filter(|finding| finding.verdict.grows() && is_older(finding.kind.as_deref()))
    {
        let numbers = [i128::from(finding.first_bytes), i128::from(finding.last_bytes)];
        all.push(found(ContradictionKind::OlderGrows, Some(leaks.tgid), numbers));
    }
    let readings = leaks.readings.as_ref().filter(|readings| readings.count >= ENOUGH && readings.standing == 0);
    let ends = readings.and_then(|readings| readings.first_bytes.zip(readings.last_bytes));
    // What has grown and settled is a part that grew.
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

/// What of the failures of processes contradicts what is reported beside them.
pub fn of_failures(failures: &[OomView], causes: &[Cause], snapshot: &Snapshot) -> Vec<Contradiction> {
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
        let refused = process.tensors.as_ref().map_or(0, |tensors| tensors.places.refusals.len());
        if refused > 0 && !failures.iter().any(|failure| failure.tgid == process.tgid) {
            let numbers = [0, i128::try_from(refused).unwrap_or(i128::MAX)];
            all.push(found(ContradictionKind::FailureInOne, Some(process.tgid), numbers));
        }
    }
    all
}

/// What the GPU had free by the driver's reading next to a failure.
fn free_bytes(failure: &OomView) -> Option<u64> {
    let gpu = failure.snapshot.gpus.iter().find(|gpu| failure.uuid.as_ref() == Some(&gpu.uuid))?;
    // An older reading says nothing of that moment.
    (failure.time_ns.abs_diff(gpu.sampled_ns) < 100_000_000)
        .then(|| gpu.total_bytes.zip(gpu.used_bytes))?
        .map(|(total, used)| total.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::leak::model::Verdict;
    use crate::features::leak::view::{LeakView, ReadingsView};
    use crate::features::trend::Trend;

    fn leaks(level: &str, kind: Option<&'static str>, verdict: Verdict) -> LeaksView {
        let trend = Trend { first_bytes: 1 << 20, last_bytes: 900 << 20, ..Trend::default() };
        let finding = LeakView { kind: kind.map(Into::into), ..LeakView::of(level, verdict, &trend) };
        LeaksView { findings: vec![finding], ..LeaksView::default() }
    }

    fn kinds(all: &[Contradiction]) -> Vec<ContradictionKind> {
        all.iter().map(|one| one.kind).collect()
    }

    #[test]
    fn what_is_older_than_the_watch_cannot_grow() {
        let older = |verdict| of_leaks(&leaks("tensor", Some(PREEXISTING), verdict));
        assert_eq!(kinds(&older(Verdict::Leak)), [ContradictionKind::OlderGrows]);
        assert_eq!(older(Verdict::LevelledOff), []);
        assert_eq!(of_leaks(&leaks("tensor", Some("line"), Verdict::Leak)), []);
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
