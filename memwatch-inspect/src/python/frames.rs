//! Variables of frames that threads run, or that generators and frame objects retain.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use super::classes::{ObjectKind, tuple_items};
use super::collector::{MOST_INTERPRETERS, list};
use super::edges::{Edge, EdgeLabel};
use super::heap::Heap;
use super::layout::{CpythonLayout, SIZE, TYPE};
use super::notebook;
use crate::memory::{MemoryAccess, at};

/// Maximum numbers of threads, frames per thread, frames of all threads and variables per frame.
const MOST_THREADS: usize = 4096;
const MOST_FRAMES: usize = 4096;
const MOST_FRAMES_IN_ALL: usize = 1 << 16;
/// Maximum number of frames that are followed, those of repeated walks included.
const MOST_FRAMES_FOLLOWED: usize = 4 * MOST_FRAMES_IN_ALL;
const MOST_VARIABLES: u64 = 4096;
/// Words of a thread state that are searched for objects: the exception being handled and
/// `threading.local`.
const STATE_WORDS: usize = 64;
/// `co_varnames`, `co_freevars` and `co_cellvars` before 3.11 (Include/cpython/code.h of 3.9 and 3.10).
const NAMES_BEFORE_3_11: [u32; 3] = [72, 88, 80];
/// `f_frame` of a frame object from 3.11 on (Include/internal/pycore_frame.h).
const OBJECT_FRAME: u32 = 24;
/// Minimum offset of the frame in a generator, in any version.
const GENERATOR_HEAD: u32 = 56;
/// Distance in bytes from a generator's state to the frame behind it, from 3.11 on. A state above 0
/// means that it has finished (`FRAME_COMPLETED`).
const STATE_BEFORE_FRAME: u64 = 5;

/// Maximum number of values on a frame's stack. Each running `for` keeps its iterator there.
const MOST_STACKED: u64 = 64;

/// Path fragments of folders with packages.
const PACKAGES: [&str; 2] = ["/site-packages/", "/dist-packages/"];
/// Path fragments of Python's own library.
const STANDARD: [&str; 3] = ["/lib/python", "/lib64/python", "<frozen "];

/// Frames that threads ran when they were followed: current instruction by frame address and code
/// object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningFrames(HashMap<(u64, u64), u64, FixedState>);

impl RunningFrames {
    /// Reads the frames of all threads of all interpreters.
    pub fn read(memory: &impl MemoryAccess, layout: &CpythonLayout) -> Self {
        let interpreters = memory
            .u64(layout.walk.interpreters_head)
            .map(|head| list(memory, head, layout.walk.interpreter_next, MOST_INTERPRETERS));
        let frames = frames_of(memory, layout, &interpreters.unwrap_or_default());
        let instruction = |frame| at(frame, layout.walk.frame_instruction).and_then(|at| memory.u64(at)).unwrap_or(0);
        Self(frames.into_iter().map(|frame| (frame, instruction(frame.0))).collect())
    }
}

/// Returns the first variable of each frame that threads run, which is `self` in a method; outermost
/// frame first within each thread.
pub fn first_variables(memory: &impl MemoryAccess, layout: &CpythonLayout) -> Vec<u64> {
    let interpreters = memory
        .u64(layout.walk.interpreters_head)
        .map(|head| list(memory, head, layout.walk.interpreter_next, MOST_INTERPRETERS));
    let frames = frames_of(memory, layout, &interpreters.unwrap_or_default());
    let first = |(frame, _): (u64, u64)| memory.u64(at(frame, layout.walk.frame_local0)?);
    frames.into_iter().filter_map(first).map(|object| object & layout.walk.pointer_mask).collect()
}

/// Returns whether a class is that of a loop's iterator.
fn is_iterator(class: &str) -> bool {
    class.ends_with("iterator") || matches!(class, "enumerate" | "zip" | "map" | "filter" | "reversed")
}

/// Returns the threads of all interpreters, oldest first within each. Each is listed once, even if
/// lists lead into each other.
fn threads_of(memory: &impl MemoryAccess, layout: &CpythonLayout, interpreters: &[u64]) -> Vec<u64> {
    let mut seen = HashSet::with_hasher(FixedState::default());
    let mut all = Vec::new();
    for interpreter in interpreters {
        let Some(first) = at(*interpreter, layout.walk.interpreter_threads).and_then(|at| memory.u64(at)) else {
            continue;
        };
        let mut threads = list(memory, first, layout.walk.thread_next, MOST_THREADS - all.len());
        threads.retain(|thread| seen.insert(*thread));
        all.extend(threads.into_iter().rev());
    }
    all
}

/// Memory as it is now. Cached pages of different moments would not fit together.
struct Uncached<'m, M>(&'m M);

impl<M: MemoryAccess> MemoryAccess for Uncached<'_, M> {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.fill_fresh(address, into)
    }

    fn spent(&self) -> u32 {
        self.0.spent()
    }
}

/// Returns the frames of all threads with their code objects, outermost first within each thread,
/// as far as they can be followed. Each is listed once.
fn frames_of(memory: &impl MemoryAccess, layout: &CpythonLayout, interpreters: &[u64]) -> Vec<(u64, u64)> {
    let memory = Uncached(memory);
    let mut walk = FrameWalk { memory: &memory, layout, seen: HashSet::default(), left: MOST_FRAMES_FOLLOWED };
    let mut all = Vec::new();
    for thread in threads_of(&memory, layout, interpreters) {
        let frames = walk.of_thread(thread, MOST_FRAMES.min(MOST_FRAMES_IN_ALL - all.len()));
        walk.seen.extend(frames.iter().map(|(frame, _)| *frame));
        all.extend(frames.into_iter().rev());
    }
    all
}

/// Follows the frames of threads.
struct FrameWalk<'m, M> {
    memory: &'m M,
    layout: &'m CpythonLayout,
    /// Frames of the threads before.
    seen: HashSet<u64, FixedState>,
    /// Number of frames that may still be followed.
    left: usize,
}

impl<M: MemoryAccess> FrameWalk<'_, M> {
    /// Follows the frames of a running thread until two walks are equal. Returns the last walk to
    /// the outermost frame that the longest one has found: a frame that returns meanwhile, or a
    /// generator that is suspended, hides those behind it.
    fn of_thread(&mut self, thread: u64, most: usize) -> Vec<(u64, u64)> {
        const WALKS: usize = 8;
        let mut walks = vec![self.frames(thread, most)];
        while walks.len() < WALKS {
            let frames = self.frames(thread, most);
            let is_at_rest = walks.last() == Some(&frames);
            walks.push(frames);
            if is_at_rest {
                break;
            }
        }
        let outermost = walks.iter().max_by_key(|frames| frames.len()).and_then(|frames| frames.last().copied());
        walks.into_iter().rfind(|frames| frames.last().copied() == outermost).unwrap_or_default()
    }

    /// Returns the frames of a thread with their code objects, innermost first.
    fn frames(&mut self, thread: u64, most: usize) -> Vec<(u64, u64)> {
        let (memory, layout) = (self.memory, self.layout);
        let mut own = HashSet::with_hasher(FixedState::default());
        let mut frames = Vec::new();
        let mut frame = innermost_frame(memory, layout, thread).unwrap_or(0);
        // `left` bounds all threads together, however their frames lead into each other.
        while frame != 0 && frames.len() < most && self.left > 0 && !self.seen.contains(&frame) && own.insert(frame) {
            self.left -= 1;
            let Some(code) = at(frame, layout.walk.frame_code).and_then(|at| memory.u64(at)) else { break };
            frames.push((frame, code & layout.walk.pointer_mask));
            frame = at(frame, layout.walk.frame_previous).and_then(|at| memory.u64(at)).unwrap_or(0);
        }
        frames
    }
}

fn innermost_frame(memory: &impl MemoryAccess, layout: &CpythonLayout, thread: u64) -> Option<u64> {
    let frame = memory.u64(at(thread, layout.walk.thread_frame)?)?;
    layout.walk.indirect_frame.checked_sub(1).map_or(Some(frame), |offset| memory.u64(at(frame, offset)?))
}

/// Whose code is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeOrigin {
    Program,
    /// An installed package.
    Package,
    /// Python's own library, such as `threading`, or unknown.
    Standard,
}

impl CodeOrigin {
    fn of(file: &str) -> Self {
        let has_one_of = |fragments: &[&str]| fragments.iter().any(|fragment| file.contains(fragment));
        if has_one_of(&PACKAGES) {
            Self::Package
        } else if has_one_of(&STANDARD) {
            Self::Standard
        } else {
            Self::Program
        }
    }
}

/// A frame that a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunFrame {
    pub(super) address: u64,
    pub(super) origin: CodeOrigin,
    /// The frame was already running when the reading began.
    pub(super) is_standing: bool,
}

/// Returns file name and function of a code object. A notebook's cell is written as `In [7]`.
pub(super) fn place_of(heap: &Heap<'_, impl MemoryAccess>, code: u64) -> Option<String> {
    let layout = &heap.objects.layout.code;
    let text = |offset: u32| heap.objects.text(heap.objects.memory.u64(at(code, offset)?)?);
    let file = text(layout.file)?;
    let name = text(layout.qualified_name.unwrap_or(layout.name))?;
    let file = notebook::cell_of(heap, &file).unwrap_or_else(|| file.rsplit('/').next().unwrap_or(&file).to_owned());
    Some(format!("{file}:{name}"))
}

/// Returns the name of a variable of a code object.
pub(super) fn variable_name(heap: &Heap<'_, impl MemoryAccess>, code: u64, index: u32) -> Option<String> {
    let memory = heap.objects.memory;
    let mut index = u64::from(index);
    for offset in names_of(heap.objects.layout) {
        let tuple = memory.u64(at(code, offset)?)?;
        let count = memory.u64(at(tuple, SIZE)?)?;
        if index < count {
            let item = tuple_items(memory, tuple)?.checked_add(8 * index)?;
            return heap.objects.text(memory.u64(item)?);
        }
        index -= count;
    }
    None
}

/// Returns the offsets in a code object of the tuples with variable names.
fn names_of(layout: &CpythonLayout) -> Vec<u32> {
    // co_localsplusnames precedes co_localspluskinds.
    if layout.code.adaptive == 0 { NAMES_BEFORE_3_11.to_vec() } else { vec![layout.code.kinds - 8] }
}

impl<M: MemoryAccess> Heap<'_, M> {
    /// Returns the frames of all threads: oldest thread first, outermost frame first.
    pub(super) fn run_frames(&self, earlier: &RunningFrames) -> Vec<RunFrame> {
        let (memory, layout) = (self.objects.memory, self.objects.layout);
        let frames = frames_of(memory, layout, self.interpreters());
        let frame = |(address, code): (u64, u64)| {
            let file = || self.objects.text(memory.u64(at(code, layout.code.file)?)?);
            RunFrame {
                address,
                origin: file().map_or(CodeOrigin::Standard, |file| CodeOrigin::of(&file)),
                is_standing: earlier.0.contains_key(&(address, code)),
            }
        };
        frames.into_iter().map(frame).collect()
    }

    /// Returns the variables of a running frame, and the iterators of its loops.
    pub(super) fn frame_edges(&self, frame: u64) -> Vec<Edge> {
        let mut edges = Vec::new();
        self.put_variables(frame, &mut edges);
        self.put_loops(frame, &mut edges);
        edges
    }

    /// Returns the references from the thread states of all interpreters.
    pub(super) fn state_edges(&self) -> Vec<Edge> {
        let (memory, layout) = (self.objects.memory, self.objects.layout);
        let mut edges = Vec::new();
        for thread in threads_of(memory, layout, self.interpreters()) {
            let words = memory.words(thread, STATE_WORDS).unwrap_or_default();
            let slots = (0..).map(|index| thread + 8 * index);
            edges.extend(words.into_iter().zip(slots).filter_map(|(word, slot)| {
                let label = if self.is_exception(word) { EdgeLabel::Handled } else { EdgeLabel::Thread };
                self.edge(label, word, slot)
            }));
        }
        edges
    }

    fn is_exception(&self, object: u64) -> bool {
        const IS_EXCEPTION: u64 = 1 << 30;
        let class = self.place(object).and_then(|place| self.class(place));
        class.is_some_and(|class| class.flags & IS_EXCEPTION != 0)
    }

    /// Appends the variables of a frame; `None` if there is no frame.
    fn put_variables(&self, frame: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let (memory, layout) = (self.objects.memory, self.objects.layout);
        let code = memory.u64(at(frame, layout.walk.frame_code)?)? & layout.walk.pointer_mask;
        if self.class_of(code)?.kind != ObjectKind::Code {
            return None;
        }
        let mut count = 0;
        for offset in names_of(layout) {
            count += memory.u64(at(memory.u64(at(code, offset)?)?, SIZE)?)?.min(MOST_VARIABLES);
        }
        let start = at(frame, layout.walk.frame_local0)?;
        let values = memory.words(start, usize::try_from(count).ok()?)?;
        for (index, value) in (0u32..).zip(values) {
            let slot = start + 8 * u64::from(index);
            edges.extend(self.edge(EdgeLabel::Variable { code, index }, value & layout.walk.pointer_mask, slot));
        }
        Some(())
    }

    /// Appends the generators and iterators on a frame's stack, which belong to its loops. Other
    /// values there may be left over from a finished expression, but an iterator is removed when
    /// its loop ends.
    fn put_loops(&self, frame: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let (memory, layout) = (self.objects.memory, self.objects.layout);
        if layout.code.adaptive == 0 {
            return None;
        }
        let code = memory.u64(at(frame, layout.walk.frame_code)?)? & layout.walk.pointer_mask;
        if self.class_of(code)?.kind != ObjectKind::Code {
            return None;
        }
        let names = memory.u64(at(code, *names_of(layout).first()?)?)?;
        let variables = memory.u64(at(names, SIZE)?)?.min(MOST_VARIABLES);
        // co_stacksize precedes co_firstlineno.
        let depth = u64::from(memory.u32(at(code, layout.code.first_line - 4)?)?).min(MOST_STACKED);
        let start = at(frame, layout.walk.frame_local0)? + 8 * variables;
        for (value, slot) in memory.words(start, usize::try_from(depth).ok()?)?.into_iter().zip((start..).step_by(8)) {
            let value = value & layout.walk.pointer_mask;
            let class = self.place(value).and_then(|place| self.class(place));
            if class.is_some_and(|class| class.kind == ObjectKind::Generator || is_iterator(&class.name)) {
                edges.extend(self.edge(EdgeLabel::Loop { code }, value, slot));
            }
        }
        Some(())
    }

    /// Appends the variables of an unfinished generator. Before 3.11 its frame is a separate
    /// object.
    pub(super) fn put_generator(&self, generator: u64, bytes: u32, edges: &mut Vec<Edge>) -> Option<()> {
        let (memory, walk) = (self.objects.memory, &self.objects.layout.walk);
        if self.objects.layout.code.adaptive == 0 {
            return None;
        }
        let offsets = (GENERATOR_HEAD..bytes.min(1024)).step_by(8);
        let frame = offsets.map(|offset| generator + u64::from(offset)).find(|frame| {
            let code = || memory.u64(at(*frame, walk.frame_code)?);
            let is_code = |code: u64| {
                let is_place = code.is_multiple_of(8) && memory.u64(at(code, TYPE)?).is_some();
                (is_place && self.class_of(code)?.kind == ObjectKind::Code).then_some(())
            };
            code().and_then(|code| is_code(code & walk.pointer_mask)).is_some()
        })?;
        let [state] = memory.array::<1>(frame - STATE_BEFORE_FRAME)?;
        if i8::from_le_bytes([state]) > 0 {
            return None;
        }
        self.put_variables(frame, edges)
    }

    /// Appends the variables of a frame object.
    pub(super) fn put_frame_object(&self, object: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let is_separate = self.objects.layout.code.adaptive != 0;
        let frame = if is_separate { self.objects.memory.u64(at(object, OBJECT_FRAME)?)? } else { object };
        self.put_variables(frame, edges)
    }
}

/// Returns whether a file is in a library folder.
pub(super) fn is_library_file(file: &str) -> bool {
    CodeOrigin::of(file) != CodeOrigin::Program
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::python::layout::{PythonVersion, of_version};

    /// Memory that holds only these words, by address.
    struct Words(HashMap<u64, u64>);

    impl MemoryAccess for Words {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            into.iter_mut().zip(address..).all(|(byte, at)| {
                let word = self.0.get(&(at & !7));
                word.is_some_and(|word| {
                    *byte = word.to_le_bytes()[usize::try_from(at & 7).unwrap()];
                    true
                })
            })
        }
    }

    /// Memory in which a generator is suspended during every second walk: its frame leads nowhere.
    struct Suspended {
        words: HashMap<u64, u64>,
        generator: u64,
        reads: Cell<u32>,
    }

    impl MemoryAccess for Suspended {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            let word = self.words.get(&address).copied();
            let reads = self.reads.get() + u32::from(address == self.generator);
            self.reads.set(reads);
            let word = if address == self.generator && reads % 2 == 1 { Some(0) } else { word };
            word.is_some_and(|word| {
                into.copy_from_slice(&word.to_le_bytes()[..into.len()]);
                true
            })
        }
    }

    #[test]
    fn frames_behind_a_generator_that_is_suspended_meanwhile_are_found() {
        let mut layout = of_version(PythonVersion { major: 3, minor: 12 }).unwrap();
        layout.walk.interpreters_head = 0x1000;
        layout.walk.indirect_frame = 0;
        let walk = &layout.walk;
        let (interpreter, thread, frames) = (0x10_0000_u64, 0x30_0000_u64, [0x50_0000_u64, 0x50_1000, 0x50_2000]);
        let mut words = HashMap::from([(0x1000, interpreter)]);
        words.insert(interpreter + u64::from(walk.interpreter_threads), thread);
        words.insert(interpreter + u64::from(walk.interpreter_next), 0);
        words.insert(thread + u64::from(walk.thread_next), 0);
        words.insert(thread + u64::from(walk.thread_frame), frames[0]);
        for (index, frame) in frames.into_iter().enumerate() {
            words.insert(frame + u64::from(walk.frame_code), 0x70_0000);
            words.insert(frame + u64::from(walk.frame_previous), frames.get(index + 1).copied().unwrap_or(0));
            words.insert(frame + u64::from(walk.frame_instruction), 0x71_0000);
        }
        let generator = frames[1] + u64::from(walk.frame_previous);
        let read = RunningFrames::read(&Suspended { words, generator, reads: Cell::default() }, &layout);
        assert!(read.0.contains_key(&(frames[2], 0x70_0000)), "{read:?}");
    }

    #[test]
    fn code_belongs_to_the_program_a_package_or_to_python() {
        for (file, origin) in [
            ("/srv/train.py", CodeOrigin::Program),
            ("/usr/lib/python3.13/threading.py", CodeOrigin::Standard),
            ("<frozen runpy>", CodeOrigin::Standard),
            ("/opt/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py", CodeOrigin::Package),
            ("/usr/lib/python3/dist-packages/apt/cache.py", CodeOrigin::Package),
        ] {
            assert_eq!(CodeOrigin::of(file), origin, "{file}");
        }
    }

    #[test]
    fn threads_and_frames_that_many_lead_to_are_there_once() {
        let mut layout = of_version(PythonVersion { major: 3, minor: 12 }).unwrap();
        layout.walk.interpreters_head = 0x1000;
        let walk = &layout.walk;
        let (indirect, frames) = (u64::from(walk.indirect_frame), [0x50_0000_u64, 0x50_1000, 0x50_2000]);
        // A ring of three interpreters. Their threads all lead into one ring. Each thread runs the
        // same ring of frames.
        let (interpreters, threads) = ([0x10_0000_u64, 0x11_0000, 0x12_0000], [0x30_0000_u64, 0x30_8000]);
        let mut words = HashMap::from([(0x1000, interpreters[0])]);
        for (index, interpreter) in interpreters.into_iter().enumerate() {
            words.insert(interpreter + u64::from(walk.interpreter_next), interpreters[(index + 1) % 3]);
            words.insert(interpreter + u64::from(walk.interpreter_threads), threads[index % 2]);
        }
        for (index, thread) in threads.into_iter().enumerate() {
            words.insert(thread + u64::from(walk.thread_next), threads[(index + 1) % 2]);
            let (cframe, frame) = (0x40_0000 + 0x100 * index as u64, frames[index]);
            let innermost = if indirect == 0 { frame } else { cframe };
            words.insert(thread + u64::from(walk.thread_frame), innermost);
            words.insert(cframe + indirect.saturating_sub(1), frame);
        }
        for (index, frame) in frames.into_iter().enumerate() {
            words.insert(frame + u64::from(walk.frame_code), 0x70_0000);
            words.insert(frame + u64::from(walk.frame_previous), frames[(index + 1) % 3]);
        }
        let read = RunningFrames::read(&Words(words), &layout);
        assert_eq!(read.0.len(), 3);
        assert!(frames.iter().all(|frame| read.0.contains_key(&(*frame, 0x70_0000))), "{read:?}");
    }
}
