//! Who holds the GPU memory of this machine, since when, and how much of it is explained: the command line program.
//!
//! `cli` has the table of commands, `commands` does what one asks for, `exit` says how it ended.

/// Says a line on standard error, as the standard library's does, but goes on where that cannot be written: a full disk under a log must not end
/// a watch, nor change the exit code of a program that `run` has started.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        // Nowhere is left to say it.
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// The same without the end of the line.
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        // Nowhere is left to say it.
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
    let args = cli::Args::read();
    cli::logger::install(args.common.verbose);
    match cli::dispatch::run(&args) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.report();
            failure.exit.into()
        }
    }
}
