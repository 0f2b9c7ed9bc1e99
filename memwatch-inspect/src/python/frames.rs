//! The variables of frames: of the frames that threads run, and of what generators and frame objects keep.

use super::classes::{Kind, tuple_items};
use super::collector::list;
use super::edges::{Edge, Label};
use super::heap::Heap;
use super::layout::{Layout, SIZE, TYPE};
use crate::memory::{Memory, at};

/// Threads, frames of a thread and variables of a frame that are looked at.
const MOST_THREADS: usize = 4096;
const MOST_FRAMES: usize = 4096;
const MOST_VARIABLES: u64 = 4096;
/// Words of a thread's state in which objects that it keeps are looked for: an exception that is handled, and `threading.local`.
const STATE_WORDS: usize = 64;
/// `co_varnames`, `co_freevars` and `co_cellvars` before 3.11 (Include/cpython/code.h of 3.9 and 3.10).
const NAMES_BEFORE_3_11: [u32; 3] = [72, 88, 80];
/// `f_frame` of a frame object from 3.11 on (Include/internal/pycore_frame.h).
const OBJECT_FRAME: u32 = 24;
/// No frame lies in a generator before this, whichever version.
const GENERATOR_HEAD: u32 = 56;
/// The state of a generator's frame stands so many bytes before it, from 3.11 on; above 0 it has ended (`FRAME_COMPLETED`).
const STATE_BEFORE_FRAME: u64 = 5;

/// The file of a code object without its folders, and its function.
pub(super) fn place_of(heap: &Heap<'_, impl Memory>, code: u64) -> Option<String> {
    let layout = &heap.objects.layout.code;
    let text = |offset: u32| heap.objects.text(heap.objects.memory.u64(at(code, offset)?)?);
    let file = text(layout.file)?;
    let name = text(layout.qualified_name.unwrap_or(layout.name))?;
    Some(format!("{}:{name}", file.rsplit('/').next().unwrap_or(&file)))
}

/// The name of a variable of a code object.
pub(super) fn variable_name(heap: &Heap<'_, impl Memory>, code: u64, index: u32) -> Option<String> {
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

/// Where the tuples with the names of variables stand in a code object.
fn names_of(layout: &Layout) -> Vec<u32> {
    // co_localsplusnames stands right before co_localspluskinds.
    if layout.code.adaptive == 0 { NAMES_BEFORE_3_11.to_vec() } else { vec![layout.code.kinds - 8] }
}

impl<M: Memory> Heap<'_, M> {
    /// What the threads of all interpreters keep: variables of their frames, the innermost first, then what their states refer to.
    pub fn thread_edges(&self) -> Vec<Edge> {
        let (memory, walk) = (self.objects.memory, &self.objects.layout.walk);
        let first = |interpreter: &u64| memory.u64(at(*interpreter, walk.interpreter_threads)?);
        let firsts = self.interpreters().iter().filter_map(first);
        let threads: Vec<_> = firsts.flat_map(|first| list(memory, first, walk.thread_next, MOST_THREADS)).collect();
        let mut edges = Vec::new();
        for thread in &threads {
            // A frame that goes while it is read hides those behind it.
            self.put_frames(*thread, &mut edges);
        }
        for thread in threads {
            let words = memory.words(thread, STATE_WORDS).unwrap_or_default();
            let slots = (0..).map(|index| thread + 8 * index);
            edges.extend(words.into_iter().zip(slots).filter_map(|(word, slot)| {
                let label = if self.is_exception(word) { Label::Handled } else { Label::Thread };
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

    fn put_frames(&self, thread: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let (memory, walk) = (self.objects.memory, &self.objects.layout.walk);
        let mut frame = memory.u64(at(thread, walk.thread_frame)?)?;
        if let Some(offset) = walk.indirect_frame.checked_sub(1) {
            frame = memory.u64(at(frame, offset)?)?;
        }
        for _ in 0..MOST_FRAMES {
            if frame == 0 {
                break;
            }
            self.put_variables(frame, edges);
            frame = memory.u64(at(frame, walk.frame_previous)?)?;
        }
        Some(())
    }

    /// The variables of a frame; `None` where none is.
    fn put_variables(&self, frame: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let (memory, layout) = (self.objects.memory, self.objects.layout);
        let code = memory.u64(at(frame, layout.walk.frame_code)?)? & layout.walk.pointer_mask;
        if self.class_of(code)?.kind != Kind::Code {
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
            edges.extend(self.edge(Label::Variable { code, index }, value & layout.walk.pointer_mask, slot));
        }
        Some(())
    }

    /// The variables of a generator that is not at its end: before 3.11 its frame is an object of its own.
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
                (is_place && self.class_of(code)?.kind == Kind::Code).then_some(())
            };
            code().and_then(|code| is_code(code & walk.pointer_mask)).is_some()
        })?;
        let [state] = memory.array::<1>(frame - STATE_BEFORE_FRAME)?;
        if i8::from_le_bytes([state]) > 0 {
            return None;
        }
        self.put_variables(frame, edges)
    }

    /// The variables of a frame object.
    pub(super) fn put_frame_object(&self, object: u64, edges: &mut Vec<Edge>) -> Option<()> {
        let is_separate = self.objects.layout.code.adaptive != 0;
        let frame = if is_separate { self.objects.memory.u64(at(object, OBJECT_FRAME)?)? } else { object };
        self.put_variables(frame, edges)
    }
}
