//! Whose code a file of Python is, by its path alone: the program's, a package's, Python's own or torch's; and which frames only pass calls on.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::stack::{PythonCode, PythonStack};

/// Folders of installed packages, and endings of the folders that hold a single one (wheels and eggs that are run as they came).
const FOLDERS: [&str; 4] = ["/site-packages/", "/dist-packages/", ".whl/", ".egg/"];

/// Packages that allocate for the code that calls them, as torch does.
const FRAMEWORKS: [&str; 6] = ["jax/", "jaxlib/", "tensorflow/", "keras/", "numpy/", "functorch/"];

/// What a folder `torch` holds where it is the package, in PyTorch 2.1 to 2.15: any of them distinguishes it from a folder of that name in a program.
const TORCH: [&str; 58] = [
    "_C/",
    "_VF.py",
    "_awaits/",
    "_classes.py",
    "_compile.py",
    "_custom_op/",
    "_custom_ops.py",
    "_decomp/",
    "_dispatch/",
    "_dynamo/",
    "_export/",
    "_functorch/",
    "_guards.py",
    "_higher_order_ops/",
    "_inductor/",
    "_jit_internal.py",
    "_lazy/",
    "_library/",
    "_linalg_utils.py",
    "_lobpcg.py",
    "_logging/",
    "_lowrank.py",
    "_meta_registrations.py",
    "_numpy/",
    "_ops.py",
    "_prims/",
    "_prims_common/",
    "_refs/",
    "_subclasses/",
    "_tensor.py",
    "_tensor_str.py",
    "_utils.py",
    "_utils_internal.py",
    "_vmap_internals.py",
    "_weights_only_unpickler.py",
    "accelerator/",
    "amp/",
    "ao/",
    "autograd/",
    "backends/",
    "cuda/",
    "distributed/",
    "distributions/",
    "fft/",
    "functional.py",
    "futures/",
    "fx/",
    "jit/",
    "masked/",
    "multiprocessing/",
    "nn/",
    "onnx/",
    "optim/",
    "overrides.py",
    "serialization.py",
    "sparse/",
    "storage.py",
    "utils/",
];

/// Functions that stand for an operator of a tensor's class, and do nothing but call it.
const OVERRIDES: [&str; 4] = ["__torch_function__", "__torch_dispatch__", "__array_function__", "__array_ufunc__"];

/// What the function is usually called that a decorator puts around another one.
const DECORATED: [&str; 10] = [
    "wrapper",
    "wrapped",
    "_wrapper",
    "_wrapped",
    "wrapper_func",
    "wrapped_func",
    "wrapper_fn",
    "wrapped_fn",
    "decorate_context",
    "decorated",
];

/// Names that packages use for it, too, and programs for functions that do something: only within another function, and in packages.
const DECORATED_IN_PACKAGES: [&str; 6] = ["inner", "_inner", "_fn", "decorate", "decorator", "inner_wrapper"];

/// No program has as many copies of torch.
const ROOTS: usize = 8;

/// Whose code a frame is, the one that a line is taken from first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Code {
    /// The program's own.
    Program,
    /// The program's own, around another function.
    ProgramWrapper,
    /// An installed package's.
    Package,
    /// The same, around another function.
    PackageWrapper,
    /// Python's own library, what it has generated, and scripts that only start a program.
    Python,
    /// Torch's, another framework's, and what they have generated.
    Torch,
    /// The same, around another function.
    TorchWrapper,
}

/// The folders in which a process has its packages, as far as they are not called as usual.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Packages {
    /// Folders in which `torch` was found.
    roots: Vec<Arc<str>>,
}

impl Packages {
    /// Learns from the files of a stack in which folder torch is, such as one that `pip install --target` has made.
    pub(super) fn learn(&mut self, stack: &PythonStack) {
        for file in stack.frames.iter().filter_map(|frame| Some(&frame.code.as_ref()?.file)) {
            let new = root(file).filter(|root| !self.roots.iter().any(|known| **known == **root));
            if let Some(root) = new.filter(|_| self.roots.len() < ROOTS) {
                self.roots.push(root.into());
            }
        }
    }

    /// Whose code this is; `inner` is the frame that it calls.
    pub(super) fn code(&self, code: &PythonCode, inner: Option<&PythonCode>) -> Code {
        let file = &*code.file;
        if self.below_torch(file).is_some() || is_of_framework(file) || is_generated_by_torch(file) {
            return if is_wrapper(code, true) { Code::TorchWrapper } else { Code::Torch };
        }
        if is_of_python(file) || is_generated(code) || is_launcher(code, inner) {
            return Code::Python;
        }
        match (self.is_package(file), is_wrapper(code, self.is_package(file))) {
            (false, false) => Code::Program,
            (false, true) => Code::ProgramWrapper,
            (true, false) => Code::Package,
            (true, true) => Code::PackageWrapper,
        }
    }

    /// The path below the package `torch`: of an installed one, or of one in any other folder, where its files show that it is the package.
    pub(super) fn below_torch<'a>(&self, file: &'a str) -> Option<&'a str> {
        let installed = FOLDERS.iter().find_map(|folder| below(file, folder)?.strip_prefix("torch/"));
        let in_root = || self.below_root(file)?.strip_prefix("torch/");
        installed.or_else(in_root).or_else(|| Some(&file[root(file)?.len() + "/torch/".len()..]))
    }

    fn below_root<'a>(&self, file: &'a str) -> Option<&'a str> {
        self.roots.iter().find_map(|root| file.strip_prefix(&**root)?.strip_prefix('/'))
    }

    /// A file beside the packages, in the folder itself, is the program's.
    fn is_package(&self, file: &str) -> bool {
        FOLDERS.iter().any(|folder| file.contains(folder))
            || self.below_root(file).is_some_and(|below| below.contains('/'))
    }
}

/// The folder with the package `torch` that this file is in, where no other rule says it.
fn root(file: &str) -> Option<&str> {
    let is_torch = |place: &usize| TORCH.iter().any(|entry| file[place + "/torch/".len()..].starts_with(entry));
    let place = file.match_indices("/torch/").map(|(place, _)| place).find(is_torch)?;
    let is_installed = FOLDERS.iter().any(|folder| file.contains(folder));
    (!is_installed).then_some(&file[..place])
}

/// The path below the last folder of this kind.
fn below<'a>(file: &'a str, folder: &str) -> Option<&'a str> {
    file.rsplit_once(folder).map(|(_, below)| below)
}

fn is_of_framework(file: &str) -> bool {
    let below = FOLDERS.iter().find_map(|folder| below(file, folder));
    below.is_some_and(|below| FRAMEWORKS.iter().any(|package| below.starts_with(package)))
}

fn is_generated_by_torch(file: &str) -> bool {
    file.contains("/torchinductor_") || file.starts_with("<eval_with_key>")
}

fn is_of_python(file: &str) -> bool {
    let is_package = FOLDERS.iter().any(|folder| file.contains(folder));
    let is_library = ["/lib/python3", "/lib64/python3"].iter().any(|library| file.contains(library));
    file.starts_with("<frozen ") || (!is_package && is_library)
}

/// Methods that `dataclasses`, `attrs` and decorators compile from text.
fn is_generated(code: &PythonCode) -> bool {
    let texts = ["<attrs generated ", "<decorator-gen", "<__array_function__ internals>"];
    let is_method = || last_part(&code.function).starts_with("__");
    texts.iter().any(|text| code.file.starts_with(text)) || (&*code.file == "<string>" && is_method())
}

/// The script of an installed command (`bin/vllm`), and the text with which `multiprocessing` begins a process.
fn is_launcher(code: &PythonCode, inner: Option<&PythonCode>) -> bool {
    let folder_and_name = || code.file.rsplit_once('/').map(|(folder, name)| (folder.ends_with("/bin"), name));
    let is_command = || folder_and_name().is_some_and(|(is_bin, name)| is_bin && !name.contains('.'));
    let begins_process =
        || inner.is_some_and(|inner| is_of_python(&inner.file) && inner.file.contains("/multiprocessing/"));
    &*code.function == "<module>" && (is_command() || (&*code.file == "<string>" && begins_process()))
}

/// Whether a frame stands around the one that it calls. In a package more names say so than in a program.
fn is_wrapper(code: &PythonCode, in_package: bool) -> bool {
    let name = last_part(&code.function);
    let is_within = code.function.contains("<locals>.");
    OVERRIDES.contains(&name)
        || DECORATED.contains(&name)
        || (in_package && is_within && DECORATED_IN_PACKAGES.contains(&name))
}

/// `AdamW.step` → `step`: versions before 3.11 show only that.
pub(super) fn last_part(function: &str) -> &str {
    function.rsplit_once('.').map_or(function, |(_, last)| last)
}
