//! `memwatch completions SHELL`: prints a completion script generated from the definition of the
//! command line.

use std::io;

use clap_complete::Shell;

use crate::cli::MemwatchArgs;
use crate::exit::{Exit, ExitFailure};
use crate::options::{Checked, CommonArgs};
use crate::render::output::unless_closed;

/// Which shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Completions {
    /// bash, zsh or fish
    #[arg(value_name = "SHELL", value_parser = shell)]
    pub(crate) shell: Shell,
}

impl Checked for Completions {}

/// # Errors
/// If completions for the shell are not supported.
fn shell(text: &str) -> Result<Shell, String> {
    match text {
        "bash" => Ok(Shell::Bash),
        "zsh" => Ok(Shell::Zsh),
        "fish" => Ok(Shell::Fish),
        _ => Err("bash, zsh or fish".to_owned()),
    }
}

/// Writes the script to standard output.
///
/// # Errors
/// If writing fails.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "all rows of the table of commands are alike")]
pub(crate) fn run(args: &Completions, _common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut MemwatchArgs::definition(), "memwatch", &mut script);
    unless_closed(io::Write::write_all(&mut io::stdout().lock(), &script))?;
    Ok(Exit::Ok)
}
