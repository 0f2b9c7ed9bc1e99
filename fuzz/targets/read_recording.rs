//! Bytes of a file as a recording: see `memwatch_fuzz::read_recording`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memwatch_fuzz::read_recording::run(data));
