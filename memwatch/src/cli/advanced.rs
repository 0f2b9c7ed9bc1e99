//! `memwatch help advanced`: options that few need. Its text is the command's help, which `cli::help` writes from the table.

use crate::cli::Args;
use crate::exit::{Exit, Failure};
use crate::options::{Checked, Common};

/// It takes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Advanced {}

impl Checked for Advanced {}

/// The same page as `memwatch help advanced`.
///
/// # Errors
/// When it cannot be written.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    clippy::unnecessary_wraps,
    reason = "all rows of the table of commands are alike"
)]
pub(crate) fn run(_args: &Advanced, _common: &Common) -> Result<Exit, Failure> {
    let mut definition = Args::definition();
    let page = definition.find_subcommand_mut("advanced").map(|page| page.render_help().to_string());
    print!("{}", page.unwrap_or_default());
    Ok(Exit::Ok)
}
