//! Bytes of the ring buffer as a record: see `memwatch_fuzz::decode_record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memwatch_fuzz::decode_record::run(data));
