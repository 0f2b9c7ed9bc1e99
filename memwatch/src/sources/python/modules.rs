//! The modules (`torch.nn.Module`) of a process: which code is their call, what their names are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memwatch_core::stack::{PythonModule, wrapped_as};

use super::code::first_local_is_plain;
use super::memory::{Memory, at};
use super::walk;
use crate::printable::printable;
use memwatch_inspect::python::layout::{MODULE_DICT, TYPE_DICT};
use memwatch_inspect::python::objects::Objects;

/// Where PyTorch defines its modules: as `sys.modules` has it, and as the paths of files end.
const PYTHON_MODULE: &str = "torch.nn.modules.module";

/// What calls a module's `forward`, since PyTorch 2.1; and before, which is below it since.
pub(super) const CALL: &str = "_wrapped_call_impl";
pub(super) const OLD_CALL: &str = "_call_impl";

/// Limits of a tree of modules, and of how many are kept.
const MOST_MEMBERS: usize = 1 << 16;
const MOST_ROOTS: usize = 64;
const MOST_NAME_BYTES: usize = 1024;
const DEEPEST: usize = 128;
/// How many wrappers may stand around each other.
const MOST_WRAPPERS: usize = 8;
/// A tree is read again only when that takes less than this part of the time since it was read.
const SHARE: u32 = 16;

/// The code object of the call of modules; `None` where the process has not imported them, or where `self` is a cell there.
pub(super) fn call_code<M: Memory>(objects: &Objects<'_, M>, code_type: u64) -> Option<u64> {
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

/// What a wrapper, or one around others, stands around; `None` for a module that is no wrapper.
pub(super) fn wrapped<M: Memory>(objects: &Objects<'_, M>, wrapper: u64, class: &str) -> Option<PythonModule> {
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

/// The names of modules, as `named_modules()` of their root has them.
#[derive(Debug, Default)]
pub(super) struct Modules {
    trees: HashMap<u64, Tree>,
}

/// What is below one module.
#[derive(Debug)]
struct Tree {
    root: u64,
    class: u64,
    members: HashMap<u64, Member>,
    read: Pace,
}

/// A module, and where it was found.
#[derive(Debug)]
struct Member {
    name: Arc<str>,
    class: u64,
    parent: u64,
    /// In its parent's `_modules`.
    slot: u64,
}

impl Modules {
    /// The name of a module under the outermost module of its stack, which is `None` where the stack is cut.
    ///
    /// Where the outermost is itself known to be below another, as in a recomputation during backward, the name is that from there.
    pub(super) fn name<M: Memory>(
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
        Self { root, class: 0, members: HashMap::new(), read: Pace::default() }
    }

    /// The name of a module that is still where it was found.
    fn name<M: Memory>(&self, objects: &Objects<'_, M>, module: u64) -> Option<Arc<str>> {
        self.holds(objects, module).then(|| self.members.get(&module).map(|member| Arc::clone(&member.name)))?
    }

    /// Whether each module on the way to this one still is where it was found, and of its class.
    fn holds<M: Memory>(&self, objects: &Objects<'_, M>, module: u64) -> bool {
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

    /// Walks the modules as `named_modules` does: a module before what is in it, each once, by its first name.
    fn read_again<M: Memory>(&mut self, objects: &Objects<'_, M>) {
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
            // Only a module has modules; `None` stands where one was taken out.
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

/// A module that waits to be looked into.
struct Found {
    module: u64,
    parent: u64,
    slot: u64,
    name: String,
    depth: usize,
}

fn children<M: Memory>(objects: &Objects<'_, M>, parent: u64, name: &str, depth: usize) -> Vec<Found> {
    let modules = objects.attribute(parent, "_modules").and_then(|modules| objects.entries(modules));
    let entries = modules.unwrap_or_default().into_iter();
    entries
        .filter_map(|entry| {
            let own = objects.text(entry.key)?;
            let own = printable(&own);
            let name = if name.is_empty() { own.into_owned() } else { format!("{name}.{own}") };
            let found = Found { module: entry.value, parent, slot: entry.slot, name, depth: depth + 1 };
            (found.name.len() <= MOST_NAME_BYTES).then_some(found)
        })
        .collect()
}

/// Keeps something from being done most of the time.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<(Instant, Duration)>);

impl Pace {
    /// Not while the last time took more than a sixteenth of what has gone by since.
    pub(super) fn may_begin(&self) -> bool {
        self.0.is_none_or(|(end, took)| end.elapsed() >= took * SHARE)
    }

    /// It began then, and is done.
    pub(super) fn ended(&mut self, begin: Instant) {
        self.0 = Some((Instant::now(), begin.elapsed()));
    }
}
