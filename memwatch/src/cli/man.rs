//! `memwatch man [DIR]`: man pages generated from the definition of the command line.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man as Page;

use crate::cli::MemwatchArgs;
use crate::exit::{Exit, ExitFailure};
use crate::options::{ADVANCED, Checked, CommonArgs};
use crate::render::output::unless_closed;

/// Where they go.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Man {
    /// The directory for all pages: memwatch.1, memwatch-ps.1 and so on; without it memwatch(1) goes to standard output
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

impl Checked for Man {}

/// Writes the pages.
///
/// # Errors
/// If writing fails.
pub(crate) fn run(args: &Man, _common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let Some(directory) = &args.directory else {
        unless_closed(io::Write::write_all(&mut io::stdout().lock(), &page(&definition())?))?;
        return Ok(Exit::Ok);
    };
    let written = fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(definition(), directory));
    written.map_err(|error| ExitFailure::cannot_make(directory, &error))?;
    Ok(Exit::Ok)
}

/// Returns the definition, including the options that the short help hides.
fn definition() -> Command {
    MemwatchArgs::definition().mut_args(|option| {
        let is_advanced = option.get_help_heading() == Some(ADVANCED);
        if is_advanced { option.hide(false) } else { option }
    })
}

fn page(command: &Command) -> Result<Vec<u8>, ExitFailure> {
    let mut text = Vec::new();
    Page::new(command.clone()).render(&mut text).map_err(anyhow::Error::from)?;
    Ok(text)
}
