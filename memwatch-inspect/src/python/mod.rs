//! CPython's objects: where they lie, by version, and what they hold.

pub mod classes;
mod collector;
pub mod edges;
pub mod frames;
pub mod heap;
pub mod layout;
mod notebook;
mod numbers;
pub mod objects;
mod path_text;
pub mod paths;
pub mod text;

use std::fmt;
use std::io;

pub use layout::PythonVersion;

/// Why the Python of a process cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PythonError {
    /// The process has gone, or this user may not look at it.
    #[error("the process cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The file with the interpreter contradicts itself.
    #[error("the interpreter's file is damaged")]
    Damaged,
    /// Older than 3.9, or newer than what is known.
    #[error("Python {0} is not known: 3.9 to 3.14 are")]
    UnknownVersion(PythonVersion),
    /// A build without the global lock, whose objects lie otherwise.
    #[error("free-threaded Python is not read")]
    FreeThreaded,
    /// The process does not look as its version should: a distribution's patch, or a build with other options.
    #[error("this build of Python is not laid out as its version: {0}")]
    UnexpectedLayout(&'static str),
    /// No thread runs Python code now, so nothing could be checked. Another time it may be known.
    #[error("no thread runs Python code")]
    Idle,
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.major, self.minor)
    }
}
