//! Autograd's graphs: the gradients of tensors, and what the nodes have saved for backward.
//!
//! A node is looked through word by word to the end of its piece of the heap, and so are the small pieces that it points to, its vectors. What a word
//! leads to counts only where its class says that it is a tensor or a node.

use std::collections::HashMap;
use std::collections::HashSet;
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::rtti::{CppClass, CppClasses, CppKind};
use crate::memory::{ALL_SPENT, Memory, heap_bytes};
use crate::python::heap::Heap;

/// Nodes that are looked at.
const MOST_NODES: usize = 1 << 20;
/// Bytes of a node, and of a piece that it points to.
const MOST_NODE_BYTES: u64 = 4096;
const MOST_PIECE_BYTES: u64 = 8192;
/// Where the size of a piece cannot be read: another malloc.
const UNKNOWN_BYTES: u64 = 512;
/// Before an object of `std::make_shared` stand its counts.
const COUNTS_BYTES: u64 = 16;
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

/// What autograd keeps.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// Of a Python tensor: where the address of its gradient stands, and that address.
    pub(super) gradients: HashMap<u64, (u64, u64), FixedState>,
    /// By the tensor in C++.
    pub(super) saved: HashMap<u64, Saved, FixedState>,
}

/// Reads all graphs.
pub(super) struct GraphReader<'a, M> {
    pub(super) memory: &'a M,
    pub(super) classes: &'a CppClasses<'a, M>,
    pub(super) heap: &'a Heap<'a, M>,
}

impl<M: Memory> GraphReader<'_, M> {
    /// From these Python tensors, with what autograd knows of each.
    pub(super) fn read(&self, metas: &[(u64, u64)]) -> Graphs {
        let mut graphs = Graphs::default();
        let rows: Vec<_> = metas
            .iter()
            .filter(|(_, meta)| self.classes.kind(*meta) == Some(CppKind::Meta))
            .filter_map(|(owner, meta)| Some((*owner, *meta, self.memory.words(*meta, META_WORDS)?)))
            .collect();
        let kind = |word: u64| self.classes.kind(word);
        let is_tensor = |word| matches!(kind(word), Some(CppKind::Tensor | CppKind::NoTensor));
        // The gradient is a tensor, or stands for none, in all of them.
        let gradient =
            (1..META_WORDS).find(|index| !rows.is_empty() && rows.iter().all(|(_, _, row)| is_tensor(row[*index])));
        let mut nodes = Vec::new();
        for (owner, meta, row) in &rows {
            if let Some(index) = gradient.filter(|index| kind(row[*index]) == Some(CppKind::Tensor)) {
                graphs.gradients.insert(*owner, (meta + 8 * index as u64, row[index]));
            }
            let behind = gradient.map_or(1, |index| index + 1);
            nodes.extend(
                row[behind..].iter().filter(|word| kind(**word) == Some(CppKind::Node)).map(|node| (*node, *owner)),
            );
        }
        self.follow(nodes, &mut graphs);
        graphs
    }

    fn follow(&self, mut nodes: Vec<(u64, u64)>, graphs: &mut Graphs) {
        let mut known = HashSet::<_, FixedState>::default();
        while let Some((node, owner)) = nodes.pop() {
            if known.len() == MOST_NODES || self.memory.spent() >= ALL_SPENT {
                break;
            }
            if !known.insert(node) {
                continue;
            }
            let Some(class) = self.classes.of(node) else { continue };
            let (name, body) = self.body(node, &class);
            for word in body {
                self.take(word, (&name, owner), &mut nodes, graphs);
                if self.classes.of(word).is_some() {
                    continue;
                }
                let piece = self.piece_bytes(word).filter(|bytes| *bytes <= MOST_PIECE_BYTES);
                let inner = piece.and_then(|bytes| self.memory.words(word, bytes_to_words(bytes)));
                for word in inner.unwrap_or_default() {
                    self.take(word, (&name, owner), &mut nodes, graphs);
                }
            }
        }
    }

    fn take(&self, word: u64, by: (&Rc<str>, u64), nodes: &mut Vec<(u64, u64)>, graphs: &mut Graphs) {
        match self.classes.kind(word) {
            Some(CppKind::Tensor) => {
                let (node, owner) = (Rc::clone(by.0), by.1);
                graphs.saved.entry(word).or_insert(Saved { node, owner });
            }
            // What adds to a gradient keeps the tensor that it is of.
            Some(CppKind::Node | CppKind::Accumulate) => nodes.push((word, by.1)),
            _ => {}
        }
    }

    /// A node's name and its words; of one that is written in Python, the words of the object that it stands for.
    fn body(&self, node: u64, class: &CppClass) -> (Rc<str>, Vec<u64>) {
        // With std::make_shared the piece begins with the counts.
        let own = self.piece_bytes(node);
        let shared = || Some(self.piece_bytes(node.checked_sub(COUNTS_BYTES)?)?.saturating_sub(COUNTS_BYTES));
        let bytes = own.or_else(shared).unwrap_or(UNKNOWN_BYTES).min(MOST_NODE_BYTES);
        let mut body = self.memory.words(node, bytes_to_words(bytes)).unwrap_or_default();
        let object = body.iter().find_map(|word| self.heap.place(*word)).filter(|_| class.name == "PyNode");
        let Some(class_and_object) = object.and_then(|place| self.heap.class(place).zip(self.heap.address(place)))
        else {
            return (Rc::from(class.name.as_str()), body);
        };
        let (python, object) = class_and_object;
        let count = bytes_to_words(u64::from(python.basic_bytes).min(MOST_NODE_BYTES));
        body.extend(self.memory.words(object, count).unwrap_or_default());
        (Rc::from(python.short_name()), body)
    }

    /// The size of the piece of the heap that begins at an address, where one may.
    fn piece_bytes(&self, address: u64) -> Option<u64> {
        let is_place = address.is_multiple_of(8) && address >= 0x1_0000;
        let bytes = if is_place { heap_bytes(self.memory, address)? } else { return None };
        (16..=1 << 16).contains(&bytes).then_some(bytes)
    }
}

fn bytes_to_words(bytes: u64) -> usize {
    usize::try_from(bytes / 8).unwrap_or(0)
}
