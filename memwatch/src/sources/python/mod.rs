//! Reads the Python interpreter of another process: where its stacks are, and what their addresses
//! mean.
//!
//! Nothing here stops or changes the process. All data read is untrusted: sizes are limited, and no
//! input causes a panic.

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

use memory::{MemoryAccess, ProcessMemory, at};
use memwatch_inspect::python::layout::{self, CpythonLayout, DEBUG_WORDS, TYPE_DEALLOC};
pub(crate) use memwatch_inspect::python::{PythonError, PythonVersion};
use resolver::Resolver;

use super::address_space::AddressSpace;
use super::binary::Binary;

/// Location of a function in a file, for a probe.
#[derive(Clone, Debug)]
pub(crate) struct CodePlace {
    /// The file, opened with `O_PATH`.
    file: Arc<File>,
    /// Printable path as the process sees it.
    pub(crate) display: String,
    /// Offset of the function's first byte.
    pub(crate) file_offset: u64,
}

impl CodePlace {
    /// Returns a path that is valid while this value lives.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// The Python interpreter of a process.
#[derive(Debug)]
pub(crate) struct PythonProcess {
    version: PythonVersion,
    display: String,
    code_dealloc: Option<CodePlace>,
    resolver: Resolver<ProcessMemory>,
}

impl PythonProcess {
    /// Finds the interpreter and verifies that its memory matches the layout of its version; `None`
    /// if the process runs no Python.
    ///
    /// Takes some milliseconds, or a tenth of a second if the layout is unexpected.
    ///
    /// # Errors
    /// The interpreter's stacks cannot be read.
    pub(crate) fn attach(tgid: u32) -> Result<Option<Self>, PythonError> {
        let memory = ProcessMemory::open(tgid).map_err(|error| PythonError::Unreadable(error.kind()))?;
        let space = AddressSpace::open(tgid).map_err(|error| PythonError::Unreadable(error.kind()))?;
        let Some(found) = find(tgid, &space, &memory)? else { return Ok(None) };
        let FoundInterpreter { binary, version, layout, code_type } = found;
        Ok(Some(Self {
            version,
            display: binary.display.clone(),
            code_dealloc: code_dealloc(&binary, &memory, code_type),
            resolver: Resolver::new(memory, layout, code_type),
        }))
    }

    /// Returns the Python version.
    pub(crate) fn version(&self) -> PythonVersion {
        self.version
    }

    /// Returns the printable path of the interpreter's file.
    pub(crate) fn display(&self) -> &str {
        &self.display
    }

    /// Returns the layout for the kernel half's walk. It changes when the code object of module
    /// calls is found, in a [`Self::resolve`], or lost, in a [`Self::forget_code`].
    pub(crate) fn layout(&self) -> PythonLayout {
        self.resolver.layout().walk
    }

    /// Returns the function that frees code objects (`PyCode_Type.tp_dealloc`), for the probe on
    /// it.
    pub(crate) fn code_dealloc(&self) -> Option<&CodePlace> {
        self.code_dealloc.as_ref()
    }

    /// Resolves a stack sent by the kernel half.
    pub(crate) fn resolve(&mut self, item: &StackItem) -> PythonStack {
        self.resolver.resolve(item)
    }

    /// Forgets the code object at an address, which was freed at `end_ns` (`CLOCK_BOOTTIME`, the
    /// time of its [`TensorMeaning::CodeGoes`] record).
    ///
    /// Returns corrected stacks by id: those resolved after the free, for which another object may
    /// have been read. The frame's code is omitted in them.
    ///
    /// [`TensorMeaning::CodeGoes`]: memwatch_common::tensor::table::TensorMeaning::CodeGoes
    pub(crate) fn forget_code(&mut self, address: u64, end_ns: u64) -> Vec<(u64, PythonStack)> {
        self.resolver.forget_code(address, end_ns)
    }
}

/// A process's interpreter and its layout.
struct FoundInterpreter {
    binary: Binary,
    version: PythonVersion,
    layout: CpythonLayout,
    code_type: u64,
}

/// Returns the layout of a process's Python, including the address of its list of interpreters;
/// `None` if the process runs no Python.
///
/// # Errors
/// The interpreter cannot be read, or does not match the layout of its version.
pub(crate) fn layout_of(tgid: u32, space: &AddressSpace) -> Result<Option<CpythonLayout>, PythonError> {
    Ok(find(tgid, space, space)?.map(|found| found.layout))
}

/// Finds the interpreter and verifies that its memory matches the layout of its version.
fn find(tgid: u32, space: &AddressSpace, memory: &impl MemoryAccess) -> Result<Option<FoundInterpreter>, PythonError> {
    let Some(binary) = interpreter::find(tgid, space)? else { return Ok(None) };
    let version = version(&binary, memory)?;
    let layout = layout(&binary, memory, version)?;
    let code_type =
        binary.address("PyCode_Type").ok_or(PythonError::UnexpectedLayout("there is no symbol PyCode_Type"))?;
    check::LayoutCheck { tgid, memory, layout: &layout, code_type }.check()?;
    Ok(Some(FoundInterpreter { binary, version, layout, code_type }))
}

fn version(binary: &Binary, memory: &impl MemoryAccess) -> Result<PythonVersion, PythonError> {
    let minor = |minor| Ok(PythonVersion { major: 3, minor });
    if let Some(address) = binary.address("Py_Version") {
        let unreadable = PythonError::UnexpectedLayout("its version cannot be read");
        let [_, _, minor, major] = memory.array::<4>(address).ok_or(unreadable)?;
        return Ok(PythonVersion { major, minor });
    }
    // Before 3.11 there is no version symbol: 3.10 introduced Py_NewRef, 3.9 PyFrame_GetCode
    // (Doc/whatsnew).
    match (binary.address("Py_NewRef"), binary.address("PyFrame_GetCode")) {
        (Some(_), _) => minor(10),
        (None, Some(_)) => minor(9),
        (None, None) => Err(PythonError::UnknownVersion(PythonVersion { major: 3, minor: 8 })),
    }
}

/// Returns the layout of a version, including the address of the list of interpreters.
fn layout(binary: &Binary, memory: &impl MemoryAccess, version: PythonVersion) -> Result<CpythonLayout, PythonError> {
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

fn code_dealloc(binary: &Binary, memory: &impl MemoryAccess, code_type: u64) -> Option<CodePlace> {
    let function = memory.u64(at(code_type, TYPE_DEALLOC)?)?;
    let file_offset = binary.file_offset(function)?;
    Some(CodePlace { file: Arc::clone(&binary.file), display: binary.display.clone(), file_offset })
}

#[cfg(test)]
mod tests;
