//! Lists the roots of searches: globals of modules, frames of threads, and thread states.

use super::classes::ObjectKind;
use super::edges::{Edge, EdgeLabel};
use super::frames::{CodeOrigin, RunningFrames, is_library_file};
use super::heap::Heap;
use super::layout::MODULE_DICT;
use super::notebook::{SHELL, is_machinery};
use super::objects::DictEntry;
use crate::memory::{MemoryAccess, at};

/// Ranks of roots. A lower one lives longer and says more to the program's author.
pub(super) mod ranks {
    /// Globals of the program.
    pub(in crate::python) const GLOBAL: u8 = 0;
    /// Frames of the program's code that ran when the reading began, and later ones.
    pub(in crate::python) const STANDING_FRAME: u8 = 1;
    pub(in crate::python) const FRAME: u8 = 2;
    /// Variables of IPython in the program's globals.
    pub(in crate::python) const MACHINERY: u8 = 3;
    pub(in crate::python) const LIBRARY_STANDING_FRAME: u8 = 4;
    pub(in crate::python) const LIBRARY_GLOBAL: u8 = 5;
    /// Frames that start a process or a thread, such as those of `threading` and `multiprocessing`.
    pub(in crate::python) const STANDARD_STANDING_FRAME: u8 = 6;
    pub(in crate::python) const LIBRARY_FRAME: u8 = 7;
    pub(in crate::python) const STANDARD_FRAME: u8 = 8;
    /// Thread states.
    pub(in crate::python) const THREAD: u8 = 9;
    /// Finished frames that a traceback retains.
    pub(in crate::python) const TRACEBACK: u8 = 10;
}

/// Returns all roots, best first. Each frame is a rank of its own. Modules and their dicts are
/// closed.
pub(super) fn roots(
    heap: &Heap<'_, impl MemoryAccess>,
    earlier: &RunningFrames,
    of_libraries: bool,
    is_closed: &mut Vec<bool>,
) -> Vec<(u8, Vec<Edge>)> {
    let mut roots = globals(heap, of_libraries, is_closed);
    for frame in heap.run_frames(earlier) {
        let rank = match (frame.origin, frame.is_standing) {
            (CodeOrigin::Program, true) => ranks::STANDING_FRAME,
            (CodeOrigin::Program, false) => ranks::FRAME,
            (CodeOrigin::Package, true) => ranks::LIBRARY_STANDING_FRAME,
            (CodeOrigin::Package, false) => ranks::LIBRARY_FRAME,
            (CodeOrigin::Standard, true) => ranks::STANDARD_STANDING_FRAME,
            (CodeOrigin::Standard, false) => ranks::STANDARD_FRAME,
        };
        roots.push((rank, heap.frame_edges(frame.address)));
    }
    roots.push((ranks::THREAD, heap.state_edges()));
    // The sort is stable, so frames of one rank keep their order.
    roots.sort_by_key(|(rank, _)| *rank);
    roots
}

/// Returns the globals of the program's modules with `__main__` first, IPython's variables, and the
/// globals of libraries.
fn globals(heap: &Heap<'_, impl MemoryAccess>, of_libraries: bool, is_closed: &mut Vec<bool>) -> Vec<(u8, Vec<Edge>)> {
    let objects = heap.objects();
    let (mut main, mut own, mut machinery, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut close = |object: u64| {
        if let Some(place) = heap.place(object) {
            let place = place as usize;
            if place >= is_closed.len() {
                is_closed.resize(place + 1, false);
            }
            is_closed[place] = true;
        }
    };
    for interpreter in heap.interpreters() {
        let modules = || objects.memory.u64(at(*interpreter, objects.layout.modules)?);
        let Some(modules) = modules() else { continue };
        close(modules);
        for module in objects.entries(modules).unwrap_or_default() {
            if heap.class_of(module.value).is_none_or(|class| class.kind != ObjectKind::Module) {
                continue;
            }
            if !of_libraries && let Some(dict) = heap.library_modules.borrow().get(&module.value) {
                close(module.value);
                close(*dict);
                continue;
            }
            let Some(dict) = at(module.value, MODULE_DICT).and_then(|at| objects.memory.u64(at)) else { continue };
            close(module.value);
            close(dict);
            let mut entries = objects.entries(dict).unwrap_or_default();
            let name = objects.text(module.key);
            let label = |entry: &DictEntry| EdgeLabel::Global { module: module.key, name: entry.key };
            let edge = |entry: &DictEntry| heap.edge(label(entry), entry.value, entry.slot);
            let part = match name.as_deref() {
                Some("__main__") => {
                    let text = |entry: &DictEntry| objects.text(entry.key).unwrap_or_default();
                    if entries.iter().any(|entry| text(entry) == SHELL) {
                        machinery.extend(
                            entries.extract_if(.., |entry| is_machinery(&text(entry))).filter_map(|entry| edge(&entry)),
                        );
                    }
                    &mut main
                }
                _ if is_own(heap, &entries) => &mut own,
                _ => {
                    heap.library_modules.borrow_mut().insert(module.value, dict);
                    &mut others
                }
            };
            part.extend(entries.iter().filter_map(edge));
        }
    }
    main.extend(own);
    vec![(ranks::GLOBAL, main), (ranks::MACHINERY, machinery), (ranks::LIBRARY_GLOBAL, others)]
}

/// Returns whether these are the globals of a module of the program: its file is not in a library
/// folder.
fn is_own(heap: &Heap<'_, impl MemoryAccess>, globals: &[DictEntry]) -> bool {
    let objects = heap.objects();
    let file = globals.iter().find(|entry| objects.text(entry.key).as_deref() == Some("__file__"));
    let file = file.and_then(|entry| objects.text(entry.value));
    file.is_some_and(|file| !is_library_file(&file))
}
