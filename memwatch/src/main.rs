//! Who holds the GPU memory of this machine, since when, and how much of it is explained: the command line program.
//!
//! `cli` has the table of commands, `commands` does what one asks for, `exit` says how it ended.

mod agent;
mod backends;
mod cli;
mod client;
mod commands;
mod exit;
mod export;
mod frameworks;
mod options;
mod output_file;
mod printable;
mod render;
mod sources;
mod watch;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: cli::large_pages::LargePages = cli::large_pages::LargePages;

fn main() -> ExitCode {
    let args = cli::Args::read();
    cli::logger::install(args.common.verbose);
    match cli::dispatch::run(&args) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.tell();
            failure.exit.into()
        }
    }
}
