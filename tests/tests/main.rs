//! Integration tests, in a directory per feature. Three run at a time, since most wait for Python. A
//! test that observes the whole machine would be disturbed by other tests' programs: it is marked
//! `#[test(alone)]`, and these run one at a time.

mod agent;
mod answers;
mod capture;
mod frameworks;
mod names;
mod pytorch;
mod users;

fn main() -> std::process::ExitCode {
    memwatch_tests::harness::main()
}
