//! What a Python stack says by itself: the line it belongs to, the module, and what the program is doing there.

use serde::{Deserialize, Serialize};

use super::packages::{Code, Packages, last_part};
use crate::stack::{PythonCode, PythonModule, PythonStack, WRAPPERS, wrapped_as};

/// What the innermost frame that says so is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Doing {
    /// Nothing says.
    Nothing,
    /// A module is called.
    Forward,
    /// A module is called by a backward pass, to have again what was not kept.
    Recomputation,
    /// The autograd engine is called or calls.
    Backward,
    /// `step` or `zero_grad` of an optimizer.
    Optimizer,
    /// What the program gave an optimizer's `step` to compute the loss again.
    Closure,
}

/// A stack, read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a stack")]
pub(super) struct Reading<'a> {
    /// The innermost line of the program's own; of a package, of Python's library or of torch where there is no other.
    pub(super) line: Option<&'a PythonCode>,
    /// The innermost line of a package that was called from there, or else of torch; `None` where that line itself allocates.
    pub(super) library: Option<&'a PythonCode>,
    /// What is done there.
    pub(super) doing: Doing,
    /// The modules whose calls are on the stack, innermost first.
    pub(super) modules: Vec<&'a PythonModule>,
    /// The outermost frame is where a program or a thread begins, so that no engine called it.
    pub(super) from_the_start: bool,
    /// No frame is an optimizer's `step` or `zero_grad`, and none is missing: no range of an optimizer can be open.
    pub(super) without_optimizer: bool,
    /// The innermost frame called the autograd engine: what is allocated below it, a node allocates.
    pub(super) in_engine: bool,
    /// Some frame did: on a thread of the engine's, a node runs within another one.
    pub(super) below_engine: bool,
}

/// Reads a stack.
pub(super) fn read<'a>(stack: &'a PythonStack, packages: &Packages) -> Reading<'a> {
    let codes = || stack.frames.iter().filter_map(|frame| frame.code.as_ref());
    let (line, library) = lines(stack, packages);
    let outermost = stack.frames.last().and_then(|frame| frame.code.as_ref()).filter(|_| !stack.truncated);
    let kind = |code| kind(code, packages);
    Reading {
        line,
        library,
        doing: doing(stack, packages),
        modules: modules(stack),
        from_the_start: outermost.is_some_and(is_a_beginning),
        without_optimizer: !stack.truncated
            && stack
                .frames
                .iter()
                .all(|frame| frame.code.as_ref().is_some_and(|code| kind(code) != Some(Doing::Optimizer))),
        in_engine: codes().next().is_some_and(|code| is_engine_call(code, packages)),
        below_engine: codes().any(|code| is_engine_call(code, packages)),
    }
}

/// The line that a stack belongs to, and that of the library which it called.
fn lines<'a>(stack: &'a PythonStack, packages: &Packages) -> (Option<&'a PythonCode>, Option<&'a PythonCode>) {
    let mut inner = None;
    let code = |code: &'a PythonCode| (packages.code(code, inner.replace(code)), code);
    let codes: Vec<_> = stack.frames.iter().filter_map(|frame| frame.code.as_ref()).map(code).collect();
    // Of several that are equal the first, which is the innermost.
    let Some(place) = (0..codes.len()).min_by_key(|place| codes[*place].0) else { return (None, None) };
    let called = &codes[..place];
    let of = |whose: Code| called.iter().find(|(own, _)| *own == whose).map(|(_, code)| *code);
    (Some(codes[place].1), of(Code::Package).or_else(|| of(Code::Torch)))
}

/// The modules on a stack, without the ones that torch.compile makes of parts of others (torch/fx/graph_module.py) and calls by themselves.
fn modules(stack: &PythonStack) -> Vec<&PythonModule> {
    let all = || stack.frames.iter().filter_map(|frame| frame.module.as_ref());
    let own: Vec<&PythonModule> =
        all().filter(|module| &*module.class != "GraphModule" || module.name.as_ref().is_some()).collect();
    if own.is_empty() { all().collect() } else { own }
}

fn is_a_beginning(code: &PythonCode) -> bool {
    matches!(last_part(&code.function), "<module>" | "_bootstrap" | "_run_module_as_main")
}

/// A frame that calls the engine and does nothing else: `_make_grads` makes the first gradients before.
fn is_engine_call(code: &PythonCode, packages: &Packages) -> bool {
    kind(code, packages) == Some(Doing::Backward) && last_part(&code.function) != "_make_grads"
}

/// What a frame that is no module's call says.
fn kind(code: &PythonCode, packages: &Packages) -> Option<Doing> {
    let function = last_part(&code.function);
    let Some(below) = packages.below_torch(&code.file) else {
        return (function == "closure").then_some(Doing::Closure);
    };
    match below {
        "_tensor.py" if function == "backward" => Some(Doing::Backward),
        "autograd/graph.py" if function == "_engine_run_backward" => Some(Doing::Backward),
        "autograd/__init__.py" if matches!(function, "backward" | "grad" | "_make_grads") => Some(Doing::Backward),
        // torch.compile: one node for a whole graph.
        compiled if compiled.starts_with("_functorch/_aot_autograd/") => match function {
            "forward" => Some(Doing::Forward),
            "backward" => Some(Doing::Backward),
            _ => None,
        },
        "optim/lr_scheduler.py" | "optim/swa_utils.py" => None,
        // `wrapper` is `profile_hook_step.<locals>.wrapper`: around the `step` of every optimizer, also of others than torch's own.
        optimizer if optimizer.starts_with("optim/") => {
            matches!(function, "step" | "zero_grad" | "wrapper").then_some(Doing::Optimizer)
        }
        _ => None,
    }
}

fn doing(stack: &PythonStack, packages: &Packages) -> Doing {
    let mut found = Doing::Nothing;
    for frame in &stack.frames {
        let here = frame.code.as_ref().and_then(|code| kind(code, packages));
        let here = if frame.module.is_some() { Some(Doing::Forward) } else { here };
        match (found, here) {
            (Doing::Nothing, Some(here)) => found = here,
            (Doing::Forward, Some(Doing::Backward)) => return Doing::Recomputation,
            // Inside a closure, nothing further out matters.
            (_, Some(Doing::Closure | Doing::Optimizer)) => return found,
            _ => {}
        }
    }
    found
}

/// A name as the program's own model has it: without what wrappers put in. `outermost` is the class of the module that it begins at.
pub(super) fn own_name(name: &str, outermost: &str) -> String {
    let mut parts: Vec<&str> = name.split('.').filter(|part| !part.is_empty()).collect();
    let first = wrapped_as(outermost);
    if first.is_some() && parts.first().copied() == first {
        parts.remove(0);
    }
    parts.retain(|part| !WRAPPERS.iter().any(|(_, inner)| inner == part && inner.starts_with('_')));
    parts.join(".")
}

#[cfg(test)]
#[path = "tests/frames.rs"]
mod tests;
