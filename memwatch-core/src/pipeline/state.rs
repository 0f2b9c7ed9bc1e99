//! All that a pipeline knows, as bytes: what a recording goes on from whose beginning is gone.
//!
//! What is only for whoever asks is not in it: which blocks are listed, logs, histories of allocators. Lists that follow from others are made
//! again when it is read, and rows that no list has are refused; beyond that, a state of which the sum is right is believed. One that somebody
//! made up gives made-up numbers, as such a recording's inputs do.

use thiserror::Error;

use crate::Pipeline;

/// The layout of a state: of every type in it, with all fields in their order. There is no other version of it to be read.
pub const STATE: u32 = 28;

/// Why bytes are no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is no state of memwatch's")]
pub struct NoState;

impl Pipeline {
    /// All that is known now. Inputs that follow lead to the same in [`Pipeline::load`]'s pipeline as in this one.
    pub fn state(&self) -> Vec<u8> {
        // It cannot fail, since a vector takes any bytes and every list knows its length; and no bytes are no state.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The pipeline that [`Pipeline::state`] was called on.
    ///
    /// # Errors
    /// When the bytes are not those of one, or there are more.
    pub fn load(bytes: &[u8]) -> Result<Self, NoState> {
        match postcard::take_from_bytes(bytes) {
            Ok((pipeline, [])) => Ok(pipeline),
            _ => Err(NoState),
        }
    }
}
