//! Causes found among the live objects of one reading: they show what could be saved, but not how
//! memory will develop. They are found where all objects are at hand, and kept with the sums.

use std::collections::BTreeMap;

use super::paths::{self, PathKind};
use super::populations::{Population, copies_of_parameters, instances_by_class};
use super::{Cause, CauseEvidence, CauseKind};
use crate::features::holdings::{AllocatorTotals, sum_by_name};
use crate::input::held_names::{HeldFinding, HeldNames, HeldTotals};
use crate::input::holdings::{AdviceKind, Holding, HoldingClass, Holdings, MemoryAdvice};

/// Maximum number of named groups of each device and class in a sum.
const NAMES: usize = 10;

/// Minimum fraction of all live bytes for a cause, as its inverse.
const LEAST_PART: u64 = 20;
/// Minimum bytes for a cause.
const LEAST_BYTES: u64 = 1 << 20;
/// Minimum number of graphs in a container. A training step holds the graph of one loss, or of a
/// few losses.
const MANY_GRAPHS: u64 = 4;
/// Minimum number of instances of one class.
const MANY_INSTANCES: u64 = 5;
/// Minimum number of workspaces. cuBLAS and cuBLASLt have one workspace each on the program's
/// stream and on the stream of its backward pass.
const MANY_WORKSPACES: u64 = 5;
/// Prefix of the names of a reducer's buckets.
const BUCKETS: &str = "gradient buckets of ";

/// Sums a reading of live objects by name, with what it shows about how memory could be saved.
pub fn held_names(holdings: &Holdings, totals: &[AllocatorTotals]) -> HeldNames {
    let total = |totals: &AllocatorTotals| {
        let own = holdings.rows.iter().filter(|row| row.ordinal == totals.ordinal).map(|row| row.block_bytes);
        let others = [totals.changing_bytes, totals.later_bytes].into_iter().flatten();
        let allocated_bytes = own.chain(others).fold(0, u64::saturating_add);
        let AllocatorTotals { ordinal, reserved_bytes, pieces, .. } = *totals;
        HeldTotals { ordinal, allocated_bytes, reserved_bytes, pieces }
    };
    HeldNames {
        tgid: holdings.tgid,
        time_ns: holdings.time_ns,
        totals: totals.iter().map(total).collect(),
        is_partial: holdings.is_partial,
        without_names: holdings.without_names.clone(),
        ..names_of_blocks(&holdings.rows, &holdings.advice)
    }
}

/// Sums blocks by name, with what they and the advice of their reading show.
pub fn names_of_blocks(blocks: &[Holding], advice: &[MemoryAdvice]) -> HeldNames {
    let groups = sum_by_name(&blocks.iter().collect::<Vec<_>>(), NAMES);
    HeldNames { groups, findings: findings(blocks, advice), ..HeldNames::default() }
}

/// A rule: returns what the live objects show.
type HeldRule = fn(&[Holding]) -> Vec<HeldFinding>;

const RULES: [HeldRule; 7] = [graphs, copies, instances, notebook, buckets, workspaces, optimizers];

fn findings(rows: &[Holding], advice: &[MemoryAdvice]) -> Vec<HeldFinding> {
    let found = RULES.iter().flat_map(|rule| rule(rows)).chain(advised(advice));
    found.filter(|finding| is_much(finding.bytes, rows)).collect()
}

/// Returns a cause for each finding of the last reading.
pub(super) fn found(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let findings = evidence.held.into_iter().flat_map(|held| &held.findings);
    let cause = |finding: &HeldFinding| Cause {
        count: Some(finding.count),
        subject: finding.subject.clone(),
        ..Cause::of(finding.kind, finding.bytes)
    };
    findings.map(cause).collect()
}

/// Returns whether these bytes are worth a cause.
fn is_much(bytes: u64, rows: &[Holding]) -> bool {
    let all = rows.iter().map(|row| row.block_bytes).fold(0, u64::saturating_add);
    bytes >= LEAST_BYTES && bytes >= all / LEAST_PART
}

/// Finds autograd graphs retained by many elements of one container.
fn graphs(rows: &[Holding]) -> Vec<HeldFinding> {
    let mut owners = BTreeMap::<String, BTreeMap<&str, u64>>::new();
    for row in rows.iter().filter(|row| row.class == HoldingClass::SavedForBackward) {
        let Some((owner, pattern)) = row.kept_by.as_deref().zip(row.retainer_pattern()) else { continue };
        *owners.entry(pattern).or_default().entry(owner).or_default() += row.block_bytes;
    }
    let of = |(pattern, owners): (String, BTreeMap<&str, u64>)| {
        let (bytes, count) = (owners.values().sum(), owners.len() as u64);
        let kind = CauseKind::GraphsKept;
        (count >= MANY_GRAPHS).then_some(HeldFinding { kind, bytes, count, subject: Some(pattern) })
    };
    owners.into_iter().filter_map(of).collect()
}

fn of_population(kind: CauseKind, Population { name, count, bytes }: Population) -> HeldFinding {
    HeldFinding { kind, bytes, count, subject: Some(name) }
}

/// Finds containers with a tensor for each parameter.
fn copies(rows: &[Holding]) -> Vec<HeldFinding> {
    let found = copies_of_parameters(rows).into_iter();
    found.map(|copies| of_population(CauseKind::StateCopies, copies)).collect()
}

/// Finds module classes with many root instances.
fn instances(rows: &[Holding]) -> Vec<HeldFinding> {
    let found = instances_by_class(rows).into_iter().filter(|found| found.count >= MANY_INSTANCES);
    found.map(|instances| of_population(CauseKind::Instances, instances)).collect()
}

/// Converts the advice of the reading itself.
fn advised(advice: &[MemoryAdvice]) -> impl Iterator<Item = HeldFinding> {
    let of = |advice: &MemoryAdvice| {
        let kind = match advice.kind {
            AdviceKind::FullPrecisionCopies => CauseKind::TwoPrecisions,
            AdviceKind::MostlyUnusedStorage => CauseKind::ViewKeepsStorage,
            AdviceKind::Traceback => CauseKind::ExceptionKept,
            AdviceKind::Unreachable => CauseKind::Cycle,
            // The parameters may be frozen on purpose.
            AdviceKind::NoGradient => return None,
        };
        let subject = Some(advice.example.clone());
        Some(HeldFinding { kind, bytes: advice.bytes, count: advice.count, subject })
    };
    advice.iter().filter_map(of)
}

/// Finds memory that a notebook retains itself.
fn notebook(rows: &[Holding]) -> Vec<HeldFinding> {
    let path = |row: &Holding| row.kept_by.clone().or_else(|| row.name.clone());
    let is_its_own = |row: &&Holding| path(row).is_some_and(|path| paths::kind(&path) == PathKind::Notebook);
    let own: Vec<&Holding> = rows.iter().filter(is_its_own).collect();
    let (count, bytes) = sum(own.iter().copied());
    let subject = own.iter().max_by_key(|row| row.block_bytes).and_then(|row| path(row));
    let found = HeldFinding { kind: CauseKind::Notebook, bytes, count, subject };
    (count > 0).then_some(found).into_iter().collect()
}

/// Returns the number and bytes of rows.
fn sum<'r>(rows: impl Iterator<Item = &'r Holding>) -> (u64, u64) {
    rows.fold((0, 0), |(count, bytes), row| (count + 1, bytes.saturating_add(row.block_bytes)))
}

/// Finds buckets of gradients besides the gradients themselves.
fn buckets(rows: &[Holding]) -> Vec<HeldFinding> {
    let is_bucket = |row: &&Holding| row.name.as_deref().is_some_and(|name| name.starts_with(BUCKETS));
    let (count, bytes) = sum(rows.iter().filter(is_bucket));
    let (_, gradients) = sum(rows.iter().filter(|row| row.class == HoldingClass::Gradient));
    // Nothing is duplicated if gradients are views of buckets, or are set to none.
    let is_twice = bytes > 0 && gradients >= bytes / 2;
    let kind = CauseKind::DdpBuckets;
    let found = HeldFinding { kind, bytes: bytes.min(gradients), count, subject: None };
    is_twice.then_some(found).into_iter().collect()
}

/// Finds cuBLAS workspaces on more streams and threads than a program usually uses.
fn workspaces(rows: &[Holding]) -> Vec<HeldFinding> {
    let (count, bytes) = sum(rows.iter().filter(|row| row.class == HoldingClass::CublasWorkspace));
    let found = HeldFinding { kind: CauseKind::Workspaces, bytes, count, subject: None };
    (count >= MANY_WORKSPACES).then_some(found).into_iter().collect()
}

/// Finds several states of one kind for one parameter: a single optimizer has each state once.
fn optimizers(rows: &[Holding]) -> Vec<HeldFinding> {
    let mut states = BTreeMap::<&str, (u64, u64)>::new();
    for row in rows.iter().filter(|row| row.class == HoldingClass::OptimizerState) {
        // A name by its position in an optimizer does not identify the parameter.
        let Some(name) = row.name.as_deref().filter(|name| !name.contains("param_groups[")) else { continue };
        let (count, bytes) = states.entry(name).or_default();
        (*count, *bytes) = (*count + 1, bytes.saturating_add(row.block_bytes));
    }
    let again = states.values().filter(|(count, _)| *count > 1);
    let bytes = again.map(|(count, bytes)| bytes / count * (count - 1)).fold(0, u64::saturating_add);
    let count = states.values().map(|(count, _)| *count).max().unwrap_or(0);
    let found = HeldFinding { kind: CauseKind::OldOptimizers, bytes, count, subject: None };
    (bytes > 0).then_some(found).into_iter().collect()
}
