//! What each fuzz target does with its bytes, and what must hold whatever they are.
//!
//! memwatch itself is a program, so the files under test are compiled into this crate from where they lie.

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
