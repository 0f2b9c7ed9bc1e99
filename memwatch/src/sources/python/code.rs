//! A code object in another process's memory.

use std::sync::Arc;

use memwatch_common::tensor::StackFrame;
use memwatch_core::stack::PythonCode;

use super::memory::{Memory, at};
use super::text::shown;
use memwatch_inspect::python::layout::{BYTES, Instructions, Layout, SIZE, TYPE};

/// A longer table of lines is none: that of a module of 100,000 lines has some 1 MB.
const MOST_TABLE_BYTES: usize = 16 << 20;
/// `CO_FAST_CELL` of `co_localspluskinds` (Include/internal/pycore_code.h).
const IS_CELL: u8 = 0x40;

/// What is kept of a code object.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) function: Arc<str>,
    pub(super) file: Arc<str>,
    first_line: u32,
    table: Box<[u8]>,
}

impl Code {
    /// Reads the code object at an address; `None` where there is none (its type is another than `code_type`) or it cannot be read.
    pub(super) fn read(memory: &impl Memory, layout: &Layout, code_type: u64, address: u64) -> Option<Self> {
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

    /// Bytes of memory that it takes, about.
    pub(super) fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.function.len() + self.file.len() + self.table.len()
    }

    /// The place of an instruction in it, by what a frame keeps ([`memwatch_common::tensor::StackFrame::instruction`]).
    pub(super) fn place(&self, layout: &Layout, address: u64, instruction: u64) -> PythonCode {
        let offset = offset_bytes(layout, address, instruction);
        let line = match offset {
            Some(offset) => layout.lines.line(&self.table, self.first_line, offset),
            // Before its first instruction, a frame is at the line of its `def`.
            None => Some(self.first_line),
        };
        PythonCode { function: Arc::clone(&self.function), file: Arc::clone(&self.file), line }
    }

    /// Code of the interpreter's own, which Python shows in no stack: entry trampolines, and since 3.12 what runs after `__init__`
    /// (`_Py_InitCleanup` in Python/specialize.c has this for a file name).
    pub(super) fn is_internal(&self) -> bool {
        &*self.file == "<shim>" || (&*self.file == "__init__" && self.file == self.function)
    }
}

/// Where in the code an instruction is, in bytes; `None` before the first.
fn offset_bytes(layout: &Layout, address: u64, instruction: u64) -> Option<u32> {
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

/// Whether a code object is what this layout says: its lines are as many as its instructions, and a frame can be at this one of them.
pub(super) fn is_as_laid_out(memory: &impl Memory, layout: &Layout, code: &Code, frame: &StackFrame) -> Option<bool> {
    let size = |object: u64| memory.u64(at(object, SIZE)?);
    let (length, first) = match layout.instructions {
        Instructions::Bytes | Instructions::Units => (size(memory.u64(at(frame.code, layout.code.bytes)?)?)?, 0),
        Instructions::Pointer => (size(frame.code)?.checked_mul(2)?, at(frame.code, layout.code.adaptive)?),
    };
    // Before its first instruction, a frame is at the one before.
    let place = match layout.instructions {
        Instructions::Bytes => u64::from(u32::try_from(frame.instruction).ok()?.wrapping_add(1)),
        Instructions::Units => 2 * u64::from(u32::try_from(frame.instruction).ok()?.wrapping_add(1)),
        Instructions::Pointer => frame.instruction.wrapping_add(2).wrapping_sub(first),
    };
    Some(layout.lines.is_of(&code.table, length) && place <= length)
}

/// Whether the first local variable of a code is a plain one, not a cell that a closure shares.
pub(super) fn first_local_is_plain(memory: &impl Memory, layout: &Layout, address: u64) -> Option<bool> {
    let kinds = memory.u64(at(address, layout.code.kinds)?)?;
    let count = memory.u64(at(kinds, SIZE)?)?;
    if layout.instructions == Instructions::Pointer {
        return Some(count > 0 && memory.array::<1>(at(kinds, BYTES)?)?[0] & IS_CELL == 0);
    }
    // Before 3.11 there is no knowing which variable a cell is of without reading names: none is the usual case.
    Some(count == 0)
}
