//! Memory layout of CPython by version.
//!
//! The numbers were compiled from the headers of 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0 and
//! 3.14.10 for 64-bit processes. They are the same in every release of a minor version, which is an
//! ABI. From 3.13 on the process provides most of them itself (`_Py_DebugOffsets`).

use memwatch_common::python::{EACH_FRAME, PythonLayout, STACKS_OF_ALL};
use memwatch_core::stack::lines::LineTable;

use super::PythonError;

/// A Python version, such as 3.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PythonVersion {
    /// Major version: the 3 of 3.11.
    pub major: u8,
    /// Minor version: the 11 of 3.11.
    pub minor: u8,
}

/// Offsets that the kernel half and the resolver need.
#[derive(Clone, Copy, Debug)]
pub struct CpythonLayout {
    /// Offsets for the kernel half; in the table below, `interpreters_head` is an offset in
    /// `_PyRuntime`.
    pub walk: PythonLayout,
    /// Offset in a thread state of its kernel thread id (`gettid`), from 3.11 on.
    pub native_thread: Option<u32>,
    /// Offset in an interpreter of `sys.modules`.
    pub modules: u32,
    /// Offsets in a code object.
    pub code: CodeLayout,
    /// Representation of a frame's current instruction.
    pub instructions: Instructions,
    /// Encoding of a code object's line table.
    pub lines: LineTable,
    /// Layout of strings.
    pub text: TextLayout,
    /// Offset in a function of its code object.
    pub function_code: u32,
    /// Location of an object's attributes.
    pub attributes: Attributes,
    /// Offset in a class of the keys for values that are not in a dict (3.11 and later).
    pub cached_keys: u32,
    /// Layout of a dict's key table.
    pub keys: KeysLayout,
}

/// Offsets in a code object.
#[derive(Clone, Copy, Debug)]
pub struct CodeLayout {
    /// `co_filename`.
    pub file: u32,
    /// `co_name`.
    pub name: u32,
    /// `co_qualname`, from 3.11 on.
    pub qualified_name: Option<u32>,
    /// `co_firstlineno`.
    pub first_line: u32,
    /// `co_linetable`, `co_lnotab` in 3.9.
    pub lines: u32,
    /// Start of the instructions, from 3.11 on.
    pub adaptive: u32,
    /// `co_localspluskinds` (bytes), or before 3.11 `co_cellvars` (a tuple).
    pub kinds: u32,
    /// `co_code` (bytes), before 3.11.
    pub bytes: u32,
}

/// Representation of a frame's current instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// `f_lasti` in bytes (3.9).
    Bytes,
    /// `f_lasti` in units of two bytes (3.10).
    Units,
    /// A pointer into the code object (3.11 and later).
    Pointer,
}

/// Sizes of the headers of strings.
#[derive(Clone, Copy, Debug)]
pub struct TextLayout {
    /// `sizeof(PyASCIIObject)`.
    pub ascii_bytes: u32,
    /// `sizeof(PyCompactUnicodeObject)`.
    pub compact_bytes: u32,
}

/// Location of the attributes of an object without slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// A dict at its type's `tp_dictoffset` (3.9, 3.10).
    Offset,
    /// A dict 24 bytes before it, or values 32 bytes before it (3.11).
    Two,
    /// A dict or, with the lowest bit set, values, 24 bytes before it (3.12).
    Tagged,
    /// A dict 24 bytes before it, or values behind it (3.13 and later).
    Inline,
}

/// Layout of a dict's key table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysLayout {
    /// Size in the word at offset 8, entries of three words (3.9, 3.10).
    Sized,
    /// Logarithms of the sizes from offset 8 on, entries of two or three words (3.11 and later).
    Logarithms,
}

/// `Py_TPFLAGS_MANAGED_DICT` (Include/object.h).
pub const HAS_MANAGED_DICT: u64 = 1 << 4;
/// `ob_type`.
pub const TYPE: u32 = 8;
/// `ob_size`.
pub const SIZE: u32 = 16;
/// `ob_sval` of bytes.
pub const BYTES: u32 = 32;
/// `tp_name`.
pub const TYPE_NAME: u32 = 24;
/// `tp_basicsize`.
pub const TYPE_BASIC_SIZE: u32 = 32;
/// `tp_dealloc`.
pub const TYPE_DEALLOC: u32 = 48;
/// `tp_flags`.
pub const TYPE_FLAGS: u32 = 168;
/// `tp_dict`.
pub const TYPE_DICT: u32 = 264;
/// `tp_dictoffset`.
pub const TYPE_DICT_OFFSET: u32 = 288;
/// `md_dict` of a module object.
pub const MODULE_DICT: u32 = 16;
/// Lowest frame owner that marks internal frames of the interpreter: `FRAME_OWNED_BY_CSTACK` of
/// 3.12 and 3.13, `FRAME_OWNED_BY_INTERPRETER` of 3.14.
const OWNER_INTERNAL: u32 = 3;

const V3_9: CpythonLayout = CpythonLayout {
    walk: PythonLayout {
        interpreters_head: 32,
        module_codes: [0; 2],
        pointer_mask: u64::MAX,
        interpreter_next: 0,
        interpreter_threads: 8,
        thread_next: 8,
        thread_id: 176,
        thread_frame: 24,
        indirect_frame: 0,
        frame_code: 32,
        frame_previous: 24,
        frame_instruction: 104,
        instruction_bytes: 4,
        frame_local0: 360,
        frame_owner: 0,
        owner_internal: OWNER_INTERNAL,
        frame_entry: EACH_FRAME,
        // Architectures on which native frames are visible.
        by_depth: cfg!(target_arch = "x86_64") as u32,
        frame_bytes: 112,
        frame_far: 1,
        stacks: STACKS_OF_ALL,
    },
    native_thread: None,
    modules: 856,
    code: CodeLayout {
        file: 104,
        name: 112,
        qualified_name: None,
        first_line: 40,
        lines: 120,
        adaptive: 0,
        kinds: 88,
        bytes: 48,
    },
    instructions: Instructions::Bytes,
    lines: LineTable::Increments,
    text: TextLayout { ascii_bytes: 48, compact_bytes: 72 },
    function_code: 16,
    attributes: Attributes::Offset,
    cached_keys: 0,
    keys: KeysLayout::Sized,
};

const V3_10: CpythonLayout = CpythonLayout {
    walk: PythonLayout { frame_instruction: 96, frame_local0: 352, frame_bytes: 104, ..V3_9.walk },
    instructions: Instructions::Units,
    lines: LineTable::Ranges,
    function_code: 48,
    ..V3_9
};

const V3_11: CpythonLayout = CpythonLayout {
    walk: PythonLayout {
        interpreters_head: 40,
        interpreter_threads: 16,
        thread_id: 152,
        thread_frame: 56,
        indirect_frame: 8 + 1,
        frame_code: 32,
        frame_previous: 48,
        frame_instruction: 56,
        instruction_bytes: 8,
        frame_local0: 72,
        frame_owner: 69 + 1,
        frame_entry: 68 + 1,
        frame_bytes: 80,
        frame_far: 0,
        ..V3_9.walk
    },
    native_thread: Some(160),
    modules: 888,
    code: CodeLayout {
        file: 112,
        name: 120,
        qualified_name: Some(128),
        first_line: 72,
        lines: 136,
        adaptive: 184,
        kinds: 104,
        bytes: 0,
    },
    instructions: Instructions::Pointer,
    lines: LineTable::Locations,
    text: TextLayout { ascii_bytes: 48, compact_bytes: 72 },
    function_code: 48,
    attributes: Attributes::Two,
    cached_keys: 872,
    keys: KeysLayout::Logarithms,
};

const V3_12: CpythonLayout = CpythonLayout {
    walk: PythonLayout {
        interpreter_threads: 72,
        thread_id: 136,
        indirect_frame: 1,
        frame_code: 0,
        frame_previous: 8,
        frame_owner: 70 + 1,
        // An internal frame of the interpreter precedes it.
        frame_entry: 0,
        ..V3_11.walk
    },
    native_thread: Some(144),
    modules: 944,
    code: CodeLayout { first_line: 68, adaptive: 192, ..V3_11.code },
    text: TextLayout { ascii_bytes: 40, compact_bytes: 56 },
    attributes: Attributes::Tagged,
    cached_keys: 880,
    ..V3_11
};

/// Offsets that `_Py_DebugOffsets` of 3.13 and later does not contain. The others are overwritten.
const V3_13: CpythonLayout = CpythonLayout {
    walk: PythonLayout { thread_frame: 72, indirect_frame: 0, pointer_mask: !7, ..V3_12.walk },
    attributes: Attributes::Inline,
    ..V3_12
};

/// Returns the layout of a version without `_Py_DebugOffsets`.
///
/// # Errors
/// The version is another one.
pub fn of_version(version: PythonVersion) -> Result<CpythonLayout, PythonError> {
    match (version.major, version.minor) {
        (3, 9) => Ok(V3_9),
        (3, 10) => Ok(V3_10),
        (3, 11) => Ok(V3_11),
        (3, 12) => Ok(V3_12),
        _ => Err(PythonError::UnknownVersion(version)),
    }
}

/// Maximum number of words read of `_Py_DebugOffsets`.
pub const DEBUG_WORDS: usize = 80;
/// First word of `_Py_DebugOffsets`.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

/// Word indices of the structs in `_Py_DebugOffsets` (Include/internal/pycore_runtime.h, from 3.14
/// pycore_debug_offsets.h).
struct Schema {
    modules: usize,
    thread: usize,
    frame: usize,
    code: usize,
}

const SCHEMA_3_13: Schema = Schema { modules: 11, thread: 19, frame: 28, code: 34 };
const SCHEMA_3_14: Schema = Schema { modules: 12, thread: 22, frame: 31, code: 39 };

/// Returns the layout that a process of 3.13 or 3.14 provides at the start of `_PyRuntime`.
///
/// # Errors
/// The version is another one, the build is free-threaded, or the offsets are missing or
/// impossible.
pub fn of_debug_offsets(version: PythonVersion, words: &[u64; DEBUG_WORDS]) -> Result<CpythonLayout, PythonError> {
    let schema = match (version.major, version.minor) {
        (3, 13) => SCHEMA_3_13,
        (3, 14) => SCHEMA_3_14,
        _ => return Err(PythonError::UnknownVersion(version)),
    };
    let stated = u64::from(version.major) << 8 | u64::from(version.minor);
    if words[0] != COOKIE || words[1] >> 16 != stated {
        return Err(PythonError::UnexpectedLayout("_Py_DebugOffsets is missing"));
    }
    if words[2] != 0 {
        return Err(PythonError::FreeThreaded);
    }
    // The largest struct is the interpreter, with about 300 kB.
    let word = |index: usize| u32::try_from(words[index]).ok().filter(|offset| *offset < 1 << 20);
    stated_layout(&schema, word).ok_or(PythonError::UnexpectedLayout("_Py_DebugOffsets has impossible offsets"))
}

fn stated_layout(schema: &Schema, word: impl Fn(usize) -> Option<u32>) -> Option<CpythonLayout> {
    let (thread, frame, code) = (schema.thread, schema.frame, schema.code);
    let walk = PythonLayout {
        interpreters_head: u64::from(word(5)?),
        interpreter_next: word(8)?,
        interpreter_threads: word(9)?,
        thread_next: word(thread + 2)?,
        thread_frame: word(thread + 4)?,
        thread_id: word(thread + 5)?,
        frame_previous: word(frame + 1)?,
        frame_code: word(frame + 2)?,
        frame_instruction: word(frame + 3)?,
        frame_local0: word(frame + 4)?,
        frame_owner: word(frame + 5)? + 1,
        ..V3_13.walk
    };
    let words = [walk.frame_previous, walk.frame_code, walk.frame_instruction, walk.frame_local0];
    // The kernel half reads aligned words.
    let are_words = words.iter().all(|offset| offset % 8 == 0);
    let end = words.into_iter().chain([walk.frame_owner & !7]).max()? + 8;
    let frame_bytes = Some(end).filter(|end| are_words && *end <= 128)?;
    Some(CpythonLayout {
        walk: PythonLayout { frame_bytes, ..walk },
        native_thread: Some(word(thread + 6)?),
        modules: word(schema.modules)?,
        code: CodeLayout {
            file: word(code + 1)?,
            name: word(code + 2)?,
            qualified_name: Some(word(code + 3)?),
            lines: word(code + 4)?,
            first_line: word(code + 5)?,
            kinds: word(code + 8)?,
            bytes: 0,
            adaptive: word(code + 9)?,
        },
        ..V3_13
    })
}
