//! Claims by the names that PyTorch gives: parameters, buffers, gradients and optimizer state.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::{HoldingClass, OwnerModule};

use super::chains::{ChainEnd, ChainWord};
use super::claims::Claim;
use super::graph::AutogradGraphs;
use super::modules::{ModuleTensor, PartKind, ambiguous_models};
use super::survey::{PythonTensor, Survey};
use crate::memory::MemoryAccess;
use crate::python::edges::Edge;
use crate::python::layout::TYPE;
use crate::python::paths::{Paths, reference_text};

/// Classes of tensors that do not wrap others. Tensors in their attributes are unrelated: FSDP
/// keeps gathered parameters there.
const PLAIN: [&str; 3] = ["Tensor", "Parameter", "Buffer"];
/// Maximum number of tensors that another one wraps.
const MOST_PARTS: usize = 8;

/// A parameter, for its gradient and its optimizer state.
#[derive(Clone, Debug)]
struct ParameterOwner {
    name: String,
    module: Option<OwnerModule>,
    chain: ChainEnd,
    /// No variable leads to the parameter.
    is_lost: bool,
}

impl<M: MemoryAccess> Survey<'_, M> {
    /// Claims parameters, buffers, gradients and optimizer state. Returns the parameters with their
    /// blocks.
    pub(super) fn claim_names(
        &mut self,
        names: Vec<ModuleTensor>,
        graphs: &AutogradGraphs,
        paths: &Paths,
    ) -> Vec<(u64, usize)> {
        let lost = self.lost_roots(&names, paths);
        let is_lost = |named: &ModuleTensor| named.root().is_some_and(|root| lost.contains(&root));
        let in_models = names.iter().filter(|named| !is_lost(named) && self.is_in_block(named.object));
        let models = self.model_names(in_models, paths);
        let mut parameters = Vec::new();
        let mut owners = HashMap::<u64, ParameterOwner, FixedState>::default();
        for named in names {
            let Some(found) = self.numbers.get(&named.object).map(|number| self.objects[*number]) else { continue };
            let class = match named.kind {
                PartKind::Parameter => HoldingClass::Parameter,
                PartKind::Buffer => HoldingClass::Buffer,
                PartKind::OptimizerState => HoldingClass::OptimizerState,
            };
            let is_lost = is_lost(&named) && !paths.is_reached(found.place);
            let owner =
                ParameterOwner { name: named.full_name(&models), chain: named.chain, is_lost, module: named.owner };
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

    /// Claims the block of a named tensor. A wrapper, such as a `DTensor` for its local part, has
    /// no block of its own: the name goes to the wrapped tensors.
    fn claim_named(&mut self, class: HoldingClass, owner: &ParameterOwner, found: PythonTensor) {
        let parts = self.parts(found);
        let is_alone = parts.len() == 1;
        for (part, edge) in parts {
            let ParameterOwner { mut name, mut chain, module, is_lost } = owner.clone();
            if let Some(edge) = edge {
                let class = self.heap.class(found.place).map_or(0, |class| class.address);
                let class = ChainWord { slot: found.object + u64::from(TYPE), target: class };
                chain = self.chains.link(Some(chain), [ChainWord { slot: edge.slot, target: part.object }, class]);
                if !is_alone {
                    name += &reference_text(self.heap, edge.label);
                }
            }
            let chain = self.tensor_chain(Some(chain), part);
            let tensor_type = self.type_name(found.object);
            let (class, name) = if is_lost { lost_name(class, &name, module.as_ref()) } else { (class, name) };
            let (name, tensor) = (Some(name), part.tensor);
            let claim = Claim { class, name, tensor, tensor_type, kept_by: None, owner: module, chain };
            self.claim(part.block, claim);
        }
    }

    /// Returns the parts of a tensor that are in blocks: itself, or the tensors that it wraps with
    /// the reference to each.
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

    /// Returns the models that no variable leads to; none after an incomplete search.
    fn lost_roots(&self, names: &[ModuleTensor], paths: &Paths) -> HashSet<u64, FixedState> {
        if !self.is_whole(paths) {
            return HashSet::default();
        }
        let roots: HashSet<u64, FixedState> = names.iter().filter_map(ModuleTensor::root).collect();
        let is_lost = |root: &u64| self.heap.place(*root).is_some_and(|place| !paths.is_reached(place));
        roots.into_iter().filter(is_lost).collect()
    }

    /// Names models that share names of parts with others, by the path to the model or else by
    /// class.
    fn model_names<'n>(
        &self,
        names: impl Iterator<Item = &'n ModuleTensor>,
        paths: &Paths,
    ) -> HashMap<u64, String, FixedState> {
        let mut known = HashMap::<String, u32, FixedState>::default();
        let called = ambiguous_models(names).into_iter().map(|model| {
            let path = self.heap.place(model).and_then(|place| paths.path_text(self.heap, place));
            let name = path.or_else(|| self.type_name(model)).unwrap_or_default();
            let count = known.entry(name.clone()).or_default();
            *count += 1;
            (model, if *count == 1 { name } else { format!("{name} ({count})") })
        });
        called.collect()
    }

    /// Claims the gradient of a tensor, even if it has no Python object.
    fn claim_gradient(&mut self, object: u64, gradient: (u64, u64), owner: Option<&ParameterOwner>) -> Option<()> {
        let (slot, address) = gradient;
        let tensor = self.layout.read(self.pass, &self.classes, address)?;
        let block = self.blocks.index(tensor.data);
        let number = self.tensors.len();
        let words = tensor.words;
        self.tensors.push(tensor);
        let of = self.objects.get(*self.numbers.get(&object)?).map(|found| &self.tensors[found.tensor])?;
        let own = ChainWord { slot: self.layout.object_slot(object), target: of.address };
        let meta = ChainWord { slot: self.layout.meta_slot(of.address)?, target: of.meta };
        let chain = self.chains.link(owner.map(|owner| owner.chain), [own, meta]);
        let chain = self.chains.link(Some(chain), [ChainWord { slot, target: address }, words[0]]);
        let chain = self.chains.link(Some(chain), words);
        let lost = owner.filter(|owner| owner.is_lost);
        let lost = lost.map(|owner| lost_name(HoldingClass::Gradient, &owner.name, owner.module.as_ref()));
        let (class, name) = match lost {
            Some((class, name)) => (class, Some(name)),
            None => (HoldingClass::Gradient, owner.map(|owner| owner.name.clone())),
        };
        let claim = Claim {
            class,
            name,
            tensor: number,
            tensor_type: None,
            kept_by: None,
            owner: owner.and_then(|owner| owner.module.clone()),
            chain,
        };
        self.claim(block, claim);
        Some(())
    }
}

/// Returns class and name for a part of a model that no variable leads to. All parts of such a
/// model belong together.
fn lost_name(class: HoldingClass, name: &str, module: Option<&OwnerModule>) -> (HoldingClass, String) {
    let root = module.map_or("?", |module| &*module.root_class);
    let name = match class {
        HoldingClass::Gradient => format!("<{root}>.{name}.grad"),
        HoldingClass::OptimizerState => format!("<{root}>: {name}"),
        _ => format!("<{root}>.{name}"),
    };
    (HoldingClass::Unreachable, name)
}
