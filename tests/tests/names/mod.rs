//! Names of live tensors.

mod field;
mod hard_to_read;
mod holdings;
mod owners;
mod retainers;
