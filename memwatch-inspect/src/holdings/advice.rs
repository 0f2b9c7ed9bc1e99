//! What could be held with less, by the classes, shapes and types of what is held.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::{Advice, AdviceKind, Holding, HoldingClass};

use super::elements;
use super::tensors::Tensor;

/// Storages that are smaller are not worth a line.
const LEAST_BYTES: u64 = 1 << 20;

/// What speaks for advice: blocks by their addresses.
#[derive(Debug, Default)]
pub(super) struct Grounds {
    /// Bytes of all tensors with a path.
    pub(super) used_bytes: HashMap<u64, u64, FixedState>,
    /// Only a traceback leads to them, or to the tensor whose graph saved them.
    pub(super) tracebacks: HashSet<u64, FixedState>,
    /// Of parameters without a gradient, while others have one.
    pub(super) without_gradient: HashSet<u64, FixedState>,
}

impl Grounds {
    /// Counts a tensor of a block that has a path.
    pub(super) fn use_tensor(&mut self, block: u64, tensor: &Tensor) {
        let bytes = tensor.elements().saturating_mul(elements::bytes(tensor.element));
        let total = self.used_bytes.entry(block).or_default();
        *total = total.saturating_add(bytes);
    }
}

/// All advice, the most bytes first.
pub(super) fn advice(rows: &[Holding], grounds: &Grounds) -> Vec<Advice> {
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

fn of_rows(kind: AdviceKind, rows: &[&Holding]) -> Option<Advice> {
    let largest = rows.iter().max_by_key(|row| row.block_bytes)?;
    let bytes = rows.iter().map(|row| row.block_bytes).sum();
    let example =
        largest.kept_by.as_ref().or(largest.name.as_ref()).cloned().unwrap_or_else(|| largest.class.label().to_owned());
    Some(Advice { kind, bytes, count: rows.len() as u64, example })
}

/// Tensors of float32, gradients and moments of optimizers left out, with the shape of a parameter of 16 bits: at most as many as such parameters.
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

/// Storages with a path of which all tensors together can have less than half.
fn mostly_unused<'r>(rows: &'r [Holding], used: &HashMap<u64, u64, FixedState>) -> Vec<&'r Holding> {
    let is_unused = |row: &&Holding| {
        let used = used.get(&row.address).copied().unwrap_or(u64::MAX);
        let is_large = row.storage_bytes.is_some_and(|bytes| bytes >= LEAST_BYTES && used < bytes / 2);
        is_large && row.class == HoldingClass::Tensor
    };
    rows.iter().filter(is_unused).collect()
}
