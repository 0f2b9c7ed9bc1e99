//! Reads autograd graphs: the gradients of tensors, and the objects that nodes retain for the
//! backward pass.
//!
//! A graph belongs to the tensor that retains it. Owners are processed in order, best first, and
//! each graph is followed completely, also through tensors that only its nodes retain. Nodes and
//! their vectors are searched word by word. An object found this way counts only if its class
//! identifies it.

use std::collections::HashMap;
use std::collections::HashSet;
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::cpp_sizes::Sizes;
use super::rtti::{CppClass, CppClasses, CppKind};
use crate::memory::{ALL_SPENT, MemoryAccess};
use crate::python::classes::Role;
use crate::python::heap::Heap;

/// Maximum number of nodes.
const MOST_NODES: usize = 1 << 22;
/// Maximum size in bytes of a node's Python object, and of a vector.
const MOST_OBJECT_BYTES: u64 = 4096;
const MOST_VECTOR_BYTES: u64 = 8192;
/// Words read of other objects that a node points to, such as the hooks of a saved tensor.
const HOOK_WORDS: usize = 6;
/// Words of a tensor's autograd metadata that are searched for the gradient and the graph.
const META_WORDS: usize = 16;

/// A tensor saved by a node.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    /// Class of the node.
    pub(super) node: Rc<str>,
    /// Python tensor that owns the graph.
    pub(super) owner: u64,
}

/// A Python object retained by a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetainedObject {
    pub(super) place: u32,
    /// Python tensor that owns the graph.
    pub(super) owner: u64,
    /// Address of the word that refers to the object.
    pub(super) slot: u64,
}

/// Objects retained by autograd.
#[derive(Debug, Default)]
pub(super) struct AutogradGraphs {
    /// Gradients by Python tensor: slot and address of the gradient.
    pub(super) gradients: HashMap<u64, (u64, u64), FixedState>,
    /// Saved tensors by C++ address.
    pub(super) saved: HashMap<u64, Saved, FixedState>,
    /// Python objects of nodes found since this was last emptied.
    pub(super) kept: Vec<RetainedObject>,
    /// A limit was reached, or the time budget is spent.
    pub(super) is_cut: bool,
    /// Nodes followed so far.
    nodes: HashSet<u64, FixedState>,
    /// Position of the gradient in the autograd metadata, in words.
    gradient: Option<usize>,
}

/// A tensor that owns a graph to be followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphOwner {
    /// Python tensor to which the graph's retained objects are charged.
    pub(super) object: u64,
    /// Address of the tensor's autograd metadata.
    pub(super) meta: u64,
    /// Rank of the root that leads to the tensor; a lower one lives longer.
    pub(super) root: u8,
}

/// Returns whether the node where owner `beginning`'s graph begins is left to that owner when
/// `follower`'s graph leads to it.
fn is_of_other(owners: &[GraphOwner], follower: usize, beginning: usize) -> bool {
    let root = |number: usize| owners.get(number).map(|owner| owner.root);
    follower != beginning && root(beginning) <= root(follower)
}

/// Reads graphs.
pub(super) struct GraphReader<'a, M> {
    pub(super) memory: &'a M,
    pub(super) classes: &'a CppClasses<'a, M>,
    pub(super) heap: &'a Heap<'a, M>,
    pub(super) sizes: &'a Sizes<'a, M>,
    /// Offset of the autograd metadata in a C++ tensor, in bytes.
    pub(super) meta: Option<u64>,
}

impl<M: MemoryAccess> GraphReader<'_, M> {
    /// Finds the gradients of these Python tensors, each given with its autograd metadata.
    pub(super) fn gradients(&self, metas: &[(u64, u64)], graphs: &mut AutogradGraphs) {
        let rows: Vec<_> =
            metas.iter().filter_map(|(owner, meta)| Some((*owner, *meta, self.meta_words(*meta)?))).collect();
        let is_tensor = |word| matches!(self.classes.kind(word), Some(CppKind::Tensor | CppKind::NoTensor));
        // In all of them, the gradient is a tensor or the placeholder for none.
        let gradient =
            (1..META_WORDS).find(|index| !rows.is_empty() && rows.iter().all(|(_, _, row)| is_tensor(row[*index])));
        graphs.gradient = gradient.or(graphs.gradient);
        let Some(index) = gradient else { return };
        for (owner, meta, row) in rows {
            if self.classes.kind(row[index]) == Some(CppKind::Tensor) {
                graphs.gradients.insert(owner, (meta + 8 * index as u64, row[index]));
            }
        }
    }

    /// Follows the graphs of these tensors in order. Where one leads into the graph of another that
    /// lives as long, the rest is left to that one.
    pub(super) fn follow(&self, owners: &[GraphOwner], graphs: &mut AutogradGraphs) {
        let nodes_of = |owner: &GraphOwner, graphs: &AutogradGraphs| {
            let mut nodes = Vec::new();
            self.put_nodes(owner.meta, graphs, &mut nodes);
            nodes
        };
        let mut beginnings = HashMap::<u64, usize, FixedState>::default();
        for (number, owner) in owners.iter().enumerate() {
            for node in nodes_of(owner, graphs) {
                beginnings.entry(node).or_insert(number);
            }
        }
        for (number, owner) in owners.iter().enumerate() {
            let mut nodes = nodes_of(owner, graphs);
            while let Some(node) = nodes.pop() {
                if graphs.nodes.len() == MOST_NODES || self.memory.spent() >= ALL_SPENT {
                    graphs.is_cut = true;
                    return;
                }
                if beginnings.get(&node).is_some_and(|other| is_of_other(owners, number, *other)) {
                    continue;
                }
                if let Some(class) = graphs.nodes.insert(node).then(|| self.classes.of(node)).flatten() {
                    self.take_node((node, &class), owner.object, &mut nodes, graphs);
                }
            }
        }
    }

    fn meta_words(&self, meta: u64) -> Option<Vec<u64>> {
        (self.classes.kind(meta) == Some(CppKind::Meta)).then(|| self.memory.words(meta, META_WORDS)).flatten()
    }

    /// Appends the nodes that a tensor's autograd metadata refers to.
    fn put_nodes(&self, meta: u64, graphs: &AutogradGraphs, nodes: &mut Vec<u64>) {
        let behind = graphs.gradient.map_or(1, |index| index + 1);
        let words = self.meta_words(meta).unwrap_or_default();
        let is_node = |word: &&u64| self.classes.kind(**word) == Some(CppKind::Node);
        nodes.extend(words.iter().skip(behind).filter(is_node));
    }

    fn take_node(
        &self,
        (node, class): (u64, &CppClass),
        owner: u64,
        nodes: &mut Vec<u64>,
        graphs: &mut AutogradGraphs,
    ) {
        let (name, bodies) = self.bodies(node, class);
        for (start, body) in bodies {
            for (index, word) in body.iter().enumerate() {
                let slot = start + 8 * index as u64;
                self.take((*word, slot), (&name, owner), nodes, graphs);
                match self.classes.kind(*word) {
                    // For example the hooks of a saved tensor, which are Python objects.
                    Some(CppKind::Other) => {
                        for (word, slot) in
                            self.memory.words(*word, HOOK_WORDS).unwrap_or_default().iter().zip((*word..).step_by(8))
                        {
                            self.take((*word, slot), (&name, owner), nodes, graphs);
                        }
                    }
                    Some(_) => {}
                    None => {
                        let bytes = vector_bytes(&body[index..]);
                        let inner = bytes.and_then(|bytes| self.memory.words(*word, bytes_to_words(bytes)));
                        for (inner, slot) in inner.unwrap_or_default().iter().zip((*word..).step_by(8)) {
                            self.take((*inner, slot), (&name, owner), nodes, graphs);
                        }
                    }
                }
            }
        }
    }

    fn take(&self, (word, slot): (u64, u64), by: (&Rc<str>, u64), nodes: &mut Vec<u64>, graphs: &mut AutogradGraphs) {
        if let Some(place) = self.heap.place(word) {
            // A Python tensor is retained through its C++ object.
            if self.heap.class(place).is_some_and(|class| class.role != Role::Tensor) {
                graphs.kept.push(RetainedObject { place, owner: by.1, slot });
            }
            return;
        }
        match self.classes.kind(word) {
            Some(CppKind::Tensor) => {
                let (node, owner) = (Rc::clone(by.0), by.1);
                if let std::collections::hash_map::Entry::Vacant(vacant) = graphs.saved.entry(word) {
                    vacant.insert(Saved { node, owner });
                    // The tensor retains the graph that produced it.
                    let meta = self.meta.and_then(|offset| self.memory.u64(word.checked_add(offset)?));
                    if let Some(meta) = meta.filter(|meta| *meta != 0) {
                        self.put_nodes(meta, graphs, nodes);
                    }
                }
            }
            // A node that adds to a gradient retains the gradient's tensor.
            Some(CppKind::Node | CppKind::Accumulate) => nodes.push(word),
            _ => {}
        }
    }

    /// Returns a node's name, and its words with their address. For a node written in Python, the
    /// words of its Python object are included.
    fn bodies(&self, node: u64, class: &CppClass) -> (Rc<str>, Vec<(u64, Vec<u64>)>) {
        let count = bytes_to_words(self.sizes.of(node, class));
        let body = self.memory.words(node, count).unwrap_or_default();
        let object = body.iter().find_map(|word| self.heap.place(*word)).filter(|_| class.name == "PyNode");
        let Some((python, object)) = object.and_then(|place| self.heap.class(place).zip(self.heap.address(place)))
        else {
            return (Rc::from(class.name.as_str()), vec![(node, body)]);
        };
        let count = bytes_to_words(u64::from(python.basic_bytes).min(MOST_OBJECT_BYTES));
        let inner = self.memory.words(object, count).unwrap_or_default();
        (Rc::from(python.short_name()), vec![(node, body), (object, inner)])
    }
}

/// Returns the byte length of the vector that these words describe: begin, end and end of capacity
/// (libstdc++, bits/stl_vector.h).
pub(super) fn vector_bytes(words: &[u64]) -> Option<u64> {
    let [begin, end, most] = *words.first_chunk()?;
    let is_vector = begin >= 0x1_0000 && begin.is_multiple_of(8) && begin < end && end <= most;
    let bytes = end.wrapping_sub(begin);
    (is_vector && bytes.is_multiple_of(8) && bytes <= MOST_VECTOR_BYTES).then_some(bytes)
}

fn bytes_to_words(bytes: u64) -> usize {
    usize::try_from(bytes / 8).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_ends_where_that_of_a_variable_begins_that_lasts_as_long() {
        let owner = |root| GraphOwner { object: 1, meta: 1, root };
        let owners = [owner(0), owner(0), owner(2)];
        assert!(!is_of_other(&owners, 0, 0), "its own beginning");
        assert!(is_of_other(&owners, 0, 1) && is_of_other(&owners, 2, 0));
        assert!(!is_of_other(&owners, 0, 2), "a frame that ends soon keeps nothing that a global keeps");
    }

    #[test]
    fn a_vector_is_as_long_as_it_says_itself() {
        let begin = 0x7f00_0000_1000;
        assert_eq!(vector_bytes(&[begin, begin + 48, begin + 64]), Some(48));
        for words in
            [[begin, begin, begin], [begin, begin + 47, begin + 64], [begin, begin + 64, begin + 48], [8, 16, 24]]
        {
            assert_eq!(vector_bytes(&words), None, "{words:x?}");
        }
        assert_eq!(vector_bytes(&[begin, begin + MOST_VECTOR_BYTES + 8, begin + (1 << 20)]), None);
        assert_eq!(vector_bytes(&[begin, begin + 8]), None);
    }
}
