//! Determines the call site and module of each Python stack, once per stack.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::frames::{self, Doing, StackReading};
use super::packages::PackageFolders;
use crate::allocators::names::{
    CallSite, LibraryKey, LibraryLine, ModuleKey, NameTable, NativeCode, SiteKey, TorchModule,
};
use crate::decode::StackRef;
use crate::input::holdings::OwnerModule;
use crate::stack::native::{NativeStack, file_name};
use crate::stack::{PythonModule, PythonStack, wrapped_as};

/// Maximum number of stacks.
const STACKS: usize = 1 << 18;
/// Maximum number of modules remembered by address.
const ADDRESSES: usize = 1 << 16;
/// Maximum number of models of one class. The last number stands for all further ones, since some
/// programs create a new loss module in every step.
const MODELS_OF_A_CLASS: u32 = 32;

/// Number of a stack in [`Origins`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct OriginKey(pub(super) u32);

/// Interpretation of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a stack")]
pub(super) struct StackOrigin {
    /// Call site of the stack.
    pub(super) site: SiteKey,
    /// Call site for allocations of backward nodes that were created on this stack.
    pub(super) backward_site: SiteKey,
    /// Library line called from the call site.
    pub(super) library: LibraryKey,
    /// Innermost module.
    pub(super) module: ModuleKey,
    /// Activity of the program.
    pub(super) doing: Doing,
    /// See [`StackReading::from_the_start`].
    pub(super) from_the_start: bool,
    /// See [`StackReading::without_optimizer`].
    pub(super) without_optimizer: bool,
    /// See [`StackReading::in_engine`].
    pub(super) in_engine: bool,
    /// See [`StackReading::below_engine`].
    pub(super) below_engine: bool,
}

const UNKNOWN: StackOrigin = StackOrigin {
    site: SiteKey::MISSING,
    backward_site: SiteKey::MISSING,
    library: LibraryKey::NONE,
    module: ModuleKey::NOT_KNOWN,
    doing: Doing::Nothing,
    from_the_start: false,
    without_optimizer: false,
    in_engine: false,
    below_engine: false,
};

/// Stacks of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Origins {
    by_stack: HashMap<u64, OriginKey, RandomState>,
    /// Call sites of threads without Python frames, by native stack.
    native: HashMap<u64, SiteKey, RandomState>,
    all: Vec<StackOrigin>,
    packages: PackageFolders,
    /// Modules by address.
    met: HashMap<u64, TorchModule>,
    /// Number of models by class.
    models: HashMap<Arc<str>, u32>,
}

impl Origins {
    /// Learns the Python stack of this number, replacing an earlier one.
    pub(super) fn learn(&mut self, id: u64, stack: &PythonStack, names: &mut NameTable) {
        self.packages.learn(stack);
        let origin = self.work_out(&frames::read(stack, &self.packages), names);
        let known = self.by_stack.get(&id).filter(|key| self.get(**key) == origin);
        if known.is_some() {
            return;
        }
        if let Some(key) = u32::try_from(self.all.len()).ok().filter(|_| self.all.len() < STACKS) {
            self.all.push(origin);
            self.by_stack.insert(id, OriginKey(key));
        }
    }

    /// Learns the native stack of this number.
    pub(super) fn learn_native(&mut self, id: u64, stack: &NativeStack, names: &mut NameTable) {
        if let Some((function, library)) = stack.site().and_then(|frame| Some((frame.name.clone()?, &frame.library)))
            && self.native.len() < STACKS
        {
            let library = file_name(library).into();
            self.native.insert(id, names.site(CallSite::Native(NativeCode { function, library })));
        }
    }

    /// Returns the call site of a native stack, if its frames show one.
    pub(super) fn native_site(&self, stack: StackRef) -> Option<SiteKey> {
        let StackRef::Native(id) = stack else { return None };
        self.native.get(&id).copied()
    }

    /// Returns the key of the Python stack of this number, if known.
    pub(super) fn of_stack(&self, id: u64) -> Option<OriginKey> {
        self.by_stack.get(&id).copied()
    }

    /// Returns the interpretation of a stack.
    pub(super) fn get(&self, key: OriginKey) -> StackOrigin {
        // Keys come from `learn` only and origins are never removed, so only an inconsistent saved
        // state has others.
        self.all.get(key.0 as usize).copied().unwrap_or(UNKNOWN)
    }

    fn work_out(&mut self, reading: &StackReading, names: &mut NameTable) -> StackOrigin {
        let (site, backward_site) = match reading.line {
            Some(line) => (names.site(CallSite::Line(line.clone())), names.site(CallSite::BackwardOf(line.clone()))),
            None => (SiteKey::without_frames(StackRef::Unreadable), SiteKey::NO_PYTHON),
        };
        let library = reading.library.map(|code| names.library(LibraryLine::Line(code.clone())));
        StackOrigin {
            site,
            backward_site,
            library: library.unwrap_or(LibraryKey::NONE),
            module: self.module(&reading.modules, names),
            doing: reading.doing,
            from_the_start: reading.from_the_start,
            without_optimizer: reading.without_optimizer,
            in_engine: reading.in_engine,
            below_engine: reading.below_engine,
        }
    }

    /// Returns the row of the module that owns a tensor.
    pub(super) fn owner_module(&mut self, owner: &OwnerModule, names: &mut NameTable) -> ModuleKey {
        let module = |address, class: &Arc<str>, name: &Arc<str>| PythonModule {
            address,
            class: class.clone(),
            name: Some(name.clone()),
            wraps: None,
        };
        let root = module(owner.root_address, &owner.root_class, &Arc::from(""));
        let own = module(owner.address, &owner.class, &owner.name);
        if owner.address == owner.root_address {
            return self.module(&[&root], names);
        }
        self.module(&[&own, &root], names)
    }

    /// Returns the row of the innermost of these modules.
    fn module(&mut self, modules: &[&PythonModule], names: &mut NameTable) -> ModuleKey {
        let Some(outermost) = modules.last() else { return ModuleKey::NONE };
        let own = modules.iter().rev().copied().find(|module| wrapped_as(&module.class).is_none());
        // If only wrappers are called, the call counts for the module they wrap.
        let wrapped = || modules.first().and_then(|module| module.wraps.as_deref());
        let root = own.or_else(wrapped).unwrap_or(outermost);
        let (model, above) = self.model(root, &outermost.class);
        if self.met.len() >= ADDRESSES {
            self.met.clear();
        }
        for module in modules.iter().copied().chain([root]) {
            self.meet(module, &model, (&above, &outermost.class));
        }
        let innermost = modules.first().and_then(|module| self.met.get(&module.address));
        innermost.map_or(ModuleKey::NOT_KNOWN, |module| names.module(module.clone()))
    }

    /// Returns the model that contains the stack's outermost own module, and that module's name in
    /// it. A recomputation starts inside the model.
    fn model(&mut self, root: &PythonModule, outermost: &str) -> (Arc<str>, String) {
        let root_name = root.name.as_deref().map_or_else(String::new, |name| frames::own_name(name, outermost));
        if let Some(met) = self.met.get(&root.address).filter(|met| *met.class == *root.class) {
            let whole = met.name.as_deref().unwrap_or_default();
            let above = whole.strip_suffix(&root_name).unwrap_or_default().trim_end_matches('.');
            return (met.model.clone(), above.to_owned());
        }
        let count = self.models.entry(root.class.clone()).or_insert(0);
        *count = (*count + 1).min(MODELS_OF_A_CLASS);
        let model = if *count == 1 { root.class.clone() } else { format!("{}#{count}", root.class).into() };
        (model, String::new())
    }

    /// Remembers a module by address, under the longest name seen.
    fn meet(&mut self, module: &PythonModule, model: &Arc<str>, (above, outermost): (&str, &str)) {
        let name = module.name.as_deref().map(|name| joined(above, &frames::own_name(name, outermost)));
        let is_same = |met: &TorchModule| {
            let ends = match (&name, &met.name) {
                (Some(name), Some(whole)) => is_end_of(name, whole),
                (None, _) => true,
                (Some(_), None) => false,
            };
            *met.class == *module.class && ends
        };
        if !self.met.get(&module.address).is_some_and(is_same) {
            let name = name.map(Into::into);
            self.met.insert(module.address, TorchModule { model: model.clone(), name, class: module.class.clone() });
        }
    }
}

fn joined(above: &str, name: &str) -> String {
    let parts = [above, name].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".")
}

/// Returns whether a name is a suffix of a longer one, or equal: `fc1` of `layers.0.fc1`.
fn is_end_of(name: &str, whole: &str) -> bool {
    name.is_empty() || whole.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
