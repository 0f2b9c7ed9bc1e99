//! The Python interpreter of a process, from outside: where its stacks are, and what their addresses mean.
//!
//! Nothing here stops or changes the process. All that is read of it is a stranger's: bounded, and no panic whatever it is.

mod check;
mod code;
mod interpreter;
mod memory;
mod modules;
mod resolver;
mod text;
mod walk;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use memwatch_common::python::PythonLayout;
use memwatch_common::record::StackItem;
use memwatch_core::stack::PythonStack;

use memory::{Memory, ProcessMemory, at};
use memwatch_inspect::python::layout::{self, DEBUG_WORDS, Layout, TYPE_DEALLOC};
pub(crate) use memwatch_inspect::python::{PythonError, PythonVersion};
use resolver::Resolver;

use super::address_space::AddressSpace;
use super::binary::Binary;

/// Where in a file a function is, for a probe on it.
#[derive(Clone, Debug)]
pub(crate) struct CodePlace {
    /// The file, opened with `O_PATH`.
    file: Arc<File>,
    /// Its path as the process sees it, printable.
    pub(crate) display: String,
    /// The offset of the function's first byte.
    pub(crate) file_offset: u64,
}

impl CodePlace {
    /// A path that leads to the file as long as this lives.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// The Python of a process.
#[derive(Debug)]
pub(crate) struct PythonProcess {
    version: PythonVersion,
    display: String,
    code_dealloc: Option<CodePlace>,
    resolver: Resolver<ProcessMemory>,
}

impl PythonProcess {
    /// Finds it and makes sure that its memory is laid out as its version says; none where the process runs no Python.
    ///
    /// It takes some milliseconds, a tenth of a second where the layout is not what is expected.
    ///
    /// # Errors
    /// There is one, but its stacks cannot be read.
    pub(crate) fn attach(tgid: u32) -> Result<Option<Self>, PythonError> {
        let memory = ProcessMemory::open(tgid).map_err(|error| PythonError::Unreadable(error.kind()))?;
        let space = AddressSpace::open(tgid).map_err(|error| PythonError::Unreadable(error.kind()))?;
        let Some(found) = find(tgid, &space, &memory)? else { return Ok(None) };
        let Found { binary, version, layout, code_type } = found;
        Ok(Some(Self {
            version,
            display: binary.display.clone(),
            code_dealloc: code_dealloc(&binary, &memory, code_type),
            resolver: Resolver::new(memory, layout, code_type),
        }))
    }

    /// Its version.
    pub(crate) fn version(&self) -> PythonVersion {
        self.version
    }

    /// The file it is from, printable.
    pub(crate) fn display(&self) -> &str {
        &self.display
    }

    /// What the kernel half walks with. It changes when the code of modules' calls is learnt: after a [`Self::resolve`], or a
    /// [`Self::forget_code`].
    pub(crate) fn layout(&self) -> PythonLayout {
        self.resolver.layout().walk
    }

    /// Where code objects go (`PyCode_Type.tp_dealloc`), for the probe on it.
    pub(crate) fn code_dealloc(&self) -> Option<&CodePlace> {
        self.code_dealloc.as_ref()
    }

    /// The stack that the kernel half sent.
    pub(crate) fn resolve(&mut self, item: &StackItem) -> PythonStack {
        self.resolver.resolve(item)
    }

    /// The code object at this address ended at `end_ns` (`CLOCK_BOOTTIME`, the time of its [`TensorMeaning::CodeGoes`] record).
    ///
    /// Returned are stacks to be learnt once more, by their ids: they were resolved when it had gone already, and what was read may have been
    /// another. That frame's code is left out of them.
    ///
    /// [`TensorMeaning::CodeGoes`]: memwatch_common::tensor::table::TensorMeaning::CodeGoes
    pub(crate) fn forget_code(&mut self, address: u64, end_ns: u64) -> Vec<(u64, PythonStack)> {
        self.resolver.forget_code(address, end_ns)
    }
}

/// What is known of the interpreter of a process.
struct Found {
    binary: Binary,
    version: PythonVersion,
    layout: Layout,
    code_type: u64,
}

/// The layout of a process's Python, with the address of the list of interpreters in it; none where it runs none.
///
/// # Errors
/// There is one, but it cannot be read, or is not laid out as its version.
pub(crate) fn layout_of(tgid: u32, space: &AddressSpace) -> Result<Option<Layout>, PythonError> {
    Ok(find(tgid, space, space)?.map(|found| found.layout))
}

/// Finds the interpreter, and makes sure that the memory is laid out as its version says.
fn find(tgid: u32, space: &AddressSpace, memory: &impl Memory) -> Result<Option<Found>, PythonError> {
    let Some(binary) = interpreter::find(tgid, space)? else { return Ok(None) };
    let version = version(&binary, memory)?;
    let layout = layout(&binary, memory, version)?;
    let code_type =
        binary.address("PyCode_Type").ok_or(PythonError::UnexpectedLayout("there is no symbol PyCode_Type"))?;
    check::Subject { tgid, memory, layout: &layout, code_type }.check()?;
    Ok(Some(Found { binary, version, layout, code_type }))
}

fn version(binary: &Binary, memory: &impl Memory) -> Result<PythonVersion, PythonError> {
    let minor = |minor| Ok(PythonVersion { major: 3, minor });
    if let Some(address) = binary.address("Py_Version") {
        let unreadable = PythonError::UnexpectedLayout("its version cannot be read");
        let [_, _, minor, major] = memory.array::<4>(address).ok_or(unreadable)?;
        return Ok(PythonVersion { major, minor });
    }
    // Before 3.11 a process does not say: 3.10 brought Py_NewRef, 3.9 PyFrame_GetCode (Doc/whatsnew).
    match (binary.address("Py_NewRef"), binary.address("PyFrame_GetCode")) {
        (Some(_), _) => minor(10),
        (None, Some(_)) => minor(9),
        (None, None) => Err(PythonError::UnknownVersion(PythonVersion { major: 3, minor: 8 })),
    }
}

/// The layout, with the address of the list of interpreters in it.
fn layout(binary: &Binary, memory: &impl Memory, version: PythonVersion) -> Result<Layout, PythonError> {
    let runtime = binary.address(interpreter::RUNTIME).ok_or(PythonError::Damaged)?;
    let mut layout = if version < (PythonVersion { major: 3, minor: 13 }) {
        layout::of_version(version)?
    } else {
        let bytes = memory
            .array::<{ 8 * DEBUG_WORDS }>(runtime)
            .ok_or(PythonError::UnexpectedLayout("_PyRuntime cannot be read"))?;
        let mut words = [0; DEBUG_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        layout::of_debug_offsets(version, &words)?
    };
    layout.walk.interpreters_head = runtime.wrapping_add(layout.walk.interpreters_head);
    Ok(layout)
}

fn code_dealloc(binary: &Binary, memory: &impl Memory, code_type: u64) -> Option<CodePlace> {
    let function = memory.u64(at(code_type, TYPE_DEALLOC)?)?;
    let file_offset = binary.file_offset(function)?;
    Some(CodePlace { file: Arc::clone(&binary.file), display: binary.display.clone(), file_offset })
}

#[cfg(test)]
mod tests;
