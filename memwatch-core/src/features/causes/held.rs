//! Causes found among the live objects of one reading: they show what could be saved, but not how
//! memory will develop.

use std::collections::BTreeMap;

use super::paths::{self, PathKind};
use super::populations::{Population, copies_of_parameters, instances_by_class};
use super::{Cause, CauseEvidence, CauseKind, Confidence};
use crate::input::holdings::{AdviceKind, Holding, HoldingClass};

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

/// Returns whether these bytes are worth a cause.
fn is_much(bytes: u64, rows: &[Holding]) -> bool {
    let all = rows.iter().map(|row| row.block_bytes).fold(0, u64::saturating_add);
    bytes >= LEAST_BYTES && bytes >= all / LEAST_PART
}

/// Finds autograd graphs retained by many elements of one container.
pub(super) fn graphs(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let mut owners = BTreeMap::<String, BTreeMap<&str, u64>>::new();
    for row in evidence.rows.iter().filter(|row| row.class == HoldingClass::SavedForBackward) {
        let Some((owner, pattern)) = row.kept_by.as_deref().zip(row.retainer_pattern()) else { continue };
        *owners.entry(pattern).or_default().entry(owner).or_default() += row.block_bytes;
    }
    let of = |(pattern, owners): (String, BTreeMap<&str, u64>)| {
        let (bytes, count) = (owners.values().sum(), owners.len() as u64);
        (count >= MANY_GRAPHS && is_much(bytes, evidence.rows)).then(|| Cause {
            count: Some(count),
            subject: Some(pattern),
            ..Cause::of(CauseKind::GraphsKept, bytes)
        })
    };
    owners.into_iter().filter_map(of).collect()
}

fn of_population(kind: CauseKind, Population { name, count, bytes }: Population) -> Cause {
    Cause { count: Some(count), subject: Some(name), ..Cause::of(kind, bytes) }
}

/// Finds containers with a tensor for each parameter.
pub(super) fn copies(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let found = copies_of_parameters(evidence.rows).into_iter().filter(|copies| is_much(copies.bytes, evidence.rows));
    found.map(|copies| of_population(CauseKind::StateCopies, copies)).collect()
}

/// Finds module classes with many root instances.
pub(super) fn instances(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let found = instances_by_class(evidence.rows).into_iter();
    let found = found.filter(|found| found.count >= MANY_INSTANCES && is_much(found.bytes, evidence.rows));
    found.map(|instances| of_population(CauseKind::Instances, instances)).collect()
}

/// Converts the advice of the reading itself.
pub(super) fn advised(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let found = evidence.advice.iter().filter(|advice| is_much(advice.bytes, evidence.rows));
    let of = |advice: &crate::input::holdings::MemoryAdvice| {
        let kind = match advice.kind {
            AdviceKind::FullPrecisionCopies => CauseKind::TwoPrecisions,
            AdviceKind::MostlyUnusedStorage => CauseKind::ViewKeepsStorage,
            AdviceKind::Traceback => CauseKind::ExceptionKept,
            AdviceKind::Unreachable => CauseKind::Cycle,
            // The parameters may be frozen on purpose.
            AdviceKind::NoGradient => return None,
        };
        let (count, subject) = (Some(advice.count), Some(advice.example.clone()));
        Some(Cause { count, subject, ..Cause::of(kind, advice.bytes) })
    };
    found.filter_map(of).collect()
}

/// Finds memory that a notebook retains itself.
pub(super) fn notebook(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let path = |row: &Holding| row.kept_by.clone().or_else(|| row.name.clone());
    let is_its_own = |row: &&Holding| path(row).is_some_and(|path| paths::kind(&path) == PathKind::Notebook);
    let own: Vec<&Holding> = evidence.rows.iter().filter(is_its_own).collect();
    let bytes = own.iter().map(|row| row.block_bytes).fold(0, u64::saturating_add);
    let largest = own.iter().max_by_key(|row| row.block_bytes).and_then(|row| path(row));
    let is_worth = !own.is_empty() && is_much(bytes, evidence.rows);
    let cause = Cause {
        count: Some(own.len() as u64),
        subject: largest,
        confidence: Confidence::Shown,
        ..Cause::of(CauseKind::Notebook, bytes)
    };
    is_worth.then_some(cause).into_iter().collect()
}

/// Returns the number and bytes of rows.
fn sum<'r>(rows: impl Iterator<Item = &'r Holding>) -> (u64, u64) {
    rows.fold((0, 0), |(count, bytes), row| (count + 1, bytes.saturating_add(row.block_bytes)))
}

/// Finds buckets of gradients besides the gradients themselves.
pub(super) fn buckets(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let is_bucket = |row: &&Holding| row.name.as_deref().is_some_and(|name| name.starts_with(BUCKETS));
    let (count, bytes) = sum(evidence.rows.iter().filter(is_bucket));
    let (_, gradients) = sum(evidence.rows.iter().filter(|row| row.class == HoldingClass::Gradient));
    // Nothing is duplicated if gradients are views of buckets, or are set to none.
    let is_twice = bytes > 0 && gradients >= bytes / 2;
    let cause = Cause { count: Some(count), ..Cause::of(CauseKind::DdpBuckets, bytes.min(gradients)) };
    (is_twice && is_much(cause.bytes, evidence.rows)).then_some(cause).into_iter().collect()
}

/// Finds cuBLAS workspaces on more streams and threads than a program usually uses.
pub(super) fn workspaces(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let (count, bytes) = sum(evidence.rows.iter().filter(|row| row.class == HoldingClass::CublasWorkspace));
    let cause = Cause { count: Some(count), ..Cause::of(CauseKind::Workspaces, bytes) };
    (count >= MANY_WORKSPACES && is_much(bytes, evidence.rows)).then_some(cause).into_iter().collect()
}

/// Finds several states of one kind for one parameter: a single optimizer has each state once.
pub(super) fn optimizers(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let mut states = BTreeMap::<&str, (u64, u64)>::new();
    for row in evidence.rows.iter().filter(|row| row.class == HoldingClass::OptimizerState) {
        // A name by its position in an optimizer does not identify the parameter.
        let Some(name) = row.name.as_deref().filter(|name| !name.contains("param_groups[")) else { continue };
        let (count, bytes) = states.entry(name).or_default();
        (*count, *bytes) = (*count + 1, bytes.saturating_add(row.block_bytes));
    }
    let again = states.values().filter(|(count, _)| *count > 1);
    let bytes = again.map(|(count, bytes)| bytes / count * (count - 1)).fold(0, u64::saturating_add);
    let count = states.values().map(|(count, _)| *count).max().unwrap_or(0);
    let cause = Cause { count: Some(count), ..Cause::of(CauseKind::OldOptimizers, bytes) };
    (bytes > 0 && is_much(bytes, evidence.rows)).then_some(cause).into_iter().collect()
}
