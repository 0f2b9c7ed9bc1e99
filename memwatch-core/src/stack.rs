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
    /// The frames that are there.
    pub frames: Vec<PythonFrame>,
    /// Outer frames are missing: there were more than are copied.
    pub truncated: bool,
    /// How many frames, from the innermost on, lie within each call of the interpreter's loop: each number includes those before.
    pub borders: Vec<u16>,
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
    /// Its address: distinguishes instances while they live.
    pub address: u64,
    /// Its class, such as `Linear`.
    pub class: Arc<str>,
    /// Its name below the outermost module on the stack, as `named_modules()` has it, such as `layers.0.fc1`; empty for the outermost itself; `None`
    /// where it is not found there. Where the outermost was seen below another module before, as when a part of a model is computed once more in
    /// backward, the name is that below the other.
    pub name: Option<Arc<str>>,
    /// What it stands around, where it is a wrapper ([`wrapped_as`]); its name is empty, whatever it is in its model.
    #[serde(with = "chain")]
    pub wraps: Option<Box<PythonModule>>,
}

/// What wrappers stand around, one after the other: in a format without names nothing else says how deep a nest is.
mod chain {
    use std::sync::Arc;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::PythonModule;

    /// No module is wrapped more times.
    const DEEPEST: usize = 64;

    type Wrapped = Option<Box<PythonModule>>;
    type Link = (u64, Arc<str>, Option<Arc<str>>);

    pub(super) fn serialize<S: Serializer>(wrapped: &Wrapped, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return wrapped.serialize(serializer);
        }
        let chain = std::iter::successors(wrapped.as_deref(), |module| module.wraps.as_deref()).take(DEEPEST);
        let links: Vec<Link> =
            chain.map(|module| (module.address, module.class.clone(), module.name.clone())).collect();
        links.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Wrapped, D::Error> {
        if deserializer.is_human_readable() {
            return Wrapped::deserialize(deserializer);
        }
        let links = Vec::<Link>::deserialize(deserializer)?;
        if links.len() > DEEPEST {
            return Err(D::Error::custom("a module is wrapped too many times"));
        }
        let around = |wraps, (address, class, name)| Some(Box::new(PythonModule { address, class, name, wraps }));
        Ok(links.into_iter().rev().fold(None, around))
    }
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

/// So many frames of Python, and of machine code, are kept of one process: some 100 MB each. A program with 10,000 lines that allocate has a tenth.
const MOST_FRAMES: usize = 1 << 20;
/// Of so many native stacks that are like another it is known which one: the events that name them come right behind them.
const WAITING: usize = 1 << 12;

/// The stacks of one process, by the number that the kernel half gave them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stacks {
    by_id: HashMap<u64, Arc<PythonStack>>,
    native: HashMap<u64, Arc<NativeStack>>,
    /// Frames of both, as they were when they came.
    frames: [usize; 2],
    /// Stacks that were not kept: there are too many different ones.
    unkept: u64,
    /// Each allocation of a thread without Python has a number of its own: the last ones that are like one that is known, and that one.
    alike: HashMap<u64, u64>,
    /// The keys of `alike`, as they came.
    order: VecDeque<u64>,
    /// The native stacks of threads without Python: made from `native` again where it is missing.
    #[serde(skip)]
    by_content: HashMap<Arc<NativeStack>, u64>,
    /// Native stacks by what ended them.
    ends: BTreeMap<NativeEnd, u64>,
    missing_copies: MissingCopies,
}

/// Allocations whose native stack is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingCopies {
    /// It was not copied, to keep the program fast.
    pub over_budget: u64,
    /// There was no room for the copy.
    pub lost: u64,
}

impl Stacks {
    /// The stack of this number is this from now on.
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

    /// How many stacks were not kept, since there are too many different ones.
    pub const fn unkept(&self) -> u64 {
        self.unkept
    }

    /// The stack of this number, if it arrived.
    pub fn get(&self, id: u64) -> Option<&Arc<PythonStack>> {
        self.by_id.get(&id)
    }

    /// The native stack of this number is this from now on: that of the Python stack of the same number, as far as all allocations on it that were
    /// looked at have it, or that of a thread without Python. Says whether it is another one than all that are known.
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

    /// Of a thread without Python.
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

    /// The number under which the native stack of this number is kept: all that are alike have one.
    pub fn kept_as(&self, id: u64) -> u64 {
        self.alike.get(&id).copied().unwrap_or(id)
    }

    /// The native stack of this number, if it arrived.
    pub fn native(&self, id: u64) -> Option<&Arc<NativeStack>> {
        self.native.get(&self.kept_as(id))
    }

    /// What the flags of an event say of a copy that is missing.
    pub(crate) fn count_copies(&mut self, flags: u8) {
        self.missing_copies.over_budget += u64::from(flags & FLAG_COPY_OVER_BUDGET != 0);
        self.missing_copies.lost += u64::from(flags & FLAG_COPY_LOST != 0);
    }

    /// Allocations whose native stack is missing.
    pub const fn missing_copies(&self) -> MissingCopies {
        self.missing_copies
    }

    /// How many native stacks ended so.
    pub const fn ends(&self) -> &BTreeMap<NativeEnd, u64> {
        &self.ends
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

#[cfg(test)]
mod tests;
