//! `memwatch stats --reset-peaks`: the agent counts peaks, so it is requested to reset them.

use std::path::Path;

use tokio::time::sleep;

use crate::agent::publish::FRESH;
use crate::client::{NoAgent, TimedSnapshot};
use crate::exit::{Exit, ExitFailure};
use crate::options::{CommonArgs, DEFAULT_SOCKET, Selected, TargetArgs};
use crate::render::json::JsonReport;
use crate::render::output::ReportOutput;
use crate::render::summary;
use crate::watch::evidence::agent::AgentWatch;
use crate::watch::selection::Selection;
use crate::watch::subject::{Filter, filtered};

/// Resets the agent's peak counters for these processes, and prints their previous values.
///
/// # Errors
/// No agent runs, or it does not show the processes.
pub(super) async fn reset(selected: &Selected, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let path = common.agent.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
    if common.no_agent {
        return Err(without_agent("--no-agent excludes the agent, which keeps these peaks"));
    }
    let targets = TargetArgs::of(selected);
    let mut agent = match AgentWatch::meet(path, &targets).await? {
        Ok(agent) => agent,
        Err(NoAgent::Absent) => return Err(without_agent(format_args!("no agent listens on {}", path.display()))),
        Err(why) => {
            return Err(without_agent(format_args!("the agent on {} cannot be used: {why}", path.display())));
        }
    };
    let before = filtered(agent.snapshot().await?.snapshot, &Filter::new(&targets))?;
    let living: Vec<_> = before.processes.iter().filter(|process| process.ended_ns.is_none()).collect();
    if living.is_empty() {
        let named = Selection::new(&selected.choice, &selected.tgids).describe();
        return Err(ExitFailure::new(Exit::NoTarget, format_args!("the agent knows of no GPU memory of {named}")));
    }
    for process in &living {
        agent.reset_peaks(process.tgid).await?;
    }
    if common.json {
        // Until then, the agent replies with its previous snapshot.
        sleep(FRESH).await;
        let TimedSnapshot { snapshot, boottime_to_unix_ns, .. } = agent.snapshot().await?;
        ReportOutput::report(JsonReport::ResetPeaks).show(&snapshot, boottime_to_unix_ns)?;
    } else {
        for process in &living {
            println!("{}", summary::peaks_reset(&before, process));
        }
    }
    Ok(Exit::Ok)
}

fn without_agent(why: impl std::fmt::Display) -> ExitFailure {
    ExitFailure::new(Exit::Error, format_args!("there are no peaks to reset outside of a running memwatch: {why}"))
        .advise(
            "memwatch writes into no process: each running memwatch has its own peak counters.\n\
         Those of the live view: memwatch PID, then r\n\
         Those of each report: memwatch stats PID --interval 1s --reset-peaks\n\
         Those of the agent: start it with sudo memwatch agent, then memwatch stats PID --reset-peaks",
        )
}
