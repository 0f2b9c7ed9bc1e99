//! Bytes as a driver library and as the first instructions of a function: see
//! `memwatch_fuzz::elf_prologue`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memwatch_fuzz::elf_prologue::run(data));
