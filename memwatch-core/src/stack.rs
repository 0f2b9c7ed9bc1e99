//! Python stacks, resolved to functions, files and lines.

pub mod lines;

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A Python stack, innermost frame first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonStack {
    /// The frames that are there.
    pub frames: Vec<PythonFrame>,
    /// Outer frames are missing: there were more than are copied.
    pub truncated: bool,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonFrame {
    /// What is known of its code; `None` where the code object was gone or could not be read.
    pub code: Option<PythonCode>,
    /// The `torch.nn.Module` whose call this frame is.
    pub module: Option<PythonModule>,
}

/// A place in Python code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PythonCode {
    /// `co_qualname` (3.11 and later), else `co_name`.
    pub function: Arc<str>,
    /// `co_filename`.
    pub file: Arc<str>,
    /// The line; `None` where the code has none there.
    pub line: Option<u32>,
}

/// An instance of `torch.nn.Module`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PythonModule {
    /// Its address: tells instances apart while they live.
    pub address: u64,
    /// Its class, such as `Linear`.
    pub class: Arc<str>,
    /// Its name below the outermost module on the stack, as `named_modules()` has it, such as `layers.0.fc1`; empty for the outermost itself; `None`
    /// where it is not found there. Where the outermost was seen below another module before, as when a part of a model is computed once more in
    /// backward, the name is that below the other.
    pub name: Option<Arc<str>>,
    /// What it stands around, where it is a wrapper ([`wrapped_as`]); its name is empty, whatever it is in its model.
    pub wraps: Option<Box<PythonModule>>,
}

/// Modules that only stand around another one, and the name under which they keep it.
pub(crate) const WRAPPERS: [(&str, &str); 5] = [
    ("DistributedDataParallel", "module"),
    ("DataParallel", "module"),
    ("FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("OptimizedModule", "_orig_mod"),
    ("CheckpointWrapper", "_checkpoint_wrapped_module"),
];

/// The name under which a module keeps the one that it stands around; `None` for a class that is no wrapper.
pub fn wrapped_as(class: &str) -> Option<&'static str> {
    WRAPPERS.iter().find(|(wrapper, _)| *wrapper == class).map(|(_, inner)| *inner)
}

/// The stacks of one process, by the number that the kernel half gave them.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    by_id: HashMap<u64, Arc<PythonStack>>,
}

impl Stacks {
    /// The stack of this number is this from now on.
    pub fn learn(&mut self, id: u64, stack: PythonStack) {
        self.by_id.insert(id, Arc::new(stack));
    }

    /// The stack of this number, if it arrived.
    pub fn get(&self, id: u64) -> Option<&Arc<PythonStack>> {
        self.by_id.get(&id)
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
