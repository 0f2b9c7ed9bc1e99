//! `memwatch agent`: the agent, with the forms in which it writes events.

use super::events::EVENTS;
use crate::agent::args::AgentArgs;
use crate::exit::{Exit, ExitFailure};
use crate::options::CommonArgs;

/// Runs the agent until it is stopped.
///
/// # Errors
/// As [`crate::agent::run`].
pub(crate) fn run(args: &AgentArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    crate::agent::run(args, EVENTS, common)
}
