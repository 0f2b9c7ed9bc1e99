//! Autograd's graphs: the gradients of tensors, and what the nodes keep for backward.
//!
//! A graph belongs to whoever keeps it: owners are taken in their order, the best first, and each is followed to its end, also through tensors that only
//! its nodes keep. A node is looked through word by word, and so are its vectors. What a word leads to counts only where its class says what it is.

use std::collections::HashMap;
use std::collections::HashSet;
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::cpp_sizes::Sizes;
use super::rtti::{CppClass, CppClasses, CppKind};
use crate::memory::{ALL_SPENT, Memory};
use crate::python::classes::Role;
use crate::python::heap::Heap;

/// Nodes that are looked at.
const MOST_NODES: usize = 1 << 22;
/// Bytes of a Python object of a node, and of a vector.
const MOST_OBJECT_BYTES: u64 = 4096;
const MOST_VECTOR_BYTES: u64 = 8192;
/// Words of what else a node points to, such as the hooks of a saved tensor.
const HOOK_WORDS: usize = 6;
/// Words of what autograd knows of a tensor in which the gradient and the graph are looked for.
const META_WORDS: usize = 16;

/// A tensor that a node has saved.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    /// The class of the node.
    pub(super) node: Rc<str>,
    /// The Python tensor whose graph it is.
    pub(super) owner: u64,
}

/// A Python object that a node keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) place: u32,
    /// The Python tensor whose graph it is.
    pub(super) owner: u64,
    /// Where its address stands.
    pub(super) slot: u64,
}

/// What autograd keeps.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// Of a Python tensor: where the address of its gradient stands, and that address.
    pub(super) gradients: HashMap<u64, (u64, u64), FixedState>,
    /// By the tensor in C++.
    pub(super) saved: HashMap<u64, Saved, FixedState>,
    /// Python objects of nodes that were found since this was last emptied.
    pub(super) kept: Vec<Kept>,
    /// The limit was met, or the time was over.
    pub(super) is_cut: bool,
    /// Nodes that were followed.
    nodes: HashSet<u64, FixedState>,
    /// Where in what autograd knows of a tensor its gradient stands.
    gradient: Option<usize>,
}

/// A tensor whose graph is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphOwner {
    /// The Python tensor that what its graph keeps is charged to.
    pub(super) object: u64,
    /// What autograd knows of the tensor.
    pub(super) meta: u64,
    /// The rank of the variable that leads to it: the smaller, the longer it lasts.
    pub(super) root: u8,
}

/// Whether a node at which the graph of one of the owners begins is left to that one, where another's graph leads to it.
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
    /// Where a tensor of C++ has what autograd knows of it, in bytes.
    pub(super) meta: Option<u64>,
}

impl<M: Memory> GraphReader<'_, M> {
    /// The gradients of these Python tensors, each with what autograd knows of it.
    pub(super) fn gradients(&self, metas: &[(u64, u64)], graphs: &mut Graphs) {
        let rows: Vec<_> =
            metas.iter().filter_map(|(owner, meta)| Some((*owner, *meta, self.meta_words(*meta)?))).collect();
        let is_tensor = |word| matches!(self.classes.kind(word), Some(CppKind::Tensor | CppKind::NoTensor));
        // The gradient is a tensor, or stands for none, in all of them.
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

    /// Follows the graphs of these tensors, in this order. Where one leads into the graph of another that lasts as long, what is behind is left to that.
    pub(super) fn follow(&self, owners: &[GraphOwner], graphs: &mut Graphs) {
        let nodes_of = |owner: &GraphOwner, graphs: &Graphs| {
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

    /// The nodes that stand in what autograd knows of a tensor.
    fn put_nodes(&self, meta: u64, graphs: &Graphs, nodes: &mut Vec<u64>) {
        let behind = graphs.gradient.map_or(1, |index| index + 1);
        let words = self.meta_words(meta).unwrap_or_default();
        let is_node = |word: &&u64| self.classes.kind(**word) == Some(CppKind::Node);
        nodes.extend(words.iter().skip(behind).filter(is_node));
    }

    fn take_node(&self, (node, class): (u64, &CppClass), owner: u64, nodes: &mut Vec<u64>, graphs: &mut Graphs) {
        let (name, bodies) = self.bodies(node, class);
        for (start, body) in bodies {
            for (index, word) in body.iter().enumerate() {
                let slot = start + 8 * index as u64;
                self.take((*word, slot), (&name, owner), nodes, graphs);
                match self.classes.kind(*word) {
                    // Such as the hooks of a saved tensor, which are of Python.
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

    fn take(&self, (word, slot): (u64, u64), by: (&Rc<str>, u64), nodes: &mut Vec<u64>, graphs: &mut Graphs) {
        if let Some(place) = self.heap.place(word) {
            // A Python tensor is kept by what it is in C++.
            if self.heap.class(place).is_some_and(|class| class.role != Role::Tensor) {
                graphs.kept.push(Kept { place, owner: by.1, slot });
            }
            return;
        }
        match self.classes.kind(word) {
            Some(CppKind::Tensor) => {
                let (node, owner) = (Rc::clone(by.0), by.1);
                if let std::collections::hash_map::Entry::Vacant(vacant) = graphs.saved.entry(word) {
                    vacant.insert(Saved { node, owner });
                    // The tensor keeps the graph that it comes from.
                    let meta = self.meta.and_then(|offset| self.memory.u64(word.checked_add(offset)?));
                    if let Some(meta) = meta.filter(|meta| *meta != 0) {
                        self.put_nodes(meta, graphs, nodes);
                    }
                }
            }
            // What adds to a gradient keeps the tensor that it is of.
            Some(CppKind::Node | CppKind::Accumulate) => nodes.push(word),
            _ => {}
        }
    }

    /// A node's name and its words with where they begin; of one that is written in Python, also those of the object that it stands for.
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

/// The bytes of the vector that begins with these words: begin, end, and the end of what it has (libstdc++, bits/stl_vector.h).
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
