//! Finds the modules (`torch.nn.Module`) of a process: the code object of their call, and their
//! names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memwatch_core::stack::{PythonModule, wrapped_as};

use super::code::first_local_is_plain;
use super::memory::{MemoryAccess, at};
use super::walk;
use crate::printable::printable;
use memwatch_inspect::python::layout::{MODULE_DICT, TYPE_DICT};
use memwatch_inspect::python::objects::Objects;

/// Python module that defines `Module`, as in `sys.modules` and at the end of file paths.
const PYTHON_MODULE: &str = "torch.nn.modules.module";

/// Methods that call a module's `forward`: [`CALL`] since PyTorch 2.1, [`OLD_CALL`] before. Since
/// 2.1 the former calls the latter.
pub(super) const CALL: &str = "_wrapped_call_impl";
pub(super) const OLD_CALL: &str = "_call_impl";

/// Limits of a tree of modules, and of the number of trees.
const MOST_MEMBERS: usize = 1 << 16;
const MOST_ROOTS: usize = 64;
const MOST_NAME_BYTES: usize = 1024;
const DEEPEST: usize = 128;
/// Maximum nesting of wrappers.
const MOST_WRAPPERS: usize = 8;
/// A tree is read again only if the reading took less than this fraction of the time since.
const SHARE: u32 = 16;

/// Returns the code object of the modules' call; `None` if the process has not imported them, or if
/// `self` is a cell in it.
pub(super) fn call_code<M: MemoryAccess>(objects: &Objects<'_, M>, code_type: u64) -> Option<u64> {
    let interpreters = walk::interpreters(objects.memory, &objects.layout.walk)?;
    let module = interpreters.into_iter().find_map(|interpreter| {
        let modules = objects.memory.u64(at(interpreter, objects.layout.modules)?)?;
        objects.item(modules, PYTHON_MODULE)
    })?;
    let class = objects.item(objects.memory.u64(at(module, MODULE_DICT)?)?, "Module")?;
    let methods = objects.memory.u64(at(class, TYPE_DICT)?)?;
    let method = objects.item(methods, CALL).or_else(|| objects.item(methods, OLD_CALL))?;
    if objects.class_name(method)? != "function" {
        return None;
    }
    let code = objects.memory.u64(at(method, objects.layout.function_code)?)?;
    let is_usable = objects.type_of(code)? == code_type && first_local_is_plain(objects.memory, objects.layout, code)?;
    is_usable.then_some(code)
}

/// Returns the module inside one or several nested wrappers; `None` for a module that is no
/// wrapper.
pub(super) fn wrapped<M: MemoryAccess>(objects: &Objects<'_, M>, wrapper: u64, class: &str) -> Option<PythonModule> {
    let (mut address, mut inner) = (wrapper, wrapped_as(class)?);
    for _ in 0..MOST_WRAPPERS {
        address = objects.item(objects.attribute(address, "_modules")?, inner)?;
        let class = printable(&objects.class_name(address)?).into_owned();
        match wrapped_as(&class) {
            Some(next) => inner = next,
            None => return Some(PythonModule { address, class: class.into(), name: Some("".into()), wraps: None }),
        }
    }
    None
}

/// Names of modules as in `named_modules()` of their root.
#[derive(Debug, Default)]
pub(super) struct Modules {
    trees: HashMap<u64, Tree>,
}

/// The modules below one root.
#[derive(Debug)]
struct Tree {
    root: u64,
    class: u64,
    members: HashMap<u64, Member>,
    read: WorkPace,
}

/// A module and where it was found.
#[derive(Debug)]
struct Member {
    name: Arc<str>,
    class: u64,
    parent: u64,
    /// Address of its entry in the parent's `_modules`.
    slot: u64,
}

impl Modules {
    /// Returns the name of a module relative to the outermost module of its stack; `root` is `None`
    /// if the stack is truncated.
    ///
    /// If the outermost module is known to be below another one, as in a recomputation during
    /// backward, the name is relative to that one.
    pub(super) fn name<M: MemoryAccess>(
        &mut self,
        objects: &Objects<'_, M>,
        root: Option<u64>,
        module: u64,
    ) -> Option<Arc<str>> {
        let above = root.unwrap_or(module);
        let known = self.trees.values().filter(|tree| tree.root != above && tree.holds(objects, above));
        if let Some(name) = known.into_iter().find_map(|tree| tree.name(objects, module)) {
            return Some(name);
        }
        let root = root?;
        if root == module {
            return Some("".into());
        }
        if self.trees.len() >= MOST_ROOTS && !self.trees.contains_key(&root) {
            self.trees.clear();
        }
        let tree = self.trees.entry(root).or_insert_with(|| Tree::new(root));
        tree.name(objects, module).or_else(|| {
            tree.read_again(objects);
            tree.name(objects, module)
        })
    }
}

impl Tree {
    fn new(root: u64) -> Self {
        Self { root, class: 0, members: HashMap::new(), read: WorkPace::default() }
    }

    /// Returns the name of a module that is still where it was found.
    fn name<M: MemoryAccess>(&self, objects: &Objects<'_, M>, module: u64) -> Option<Arc<str>> {
        self.holds(objects, module).then(|| self.members.get(&module).map(|member| Arc::clone(&member.name)))?
    }

    /// Whether each module on the path to this one is still where it was found and of the same
    /// class.
    fn holds<M: MemoryAccess>(&self, objects: &Objects<'_, M>, module: u64) -> bool {
        let mut below = module;
        for _ in 0..DEEPEST {
            if below == self.root {
                return objects.type_of(below) == Some(self.class);
            }
            let Some(member) = self.members.get(&below) else { return false };
            if objects.memory.u64(member.slot) != Some(below) || objects.type_of(below) != Some(member.class) {
                return false;
            }
            below = member.parent;
        }
        false
    }

    /// Walks the modules as `named_modules` does: parents before children, each once, by its first
    /// name.
    fn read_again<M: MemoryAccess>(&mut self, objects: &Objects<'_, M>) {
        if !self.read.may_begin() {
            return;
        }
        let begin = Instant::now();
        self.members.clear();
        self.class = objects.type_of(self.root).unwrap_or(0);
        let mut seen = HashSet::from([self.root]);
        let mut waiting = children(objects, self.root, "", 0);
        waiting.reverse();
        while let Some(found) = waiting.pop() {
            if self.members.len() == MOST_MEMBERS || found.depth > DEEPEST || !seen.insert(found.module) {
                continue;
            }
            let Some(class) = objects.type_of(found.module) else { continue };
            // Only modules have `_modules`; an entry may be `None` if its module was removed.
            if objects.attribute(found.module, "_modules").is_none() {
                continue;
            }
            let mut inner = children(objects, found.module, &found.name, found.depth);
            inner.reverse();
            waiting.extend(inner);
            let member = Member { name: found.name.into(), class, parent: found.parent, slot: found.slot };
            self.members.insert(found.module, member);
        }
        self.read.ended(begin);
    }
}

/// A module found but not yet visited.
struct FoundModule {
    module: u64,
    parent: u64,
    slot: u64,
    name: String,
    depth: usize,
}

fn children<M: MemoryAccess>(objects: &Objects<'_, M>, parent: u64, name: &str, depth: usize) -> Vec<FoundModule> {
    let modules = objects.attribute(parent, "_modules").and_then(|modules| objects.entries(modules));
    let entries = modules.unwrap_or_default().into_iter();
    entries
        .filter_map(|entry| {
            let own = objects.text(entry.key)?;
            let own = printable(&own);
            let name = if name.is_empty() { own.into_owned() } else { format!("{name}.{own}") };
            let found = FoundModule { module: entry.value, parent, slot: entry.slot, name, depth: depth + 1 };
            (found.name.len() <= MOST_NAME_BYTES).then_some(found)
        })
        .collect()
}

/// Limits the fraction of time spent on repeated work.
#[derive(Debug, Default)]
pub(super) struct WorkPace(Option<(Instant, Duration)>);

impl WorkPace {
    /// Whether the work may begin: the last run took at most a sixteenth of the time since it
    /// ended.
    pub(super) fn may_begin(&self) -> bool {
        self.0.is_none_or(|(end, took)| end.elapsed() >= took * SHARE)
    }

    /// Records a run that began at `begin` and has ended.
    pub(super) fn ended(&mut self, begin: Instant) {
        self.0 = Some((Instant::now(), begin.elapsed()));
    }
}
