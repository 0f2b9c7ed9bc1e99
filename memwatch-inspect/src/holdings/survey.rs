//! Finds names for the blocks: collects the claims on each block, and checks which hold when read
//! again.
//!
//! A running program moves the references to its tensors while they are read. Only blocks with
//! failed claims are searched again, in the program's new state.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::{Holding, HoldingClass, Holdings};

use super::advice::{Grounds, advice};
use super::chains::{ChainEnd, ChainWord, Chains};
use super::claims::{Claim, settle};
use super::modules::Namer;
use super::rtti::CppClasses;
use super::tensors::{CppTensor, TensorLayout};
use super::{Blocks, InspectOptions, workspaces};
use crate::memory::{ALL_SPENT, MemoryAccess};
use crate::pass::Pass;
use crate::python::classes::Role;
use crate::python::frames::RunningFrames;
use crate::python::heap::Heap;
use crate::python::layout::TYPE;
use crate::python::paths::{Breadth, Paths};

/// Extents of the further searches for such blocks: everything, then only the program's own roots,
/// which takes a moment.
const SECOND_LOOKS: [Breadth; 3] = [
    Breadth { of_libraries: true, objects_per_root: 50_000 },
    Breadth { of_libraries: false, objects_per_root: 10_000 },
    Breadth { of_libraries: false, objects_per_root: 10_000 },
];

/// Reason for missing names if all objects were read and none is a tensor.
pub(super) const NO_TENSOR: &str = "there are no Python tensors";

/// A Python tensor, or a storage without one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PythonTensor {
    pub(super) object: u64,
    pub(super) place: u32,
    /// Index of the tensor.
    pub(super) tensor: usize,
    /// Index of the block that contains its data.
    pub(super) block: Option<usize>,
    /// Address of the word that refers to its C++ object.
    slot: u64,
}

/// Tensors of a process.
pub(super) struct Survey<'a, M> {
    pub(super) pass: &'a Pass<'a, M>,
    pub(super) heap: &'a Heap<'a, Pass<'a, M>>,
    pub(super) blocks: Blocks,
    pub(super) classes: CppClasses<'a, Pass<'a, M>>,
    pub(super) layout: TensorLayout,
    pub(super) tensors: Vec<CppTensor>,
    pub(super) objects: Vec<PythonTensor>,
    /// Index in `objects` by the address of the Python object.
    pub(super) numbers: HashMap<u64, usize, FixedState>,
    pub(super) chains: Chains,
    pub(super) claims: Vec<Vec<Claim>>,
    /// Blocks that only a traceback retains.
    pub(super) tracebacks: Vec<usize>,
    earlier: &'a RunningFrames,
    workspaces: &'a [u64],
}

impl<'a, M: MemoryAccess> Survey<'a, M> {
    /// Reads all tensors. `earlier` are the frames that ran when the reading began.
    ///
    /// # Errors
    /// There are no tensors in the blocks, or their fields were not found.
    pub(super) fn new(
        (pass, heap): (&'a Pass<'a, M>, &'a Heap<'a, Pass<'a, M>>),
        blocks: &Blocks,
        options: &'a InspectOptions,
        earlier: &'a RunningFrames,
    ) -> Result<Self, &'static str> {
        let classes = CppClasses::new(pass, &options.libraries);
        let of_role = |role: Role| {
            heap.iter().filter(move |(_, class)| class.role == role).map(|(object, _)| object).collect::<Vec<_>>()
        };
        let (objects, storages) = (of_role(Role::Tensor), of_role(Role::Storage));
        if objects.is_empty() && storages.is_empty() {
            return Err(NO_TENSOR);
        }
        let layout = TensorLayout::find(pass, &classes, (&objects, &storages), blocks)
            .ok_or("no tensor is in a known block, or the layout of PyTorch's objects is not supported")?;
        let mut survey = Self {
            pass,
            heap,
            blocks: blocks.clone(),
            classes,
            layout,
            tensors: Vec::new(),
            objects: Vec::new(),
            numbers: HashMap::default(),
            chains: Chains::default(),
            claims: vec![Vec::new(); blocks.iter().count()],
            tracebacks: Vec::new(),
            earlier,
            workspaces: &options.workspaces,
        };
        for object in objects.into_iter().chain(storages) {
            survey.take(object);
        }
        Ok(survey)
    }

    fn take(&mut self, object: u64) -> Option<()> {
        let place = self.heap.place(object)?;
        let (slot, tensor) = if self.heap.class(place)?.role == Role::Storage {
            self.layout.read_storage(self.pass, &self.classes, object)?
        } else {
            let slot = self.layout.object_slot(object);
            (slot, self.layout.read(self.pass, &self.classes, self.pass.u64(slot)?)?)
        };
        let block = self.blocks.index(tensor.data);
        self.numbers.insert(object, self.objects.len());
        self.objects.push(PythonTensor { object, place, tensor: self.tensors.len(), block, slot });
        self.tensors.push(tensor);
        Some(())
    }

    /// Names the blocks; `again` returns the current ones. Returns whether something was left out
    /// because of a limit.
    pub(super) fn fill(mut self, holdings: &mut Holdings, again: &mut dyn FnMut() -> Option<Blocks>) -> bool {
        let names = Namer::new(self.heap, &mut self.chains).names();
        let mut paths = Paths::search(self.heap, self.earlier);
        let graphs = self.read_graphs(&mut paths);
        let has_gradient = |object: u64| graphs.gradients.contains_key(&object);
        let parameters = self.claim_names(names, &graphs, &paths);
        let without_gradient = parameters.into_iter().filter(|(object, _)| !has_gradient(*object));
        let without_gradient: Vec<_> = without_gradient.map(|(_, block)| block).collect();
        let lost = self.claim_paths(&paths);
        self.claim_saved(&graphs, &paths);
        self.claim_buckets();
        self.claim_lost(&mut paths, lost);
        let mut is_cut = self.heap.is_cut() || paths.is_cut() || graphs.is_cut;
        let all: Vec<_> = (0..holdings.rows.len()).collect();
        is_cut |= self.settle(&mut holdings.rows, &all, &mut holdings.dropped_names);
        self.count(&mut holdings.rows, &paths, &mut holdings.tensors);
        let mut grounds = self.grounds(&paths);
        if !graphs.gradients.is_empty() {
            grounds.without_gradient = self.addresses(&without_gradient);
        }
        workspaces::mark(self.pass, self.workspaces, &mut holdings.rows);
        drop((paths, graphs));
        self.look_again(holdings, again);
        grounds.tracebacks.extend(self.addresses(&self.tracebacks));
        holdings.advice = advice(&holdings.rows, &grounds);
        is_cut
    }

    /// Returns whether the search was complete, so that blocks without a path are known to be
    /// unreachable.
    pub(super) fn is_whole(&self, paths: &Paths) -> bool {
        !self.heap.is_cut() && !self.heap.is_partial() && !paths.is_cut()
    }

    fn addresses(&self, blocks: &[usize]) -> HashSet<u64, FixedState> {
        blocks.iter().filter_map(|block| self.blocks.get(*block)).map(|block| block.address).collect()
    }

    /// Gives these rows the claims that hold. Returns whether the time budget was spent before the
    /// end.
    fn settle(&mut self, rows: &mut [Holding], which: &[usize], dropped: &mut u64) -> bool {
        let mut claims = std::mem::take(&mut self.claims);
        for index in which {
            // A name that cannot be checked again does not count.
            if self.pass.spent() >= ALL_SPENT {
                return true;
            }
            let (Some(row), Some(claims)) = (rows.get_mut(*index), claims.get_mut(*index)) else { continue };
            let claims = std::mem::take(claims);
            let had_claims = !claims.is_empty();
            let dropped_here = settle(row, claims, &self.tensors, &mut self.chains, self.pass.memory());
            *dropped += dropped_here;
            // A moment ago, something led to it.
            if row.class == HoldingClass::NoPythonObject && had_claims && dropped_here > 0 {
                row.class = HoldingClass::Changed;
            }
        }
        false
    }

    fn count(&self, rows: &mut [Holding], paths: &Paths, tensors: &mut u64) {
        for found in &self.objects {
            let Some(row) = found.block.and_then(|block| rows.get_mut(block)) else { continue };
            *tensors += 1;
            row.tensors += 1;
            row.references = row.references.saturating_add(paths.references(found.place));
        }
    }

    fn grounds(&self, paths: &Paths) -> Grounds {
        let mut grounds = Grounds::default();
        // The base of a view is an object as well, which only the view retains.
        for found in self.objects.iter().filter(|found| paths.is_reached(found.place)) {
            if let Some(block) = found.block.and_then(|block| self.blocks.get(block)) {
                grounds.use_tensor(block.address, &self.tensors[found.tensor]);
            }
        }
        grounds
    }

    /// Extends a chain by the words that place a Python tensor in its block.
    pub(super) fn tensor_chain(&mut self, before: Option<ChainEnd>, found: PythonTensor) -> ChainEnd {
        let tensor = &self.tensors[found.tensor];
        let class = self.heap.class(found.place).map_or(0, |class| class.address);
        let class = ChainWord { slot: found.object + u64::from(TYPE), target: class };
        let chain = self.chains.link(before, [ChainWord { slot: found.slot, target: tensor.address }, class]);
        self.chains.link(Some(chain), tensor.words)
    }

    pub(super) fn claim(&mut self, block: Option<usize>, claim: Claim) {
        if let Some(claims) = block.and_then(|block| self.claims.get_mut(block)) {
            claims.push(claim);
        }
    }

    pub(super) fn type_name(&self, object: u64) -> Option<String> {
        Some(self.heap.class_of(object)?.short_name().to_owned())
    }
}

/// Further searches while the program runs.
impl<M: MemoryAccess> Survey<'_, M> {
    fn look_again(&mut self, holdings: &mut Holdings, again: &mut dyn FnMut() -> Option<Blocks>) {
        let mut standing: HashSet<(u64, u64), FixedState> =
            holdings.rows.iter().map(|row| (row.address, row.block_bytes)).collect();
        let (mut is_moving, mut is_cut) = (holdings.dropped_names > 0, false);
        let mut is_resting = !is_moving && self.has_same_frames();
        for breadth in SECOND_LOOKS {
            if holdings.rows.iter().all(Holding::is_found) || self.pass.is_hurried() {
                break;
            }
            if let Some(blocks) = again() {
                is_moving |= blocks != self.blocks;
                self.take_blocks(blocks, holdings, &mut standing);
            }
            // If nothing has changed, another search finds the same.
            is_resting &= !is_moving;
            if is_resting {
                break;
            }
            // Only a complete search shows that a block is unreachable.
            let is_unreachable = |row: &Holding| matches!(row.class, HoldingClass::Unreachable | HoldingClass::CppOnly);
            let is_whole = breadth.of_libraries && holdings.rows.iter().any(is_unreachable);
            let breadth = if is_whole { Breadth { objects_per_root: usize::MAX, ..breadth } } else { breadth };
            is_cut |= self.look_once(holdings, breadth) && breadth.of_libraries;
        }
        if let Some(blocks) = again() {
            is_moving |= blocks != self.blocks;
            standing.retain(|(address, bytes)| blocks.at(*address).is_some_and(|block| block.bytes == *bytes));
        }
        // Blocks without a name that appeared meanwhile were allocated after the reading.
        holdings.rows.retain(|row| row.is_found() || standing.contains(&(row.address, row.block_bytes)));
        let is_lost = |row: &&mut Holding| {
            let says_that_nothing_leads_to_it =
                matches!(row.class, HoldingClass::NoPythonObject | HoldingClass::Unreachable | HoldingClass::CppOnly);
            let is_doubtful = self.heap.is_partial() || (is_moving && is_cut);
            says_that_nothing_leads_to_it && is_doubtful
        };
        for row in holdings.rows.iter_mut().filter(is_lost) {
            let unknown = Holding::unknown(row.ordinal, row.address, row.block_bytes);
            *row = Holding { class: HoldingClass::Changed, tensors: row.tensors, ..unknown };
        }
        // Blocks that were found again are not missing.
        holdings.dropped_names = holdings.rows.iter().filter(|row| row.class == HoldingClass::Changed).count() as u64;
    }

    /// Returns whether all threads run the same frames at the same instructions as at the
    /// beginning.
    fn has_same_frames(&self) -> bool {
        self.pass.forget();
        RunningFrames::read(self.pass, self.heap.objects().layout) == *self.earlier
    }

    /// Replaces the blocks by the current ones. Blocks that still exist keep their rows.
    fn take_blocks(&mut self, blocks: Blocks, holdings: &mut Holdings, standing: &mut HashSet<(u64, u64), FixedState>) {
        let mut rows: HashMap<_, _, FixedState> =
            holdings.rows.drain(..).map(|row| ((row.ordinal, row.address, row.block_bytes), row)).collect();
        let row = |block: &super::AllocatedBlock| {
            rows.remove(&(block.ordinal, block.address, block.bytes))
                .unwrap_or_else(|| Holding::unknown(block.ordinal, block.address, block.bytes))
        };
        holdings.rows = blocks.iter().map(row).collect();
        let there: HashSet<_, FixedState> = blocks.iter().map(|block| (block.address, block.bytes)).collect();
        standing.retain(|block| there.contains(block));
        self.blocks = blocks;
    }

    /// Searches again for what leads to the unidentified blocks. Returns whether the search ended
    /// early because of a limit.
    fn look_once(&mut self, holdings: &mut Holdings, breadth: Breadth) -> bool {
        self.pass.forget();
        self.heap.take_late();
        (self.tensors, self.objects, self.numbers) = (Vec::new(), Vec::new(), HashMap::default());
        self.chains = Chains::default();
        self.claims = vec![Vec::new(); holdings.rows.len()];
        let mut paths = Paths::search_within(self.heap, self.earlier, breadth);
        let is_tensor = |place: &u32| {
            let class = self.heap.class(*place);
            class.is_some_and(|class| matches!(class.role, Role::Tensor | Role::Storage))
        };
        let count = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        let reached = (0..count).filter(|place| paths.is_reached(*place) && is_tensor(place));
        let reached: Vec<_> = reached.filter_map(|place| self.heap.address(place)).collect();
        for object in reached {
            self.take(object);
        }
        let graphs = self.read_graphs(&mut paths);
        if breadth.of_libraries {
            let names = Namer::new(self.heap, &mut self.chains).names();
            self.claim_names(names, &graphs, &paths);
        }
        self.claim_paths(&paths);
        self.claim_saved(&graphs, &paths);
        let lost: Vec<_> = (0..holdings.rows.len()).filter(|index| !holdings.rows[*index].is_found()).collect();
        let mut found: Vec<_> = lost
            .iter()
            .map(|index| {
                let row = &holdings.rows[*index];
                Holding { tensors: row.tensors, ..Holding::unknown(row.ordinal, row.address, row.block_bytes) }
            })
            .collect();
        let claims: Vec<_> = lost.iter().map(|index| std::mem::take(&mut self.claims[*index])).collect();
        self.claims = claims;
        let every: Vec<_> = (0..found.len()).collect();
        let mut dropped = 0;
        self.settle(&mut found, &every, &mut dropped);
        for (index, found) in lost.into_iter().zip(found) {
            let row = &mut holdings.rows[index];
            // If something led to it a moment ago, it is not unreachable.
            if found.is_found() || found.class == HoldingClass::Changed {
                *row = found;
            }
        }
        paths.is_cut()
    }
}
