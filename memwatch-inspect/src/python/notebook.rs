//! Notebooks: IPython runs each cell as a separate file, and keeps results and the last error in
//! its own variables.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::heap::Heap;
use super::numbers::number;
use super::objects::DictEntry;
use crate::memory::{MemoryAccess, at};

/// Variable of `__main__` that identifies a notebook: a method of IPython's shell.
pub(super) const SHELL: &str = "get_ipython";
/// Further variables that IPython puts into `__main__`, besides names that begin with `_`.
const MACHINERY: [&str; 4] = [SHELL, "exit", "quit", "open"];
/// `im_self` of a method (Include/cpython/classobject.h).
const METHOD_SELF: u32 = 24;

/// Returns whether a variable of a notebook's `__main__` belongs to IPython.
pub(super) fn is_machinery(name: &str) -> bool {
    name.starts_with('_') || MACHINERY.contains(&name)
}

/// Returns the name of the cell that a file stands for, such as `In [7]`.
pub(super) fn cell_of(heap: &Heap<'_, impl MemoryAccess>, file: &str) -> Option<String> {
    if let Some(rest) = file.strip_prefix("<ipython-input-") {
        return Some(format!("In [{}]", rest.split('-').next()?));
    }
    if !file.contains("/ipykernel_") {
        return None;
    }
    heap.cells.get_or_init(|| cells(heap).unwrap_or_default()).get(file).map(|number| format!("In [{number}]"))
}

/// Reads `get_ipython().compile._filename_map`: cell numbers by file.
fn cells(heap: &Heap<'_, impl MemoryAccess>) -> Option<HashMap<String, i64, FixedState>> {
    let objects = heap.objects();
    let shell = heap.interpreters().iter().find_map(|interpreter| {
        let modules = objects.memory.u64(at(*interpreter, objects.layout.modules)?)?;
        let globals = objects.memory.u64(at(objects.item(modules, "__main__")?, super::layout::MODULE_DICT)?)?;
        let method = objects.item(globals, SHELL)?;
        objects.memory.u64(at(method, METHOD_SELF)?)
    })?;
    let numbers = objects.attribute(objects.attribute(shell, "compile")?, "_filename_map")?;
    let cell = |entry: &DictEntry| Some((objects.text(entry.key)?, number(heap, entry.value)?));
    Some(objects.entries(numbers)?.iter().filter_map(cell).collect())
}
