//! Python stacks, resolved to functions, files and lines.

pub mod lines;
pub mod native;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use memwatch_common::tensor::{FLAG_COPY_LOST, FLAG_COPY_OVER_BUDGET};
use serde::{Deserialize, Serialize};

use self::native::{NativeEnd, NativeStack};

/// A Python stack, innermost frame first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonStack {
    /// Frames that were read.
    pub frames: Vec<PythonFrame>,
    /// Whether outer frames are missing because of the limit of copied frames.
    pub truncated: bool,
    /// Number of frames, from the innermost on, within each call of the interpreter's loop. Each
    /// number includes the previous ones.
    pub borders: Vec<u16>,
}

/// A frame of a Python stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonFrame {
    /// Code of the frame; `None` if the code object was gone or could not be read.
    pub code: Option<PythonCode>,
    /// `torch.nn.Module` called in this frame.
    pub module: Option<PythonModule>,
}

/// A position in Python code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PythonCode {
    /// `co_qualname` (3.11 and later) or `co_name`.
    pub function: Arc<str>,
    /// `co_filename`.
    pub file: Arc<str>,
    /// Line; `None` if the code has none at this position.
    pub line: Option<u32>,
}

/// An instance of `torch.nn.Module`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PythonModule {
    /// Address of the object; distinguishes instances while they live.
    pub address: u64,
    /// Class, such as `Linear`.
    pub class: Arc<str>,
    /// Name relative to the outermost module on the stack, as in `named_modules()`, such as
    /// `layers.0.fc1`; empty for the outermost module itself; `None` if it is not found there. If
    /// the outermost module was seen within another module before, as when a part of a model is
    /// recomputed in backward, the name is relative to that other module.
    pub name: Option<Arc<str>>,
    /// The wrapped module, if this one is a wrapper ([`wrapped_as`]). A wrapped module has an empty
    /// name, wherever it is in its model.
    #[serde(with = "chain")]
    pub wraps: Option<Box<PythonModule>>,
}

/// Serialises nested wrapped modules as a list, because formats without field names do not bound
/// the nesting depth.
mod chain {
    use std::sync::Arc;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::PythonModule;

    /// Maximum nesting of wrappers.
    const DEEPEST: usize = 64;

    type Wrapped = Option<Box<PythonModule>>;
    type WrapperLink = (u64, Arc<str>, Option<Arc<str>>);

    pub(super) fn serialize<S: Serializer>(wrapped: &Wrapped, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return wrapped.serialize(serializer);
        }
        let chain = std::iter::successors(wrapped.as_deref(), |module| module.wraps.as_deref()).take(DEEPEST);
        let links: Vec<WrapperLink> =
            chain.map(|module| (module.address, module.class.clone(), module.name.clone())).collect();
        links.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Wrapped, D::Error> {
        if deserializer.is_human_readable() {
            return Wrapped::deserialize(deserializer);
        }
        let links = Vec::<WrapperLink>::deserialize(deserializer)?;
        if links.len() > DEEPEST {
            return Err(D::Error::custom("a module is wrapped too many times"));
        }
        let around = |wraps, (address, class, name)| Some(Box::new(PythonModule { address, class, name, wraps }));
        Ok(links.into_iter().rev().fold(None, around))
    }
}

/// Module classes that only wrap another module, and the attribute that contains it.
pub(crate) const WRAPPERS: [(&str, &str); 5] = [
    ("DistributedDataParallel", "module"),
    ("DataParallel", "module"),
    ("FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("OptimizedModule", "_orig_mod"),
    ("CheckpointWrapper", "_checkpoint_wrapped_module"),
];

/// Returns the attribute in which a wrapper class keeps the wrapped module; `None` for other
/// classes.
pub fn wrapped_as(class: &str) -> Option<&'static str> {
    WRAPPERS.iter().find(|(wrapper, _)| *wrapper == class).map(|(_, inner)| *inner)
}

/// Maximum number of Python frames, and of native frames, kept per process: about 100 MB each. A
/// program with 10,000 lines that allocate needs a tenth.
const MOST_FRAMES: usize = 1 << 20;
/// Number of duplicate native stacks for which the original is remembered. The events that refer to
/// a stack follow it closely.
const WAITING: usize = 1 << 12;

/// Stacks of one process, by the identifier from the kernel half.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StackTable {
    by_id: HashMap<u64, Arc<PythonStack>>,
    native: HashMap<u64, Arc<NativeStack>>,
    /// Numbers of Python and of native frames, as counted on arrival.
    frames: [usize; 2],
    /// Number of stacks dropped because there were too many different ones.
    unkept: u64,
    /// Original of each recent duplicate native stack. Without Python, each allocation has a stack
    /// identifier of its own.
    alike: HashMap<u64, u64>,
    /// Keys of `alike` in order of arrival.
    order: VecDeque<u64>,
    /// Native stacks of threads without Python; rebuilt from `native` if empty.
    #[serde(skip)]
    by_content: HashMap<Arc<NativeStack>, u64>,
    /// Number of native stacks by the reason for their end.
    ends: BTreeMap<NativeEnd, u64>,
    missing_copies: MissingCopies,
}

/// Number of allocations without a native stack, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingCopies {
    /// Allocations for which the stack was not copied, to limit the overhead.
    pub over_budget: u64,
    /// Allocations for which the buffer had no space left.
    pub lost: u64,
}

impl StackTable {
    /// Sets the Python stack with this identifier.
    pub fn learn(&mut self, id: u64, stack: PythonStack) {
        if self.by_id.contains_key(&id) || self.has_room(0, stack.frames.len()) {
            self.by_id.insert(id, Arc::new(stack));
        }
    }

    fn has_room(&mut self, which: usize, frames: usize) -> bool {
        let all = self.frames[which].saturating_add(frames);
        let has_room = all <= MOST_FRAMES;
        if has_room {
            self.frames[which] = all;
        } else {
            self.unkept += 1;
        }
        has_room
    }

    /// Number of stacks dropped because there were too many different ones.
    pub const fn unkept(&self) -> u64 {
        self.unkept
    }

    /// Returns the Python stack with this identifier, if it has arrived.
    pub fn get(&self, id: u64) -> Option<&Arc<PythonStack>> {
        self.by_id.get(&id)
    }

    /// Sets the native stack with this identifier. It belongs either to the Python stack with the
    /// same identifier, as far as all allocations on it agree, or to a thread without Python.
    /// Returns false if the stack is a duplicate or was dropped.
    pub fn learn_native(&mut self, id: u64, stack: NativeStack) -> bool {
        let is_known = self.native.contains_key(&id);
        if !is_known && !self.by_id.contains_key(&id) {
            return self.learn_alone(id, stack);
        }
        if !is_known && !self.has_room(1, stack.frames.len()) {
            return false;
        }
        *self.ends.entry(stack.end).or_insert(0) += 1;
        if let Some(before) = self.native.insert(id, Arc::new(stack)) {
            if let Some(count) = self.ends.get_mut(&before.end) {
                *count = count.saturating_sub(1);
            }
            if self.by_content.get(&before) == Some(&id) {
                self.by_content.remove(&before);
            }
        }
        true
    }

    /// Adds the native stack of a thread without Python.
    fn learn_alone(&mut self, id: u64, stack: NativeStack) -> bool {
        if self.by_content.is_empty() {
            let own = self.native.iter().filter(|(id, _)| !self.by_id.contains_key(id));
            self.by_content = own.map(|(id, stack)| (stack.clone(), *id)).collect();
        }
        let end = stack.end;
        if let Some(first) = self.by_content.get(&stack) {
            *self.ends.entry(end).or_insert(0) += 1;
            self.alike.insert(id, *first);
            self.order.push_back(id);
            if self.order.len() > WAITING
                && let Some(oldest) = self.order.pop_front()
            {
                self.alike.remove(&oldest);
            }
            return false;
        }
        if !self.has_room(1, stack.frames.len()) {
            return false;
        }
        *self.ends.entry(end).or_insert(0) += 1;
        let stack = Arc::new(stack);
        self.native.insert(id, stack.clone());
        self.by_content.insert(stack, id);
        true
    }

    /// Returns the identifier under which a native stack is kept: that of its original if it is a
    /// duplicate.
    pub fn kept_as(&self, id: u64) -> u64 {
        self.alike.get(&id).copied().unwrap_or(id)
    }

    /// Returns the native stack with this identifier, if it has arrived.
    pub fn native(&self, id: u64) -> Option<&Arc<NativeStack>> {
        self.native.get(&self.kept_as(id))
    }

    /// Counts a missing copy of a native stack, from the flags of an event.
    pub(crate) fn count_copies(&mut self, flags: u8) {
        self.missing_copies.over_budget += u64::from(flags & FLAG_COPY_OVER_BUDGET != 0);
        self.missing_copies.lost += u64::from(flags & FLAG_COPY_LOST != 0);
    }

    /// Number of allocations without a native stack.
    pub const fn missing_copies(&self) -> MissingCopies {
        self.missing_copies
    }

    /// Number of native stacks by the reason for their end.
    pub const fn ends(&self) -> &BTreeMap<NativeEnd, u64> {
        &self.ends
    }

    /// Number of known Python stacks.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether no Python stack is known.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests;
