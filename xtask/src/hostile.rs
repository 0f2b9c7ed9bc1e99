//! `cargo xtask hostile`: attacks on an agent as large as a user can make them, in turns, with another user's job beside them.

use crate::args::Args;
use crate::binary;
use crate::integration;
use crate::repo::{Profile, Repo};
use crate::run::run;
use anyhow::Result;

/// The test that also runs, with small attacks, among all others.
const TEST: &str = "hostile::attacks_in_turns_cost_nobody_else_anything";

/// What an agent may have of memory, unless asked otherwise, in MiB: half of what the unit and the chart give it.
const LIMIT_MIB: u64 = 256;

/// Runs it as large as can be. Answers are judged by their time, which a test among others does not do.
pub(crate) fn task(repo: &Repo, mut args: Args) -> Result<()> {
    let (rounds, limit_mib) = (args.count("--rounds")?.unwrap_or(1), args.count("--limit")?.unwrap_or(LIMIT_MIB));
    let attack = args.word().unwrap_or_default();
    args.finish()?;
    binary::build(repo, Profile::Tested)?;
    integration::build_simulators(repo)?;
    let mut variables = integration::simulated(repo);
    let settings = [
        ("MEMWATCH_HOSTILE", "large".to_owned()),
        ("MEMWATCH_HOSTILE_ATTACK", attack),
        ("MEMWATCH_HOSTILE_ROUNDS", rounds.to_string()),
        ("MEMWATCH_HOSTILE_LIMIT_MIB", limit_mib.to_string()),
    ];
    variables.extend(settings.map(|(name, value)| (name.to_owned(), value.into())));
    run(integration::cargo_test_with(repo, variables).args(["--test", "alone", TEST, "--", "--exact", "--nocapture"]))
}
