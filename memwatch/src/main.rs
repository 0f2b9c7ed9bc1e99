//! Who holds the GPU memory of this machine, since when, and how much of it is explained: the command line program.
//!
//! `args` says what was typed, `run` does it, `exit` says how it ended.

mod agent;
mod alert;
mod args;
mod command;
mod diff;
mod doctor;
mod exit;
mod export;
mod fragment;
mod large_pages;
mod leak;
mod logger;
mod looks;
mod monitor;
mod oom;
mod output;
mod output_file;
mod past;
mod printable;
mod profile;
mod recorded;
mod reset_peaks;
mod run;
mod session;
mod simulate;
mod sinks;
mod source;
mod sources;
mod tensor_report;
mod timeline;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: large_pages::LargePages = large_pages::LargePages;

fn main() -> ExitCode {
    let args = args::Args::read();
    logger::install(args.common.verbose);
    match run::run(&args) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.tell();
            failure.exit.into()
        }
    }
}
