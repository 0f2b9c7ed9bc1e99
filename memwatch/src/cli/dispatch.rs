//! What was asked for: a command of the table, or the live view.

use crate::cli::Args;
use crate::cli::table::awaited;
use crate::commands::live::watch;
use crate::commands::ps;
use crate::exit::{Exit, Failure};

/// Does what the command line asks for.
///
/// # Errors
/// What the command answers.
pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let common = &args.common;
    match &args.command {
        Some(command) => command.run(common),
        None if args.once => awaited(ps::run(&ps::args::Ps::of(&args.targets), common)),
        None => awaited(watch((&args.targets, &args.tensors, args.pace), common)),
    }
}
