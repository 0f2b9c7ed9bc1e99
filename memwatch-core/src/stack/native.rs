//! Native stacks, unwound in user space, and how they interleave with Python stacks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{PythonFrame, PythonStack};

/// The native frames of a thread, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NativeStack {
    /// Frames that were found with certainty.
    pub frames: Vec<NativeFrame>,
    /// Reason why there are no further frames.
    pub end: NativeEnd,
}

/// Reason for the end of a native stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NativeEnd {
    /// The stack reaches the start of the thread.
    Complete,
    /// The next frame is outside the copied part of the stack.
    CopyEnds,
    /// The code has no unwind information: it has no `.eh_frame`, or belongs to no file.
    NoInformation,
    /// The file with the code could not be read.
    Unreadable,
    /// The copied stack contradicts the files.
    Contradictory,
    /// The limit of frames was reached.
    TooManyFrames,
    /// Allocations on the same Python stack have different frames from here on.
    Differing,
}

impl NativeEnd {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Complete,
        Self::CopyEnds,
        Self::NoInformation,
        Self::Unreadable,
        Self::Contradictory,
        Self::TooManyFrames,
        Self::Differing,
    ];

    /// Name in JSON.
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
    /// Demangled function name with parameter types; `None` if no symbol covers the address.
    pub function: Option<Arc<str>>,
    /// Demangled function name without parameter types.
    pub name: Option<Arc<str>>,
    /// Path of the file that contains the code, as the process sees it.
    pub library: Arc<str>,
    /// Address in the file before relocation. For a caller, it is within the calling instruction.
    pub address: u64,
    /// Role of the frame in the Python interpreter.
    pub role: NativeRole,
}

/// Role of a native frame in the Python interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NativeRole {
    /// Code of the program or of a library, outside the interpreter.
    Code,
    /// The interpreter's loop, which is replaced by the Python frames that run in it.
    Loop,
    /// Another function of the interpreter.
    Interpreter,
}

/// Symbol of the interpreter's loop. Parts that the compiler has split off have a suffix after a
/// dot.
const LOOP: &str = "_PyEval_EvalFrameDefault";

impl NativeStack {
    /// Creates a stack from these frames. The file that contains the loop identifies the
    /// interpreter's frames.
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

    /// Returns the frame that represents the stack in one line: the innermost frame of the
    /// program's own code. If all frames are in libraries, it is the running node of the backward
    /// graph, or else the innermost frame that is not an allocation helper.
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

/// File name prefixes of libraries that are not the program's own code: PyTorch and the runtimes of
/// C and C++.
const LIBRARIES: [&str; 9] =
    ["libtorch", "libc10", "libc.so", "libpthread", "libstdc++", "libc++", "ld-linux", "libcuda", "libgomp"];
/// Name prefixes of PyTorch's allocation helpers.
const HANDS_OUT: [&str; 2] = ["at::detail::", "c10::"];

/// Returns the last component of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A frame of a merged stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedFrame<'a> {
    /// A frame of Python.
    Python(&'a PythonFrame),
    /// A native frame.
    Native(&'a NativeFrame),
}

/// A Python stack merged with its native stack, innermost frame first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedStack<'a> {
    /// Frames. Python frames replace the interpreter's loop that they ran in.
    pub frames: Vec<MergedFrame<'a>>,
    /// Position from which native frames are missing; `None` if none is missing.
    pub cut: Option<usize>,
    /// Whether the loops found do not match the Python frames. Then no native frame beyond the
    /// first loop is included.
    pub mismatched: bool,
}

/// Replaces each interpreter loop in the native stack by the Python frames that ran in it.
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
            // The outermost loop of a truncated Python stack contains frames beyond its end.
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

/// Returns the certain part of a mismatched stack: the native frames within the innermost Python
/// frame, and the Python frames.
fn mismatched<'a>(python: &'a PythonStack, native: &'a NativeStack) -> MergedStack<'a> {
    let within = native.frames.iter().take_while(|frame| frame.role != NativeRole::Loop);
    let mut frames: Vec<_> = within.map(MergedFrame::Native).collect();
    let cut = Some(frames.len());
    frames.extend(python.frames.iter().map(MergedFrame::Python));
    MergedStack { frames, cut, mismatched: true }
}

#[cfg(test)]
mod tests;
