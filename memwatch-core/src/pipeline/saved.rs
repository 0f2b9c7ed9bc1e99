//! Serialises the whole pipeline state, from which a recording without its beginning resumes.
//!
//! State needed only for output is left out: listed blocks, logs, allocator histories. Derived
//! lists are rebuilt when the state is read, and references to missing rows are refused. Beyond
//! that, a state with a valid checksum is trusted: a forged one gives forged numbers, as forged
//! inputs of a recording do.

use thiserror::Error;

use crate::pipeline::Pipeline;

/// Layout version of a state: every type in it, with all fields in order. Other versions cannot be
/// read.
pub const STATE: u32 = 34;

/// Error for bytes that are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a saved memwatch state")]
pub struct NoState;

impl Pipeline {
    /// Serialises the state. Later inputs have the same effect on a pipeline returned by
    /// [`Pipeline::load`] as on this one.
    pub fn save(&self) -> Vec<u8> {
        // Serialisation cannot fail: a vector accepts any number of bytes and every list has a
        // known length. An empty result is not a valid state.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Restores a pipeline from the result of [`Pipeline::save`].
    ///
    /// # Errors
    /// If the bytes are not a state of this version, or bytes remain after it.
    pub fn load(bytes: &[u8]) -> Result<Self, NoState> {
        match postcard::take_from_bytes(bytes) {
            Ok((pipeline, [])) => Ok(pipeline),
            _ => Err(NoState),
        }
    }
}
