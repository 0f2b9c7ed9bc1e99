//! `memwatch help advanced`: rarely used options. `cli::help` generates the text from the
//! definition.

use std::io;

use crate::cli::MemwatchArgs;
use crate::exit::{Exit, ExitFailure};
use crate::options::{Checked, CommonArgs};
use crate::render::output::unless_closed;

/// No options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Advanced {}

impl Checked for Advanced {}

/// Prints the page of `memwatch help advanced`.
///
/// # Errors
/// If writing fails.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "all rows of the table of commands are alike")]
pub(crate) fn run(_args: &Advanced, _common: &CommonArgs) -> Result<Exit, ExitFailure> {
    write(&mut io::stdout().lock())
}

fn write(out: &mut impl io::Write) -> Result<Exit, ExitFailure> {
    let mut definition = MemwatchArgs::definition();
    let page = definition.find_subcommand_mut("advanced").map(|page| page.render_help().to_string());
    unless_closed(out.write_all(page.unwrap_or_default().as_bytes()))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advanced_page_is_written_and_a_closed_pipe_is_no_error() {
        let mut page = Vec::new();
        assert_eq!(write(&mut page).ok(), Some(Exit::Ok));
        assert!(String::from_utf8_lossy(&page).contains("Exit codes:"));
        let (reader, mut pipe) = io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(write(&mut pipe).ok(), Some(Exit::Ok));
    }
}
