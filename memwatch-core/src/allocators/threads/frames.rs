//! Interprets a single Python stack: its call site, its modules and what the program is doing.

use serde::{Deserialize, Serialize};

use super::packages::{CodeOwner, PackageFolders, last_part};
use crate::stack::{PythonCode, PythonModule, PythonStack, WRAPPERS, wrapped_as};

/// Activity indicated by the innermost frame that shows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Doing {
    /// No frame shows an activity.
    Nothing,
    /// Inside the call of a module.
    Forward,
    /// Inside the call of a module within a backward pass, to recompute what was not kept.
    Recomputation,
    /// Inside a call of, or by, the autograd engine.
    Backward,
    /// Inside `step` or `zero_grad` of an optimizer.
    Optimizer,
    /// Inside the closure that the program passed to an optimizer's `step` to recompute the loss.
    Closure,
}

/// Interpretation of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a stack")]
pub(super) struct StackReading<'a> {
    /// Innermost line of the program; without one, of a package, Python's library or torch.
    pub(super) line: Option<&'a PythonCode>,
    /// Innermost line of a package called from there, otherwise of torch; `None` if `line` itself
    /// allocates.
    pub(super) library: Option<&'a PythonCode>,
    /// Activity of the program.
    pub(super) doing: Doing,
    /// Modules whose calls are on the stack, innermost first.
    pub(super) modules: Vec<&'a PythonModule>,
    /// The outermost frame starts a program or a thread, so no autograd engine called it.
    pub(super) from_the_start: bool,
    /// The stack is complete and has no `step` or `zero_grad` of an optimizer, so no optimizer
    /// range can be open.
    pub(super) without_optimizer: bool,
    /// The innermost frame called the autograd engine, so a node makes the allocation.
    pub(super) in_engine: bool,
    /// Some frame called the autograd engine. On an engine thread, a node then runs within another
    /// one.
    pub(super) below_engine: bool,
}

/// Interprets a stack.
pub(super) fn read<'a>(stack: &'a PythonStack, packages: &PackageFolders) -> StackReading<'a> {
    let codes = || stack.frames.iter().filter_map(|frame| frame.code.as_ref());
    let (line, library) = lines(stack, packages);
    let outermost = stack.frames.last().and_then(|frame| frame.code.as_ref()).filter(|_| !stack.truncated);
    let kind = |code| kind(code, packages);
    StackReading {
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

/// Returns the call site of a stack, and the library line called from there.
fn lines<'a>(stack: &'a PythonStack, packages: &PackageFolders) -> (Option<&'a PythonCode>, Option<&'a PythonCode>) {
    let mut inner = None;
    let code = |code: &'a PythonCode| (packages.code(code, inner.replace(code)), code);
    let codes: Vec<_> = stack.frames.iter().filter_map(|frame| frame.code.as_ref()).map(code).collect();
    // Of equal ones, `min_by_key` returns the first, which is the innermost.
    let Some(place) = (0..codes.len()).min_by_key(|place| codes[*place].0) else { return (None, None) };
    let called = &codes[..place];
    let of = |whose: CodeOwner| called.iter().find(|(own, _)| *own == whose).map(|(_, code)| *code);
    (Some(codes[place].1), of(CodeOwner::Package).or_else(|| of(CodeOwner::Torch)))
}

/// Returns the modules on a stack. Leaves out modules that torch.compile makes from parts of others
/// (torch/fx/graph_module.py), unless there are no others.
fn modules(stack: &PythonStack) -> Vec<&PythonModule> {
    let all = || stack.frames.iter().filter_map(|frame| frame.module.as_ref());
    let own: Vec<&PythonModule> =
        all().filter(|module| &*module.class != "GraphModule" || module.name.as_ref().is_some()).collect();
    if own.is_empty() { all().collect() } else { own }
}

fn is_a_beginning(code: &PythonCode) -> bool {
    matches!(last_part(&code.function), "<module>" | "_bootstrap" | "_run_module_as_main")
}

/// Returns whether a frame only calls the engine. `_make_grads` creates the first gradients before.
fn is_engine_call(code: &PythonCode, packages: &PackageFolders) -> bool {
    kind(code, packages) == Some(Doing::Backward) && last_part(&code.function) != "_make_grads"
}

/// Returns the activity that a frame shows, for frames other than module calls.
fn kind(code: &PythonCode, packages: &PackageFolders) -> Option<Doing> {
    let function = last_part(&code.function);
    let Some(below) = packages.below_torch(&code.file) else {
        return (function == "closure").then_some(Doing::Closure);
    };
    match below {
        "_tensor.py" if function == "backward" => Some(Doing::Backward),
        "autograd/graph.py" if function == "_engine_run_backward" => Some(Doing::Backward),
        "autograd/__init__.py" if matches!(function, "backward" | "grad" | "_make_grads") => Some(Doing::Backward),
        // torch.compile runs a whole graph as one node.
        compiled if compiled.starts_with("_functorch/_aot_autograd/") => match function {
            "forward" => Some(Doing::Forward),
            "backward" => Some(Doing::Backward),
            _ => None,
        },
        "optim/lr_scheduler.py" | "optim/swa_utils.py" => None,
        // `wrapper` is `profile_hook_step.<locals>.wrapper`, which wraps the `step` of every
        // optimizer, including those outside of torch.
        optimizer if optimizer.starts_with("optim/") => {
            matches!(function, "step" | "zero_grad" | "wrapper").then_some(Doing::Optimizer)
        }
        _ => None,
    }
}

fn doing(stack: &PythonStack, packages: &PackageFolders) -> Doing {
    let mut found = Doing::Nothing;
    for frame in &stack.frames {
        let here = frame.code.as_ref().and_then(|code| kind(code, packages));
        let here = if frame.module.is_some() { Some(Doing::Forward) } else { here };
        match (found, here) {
            (Doing::Nothing, Some(here)) => found = here,
            (Doing::Forward, Some(Doing::Backward)) => return Doing::Recomputation,
            // Frames outside of a closure are irrelevant.
            (_, Some(Doing::Closure | Doing::Optimizer)) => return found,
            _ => {}
        }
    }
    found
}

/// Returns a module name without the parts that wrappers add, as the program's own model has it.
/// `outermost` is the class of the module at which the name starts.
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
