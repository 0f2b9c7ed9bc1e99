//! Native stacks, unwound outside, and how they and Python stacks lie within each other.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{PythonFrame, PythonStack};

/// The native frames of a thread, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NativeStack {
    /// The frames that were found: none of them is guessed.
    pub frames: Vec<NativeFrame>,
    /// Why there are no more.
    pub end: NativeEnd,
}

/// Why a native stack has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NativeEnd {
    /// The thread began there.
    Complete,
    /// The next frame lies beyond what was copied of the stack.
    CopyEnds,
    /// Nothing says how to find the caller of code that lies there: it has no `.eh_frame`, or is of no file.
    NoInformation,
    /// The file with the code could not be read.
    Unreadable,
    /// What the copy and the files say contradicts itself.
    Contradictory,
    /// There are more frames than are kept.
    TooManyFrames,
    /// From here on the allocations on one Python stack have different frames.
    Differing,
}

impl NativeEnd {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Complete,
        Self::CopyEnds,
        Self::NoInformation,
        Self::Unreadable,
        Self::Contradictory,
        Self::TooManyFrames,
        Self::Differing,
    ];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::CopyEnds => "copy_ends",
            Self::NoInformation => "no_information",
            Self::Unreadable => "unreadable",
            Self::Contradictory => "contradictory",
            Self::TooManyFrames => "too_many_frames",
            Self::Differing => "differing",
        }
    }
}

/// A native frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NativeFrame {
    /// The function, demangled, with the types of its parameters; `None` where no symbol covers the address.
    pub function: Option<Arc<str>>,
    /// The same without those.
    pub name: Option<Arc<str>>,
    /// The file that the code is from, as the process sees it.
    pub library: Arc<str>,
    /// Where in it: an address before relocation. Of a caller, within the instruction that calls.
    pub address: u64,
    /// What it is to Python.
    pub role: NativeRole,
}

/// What a native frame is to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NativeRole {
    /// Nothing: code of the program or of a library.
    Code,
    /// The interpreter's loop, in whose place the Python frames are that run in it.
    Loop,
    /// Another function of the interpreter's own.
    Interpreter,
}

/// What the interpreter's loop is called: parts that the compiler has split off it have more behind a dot.
const LOOP: &str = "_PyEval_EvalFrameDefault";

impl NativeStack {
    /// A stack of these frames; which of them are the interpreter's is determined by the file that its loop is in.
    pub fn new(mut frames: Vec<NativeFrame>, end: NativeEnd) -> Self {
        let is_loop = |frame: &NativeFrame| {
            let name = frame.function.as_deref().unwrap_or_default();
            name.strip_prefix(LOOP).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let interpreter = frames.iter().find(|frame| is_loop(frame)).map(|frame| Arc::clone(&frame.library));
        for frame in &mut frames {
            frame.role = match &interpreter {
                _ if is_loop(frame) => NativeRole::Loop,
                Some(library) if **library == *frame.library => NativeRole::Interpreter,
                _ => NativeRole::Code,
            };
        }
        Self { frames, end }
    }

    /// The frame that stands for the stack where one line must do: the innermost of the program's own code; where all is the libraries', the node of the
    /// backward graph that runs, or else the innermost that does more than to hand out memory.
    pub fn site(&self) -> Option<&NativeFrame> {
        let named = || self.frames.iter().filter(|frame| frame.role == NativeRole::Code && frame.name.is_some());
        let own = named().find(|frame| !LIBRARIES.iter().any(|library| file_name(&frame.library).starts_with(library)));
        let hands_out = |frame: &&NativeFrame| {
            let name = frame.name.as_deref().unwrap_or_default();
            file_name(&frame.library).starts_with("libc10")
                || HANDS_OUT.iter().any(|beginning| name.starts_with(beginning))
        };
        let is_node = |frame: &&NativeFrame| {
            let name = frame.name.as_deref().unwrap_or_default();
            name.starts_with("torch::autograd::") && name.ends_with("::apply")
        };
        own.or_else(|| named().find(is_node)).or_else(|| named().find(|frame| !hands_out(frame)))
    }
}

/// Files that are no program's own code, by the beginnings of their names: PyTorch's, and the runtimes of C and C++.
const LIBRARIES: [&str; 9] =
    ["libtorch", "libc10", "libc.so", "libpthread", "libstdc++", "libc++", "ld-linux", "libcuda", "libgomp"];
/// What in PyTorch only hands out memory, by the beginnings of names.
const HANDS_OUT: [&str; 2] = ["at::detail::", "c10::"];

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A frame of a stack with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedFrame<'a> {
    /// A frame of Python.
    Python(&'a PythonFrame),
    /// A native frame.
    Native(&'a NativeFrame),
}

/// A Python stack and the native one that it lies in, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedStack<'a> {
    /// The frames; those of Python stand in the place of the interpreter's loop that they ran in.
    pub frames: Vec<MergedFrame<'a>>,
    /// From this place on native frames are missing; `None` where none is.
    pub cut: Option<usize>,
    /// The loops that were found are not the ones that the Python frames ran in: no native frame is shown beyond the first.
    pub mismatched: bool,
}

/// Puts Python frames into the place of the loops that they ran in.
pub fn merge<'a>(python: &'a PythonStack, native: &'a NativeStack) -> MergedStack<'a> {
    let mut frames = Vec::with_capacity(python.frames.len() + native.frames.len());
    let mut loops = python.borders.iter().map(|border| usize::from(*border));
    let mut taken = 0;
    let is_whole = native.end == NativeEnd::Complete;
    for frame in &native.frames {
        if frame.role != NativeRole::Loop {
            frames.push(MergedFrame::Native(frame));
            continue;
        }
        let end = match loops.next() {
            Some(end) if (taken..=python.frames.len()).contains(&end) => end,
            // The outermost loop of a Python stack that was cut goes on beyond it.
            None if python.truncated => python.frames.len(),
            _ => return mismatched(python, native),
        };
        frames.extend(python.frames[taken..end].iter().map(MergedFrame::Python));
        taken = end;
    }
    if is_whole && !python.truncated && (loops.next().is_some() || taken < python.frames.len()) {
        return mismatched(python, native);
    }
    let cut = (!is_whole || python.truncated).then_some(frames.len());
    frames.extend(python.frames[taken..].iter().map(MergedFrame::Python));
    MergedStack { frames, cut, mismatched: false }
}

/// What is sure all the same: what runs within the innermost Python frame, and the Python frames.
fn mismatched<'a>(python: &'a PythonStack, native: &'a NativeStack) -> MergedStack<'a> {
    let within = native.frames.iter().take_while(|frame| frame.role != NativeRole::Loop);
    let mut frames: Vec<_> = within.map(MergedFrame::Native).collect();
    let cut = Some(frames.len());
    frames.extend(python.frames.iter().map(MergedFrame::Python));
    MergedStack { frames, cut, mismatched: true }
}

#[cfg(test)]
mod tests;
