//! The spelling of comments, names, texts and documents, checked by `typos`.

use crate::repo::Repo;
use crate::run::run;
use crate::setup::PythonTools;
use anyhow::{Context as _, Result};
use std::process::Command;

/// The wheel holds one static program: installing it takes seconds, compiling the crate minutes.
const TOOLS: PythonTools = PythonTools { name: "spelling", wheels: &["typos==1.52.0"] };
/// Words of ours that a dictionary does not have, and files of others.
const SETTINGS: &str = "xtask/typos.toml";

/// Checks the working tree.
///
/// # Errors
/// When there is a misspelled word; `typos` has printed each with its line.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let programs = TOOLS.ensure(repo)?;
    run(Command::new(programs.join("typos")).current_dir(repo.root()).args(["--config", SETTINGS, "--format", "brief"]))
        .with_context(|| format!("a word that is right is a row of {SETTINGS}"))
}
