//! Claims on a block: each tensor in it with a name or a class. The block gets the class of the
//! first claim that holds.

use std::collections::HashSet;

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::{Holding, HoldingClass, OwnerModule};

use super::chains::{ChainEnd, Chains};
use super::elements;
use super::tensors::CppTensor;
use crate::memory::MemoryAccess;

/// Maximum number of names per block. A flat parameter may have one for each layer of a model.
const MOST_NAMES: usize = 1 << 16;

/// A claim on a block.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) class: HoldingClass,
    pub(super) name: Option<String>,
    /// Index of the tensor.
    pub(super) tensor: usize,
    /// Python class of the tensor.
    pub(super) tensor_type: Option<String>,
    pub(super) kept_by: Option<String>,
    pub(super) owner: Option<OwnerModule>,
    /// Words in memory that the claim depends on.
    pub(super) chain: ChainEnd,
}

/// Gives a block the class and names of the claims that still hold. Returns the number of claims
/// that do not.
pub(super) fn settle<M: MemoryAccess>(
    row: &mut Holding,
    mut claims: Vec<Claim>,
    tensors: &[CppTensor],
    chains: &mut Chains,
    memory: &M,
) -> u64 {
    claims.sort_by_key(|claim| claim.class);
    let mut dropped = 0;
    let mut known = HashSet::<String, FixedState>::default();
    for claim in claims {
        let is_settled = row.class != HoldingClass::NoPythonObject;
        if is_settled && row.class != claim.class {
            break;
        }
        if !chains.holds(memory, claim.chain) {
            dropped += 1;
            continue;
        }
        if is_settled {
            if row.other_names.len() < MOST_NAMES {
                row.other_names.extend(claim.name.filter(|name| known.insert(name.clone())));
            }
            continue;
        }
        known.extend(claim.name.clone());
        row.class = claim.class;
        row.name = claim.name;
        row.kept_by = claim.kept_by;
        row.owner = claim.owner;
        row.tensor_type = claim.tensor_type;
        if let Some(tensor) = tensors.get(claim.tensor) {
            row.storage_bytes = Some(tensor.storage_bytes);
            let dtype = || elements::name(tensor.element).map_or_else(|| tensor.element.to_string(), str::to_owned);
            row.shape = (!tensor.is_storage).then(|| tensor.shape.clone());
            row.dtype = (!tensor.is_storage).then(dtype);
        }
    }
    dropped
}
