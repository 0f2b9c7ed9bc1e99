//! Suggests how to save memory, from the classes, shapes and types of the live objects.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::{AdviceKind, Holding, HoldingClass, MemoryAdvice};

use super::elements;
use super::tensors::CppTensor;

/// Minimum size in bytes of storages that are reported as mostly unused.
const LEAST_BYTES: u64 = 1 << 20;

/// Evidence for advice, by block address.
#[derive(Debug, Default)]
pub(super) struct Grounds {
    /// Bytes of all reachable tensors in the block.
    pub(super) used_bytes: HashMap<u64, u64, FixedState>,
    /// Blocks retained only by a traceback, directly or through the owner of the graph that saved
    /// them.
    pub(super) tracebacks: HashSet<u64, FixedState>,
    /// Blocks of parameters without a gradient, while others have one.
    pub(super) without_gradient: HashSet<u64, FixedState>,
}

impl Grounds {
    /// Adds a reachable tensor in a block.
    pub(super) fn use_tensor(&mut self, block: u64, tensor: &CppTensor) {
        let bytes = tensor.elements().saturating_mul(elements::bytes(tensor.element));
        let total = self.used_bytes.entry(block).or_default();
        *total = total.saturating_add(bytes);
    }
}

/// Returns all advice, sorted by bytes in descending order.
pub(super) fn advice(rows: &[Holding], grounds: &Grounds) -> Vec<MemoryAdvice> {
    let is_parameter = |row: &&Holding| row.class == HoldingClass::Parameter;
    let is_kept = |row: &&Holding| matches!(row.class, HoldingClass::Tensor | HoldingClass::SavedForBackward);
    let at =
        |blocks: &HashSet<u64, FixedState>| rows.iter().filter(|row| blocks.contains(&row.address)).collect::<Vec<_>>();
    let parts = [
        (AdviceKind::FullPrecisionCopies, full_precision_copies(rows)),
        (AdviceKind::MostlyUnusedStorage, mostly_unused(rows, &grounds.used_bytes)),
        (AdviceKind::NoGradient, at(&grounds.without_gradient).into_iter().filter(is_parameter).collect()),
        (AdviceKind::Traceback, at(&grounds.tracebacks).into_iter().filter(is_kept).collect()),
        (AdviceKind::Unreachable, rows.iter().filter(|row| row.class == HoldingClass::Unreachable).collect()),
    ];
    let mut all: Vec<_> = parts.into_iter().filter_map(|(kind, rows)| of_rows(kind, &rows)).collect();
    all.sort_by_key(|advice| std::cmp::Reverse(advice.bytes));
    all
}

fn of_rows(kind: AdviceKind, rows: &[&Holding]) -> Option<MemoryAdvice> {
    let largest = rows.iter().max_by_key(|row| row.block_bytes)?;
    let bytes = rows.iter().map(|row| row.block_bytes).sum();
    let example =
        largest.kept_by.as_ref().or(largest.name.as_ref()).cloned().unwrap_or_else(|| largest.class.label().to_owned());
    Some(MemoryAdvice { kind, bytes, count: rows.len() as u64, example })
}

/// Returns the float32 tensors with the shape of a 16-bit parameter, at most one per such
/// parameter. Gradients and optimizer moments are excluded.
fn full_precision_copies(rows: &[Holding]) -> Vec<&Holding> {
    let dtype = |row: &Holding| row.dtype.clone().unwrap_or_default();
    let mut wanted = HashMap::<&[u64], usize, FixedState>::default();
    for row in rows.iter().filter(|row| row.class == HoldingClass::Parameter) {
        if matches!(dtype(row).as_str(), "bfloat16" | "float16") {
            *wanted.entry(row.shape.as_deref().unwrap_or_default()).or_default() += 1;
        }
    }
    let is_moment = |row: &Holding| row.name.as_deref().is_some_and(|name| name.starts_with("exp_avg"));
    let mut copies = Vec::new();
    for row in
        rows.iter().filter(|row| dtype(row) == "float32" && row.class != HoldingClass::Gradient && !is_moment(row))
    {
        let left = row.shape.as_deref().filter(|shape| shape.len() > 1).and_then(|shape| wanted.get_mut(shape));
        if let Some(left) = left.filter(|left| **left > 0) {
            *left -= 1;
            copies.push(row);
        }
    }
    copies
}

/// Returns the reachable storages with tensors that together use less than half of the bytes.
fn mostly_unused<'r>(rows: &'r [Holding], used: &HashMap<u64, u64, FixedState>) -> Vec<&'r Holding> {
    let is_unused = |row: &&Holding| {
        let used = used.get(&row.address).copied().unwrap_or(u64::MAX);
        let is_large = row.storage_bytes.is_some_and(|bytes| bytes >= LEAST_BYTES && used < bytes / 2);
        is_large && row.class == HoldingClass::Tensor
    };
    rows.iter().filter(is_unused).collect()
}
