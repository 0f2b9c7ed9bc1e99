//! Finds classes by the module that defines them, through `sys.modules`.

use super::collector::{MOST_INTERPRETERS, list};
use super::layout::{MODULE_DICT, TYPE_DICT, TYPE_FLAGS, TYPE_NAME};
use super::objects::Objects;
use crate::memory::{MemoryAccess, at};

/// `Py_TPFLAGS_TYPE_SUBCLASS` (Include/object.h).
const IS_CLASS: u64 = 1 << 31;

/// A class by its module and its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassName {
    /// Module, as in `sys.modules`.
    pub module: &'static str,
    /// Qualified name.
    pub class: &'static str,
}

impl<M: MemoryAccess> Objects<'_, M> {
    /// Returns the addresses of these classes, each `None` if no interpreter of the process has
    /// imported its module, or the module does not define it.
    pub fn classes(&self, names: &[ClassName]) -> Vec<Option<u64>> {
        let mut found = vec![None; names.len()];
        let head = self.memory.u64(self.layout.walk.interpreters_head);
        let interpreters =
            head.map(|head| list(self.memory, head, self.layout.walk.interpreter_next, MOST_INTERPRETERS));
        for interpreter in interpreters.unwrap_or_default() {
            let modules = at(interpreter, self.layout.modules).and_then(|at| self.memory.u64(at));
            let modules = modules.and_then(|modules| self.entries(modules)).unwrap_or_default();
            for module in modules {
                for (name, found) in names.iter().zip(&mut found) {
                    if found.is_none() && self.is_text(module.key, name.module) {
                        *found = self.class_in(module.value, name);
                    }
                }
            }
        }
        found
    }

    /// Returns the class of this name that a module defines. A module may import a class of the
    /// same name from another one, which is not the same class.
    fn class_in(&self, module: u64, name: &ClassName) -> Option<u64> {
        let class = self.item(self.memory.u64(at(module, MODULE_DICT)?)?, name.class)?;
        if self.memory.u64(at(self.type_of(class)?, TYPE_FLAGS)?)? & IS_CLASS == 0 {
            return None;
        }
        let own = self.item(self.memory.u64(at(class, TYPE_DICT)?)?, "__module__")?;
        let own_name = self.memory.terminated(self.memory.u64(at(class, TYPE_NAME)?)?)?;
        (self.is_text(own, name.module) && own_name == name.class.as_bytes()).then_some(class)
    }
}
