//! Identifies the workspaces of cuBLAS and cuBLASLt. PyTorch keeps a `std::map` for each library,
//! from handle and stream to an address (aten/src/ATen/cuda/CublasHandlePool.cpp).

use memwatch_core::input::holdings::{Holding, HoldingClass};

use crate::memory::{MemoryAccess, at};

/// Maximum number of map nodes.
const MOST_NODES: usize = 4096;
/// `_M_header._M_parent` of a map; `_M_left` and `_M_right` of a node, and the offset of its pair
/// (libstdc++, bits/stl_tree.h).
const ROOT: u32 = 16;
const CHILDREN: u32 = 16;
const PAIR: u32 = 32;
/// Words of a pair: stream, handle, address and more.
const PAIR_WORDS: usize = 5;

/// Marks otherwise unidentified blocks. Each of `instances` is the address of a pointer to a map.
pub(super) fn mark(memory: &impl MemoryAccess, instances: &[u64], rows: &mut [Holding]) {
    for address in instances.iter().flat_map(|instance| addresses(memory, *instance)) {
        // The rows are sorted by address.
        let Ok(index) = rows.binary_search_by_key(&address, |row| row.address) else { continue };
        if matches!(rows[index].class, HoldingClass::NoPythonObject | HoldingClass::Changed) {
            rows[index].class = HoldingClass::CublasWorkspace;
        }
    }
}

/// Returns all words of all pairs. A word that is a block's address identifies a workspace.
fn addresses(memory: &impl MemoryAccess, instance: u64) -> Vec<u64> {
    let (mut found, mut nodes) = (Vec::new(), Vec::new());
    let root = || memory.u64(at(memory.u64(at(instance, 0)?)?, ROOT)?);
    nodes.extend(root());
    for _ in 0..MOST_NODES {
        let Some(node) = nodes.pop() else { break };
        if let Some(pair) = at(node, PAIR).and_then(|pair| memory.words(pair, PAIR_WORDS)) {
            found.extend(pair);
            nodes.extend(at(node, CHILDREN).and_then(|children| memory.words(children, 2)).unwrap_or_default());
        }
    }
    found
}
