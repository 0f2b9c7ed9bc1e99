//! Resolves the addresses of a Python stack to functions, files and lines. Each code object is read
//! once while it lives.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use memwatch_common::record::StackItem;
use memwatch_common::tensor::{FLAG_STACK_TRUNCATED, STACK_FRAMES, StackFrame};
use memwatch_core::stack::{PythonFrame, PythonModule, PythonStack};

use super::code::CodeObject;
use super::memory::MemoryAccess;
use super::modules::{self, Modules, WorkPace};
use crate::printable::printable;
use crate::sources::clock::boottime_ns;
use memwatch_inspect::python::layout::CpythonLayout;
use memwatch_inspect::python::objects::Objects;

/// Maximum memory of the cached code objects. Beyond it all are dropped and read again when needed.
const MOST_BYTES: usize = 64 << 20;

/// Maximum number of unresolved stacks that are kept, because a code object may turn out to have
/// been freed before it was read.
const MOST_RECENT: usize = 4096;

/// A stack as sent by the kernel half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) id: u64,
    pub(super) frames: Box<[StackFrame]>,
    pub(super) truncated: bool,
    /// Bit set of the frames at which the interpreter's loop was entered
    /// ([`memwatch_common::tensor::StackRecord::entries`]).
    pub(super) entries: [u64; STACK_FRAMES / 64],
}

/// A code object and when it was read: `CLOCK_BOOTTIME`, nanoseconds.
#[derive(Debug)]
struct CachedCode {
    code: CodeObject,
    at_ns: u64,
}

/// Resolves the stacks of one process.
#[derive(Debug)]
pub(super) struct Resolver<M> {
    memory: M,
    layout: CpythonLayout,
    /// Address of `PyCode_Type`.
    code_type: u64,
    codes: HashMap<u64, CachedCode>,
    codes_bytes: usize,
    recent: VecDeque<Sent>,
    modules: Modules,
    looked_for_call: WorkPace,
}

impl<M: MemoryAccess> Resolver<M> {
    pub(super) fn new(memory: M, layout: CpythonLayout, code_type: u64) -> Self {
        let mut new = Self {
            memory,
            layout,
            code_type,
            codes: HashMap::new(),
            codes_bytes: 0,
            recent: VecDeque::new(),
            modules: Modules::default(),
            looked_for_call: WorkPace::default(),
        };
        new.look_for_call();
        new
    }

    pub(super) fn layout(&self) -> &CpythonLayout {
        &self.layout
    }

    #[cfg(test)]
    pub(super) fn code_type(&self) -> u64 {
        self.code_type
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    /// Resolves a stack sent by the kernel half.
    pub(super) fn resolve(&mut self, item: &StackItem) -> PythonStack {
        let truncated = item.record.flags & FLAG_STACK_TRUNCATED != 0;
        let (id, entries) = (item.record.id, item.record.entries);
        self.resolve_sent(Sent { id, frames: item.frames().collect(), truncated, entries })
    }

    /// Resolves a stack and remembers it.
    pub(super) fn resolve_sent(&mut self, sent: Sent) -> PythonStack {
        self.look_for_call();
        let stack = self.stack(&sent, None);
        if self.recent.len() == MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(sent);
        stack
    }

    /// Forgets the code object at an address, which was freed at `end_ns` (`CLOCK_BOOTTIME`).
    /// Another object may follow at the address.
    ///
    /// If the object was read after it was freed, another may have been read. Then returns the
    /// stacks that contain the address by id, with that frame's code omitted.
    pub(super) fn forget_code(&mut self, address: u64, end_ns: u64) -> Vec<(u64, PythonStack)> {
        for known in self.layout.walk.module_codes.iter_mut().filter(|known| **known == address) {
            *known = 0;
        }
        let Some(read) = self.codes.remove(&address) else { return Vec::new() };
        self.codes_bytes -= read.code.size_bytes();
        let has_it = |sent: &Sent| sent.frames.iter().any(|frame| frame.code == address);
        let (with, without): (VecDeque<Sent>, _) = std::mem::take(&mut self.recent).into_iter().partition(has_it);
        self.recent = without;
        if read.at_ns < end_ns {
            return Vec::new();
        }
        with.iter().map(|sent| (sent.id, self.stack(sent, Some(address)))).collect()
    }

    /// Resolves a stack; the code object at address `gone` is omitted.
    fn stack(&mut self, sent: &Sent, gone: Option<u64>) -> PythonStack {
        let outermost = sent.frames.iter().rfind(|frame| frame.object != 0).map(|frame| frame.object);
        let root = outermost.filter(|_| !sent.truncated);
        let mut stack = PythonStack { truncated: sent.truncated, ..PythonStack::default() };
        for (number, frame) in sent.frames.iter().enumerate() {
            if gone == Some(frame.code) {
                stack.frames.push(PythonFrame { code: None, module: self.module(frame.object, root) });
            } else {
                stack.frames.extend(self.frame(frame, root));
            }
            if sent.entries.get(number / 64).is_some_and(|bits| bits >> (number % 64) & 1 == 1) {
                stack.borders.extend(u16::try_from(stack.frames.len()));
            }
        }
        stack
    }

    /// Finds the code object of the modules' call, once the process has imported them.
    fn look_for_call(&mut self) {
        if self.layout.walk.module_codes[0] != 0 || !self.looked_for_call.may_begin() {
            return;
        }
        let begin = Instant::now();
        let objects = Objects { memory: &self.memory, layout: &self.layout };
        if let Some(code) = modules::call_code(&objects, self.code_type) {
            self.layout.walk.module_codes[0] = code;
        }
        self.looked_for_call.ended(begin);
    }

    /// Drops all cached code objects.
    pub(super) fn forget_all(&mut self) {
        self.codes.clear();
        self.codes_bytes = 0;
    }

    /// Resolves a frame; `None` for the interpreter's own.
    fn frame(&mut self, frame: &StackFrame, root: Option<u64>) -> Option<PythonFrame> {
        let layout = self.layout;
        let code = self.code(frame.code);
        if code.is_some_and(CodeObject::is_internal) {
            return None;
        }
        let code = code.map(|code| code.place(&layout, frame.code, frame.instruction));
        Some(PythonFrame { code, module: self.module(frame.object, root) })
    }

    /// Returns the module of a frame, if it has one.
    fn module(&mut self, address: u64, root: Option<u64>) -> Option<PythonModule> {
        if address == 0 {
            return None;
        }
        let objects = Objects { memory: &self.memory, layout: &self.layout };
        let class = printable(&objects.class_name(address)?).into_owned();
        let wraps = modules::wrapped(&objects, address, &class).map(Box::new);
        Some(PythonModule { address, class: class.into(), name: self.modules.name(&objects, root, address), wraps })
    }

    fn code(&mut self, address: u64) -> Option<&CodeObject> {
        if !self.codes.contains_key(&address) {
            let code = CodeObject::read(&self.memory, &self.layout, self.code_type, address)?;
            if self.codes_bytes + code.size_bytes() > MOST_BYTES {
                self.forget_all();
            }
            self.codes_bytes += code.size_bytes();
            self.codes.insert(address, CachedCode { code, at_ns: boottime_ns() });
        }
        self.codes.get(&address).map(|read| &read.code)
    }
}
