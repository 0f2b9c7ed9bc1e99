//! Claims by path: the variable that leads to a block's tensor, the graph that saved it, or none at
//! all.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::HoldingClass;

use super::chains::ChainWord;
use super::claims::Claim;
use super::cpp_sizes::Sizes;
use super::graph::{AutogradGraphs, GraphOwner, GraphReader};
use super::survey::{PythonTensor, Survey};
use crate::memory::MemoryAccess;
use crate::python::classes::Role;
use crate::python::paths::{Path, PathRank, Paths};

/// Maximum number of paths compared per block.
const MOST_COMPARED: usize = 64;

impl<M: MemoryAccess> Survey<'_, M> {
    /// Follows the graphs of all tensors, starting with the best paths, and the objects that only
    /// graphs retain.
    pub(super) fn read_graphs(&self, paths: &mut Paths) -> AutogradGraphs {
        let mut graphs = AutogradGraphs::default();
        let of_tensors = self.objects.iter().map(|found| (*found, self.tensors[found.tensor].meta));
        let metas: Vec<(PythonTensor, u64)> = of_tensors.filter(|(_, meta)| *meta != 0).collect();
        let sizes = Sizes { memory: self.pass };
        let reader = GraphReader {
            memory: self.pass,
            classes: &self.classes,
            heap: self.heap,
            sizes: &sizes,
            meta: self.layout.meta_offset(),
        };
        let all: Vec<_> = metas.iter().map(|(found, meta)| (found.object, *meta)).collect();
        let mut reached: Vec<(PathRank, u64, u64)> =
            metas.iter().filter_map(|(found, meta)| Some((paths.rank(found.place)?, found.object, *meta))).collect();
        reached.sort_unstable();
        let mut owners: Vec<_> =
            reached.into_iter().map(|(rank, object, meta)| GraphOwner { object, meta, root: rank.root }).collect();
        self.pass.sparsely(|| reader.gradients(&all, &mut graphs));
        loop {
            self.pass.sparsely(|| reader.follow(&owners, &mut graphs));
            let kept = std::mem::take(&mut graphs.kept);
            let kept = kept.iter().filter_map(|kept| Some((kept.place, self.heap.place(kept.owner)?, kept.slot)));
            let places = paths.follow_kept(self.heap, &kept.collect::<Vec<_>>());
            if places.is_empty() {
                break;
            }
            // Objects retained by such a tensor are charged to the owner of the graph that retains
            // it.
            let owner = |place: u32| {
                let number = self.numbers.get(&self.heap.address(place)?)?;
                let meta = self.tensors[self.objects[*number].tensor].meta;
                let retainer = paths.graph_of(place).filter(|_| meta != 0)?;
                Some(GraphOwner { object: self.heap.address(retainer)?, meta, root: paths.rank(retainer)?.root })
            };
            owners = places.into_iter().filter_map(owner).collect();
        }
        let rest = metas.iter().filter(|(found, _)| !paths.is_reached(found.place));
        let rest: Vec<_> =
            rest.map(|(found, meta)| GraphOwner { object: found.object, meta: *meta, root: u8::MAX }).collect();
        self.pass.sparsely(|| reader.follow(&rest, &mut graphs));
        graphs
    }

    /// Claims blocks that have a path and no other claim. Returns the tensors of those without a
    /// path.
    pub(super) fn claim_paths(&mut self, paths: &Paths) -> Vec<(usize, Vec<PythonTensor>)> {
        let mut by_block = HashMap::<usize, Vec<PythonTensor>, FixedState>::default();
        for found in &self.objects {
            if let Some(block) = found.block.filter(|block| self.claims[*block].is_empty()) {
                by_block.entry(block).or_default().push(*found);
            }
        }
        let mut by_block: Vec<_> = by_block.into_iter().collect();
        by_block.sort_unstable_by_key(|(block, _)| *block);
        by_block.retain(|(block, found)| match self.best(paths, found) {
            Some((found, path)) => {
                if path.is_through_traceback {
                    self.tracebacks.push(*block);
                }
                self.claim_path(HoldingClass::Tensor, found, Some((path, paths)));
                false
            }
            None => true,
        });
        by_block
    }

    /// Claims blocks with tensors that only unreachable objects reference, or only C++.
    pub(super) fn claim_lost(&mut self, paths: &mut Paths, lost: Vec<(usize, Vec<PythonTensor>)>) {
        // After an incomplete search, the path is unknown: the block is a tensor without a path.
        if self.heap.is_cut() || paths.is_cut() {
            for (_, found) in lost {
                self.claim_path(HoldingClass::Tensor, found[0], None);
            }
            return;
        }
        // If the program changed its objects meanwhile, a second search decides.
        if lost.is_empty() || self.heap.is_partial() {
            return;
        }
        let count = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        let is_tensor =
            |place: u32| self.heap.class(place).is_some_and(|class| matches!(class.role, Role::Tensor | Role::Storage));
        let begins: Vec<_> = (0..count).filter(|place| !paths.is_reached(*place) && !is_tensor(*place)).collect();
        paths.begin_at(self.heap, begins);
        for (_, found) in lost {
            match self.best(paths, &found) {
                Some((found, path)) => self.claim_path(HoldingClass::Unreachable, found, Some((path, paths))),
                None => self.claim_path(HoldingClass::CppOnly, found[0], None),
            }
        }
    }

    /// Returns the tensor of a block with the best path. Storages count only if there is no tensor.
    fn best(&self, paths: &Paths, found: &[PythonTensor]) -> Option<(PythonTensor, Path)> {
        let ranked = found
            .iter()
            .filter_map(|found| Some((self.tensors[found.tensor].is_storage, paths.rank(found.place)?, *found)));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(is_storage, rank, _)| (*is_storage, *rank));
        ranked
            .into_iter()
            .take(MOST_COMPARED)
            .find_map(|(_, _, found)| Some((found, paths.path(self.heap, found.place)?)))
    }

    fn claim_path(&mut self, class: HoldingClass, found: PythonTensor, path: Option<(Path, &Paths)>) {
        let mut before = None;
        let (mut class, mut kept_by, mut name) = (class, None, None);
        if let Some((path, paths)) = path {
            for link in path.links {
                let word = ChainWord { slot: link.slot, target: link.object };
                before = Some(self.chains.refer(before, self.heap, word));
            }
            if let Some(owner) = path.graph_of {
                class = HoldingClass::SavedForBackward;
                kept_by = paths.path_text(self.heap, owner);
            }
            name = Some(path.text);
        }
        let chain = self.tensor_chain(before, found);
        let tensor_type = self.type_name(found.object);
        let claim = Claim { class, name, tensor: found.tensor, tensor_type, kept_by, owner: None, chain };
        self.claim(found.block, claim);
    }

    /// Claims tensors saved by nodes of autograd graphs.
    pub(super) fn claim_saved(&mut self, graphs: &AutogradGraphs, paths: &Paths) {
        let mut owners = HashMap::<u64, Option<Path>, FixedState>::default();
        let mut saved: Vec<_> = graphs.saved.iter().collect();
        saved.sort_unstable_by_key(|(address, _)| **address);
        for (address, saved) in saved {
            let read = || self.layout.read(self.pass, &self.classes, *address);
            let Some(tensor) = self.pass.sparsely(read) else { continue };
            let block = self.blocks.index(tensor.data).filter(|block| {
                // A path says more than a node.
                self.claims[*block].iter().all(|claim| claim.class >= HoldingClass::SavedForBackward)
            });
            let Some(block) = block else { continue };
            let owner = owners.entry(saved.owner).or_insert_with(|| {
                let path = paths.path(self.heap, self.heap.place(saved.owner)?);
                path.filter(|path| !path.is_changed)
            });
            if owner.as_ref().is_some_and(|path| path.is_through_traceback) {
                self.tracebacks.push(block);
            }
            let claim = Claim {
                class: HoldingClass::SavedForBackward,
                name: Some(saved.node.to_string()),
                tensor: self.tensors.len(),
                tensor_type: None,
                kept_by: owner.as_ref().map(|path| path.text.clone()),
                owner: None,
                chain: self.chains.link(None, tensor.words),
            };
            self.tensors.push(tensor);
            self.claim(Some(block), claim);
        }
    }
}
