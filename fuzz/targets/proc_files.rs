//! Bytes as files below /proc: see `memwatch_fuzz::proc_files`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memwatch_fuzz::proc_files::run(data));
