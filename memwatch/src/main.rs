//! memwatch, the command line program: which processes hold this machine's GPU memory, since when,
//! and how much of it is explained.
//!
//! `cli` has the table of commands, `commands` runs them, `exit` has the exit codes.

/// Prints a line on standard error, like the standard library's macro, but ignores write errors: a
/// full disk under a log must not end a session, nor change the exit code of a program that `run`
/// started.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        // No output is left to report the error on.
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Prints on standard error without a newline; otherwise like `eprintln`.
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        // No output is left to report the error on.
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

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
mod own_folder;
mod printable;
mod render;
mod sources;
mod stranger_file;
mod watch;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: cli::large_pages::LargePages = cli::large_pages::LargePages;

fn main() -> ExitCode {
    let args = cli::MemwatchArgs::read();
    cli::logger::install(args.common.verbose);
    match cli::dispatch::run(&args) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.report();
            failure.exit.into()
        }
    }
}
