//! CPython objects: their layout by version, and their contents.

pub mod classes;
mod collector;
pub mod edges;
pub mod fields;
pub mod frames;
pub mod heap;
pub mod layout;
pub mod modules;
mod notebook;
pub mod numbers;
pub mod objects;
mod path_text;
pub mod paths;
mod places;
mod references;
mod roots;
pub mod text;

use std::fmt;
use std::io;

pub use layout::PythonVersion;

/// Reason why the Python of a process cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PythonError {
    /// The process has exited, or this user may not read it.
    #[error("the process cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The file of the interpreter is inconsistent.
    #[error("the interpreter's file is inconsistent")]
    Damaged,
    /// The version is older than 3.9, or newer than those supported.
    #[error("Python {0} is not supported (3.9 to 3.14 are)")]
    UnknownVersion(PythonVersion),
    /// The build has no global interpreter lock, and its objects have another layout.
    #[error("free-threaded Python is not supported")]
    FreeThreaded,
    /// The process does not match the layout of its version, because of a distribution's patch or
    /// other build options.
    #[error("the memory layout of this Python build does not match its version: {0}")]
    UnexpectedLayout(&'static str),
    /// No thread runs Python code, so nothing can be checked. A later attempt may succeed.
    #[error("no thread runs Python code")]
    Idle,
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.major, self.minor)
    }
}
