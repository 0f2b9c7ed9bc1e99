//! Bytes as the memory of a process with Python and PyTorch: see `memwatch_fuzz::process_image`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memwatch_fuzz::process_image::run(data));
