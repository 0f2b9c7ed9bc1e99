//! Untrusted bytes sent to the agent: see `memwatch_fuzz::agent_requests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memwatch_fuzz::agent_requests::run(data));
