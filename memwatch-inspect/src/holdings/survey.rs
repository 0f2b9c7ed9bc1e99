//! From objects to names: who speaks for each block, and which of them hold when they are read again.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::{HoldingClass, Holdings, OwnerModule};

use super::advice;
use super::chains::{ChainEnd, Chains};
use super::claims::{Claim, settle};
use super::graph::{GraphReader, Graphs};
use super::modules::{NamedTensor, Namer, PartKind, ambiguous_models};
use super::rtti::CppClasses;
use super::tensors::{Tensor, TensorLayout};
use super::{Blocks, Options};
use crate::memory::{ALL_SPENT, Memory};
use crate::pass::Pass;
use crate::python::classes::Role;
use crate::python::edges::Edge;
use crate::python::heap::Heap;
use crate::python::layout::TYPE;
use crate::python::paths::{Path, Paths, reference_text};

/// Tensors that stand for themselves only. What these have as attributes is not them: FSDP keeps gathered parameters there.
const PLAIN: [&str; 3] = ["Tensor", "Parameter", "Buffer"];
/// Tensors that another one stands for, at most.
const MOST_PARTS: usize = 8;
/// Tensors of one block whose paths are compared.
const MOST_COMPARED: usize = 8;

/// A Python tensor.
#[derive(Clone, Copy, Debug)]
struct PythonTensor {
    object: u64,
    place: u32,
    /// Its number among the tensors.
    tensor: usize,
    /// The block that it lies in.
    block: Option<usize>,
}

/// A parameter, for what belongs to it.
#[derive(Clone, Debug)]
struct Owner {
    name: String,
    module: Option<OwnerModule>,
    chain: ChainEnd,
}

/// The tensors of a process.
pub(super) struct Survey<'a, M> {
    pass: &'a Pass<'a, M>,
    heap: &'a Heap<'a, Pass<'a, M>>,
    blocks: &'a Blocks,
    classes: CppClasses<'a, Pass<'a, M>>,
    layout: TensorLayout,
    tensors: Vec<Tensor>,
    objects: Vec<PythonTensor>,
    /// By the address of the Python object: its place in `objects`.
    numbers: HashMap<u64, usize, FixedState>,
    chains: Chains,
    claims: Vec<Vec<Claim>>,
}

impl<'a, M: Memory> Survey<'a, M> {
    /// Reads all tensors.
    ///
    /// # Errors
    /// There are none in the blocks, or their fields were not found.
    pub(super) fn new(
        pass: &'a Pass<'a, M>,
        heap: &'a Heap<'a, Pass<'a, M>>,
        blocks: &'a Blocks,
        options: &'a Options,
    ) -> Result<Self, &'static str> {
        let classes = CppClasses::new(pass, &options.libraries);
        let objects: Vec<_> =
            heap.iter().filter(|(_, class)| class.role == Role::Tensor).map(|(object, _)| object).collect();
        if objects.is_empty() {
            return Err("no Python object is a tensor");
        }
        let layout = TensorLayout::find(pass, &classes, &objects, blocks)
            .ok_or("no tensor lies in a block, or PyTorch's objects are laid out in another way")?;
        let claims = blocks.iter().map(|_| Vec::new()).collect();
        let mut survey = Self {
            pass,
            heap,
            blocks,
            classes,
            layout,
            tensors: Vec::new(),
            objects: Vec::new(),
            numbers: HashMap::default(),
            chains: Chains::default(),
            claims,
        };
        for object in objects {
            survey.take(object);
        }
        Ok(survey)
    }

    fn take(&mut self, object: u64) -> Option<()> {
        let address = self.pass.u64(self.layout.object_slot(object))?;
        let tensor = self.layout.read(self.pass, &self.classes, address)?;
        let block = self.blocks.index(tensor.data);
        self.numbers.insert(object, self.objects.len());
        self.objects.push(PythonTensor { object, place: self.heap.place(object)?, tensor: self.tensors.len(), block });
        self.tensors.push(tensor);
        Some(())
    }

    /// Names the blocks. Returned is whether something was left out, because there is too much of it.
    pub(super) fn fill(mut self, holdings: &mut Holdings) -> bool {
        let metas: Vec<_> = self
            .objects
            .iter()
            .map(|found| (found.object, self.tensors[found.tensor].meta))
            .filter(|(_, meta)| *meta != 0)
            .collect();
        let graphs = GraphReader { memory: self.pass, classes: &self.classes, heap: self.heap }.read(&metas);
        let has_gradient = |object: u64| graphs.gradients.contains_key(&object);
        let names = Namer::new(self.heap, &mut self.chains).names();
        let mut paths = Paths::search(self.heap);
        let parameters = self.claim_names(names, &graphs, &paths);
        let without_gradient = parameters.into_iter().filter(|(object, _)| !has_gradient(*object));
        let without_gradient: Vec<_> = without_gradient.map(|(_, block)| block).collect();
        let tracebacks = self.claim_paths(&mut paths);
        self.claim_saved(&graphs, &paths);
        let mut is_cut = self.heap.is_cut() || paths.is_cut();
        for (row, claims) in holdings.rows.iter_mut().zip(std::mem::take(&mut self.claims)) {
            // What could not be looked at once more is no name.
            if self.pass.spent() >= ALL_SPENT {
                is_cut = true;
                break;
            }
            holdings.dropped_names += settle(row, claims, &self.tensors, &mut self.chains, self.pass);
        }
        for found in &self.objects {
            let Some(row) = found.block.and_then(|block| holdings.rows.get_mut(block)) else { continue };
            holdings.tensors += 1;
            row.tensors += 1;
            row.references = row.references.saturating_add(paths.references(found.place));
        }
        // The base of a view is an object, too, and only the view keeps it.
        let reached = self.objects.iter().filter(|found| paths.is_reached(found.place));
        let in_block = reached.filter_map(|found| Some((found.block?, &self.tensors[found.tensor])));
        let without_gradient = if graphs.gradients.is_empty() { Vec::new() } else { without_gradient };
        holdings.advice = advice::advice(&holdings.rows, in_block, &tracebacks, &without_gradient);
        is_cut
    }

    /// The words that make a Python tensor lie in its block, after what lead to it.
    fn tensor_chain(&mut self, before: Option<ChainEnd>, object: u64, tensor: usize) -> ChainEnd {
        let chain = self.chains.link(before, [self.layout.object_slot(object), object + u64::from(TYPE)]);
        self.chains.link(Some(chain), self.tensors[tensor].slots)
    }

    fn claim(&mut self, block: Option<usize>, claim: Claim) {
        if let Some(claims) = block.and_then(|block| self.claims.get_mut(block)) {
            claims.push(claim);
        }
    }

    fn type_name(&self, object: u64) -> Option<String> {
        Some(self.heap.class_of(object)?.short_name().to_owned())
    }

    /// Parameters, buffers, gradients and the state of optimizers. Returned are the parameters with their blocks.
    fn claim_names(&mut self, names: Vec<NamedTensor>, graphs: &Graphs, paths: &Paths) -> Vec<(u64, usize)> {
        let models = self.model_names(names.iter().filter(|named| self.is_in_block(named.object)), paths);
        let mut parameters = Vec::new();
        let mut owners = HashMap::<u64, Owner, FixedState>::default();
        for named in names {
            let Some(found) = self.numbers.get(&named.object).map(|number| self.objects[*number]) else { continue };
            let class = match named.kind {
                PartKind::Parameter => HoldingClass::Parameter,
                PartKind::Buffer => HoldingClass::Buffer,
                PartKind::OptimizerState => HoldingClass::OptimizerState,
            };
            let owner = Owner { name: named.full_name(&models), module: named.owner, chain: named.chain };
            if class == HoldingClass::Parameter {
                owners.entry(named.object).or_insert_with(|| owner.clone());
                parameters.extend(found.block.map(|block| (named.object, block)));
            }
            self.claim_named(class, &owner, found);
        }
        let by_address: HashMap<u64, PythonTensor, FixedState> =
            self.objects.iter().map(|found| (self.tensors[found.tensor].address, *found)).collect();
        for (object, (slot, gradient)) in &graphs.gradients {
            let owner = owners.get(object);
            let wrapper = by_address.get(gradient).copied().filter(|found| found.block.is_none());
            if let Some((wrapper, owner)) = wrapper.zip(owner) {
                self.claim_named(HoldingClass::Gradient, owner, wrapper);
            }
            self.claim_gradient(*object, (*slot, *gradient), owner);
        }
        parameters
    }

    /// The block of a tensor that has a name. A tensor that only stands for others, such as a `DTensor` for the part of it that is here, has no block of
    /// its own: the name is theirs.
    fn claim_named(&mut self, class: HoldingClass, owner: &Owner, found: PythonTensor) {
        let parts = self.parts(found);
        let is_alone = parts.len() == 1;
        for (part, edge) in parts {
            let Owner { mut name, mut chain, module } = owner.clone();
            if let Some(edge) = edge {
                chain = self.chains.link(Some(chain), [edge.slot, found.object + u64::from(TYPE)]);
                if !is_alone {
                    name += &reference_text(self.heap, edge.label);
                }
            }
            let chain = self.tensor_chain(Some(chain), part.object, part.tensor);
            let tensor_type = self.type_name(found.object);
            let (name, tensor) = (Some(name), part.tensor);
            let claim = Claim { class, name, tensor, tensor_type, kept_by: None, owner: module, chain };
            self.claim(part.block, claim);
        }
    }

    /// What of a tensor is in blocks: itself, or the tensors that it stands for, with the reference to each.
    fn parts(&self, found: PythonTensor) -> Vec<(PythonTensor, Option<Edge>)> {
        let is_plain = || self.type_name(found.object).is_none_or(|name| PLAIN.contains(&name.as_str()));
        if found.block.is_some() || is_plain() {
            return vec![(found, None)];
        }
        let mut edges = Vec::new();
        self.heap.put_edges(found.place, &mut edges);
        let part = |edge: Edge| {
            let number = self.numbers.get(&self.heap.address(edge.target)?)?;
            let part = self.objects.get(*number).copied().filter(|part| part.block.is_some())?;
            Some((part, Some(edge)))
        };
        edges.into_iter().filter_map(part).take(MOST_PARTS).collect()
    }

    fn is_in_block(&self, object: u64) -> bool {
        let found = self.numbers.get(&object).map(|number| self.objects[*number]);
        found.is_some_and(|found| self.parts(found).iter().any(|(part, _)| part.block.is_some()))
    }

    /// What models are called that have the same names as others: by the way to them, else by their class.
    fn model_names<'n>(
        &self,
        names: impl Iterator<Item = &'n NamedTensor>,
        paths: &Paths,
    ) -> HashMap<u64, String, FixedState> {
        let mut known = HashMap::<String, u32, FixedState>::default();
        let called = ambiguous_models(names).into_iter().map(|model| {
            let path = self.heap.place(model).and_then(|place| paths.path(self.heap, place));
            let name = path.map(|path| path.text).or_else(|| self.type_name(model)).unwrap_or_default();
            let count = known.entry(name.clone()).or_default();
            *count += 1;
            (model, if *count == 1 { name } else { format!("{name} ({count})") })
        });
        called.collect()
    }

    /// The gradient of a tensor, whether or not Python has an object for it.
    fn claim_gradient(&mut self, object: u64, gradient: (u64, u64), owner: Option<&Owner>) -> Option<()> {
        let (slot, address) = gradient;
        let tensor = self.layout.read(self.pass, &self.classes, address)?;
        let block = self.blocks.index(tensor.data);
        let number = self.tensors.len();
        let slots = tensor.slots;
        self.tensors.push(tensor);
        let meta = self.objects.get(*self.numbers.get(&object)?).map(|found| self.tensors[found.tensor].address)?;
        let chain = self
            .chains
            .link(owner.map(|owner| owner.chain), [self.layout.object_slot(object), self.layout.meta_slot(meta)?]);
        let chain = self.chains.link(Some(chain), [slot, slots[0]]);
        let chain = self.chains.link(Some(chain), slots);
        let claim = Claim {
            class: HoldingClass::Gradient,
            name: owner.map(|owner| owner.name.clone()),
            tensor: number,
            tensor_type: None,
            kept_by: None,
            owner: owner.and_then(|owner| owner.module.clone()),
            chain,
        };
        self.claim(block, claim);
        Some(())
    }

    /// What else has a path; then what only unreachable objects, or C++, refer to. Returned are the blocks that only a traceback leads to.
    fn claim_paths(&mut self, paths: &mut Paths) -> Vec<usize> {
        let mut by_block = HashMap::<usize, Vec<PythonTensor>, FixedState>::default();
        for found in &self.objects {
            if let Some(block) = found.block.filter(|block| self.claims[*block].is_empty()) {
                by_block.entry(block).or_default().push(*found);
            }
        }
        let mut by_block: Vec<_> = by_block.into_iter().collect();
        by_block.sort_unstable_by_key(|(block, _)| *block);
        let mut tracebacks = Vec::new();
        by_block.retain(|(block, found)| match self.shortest(paths, found) {
            Some((found, path)) => {
                if path.is_through_traceback {
                    tracebacks.push(*block);
                }
                self.claim_path(HoldingClass::Tensor, found, Some(path));
                false
            }
            None => true,
        });
        // Where not all was looked through, nobody knows what leads to the rest: it is a tensor, without a path.
        if self.heap.is_cut() || paths.is_cut() {
            for (_, found) in by_block {
                self.claim_path(HoldingClass::Tensor, found[0], None);
            }
            return tracebacks;
        }
        if by_block.is_empty() {
            return tracebacks;
        }
        let count = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        let is_tensor = |place: u32| self.heap.class(place).is_some_and(|class| class.role == Role::Tensor);
        let lost: Vec<_> = (0..count).filter(|place| !paths.is_reached(*place) && !is_tensor(*place)).collect();
        paths.begin_at(self.heap, lost);
        for (_, found) in by_block {
            match self.shortest(paths, &found) {
                Some((found, path)) => self.claim_path(HoldingClass::Unreachable, found, Some(path)),
                None => self.claim_path(HoldingClass::CppOnly, found[0], None),
            }
        }
        tracebacks
    }

    fn shortest(&self, paths: &Paths, found: &[PythonTensor]) -> Option<(PythonTensor, Path)> {
        let reached = found.iter().filter(|found| paths.is_reached(found.place)).take(MOST_COMPARED);
        let with_paths = reached.filter_map(|found| Some((*found, paths.path(self.heap, found.place)?)));
        with_paths.min_by_key(|(_, path)| (path.links.len(), path.text.len()))
    }

    fn claim_path(&mut self, class: HoldingClass, found: PythonTensor, path: Option<Path>) {
        let mut before = None;
        let (name, links) = path.map(|path| (path.text, path.links)).unzip();
        for link in links.unwrap_or_default() {
            before = Some(self.chains.link(before, [link.slot, link.object + u64::from(TYPE)]));
        }
        let chain = self.tensor_chain(before, found.object, found.tensor);
        let tensor_type = self.type_name(found.object);
        let claim = Claim { class, name, tensor: found.tensor, tensor_type, kept_by: None, owner: None, chain };
        self.claim(found.block, claim);
    }

    /// What nodes of autograd's graphs have saved.
    fn claim_saved(&mut self, graphs: &Graphs, paths: &Paths) {
        let mut owners = HashMap::<u64, Option<String>, FixedState>::default();
        let mut saved: Vec<_> = graphs.saved.iter().collect();
        saved.sort_unstable_by_key(|(address, _)| **address);
        for (address, saved) in saved {
            let Some(tensor) = self.layout.read(self.pass, &self.classes, *address) else { continue };
            let block = self.blocks.index(tensor.data).filter(|block| {
                // A path says more than a node.
                self.claims[*block].iter().all(|claim| claim.class >= HoldingClass::SavedForBackward)
            });
            let Some(block) = block else { continue };
            let chain = self.chains.link(None, tensor.slots);
            let kept_by = owners.entry(saved.owner).or_insert_with(|| {
                let place = self.heap.place(saved.owner)?;
                Some(paths.path(self.heap, place)?.text)
            });
            let claim = Claim {
                class: HoldingClass::SavedForBackward,
                name: Some(saved.node.to_string()),
                tensor: self.tensors.len(),
                tensor_type: None,
                kept_by: kept_by.clone(),
                owner: None,
                chain,
            };
            self.tensors.push(tensor);
            self.claim(Some(block), claim);
        }
    }
}
