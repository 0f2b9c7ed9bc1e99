//! Causes of growth, from the retainers of the growing memory.

use super::paths::{self, PathKind};
use super::{Cause, CauseEvidence, CauseKind, Confidence, GrownName};
use crate::features::leak::model::Verdict;
use crate::features::leak::view::{LeakView, RetainerView};
use crate::features::trend::Trend;
use crate::input::held_names::HeldGroup;
use crate::input::holdings::HoldingClass;

/// Minimum fraction of free memory outside of the default stream, or in private pools, that
/// explains a growing cache, as its inverse.
const MOSTLY: u64 = 2;
/// Tolerance for a reading that covers nearly all bytes, as an inverse fraction.
const NEARLY: u64 = 8;
/// Maximum number of tensors that are joined beside each other, such as results and their labels.
const FEW_TENSORS: u64 = 4;
/// Maximum number of side streams with free memory in a usual program.
const MANY_STREAMS: u64 = 3;

/// Returns a cause for each growing finding.
pub(super) fn places(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let is_named = |finding: &&LeakView| is_without_place(finding) && !evidence.grown.is_empty();
    let growing = evidence.growing.iter().filter(|finding| finding.verdict.grows() && !is_named(finding));
    let growing =
        growing.filter_map(|finding| Some(Cause { bytes_per_minute: Some(finding.bytes_per_minute), ..of(finding)? }));
    // No cache holds autograd graphs: graphs that still grow are a leak in a program that has
    // slowed down.
    let slower = evidence.growing.iter().filter(|finding| finding.grows_slower() && keeps_graphs(finding));
    let slower = slower.filter_map(|finding| {
        let bytes_per_minute = Some(finding.late_bytes_per_minute);
        Some(Cause { bytes_per_minute, confidence: Confidence::Likely, ..of(finding)? })
    });
    growing.chain(slower).collect()
}

/// Returns a cause for each name that grew from reading to reading, with the same kinds as those of
/// the leak detector, which sees more moments and comes first.
pub(super) fn names(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    if evidence.growing.iter().any(|finding| finding.verdict.grows() && !is_without_place(finding)) {
        return Vec::new();
    }
    let cause = |grown: &GrownName| {
        let HeldGroup { class, name, kept_by, bytes, blocks, .. } = &grown.group;
        // One tensor retains what several readings have of the same plain path.
        let is_of_several = paths::kind(grown.path()) != PathKind::Plain;
        let retainer = RetainerView {
            class: *class,
            name: name.clone(),
            kept_by: kept_by.clone(),
            bytes: *bytes,
            count: *blocks,
            oldest: None,
            newest: is_of_several.then(|| grown.path().to_owned()),
        };
        let grows_in_number = *blocks > grown.first_blocks;
        let turnover_ns = (!grows_in_number).then_some(grown.period_ns);
        let finding =
            LeakView { turnover_ns, grows_in_number, ..LeakView::of("name", Verdict::Leak, &Trend::default()) };
        Cause {
            bytes_per_minute: Some(grown.bytes_per_minute()),
            // The blocks of a graph are not its tensors.
            count: (*class != HoldingClass::SavedForBackward).then_some(*blocks),
            subject: Some(grown.path().to_owned()),
            confidence: Confidence::Likely,
            ..Cause::of(kind(&finding, &retainer), *bytes)
        }
    };
    evidence.grown.iter().map(cause).collect()
}

/// Whether it is growth of a whole device, which no call site or name of the detector explains.
fn is_without_place(finding: &LeakView) -> bool {
    finding.level == "allocated"
}

fn keeps_graphs(finding: &LeakView) -> bool {
    largest(finding).is_some_and(|(retainer, _)| retainer.class == HoldingClass::SavedForBackward)
}

fn of(finding: &LeakView) -> Option<Cause> {
    let bytes = finding.last_bytes;
    match &*finding.level {
        "pinned_host" => return Some(Cause::of(CauseKind::PinnedGrows, bytes)),
        "driver" => return Some(Cause::of(CauseKind::OutsideGrows, bytes)),
        "allocated" => return Some(Cause::of(CauseKind::NoPlaceYet, bytes)),
        // The growth is explained by [`cache`].
        "reserved" => return None,
        _ => {}
    }
    let line = line(finding);
    let base = Cause { line: line.clone(), ..Cause::of(CauseKind::LineKeeps, bytes) };
    let Some((retainer, path)) = largest(finding) else {
        return Some(Cause { confidence: Confidence::Likely, subject: line, ..base });
    };
    // The number at the reading does not cover memory allocated since.
    let is_whole = finding.read_bytes >= bytes - bytes / NEARLY;
    let (kind, count) = (kind(finding, retainer), is_whole.then_some(retainer.count));
    Some(Cause { kind, count, subject: Some(path.to_owned()), ..base })
}

/// Returns the retainer of most of the bytes read, with its path. Returns `None` if the blocks have
/// no name.
fn largest(finding: &LeakView) -> Option<(&RetainerView, &str)> {
    let retainer = finding.retainers.first().filter(|retainer| retainer.bytes >= finding.read_bytes / 4)?;
    // Memory saved for backward is named only by the operator that saved it.
    let name = retainer.name.as_deref().filter(|_| retainer.class != HoldingClass::SavedForBackward);
    Some((retainer, retainer.kept_by.as_deref().or(name)?))
}

fn kind(finding: &LeakView, retainer: &RetainerView) -> CauseKind {
    let path = retainer.kept_by.as_deref().or(retainer.name.as_deref()).unwrap_or_default();
    match (paths::kind(path), retainer.class) {
        (PathKind::Exception, _) => CauseKind::ExceptionKept,
        (PathKind::Notebook, _) => CauseKind::Notebook,
        (PathKind::Cache, _) => CauseKind::CacheByArgument,
        // A single tensor, whatever contains it: each step extends its graph.
        (_, HoldingClass::SavedForBackward) if retainer.oldest == retainer.newest => CauseKind::RunningSum,
        (_, HoldingClass::SavedForBackward) => CauseKind::GraphsKept,
        (_, HoldingClass::Unreachable) => CauseKind::Cycle,
        (_, HoldingClass::Parameter | HoldingClass::Buffer | HoldingClass::OptimizerState) => CauseKind::Instances,
        // Their number is constant, so each is replaced by a longer one.
        (_, HoldingClass::Tensor)
            if finding.turnover_ns.is_some() && !finding.grows_in_number && retainer.count <= FEW_TENSORS =>
        {
            CauseKind::LongerTensor
        }
        (PathKind::Queue, _) => CauseKind::QueueBacksUp,
        (PathKind::Container, _) if finding.turnover_ns.is_some() => CauseKind::QueueBacksUp,
        (PathKind::Container, _) => CauseKind::Unbounded,
        (PathKind::Plain, HoldingClass::Tensor) if retainer.count == 1 => CauseKind::LongerTensor,
        (PathKind::Plain, _) => CauseKind::LineKeeps,
    }
}

/// Returns `train.py:12`.
fn line(finding: &LeakView) -> Option<String> {
    Some(format!("{}:{}", finding.file.as_deref()?, finding.line?))
}

/// Explains growth of the allocator without growth of its tensors.
pub(super) fn cache(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let grows = evidence.growing.iter().filter(|finding| finding.level == "reserved" && finding.verdict.grows());
    let of = |finding: &LeakView| {
        let cached = evidence.cached.iter().find(|cached| Some(cached.device) == finding.device);
        let base = Cause { bytes_per_minute: Some(finding.bytes_per_minute), ..Cause::of(CauseKind::CacheGrows, 0) };
        match cached {
            Some(cached) if cached.waiting_bytes > cached.free_bytes => {
                Cause { kind: CauseKind::RecordStream, bytes: cached.waiting_bytes, ..base }
            }
            Some(cached) if cached.side_streams > MANY_STREAMS && cached.side_bytes >= cached.free_bytes / MOSTLY => {
                let (bytes, count) = (cached.side_bytes, Some(cached.side_streams));
                Cause { kind: CauseKind::StreamCache, bytes, count, ..base }
            }
            Some(cached) if cached.private_bytes >= cached.free_bytes / MOSTLY && cached.private_bytes > 0 => {
                Cause { kind: CauseKind::PrivatePools, bytes: cached.private_bytes, ..base }
            }
            Some(cached) => Cause { bytes: cached.free_bytes, ..base },
            None => Cause { bytes: finding.last_bytes.saturating_sub(finding.first_bytes), ..base },
        }
    };
    grows.map(of).collect()
}
