//! Reads code objects from another process's memory.

use std::sync::Arc;

use memwatch_common::tensor::StackFrame;
use memwatch_core::stack::PythonCode;

use super::memory::{MemoryAccess, at};
use super::text::shown;
use memwatch_inspect::python::layout::{BYTES, CpythonLayout, Instructions, SIZE, TYPE};

/// Maximum size of a line table. That of a module of 100,000 lines has some 1 MB.
const MOST_TABLE_BYTES: usize = 16 << 20;
/// `CO_FAST_CELL` of `co_localspluskinds` (Include/internal/pycore_code.h).
const IS_CELL: u8 = 0x40;

/// The fields kept of a code object.
#[derive(Clone, Debug)]
pub(super) struct CodeObject {
    pub(super) function: Arc<str>,
    pub(super) file: Arc<str>,
    first_line: u32,
    table: Box<[u8]>,
}

impl CodeObject {
    /// Reads the code object at an address; `None` if it is unreadable or its type is not
    /// `code_type`.
    pub(super) fn read(
        memory: &impl MemoryAccess,
        layout: &CpythonLayout,
        code_type: u64,
        address: u64,
    ) -> Option<Self> {
        let fields = &layout.code;
        let field = |offset: u32| memory.u64(at(address, offset)?);
        if field(TYPE)? != code_type {
            return None;
        }
        let name = field(fields.qualified_name.unwrap_or(fields.name))?;
        let table = field(fields.lines)?;
        let length = memory.u64(at(table, SIZE)?)?;
        Some(Self {
            function: shown(memory, layout.text, name)?,
            file: shown(memory, layout.text, field(fields.file)?)?,
            first_line: memory.u32(at(address, fields.first_line)?)?,
            table: memory.bytes(at(table, BYTES)?, length, MOST_TABLE_BYTES)?.into_boxed_slice(),
        })
    }

    /// Returns the approximate memory use in bytes.
    pub(super) fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.function.len() + self.file.len() + self.table.len()
    }

    /// Returns function, file and line of an instruction as stored in a frame
    /// ([`memwatch_common::tensor::StackFrame::instruction`]).
    pub(super) fn place(&self, layout: &CpythonLayout, address: u64, instruction: u64) -> PythonCode {
        let offset = offset_bytes(layout, address, instruction);
        let line = match offset {
            Some(offset) => layout.lines.line(&self.table, self.first_line, offset),
            // Before its first instruction, a frame is at the line of its `def`.
            None => Some(self.first_line),
        };
        PythonCode { function: Arc::clone(&self.function), file: Arc::clone(&self.file), line }
    }

    /// Whether this is the interpreter's own code, which Python shows in no stack: entry
    /// trampolines, and since 3.12 what runs after `__init__` (`_Py_InitCleanup` in
    /// Python/specialize.c has this for a file name).
    pub(super) fn is_internal(&self) -> bool {
        &*self.file == "<shim>" || (&*self.file == "__init__" && self.file == self.function)
    }
}

/// Returns the offset of an instruction in the code in bytes; `None` before the first.
fn offset_bytes(layout: &CpythonLayout, address: u64, instruction: u64) -> Option<u32> {
    match layout.instructions {
        Instructions::Bytes => u32::try_from(instruction).ok().filter(|offset| offset.cast_signed() >= 0),
        Instructions::Units => {
            u32::try_from(instruction).ok().filter(|unit| unit.cast_signed() >= 0).and_then(|unit| unit.checked_mul(2))
        }
        Instructions::Pointer => {
            u32::try_from(instruction.checked_sub(address.checked_add(layout.code.adaptive.into())?)?).ok()
        }
    }
}

/// Whether a code object matches the layout: its line table covers as many bytes as its
/// instructions, and the frame's instruction is within them.
pub(super) fn is_as_laid_out(
    memory: &impl MemoryAccess,
    layout: &CpythonLayout,
    code: &CodeObject,
    frame: &StackFrame,
) -> Option<bool> {
    let size = |object: u64| memory.u64(at(object, SIZE)?);
    let (length, first) = match layout.instructions {
        Instructions::Bytes | Instructions::Units => (size(memory.u64(at(frame.code, layout.code.bytes)?)?)?, 0),
        Instructions::Pointer => (size(frame.code)?.checked_mul(2)?, at(frame.code, layout.code.adaptive)?),
    };
    // Before its first instruction, a frame stores the position before the first.
    let place = match layout.instructions {
        Instructions::Bytes => u64::from(u32::try_from(frame.instruction).ok()?.wrapping_add(1)),
        Instructions::Units => 2 * u64::from(u32::try_from(frame.instruction).ok()?.wrapping_add(1)),
        Instructions::Pointer => frame.instruction.wrapping_add(2).wrapping_sub(first),
    };
    Some(layout.lines.is_of(&code.table, length) && place <= length)
}

/// Whether the first local variable of a code object is a plain one, not a cell shared with a
/// closure.
pub(super) fn first_local_is_plain(memory: &impl MemoryAccess, layout: &CpythonLayout, address: u64) -> Option<bool> {
    let kinds = memory.u64(at(address, layout.code.kinds)?)?;
    let count = memory.u64(at(kinds, SIZE)?)?;
    if layout.instructions == Instructions::Pointer {
        return Some(count > 0 && memory.array::<1>(at(kinds, BYTES)?)?[0] & IS_CELL == 0);
    }
    // Before 3.11 only names show which variable a cell belongs to; code without cells is the usual
    // case.
    Some(count == 0)
}
