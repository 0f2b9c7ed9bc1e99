//! `memwatch help advanced`: rarely used options. `cli::help` generates the text from the
//! definition.

use crate::cli::MemwatchArgs;
use crate::exit::{Exit, ExitFailure};
use crate::options::{Checked, CommonArgs};

/// It takes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Advanced {}

impl Checked for Advanced {}

/// Prints the page of `memwatch help advanced`.
///
/// # Errors
/// Never; the signature is that of all commands.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    clippy::unnecessary_wraps,
    reason = "all rows of the table of commands are alike"
)]
pub(crate) fn run(_args: &Advanced, _common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let mut definition = MemwatchArgs::definition();
    let page = definition.find_subcommand_mut("advanced").map(|page| page.render_help().to_string());
    print!("{}", page.unwrap_or_default());
    Ok(Exit::Ok)
}
