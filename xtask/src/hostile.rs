//! `cargo xtask hostile`: attacks an agent as strongly as a user can, one attack at a time, next to
//! another user's job.

use crate::args::TaskArgs;
use crate::binary;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::run::run;
use crate::torch;
use anyhow::Result;

/// The test, which also runs with small attacks in the normal test suite.
const TEST: &str = "users::hostile::hostile_workloads_in_turn_do_not_affect_other_users";

/// Default memory limit of the agent, in MiB: half of the limit in the unit and the chart.
const LIMIT_MIB: u64 = 256;

/// Runs the attacks at full size. Unlike in the normal test suite, the agent's response times are
/// judged.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let (rounds, limit_mib) = (args.count("--rounds")?.unwrap_or(1), args.count("--limit")?.unwrap_or(LIMIT_MIB));
    let attack = args.word().unwrap_or_default();
    args.finish()?;
    binary::build(repo, BuildProfile::Tested)?;
    integration::build_simulators(repo)?;
    let mut variables = integration::simulated(repo);
    variables.extend(integration::torch_variables(repo, torch::VERSIONS[0])?);
    let settings = [
        ("MEMWATCH_HOSTILE", "large".to_owned()),
        ("MEMWATCH_HOSTILE_ATTACK", attack),
        ("MEMWATCH_HOSTILE_ROUNDS", rounds.to_string()),
        ("MEMWATCH_HOSTILE_LIMIT_MIB", limit_mib.to_string()),
    ];
    variables.extend(settings.map(|(name, value)| (name.to_owned(), value.into())));
    run(integration::cargo_test_with(repo, variables).args([
        "--test",
        "integration",
        TEST,
        "--",
        "--exact",
        "--nocapture",
    ]))
}
