//! Fuzz targets, and the properties that hold for any input.
//!
//! memwatch itself is a program, so this crate compiles the files under test from their place in
//! it.

#[cfg(not(test))]
mod agent;
#[cfg(not(test))]
pub mod agent_requests;
#[cfg(not(test))]
mod client;
pub mod decode_record;
pub mod elf_prologue;
mod history;
pub mod ledger_ops;
pub mod proc_files;
pub mod process_image;
pub mod read_recording;
mod sources;
