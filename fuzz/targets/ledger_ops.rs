//! Bytes as a history of calls, processes, readings and losses: see `memwatch_fuzz::ledger_ops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memwatch_fuzz::ledger_ops::run(data));
