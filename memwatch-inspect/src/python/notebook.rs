//! Notebooks: IPython runs each cell as a file of its own, and keeps results and the last error in variables of its own.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::heap::Heap;
use super::numbers::number;
use super::objects::Entry;
use crate::memory::{Memory, at};

/// The variable of `__main__` by which a notebook is known: a method of IPython's shell.
pub(super) const SHELL: &str = "get_ipython";
/// Further variables that IPython puts into `__main__`, besides the names with `_` before them.
const MACHINERY: [&str; 4] = [SHELL, "exit", "quit", "open"];
/// `im_self` of a method (Include/cpython/classobject.h).
const METHOD_SELF: u32 = 24;

/// Whether a variable of a notebook's `__main__` is IPython's own.
pub(super) fn is_machinery(name: &str) -> bool {
    name.starts_with('_') || MACHINERY.contains(&name)
}

/// `In [7]` of the file that stands for a cell.
pub(super) fn cell_of(heap: &Heap<'_, impl Memory>, file: &str) -> Option<String> {
    if let Some(rest) = file.strip_prefix("<ipython-input-") {
        return Some(format!("In [{}]", rest.split('-').next()?));
    }
    if !file.contains("/ipykernel_") {
        return None;
    }
    heap.cells.get_or_init(|| cells(heap).unwrap_or_default()).get(file).map(|number| format!("In [{number}]"))
}

/// `get_ipython().compile._filename_map`.
fn cells(heap: &Heap<'_, impl Memory>) -> Option<HashMap<String, i64, FixedState>> {
    let objects = heap.objects();
    let shell = heap.interpreters().iter().find_map(|interpreter| {
        let modules = objects.memory.u64(at(*interpreter, objects.layout.modules)?)?;
        let globals = objects.memory.u64(at(objects.item(modules, "__main__")?, super::layout::MODULE_DICT)?)?;
        let method = objects.item(globals, SHELL)?;
        objects.memory.u64(at(method, METHOD_SELF)?)
    })?;
    let numbers = objects.attribute(objects.attribute(shell, "compile")?, "_filename_map")?;
    let cell = |entry: &Entry| Some((objects.text(entry.key)?, number(heap, entry.value)?));
    Some(objects.entries(numbers)?.iter().filter_map(cell).collect())
}
