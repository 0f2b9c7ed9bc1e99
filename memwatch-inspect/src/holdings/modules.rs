//! Names tensors as PyTorch does: parameters and buffers as in `named_parameters()` and
//! `named_buffers()`, and optimizer state.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::FixedState;
use memwatch_core::input::holdings::OwnerModule;

use super::chains::{ChainEnd, ChainWord, Chains};
use crate::memory::MemoryAccess;
use crate::python::classes::Role;
use crate::python::heap::Heap;
use crate::python::objects::DictEntry;

/// Maximum nesting of modules.
const MOST_DEPTH: usize = 256;
/// Class of the objects in which `fully_shard` keeps its parameters
/// (torch/distributed/fsdp/_fully_shard/_fsdp_param.py).
const SHARDED: &str = "FSDPParam";
/// Maximum number of characters of a name.
const MOST_LETTERS: usize = 1024;

/// Kind of a named tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum PartKind {
    Parameter,
    Buffer,
    OptimizerState,
}

/// A Python tensor with its name.
#[derive(Clone, Debug)]
pub(super) struct ModuleTensor {
    pub(super) kind: PartKind,
    pub(super) object: u64,
    /// Name in the model; for optimizer state, that of the parameter.
    name: String,
    /// Key of optimizer state.
    key: Option<String>,
    /// Module that owns the tensor; `None` for the state of a parameter outside of all modules.
    pub(super) owner: Option<OwnerModule>,
    pub(super) chain: ChainEnd,
}

impl ModuleTensor {
    /// Returns the model, which is a module that no other contains.
    pub(super) fn root(&self) -> Option<u64> {
        self.owner.as_ref().map(|owner| owner.root_address)
    }

    /// Returns the name to show. `models` has the names of models that need one to be
    /// distinguished.
    pub(super) fn full_name(&self, models: &HashMap<u64, String, FixedState>) -> String {
        let model = self.root().and_then(|root| models.get(&root));
        let key = self.key.iter().map(|key| format!("{key} of "));
        key.chain(model.map(|model| format!("{model}."))).chain([self.name.clone()]).collect()
    }
}

/// Returns the models that use a name for another tensor than some other model does, mostly two of
/// one class.
pub(super) fn ambiguous_models<'n>(named: impl Iterator<Item = &'n ModuleTensor>) -> BTreeSet<u64> {
    let mut owners = HashMap::<_, (u64, u64), FixedState>::default();
    let mut ambiguous = BTreeSet::new();
    for one in named.filter(|one| one.kind != PartKind::OptimizerState) {
        let Some(root) = one.root() else { continue };
        let (other, object) = *owners.entry((one.kind, one.name.as_str())).or_insert((root, one.object));
        if other != root && object != one.object {
            ambiguous.extend([other, root]);
        }
    }
    ambiguous
}

/// Attribute of a module or an optimizer that contains tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModuleAttribute {
    Modules,
    Parameters,
    Buffers,
    State,
    Groups,
    Other,
}

/// Collects the names.
pub(super) struct Namer<'a, M> {
    heap: &'a Heap<'a, M>,
    chains: &'a mut Chains,
    /// Parts by attribute name. The names are the same few string objects in all modules.
    parts: HashMap<u64, ModuleAttribute, FixedState>,
    found: Vec<ModuleTensor>,
    /// Modules as owners of their tensors.
    owners: HashMap<u64, OwnerModule, FixedState>,
}

/// Dicts of a module or an optimizer.
#[derive(Clone, Copy, Debug, Default)]
struct Dicts {
    modules: Option<DictEntry>,
    parameters: Option<DictEntry>,
    buffers: Option<DictEntry>,
    state: Option<DictEntry>,
    groups: Option<DictEntry>,
}

impl<'a, M: MemoryAccess> Namer<'a, M> {
    pub(super) fn new(heap: &'a Heap<'a, M>, chains: &'a mut Chains) -> Self {
        Self { heap, chains, parts: HashMap::default(), found: Vec::new(), owners: HashMap::default() }
    }

    /// Returns all names: parameters, buffers, then parameters and state of optimizers. The latter
    /// are named after the module's parameters where possible.
    pub(super) fn names(mut self) -> Vec<ModuleTensor> {
        let (mut modules, mut optimizers, mut sharded) = (Vec::new(), Vec::new(), Vec::new());
        for (object, class) in self.heap.iter() {
            let part = match class.role {
                Role::Module => &mut modules,
                Role::Optimizer => &mut optimizers,
                _ if class.name == SHARDED => &mut sharded,
                _ => continue,
            };
            // It may have been freed before a second search.
            if self.heap.place(object).is_some_and(|place| self.heap.is_same(place)) {
                part.push(object);
            }
        }
        let dicts: HashMap<_, _, FixedState> = modules.iter().map(|module| (*module, self.dicts(*module))).collect();
        let children: HashSet<_, FixedState> =
            dicts.values().flat_map(|dicts| self.entries(dicts.modules)).map(|entry| entry.value).collect();
        for root in modules.iter().filter(|module| !children.contains(module)) {
            self.descend(*root, &dicts);
        }
        for shard in sharded {
            self.put_shard(shard);
        }
        let mut by_parameter = HashMap::<u64, (String, Option<OwnerModule>), FixedState>::default();
        for named in self.found.iter().filter(|named| named.kind == PartKind::Parameter) {
            by_parameter.entry(named.object).or_insert_with(|| (named.name.clone(), named.owner.clone()));
        }
        for optimizer in optimizers {
            self.put_own_parameters(optimizer, &mut by_parameter);
            self.put_state(optimizer, &by_parameter);
        }
        self.found
    }

    /// Adds the local shard of a `fully_shard` parameter. While a layer computes, its module has
    /// the gathered parameter in the shard's place.
    fn put_shard(&mut self, shard: u64) -> Option<()> {
        let objects = self.heap.objects();
        let attribute = |object: u64, name: &str| {
            let entries = objects.attributes(object)?;
            entries.into_iter().find(|entry| objects.text(entry.key).as_deref() == Some(name))
        };
        let parameter = attribute(shard, "sharded_param")?;
        let module_info = attribute(shard, "_module_info")?.value;
        let owner = self.owners.get(&attribute(module_info, "module")?.value)?.clone();
        let own = objects.text(attribute(module_info, "param_name")?.value)?;
        let name = if owner.name.is_empty() { own } else { format!("{}.{own}", owner.name) };
        let chain = self.chains.refer(None, self.heap, ChainWord { slot: parameter.slot, target: parameter.value });
        let (kind, object) = (PartKind::Parameter, parameter.value);
        self.found.push(ModuleTensor { kind, object, name, key: None, owner: Some(owner), chain });
        Some(())
    }

    /// Adds an optimizer's parameters that no module has, such as a master copy in full precision,
    /// named by their parameter groups.
    fn put_own_parameters(
        &mut self,
        optimizer: u64,
        by_parameter: &mut HashMap<u64, (String, Option<OwnerModule>), FixedState>,
    ) -> Option<()> {
        let groups = self.dicts(optimizer).groups?;
        let objects = self.heap.objects();
        let chain = self.chains.refer(None, self.heap, ChainWord { slot: groups.slot, target: groups.value });
        for (number, (slot, group)) in self.heap.items(groups.value)?.into_iter().enumerate() {
            let chain = self.chains.refer(Some(chain), self.heap, ChainWord { slot, target: group });
            let entries = objects.entries(group).unwrap_or_default();
            let parameters = entries.into_iter().find(|entry| objects.text(entry.key).as_deref() == Some("params"));
            let Some(parameters) = parameters else { continue };
            let chain = self.chains.refer(
                Some(chain),
                self.heap,
                ChainWord { slot: parameters.slot, target: parameters.value },
            );
            for (index, (slot, object)) in self.heap.items(parameters.value).unwrap_or_default().into_iter().enumerate()
            {
                if by_parameter.contains_key(&object) {
                    continue;
                }
                let name = format!("param_groups[{number}]['params'][{index}]");
                by_parameter.insert(object, (name.clone(), None));
                let chain = self.chains.refer(Some(chain), self.heap, ChainWord { slot, target: object });
                self.found.push(ModuleTensor {
                    kind: PartKind::Parameter,
                    object,
                    name,
                    key: None,
                    owner: None,
                    chain,
                });
            }
        }
        Some(())
    }

    /// Adds the tensors of a module and its submodules, in the order of `named_modules()`.
    fn descend(&mut self, root: u64, dicts: &HashMap<u64, Dicts, FixedState>) {
        let mut known = HashSet::<_, FixedState>::default();
        let root_class = self.class_name(root);
        let mut waiting = vec![(root, None, String::new(), 0)];
        while let Some((module, before, prefix, depth)) = waiting.pop() {
            let Some(dicts) = dicts.get(&module).filter(|_| known.insert(module)) else { continue };
            let owner = OwnerModule {
                address: module,
                class: self.class_name(module),
                name: prefix.trim_end_matches('.').into(),
                root_address: root,
                root_class: root_class.clone(),
            };
            self.owners.entry(module).or_insert_with(|| owner.clone());
            for (kind, dict) in [(PartKind::Parameter, dicts.parameters), (PartKind::Buffer, dicts.buffers)] {
                let chain = self.dict_chain(before, dict);
                for entry in self.entries(dict) {
                    let name = self.joined(&prefix, entry.key);
                    let chain =
                        self.chains.refer(chain, self.heap, ChainWord { slot: entry.slot, target: entry.value });
                    let owner = Some(owner.clone());
                    self.found.push(ModuleTensor { kind, object: entry.value, name, key: None, owner, chain });
                }
            }
            let chain = self.dict_chain(before, dicts.modules);
            for entry in self.entries(dicts.modules).into_iter().rev().filter(|_| depth < MOST_DEPTH) {
                let name = self.joined(&prefix, entry.key);
                let chain = self.chains.refer(chain, self.heap, ChainWord { slot: entry.slot, target: entry.value });
                if name.len() < MOST_LETTERS {
                    waiting.push((entry.value, Some(chain), name + ".", depth + 1));
                }
            }
        }
    }

    /// Adds `state[parameter][key]` of an optimizer.
    fn put_state(&mut self, optimizer: u64, by_parameter: &HashMap<u64, (String, Option<OwnerModule>), FixedState>) {
        let state = self.dicts(optimizer).state;
        let chain = self.dict_chain(None, state);
        for (index, parameter) in self.entries(state).into_iter().enumerate() {
            let inner = self.heap.objects().entries(parameter.value).unwrap_or_default();
            let chain =
                self.chains.refer(chain, self.heap, ChainWord { slot: parameter.slot, target: parameter.value });
            let known = by_parameter.get(&parameter.key).cloned();
            let (name, owner) = known.unwrap_or_else(|| (format!("parameter {index}"), None));
            for entry in inner {
                // Keys are strings. Hyperparameters and step counts on the host are not tensors on
                // a device.
                let is_tensor = self.heap.class_of(entry.value).is_some_and(|class| class.role == Role::Tensor);
                let Some(key) = self.heap.objects().text(entry.key).filter(|_| is_tensor) else { continue };
                let chain =
                    self.chains.refer(Some(chain), self.heap, ChainWord { slot: entry.slot, target: entry.value });
                self.found.push(ModuleTensor {
                    kind: PartKind::OptimizerState,
                    object: entry.value,
                    name: name.clone(),
                    key: Some(key),
                    owner: owner.clone(),
                    chain,
                });
            }
        }
    }

    fn class_name(&self, object: u64) -> Arc<str> {
        self.heap.class_of(object).map_or_else(|| "?".into(), |class| class.short_name().into())
    }

    fn joined(&self, prefix: &str, key: u64) -> String {
        format!("{prefix}{}", self.heap.objects().text(key).as_deref().unwrap_or("?"))
    }

    fn dict_chain(&mut self, before: Option<ChainEnd>, dict: Option<DictEntry>) -> Option<ChainEnd> {
        dict.map(|dict| self.chains.refer(before, self.heap, ChainWord { slot: dict.slot, target: dict.value }))
    }

    fn entries(&self, dict: Option<DictEntry>) -> Vec<DictEntry> {
        dict.and_then(|dict| self.heap.objects().entries(dict.value)).unwrap_or_default()
    }

    fn dicts(&mut self, object: u64) -> Dicts {
        let mut dicts = Dicts::default();
        for entry in self.heap.objects().attributes(object).unwrap_or_default() {
            let heap = self.heap;
            let part =
                *self.parts.entry(entry.key).or_insert_with(|| match heap.objects().text(entry.key).as_deref() {
                    Some("_modules") => ModuleAttribute::Modules,
                    Some("_parameters") => ModuleAttribute::Parameters,
                    Some("_buffers") => ModuleAttribute::Buffers,
                    Some("state") => ModuleAttribute::State,
                    Some("param_groups") => ModuleAttribute::Groups,
                    _ => ModuleAttribute::Other,
                });
            let place = match part {
                ModuleAttribute::Modules => &mut dicts.modules,
                ModuleAttribute::Parameters => &mut dicts.parameters,
                ModuleAttribute::Buffers => &mut dicts.buffers,
                ModuleAttribute::State => &mut dicts.state,
                ModuleAttribute::Groups => &mut dicts.groups,
                ModuleAttribute::Other => continue,
            };
            *place = Some(entry);
        }
        dicts
    }
}
