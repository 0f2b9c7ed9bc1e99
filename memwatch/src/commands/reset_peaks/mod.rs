//! `memwatch reset-peaks`: whoever watches counts the peaks, so it is the agent that is asked to reset them.

pub(crate) mod args;

use std::path::Path;

use tokio::time::sleep;

use crate::agent::publish::FRESH;
use crate::client::{NoAgent, TimedSnapshot};
use crate::exit::{Exit, Failure};
use crate::options::{Common, DEFAULT_SOCKET, Targets};
use crate::render::json::Report;
use crate::render::output::Output;
use crate::render::summary;
use crate::watch::source::AgentWatch;
use args::Whose;

/// Resets the agent's peak counters for processes, and prints what they were.
///
/// # Errors
/// When no agent runs, or it does not show the processes.
pub(crate) async fn run(args: &Whose, common: &Common) -> Result<Exit, Failure> {
    let path = common.agent.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
    if common.no_agent {
        return Err(without_agent("--no-agent leaves nobody to ask"));
    }
    let targets = Targets { tgids: args.tgids.clone(), ..Targets::default() };
    let mut agent = match AgentWatch::meet(path, &targets).await? {
        Ok(agent) => agent,
        Err(NoAgent::Absent) => return Err(without_agent(format_args!("no agent listens on {}", path.display()))),
        Err(why) => {
            return Err(without_agent(format_args!("the agent on {} cannot be used: {why}", path.display())));
        }
    };
    let before = agent.snapshot().await?.snapshot;
    let living: Vec<_> = before.processes.iter().filter(|process| process.ended_ns.is_none()).collect();
    if living.is_empty() {
        let named: Vec<String> = args.tgids.iter().map(|tgid| tgid.0.to_string()).collect();
        let sentence = format_args!("the agent has seen no GPU memory of process {}", named.join(", "));
        return Err(Failure::new(Exit::NoTarget, sentence));
    }
    for process in &living {
        agent.reset_peaks(process.tgid).await?;
    }
    if common.json {
        // The agent's last snapshot answers until then.
        sleep(FRESH).await;
        let TimedSnapshot { snapshot, boottime_to_unix_ns } = agent.snapshot().await?;
        Output::report(Report::ResetPeaks).show(&snapshot, boottime_to_unix_ns)?;
    } else {
        for process in &living {
            println!("{}", summary::peaks_reset(&before, process));
        }
    }
    Ok(Exit::Ok)
}

fn without_agent(why: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Error, format_args!("there are no peaks to reset outside of a running memwatch: {why}")).advise(
        "memwatch writes into no process: each memwatch that runs counts peaks of its own.\n\
         In the live view of `memwatch --pid PID`, r resets them.\n\
         `memwatch stats --pid PID --interval 1s --reset-peaks` resets them with each report.\n\
         Those of the agent are reset by this command: start it with sudo memwatch agent.",
    )
}
