//! Finds the file with a process's Python interpreter: `libpython3.x.so`, or the program itself.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::PythonError;
use crate::sources::address_space::AddressSpace;
use crate::sources::binary::{Binary, BinaryError};

/// Symbol of the interpreter's state. A file with this symbol contains the interpreter.
pub(super) const RUNTIME: &str = "_PyRuntime";
/// Symbols to find.
const SYMBOLS: [&str; 5] = [RUNTIME, "PyCode_Type", "Py_Version", "Py_NewRef", "PyFrame_GetCode"];

/// Finds the interpreter; `None` if the process has no Python that exports `_PyRuntime`.
///
/// # Errors
/// The process is not readable, or its library is no valid ELF file.
pub(super) fn find(tgid: u32, space: &AddressSpace) -> Result<Option<Binary>, PythonError> {
    let program = fs::read_link(format!("/proc/{tgid}/exe")).map_err(|error| PythonError::Unreadable(error.kind()))?;
    let first = |is: &dyn Fn(&[u8]) -> bool| space.mappings().iter().find(|mapping| is(&mapping.path));
    let library = first(&|path| is_interpreter(path));
    let own = first(&|path| path == program.as_os_str().as_bytes());
    for mapping in [library, own].into_iter().flatten() {
        let binary = Binary::of(space, mapping, &SYMBOLS).map_err(|error| match error {
            BinaryError::Unreadable(kind) => PythonError::Unreadable(kind),
            BinaryError::Damaged => PythonError::Damaged,
        })?;
        if binary.address(RUNTIME).is_some() {
            return Ok(Some(binary));
        }
    }
    Ok(None)
}

/// Whether a path is that of the interpreter's library: `libpython3.11.so`, `libpython3.11.so.1.0`
/// or `libpython3.13t.so`, but not `libpython3.so`, which has no code.
fn is_interpreter(path: &[u8]) -> bool {
    let name = Path::new(OsStr::from_bytes(path)).file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    name.strip_prefix(b"libpython3.").is_some_and(|rest| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        digits > 0 && rest[digits..].windows(3).any(|part| part == b".so")
    })
}
