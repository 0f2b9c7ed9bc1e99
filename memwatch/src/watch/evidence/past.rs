//! Sources of past data: a recording, or the history of this machine's agent.

use std::fs::File;
use std::io;
use std::path::Path;

use memwatch_core::snapshot::Viewer;

use super::streamed;
use crate::client::protocol::HistoryFiles;
use crate::client::{AgentClient, NoAgent};
use crate::exit::{Exit, ExitFailure};
use crate::options::{CommonArgs, DEFAULT_SOCKET, Past, TimeWindow};
use crate::watch::recorded_period::RecordedPeriod;

/// Level of detail that a report needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Driver calls and PyTorch's counters.
    Calls,
    /// Tensor events, which the agent does not trace.
    Tensors,
}

impl RecordedPeriod {
    /// Returns the source selected on the command line; `None` for a live session.
    ///
    /// # Errors
    /// The agent's history is selected and cannot be read.
    pub(crate) async fn named(past: &Past, needs: Needs, common: &CommonArgs) -> Result<Option<Self>, ExitFailure> {
        let window = past.window;
        match &past.recording {
            Some(path) => Ok(Some(Self { path: path.clone(), window, history: None, streamed: None })),
            None if window.is_whole() => Ok(None),
            None if needs == Needs::Tensors => Err(ExitFailure::new(
                Exit::Error,
                "the agent does not trace tensors: past tensor reports need a recording (--in FILE)",
            )
            .advise("Record the program: sudo memwatch record --pid PID -o job.mwr; then the same with --in job.mwr.")),
            None => Self::of_agent(window, common).await.map(Some),
        }
    }

    async fn of_agent(window: TimeWindow, common: &CommonArgs) -> Result<Self, ExitFailure> {
        if common.no_agent {
            return Err(ExitFailure::new(
                Exit::Error,
                "--since and --until without --in ask the agent, which --no-agent forbids",
            )
            .advise("Name a recording with --in FILE, or remove --no-agent."));
        }
        let socket = common.agent.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
        let (kept, viewer) = AgentClient::history(socket).await.map_err(|why| without_agent(socket, &why))?;
        if viewer != Viewer::Everything {
            return Box::pin(streamed::past(socket, window)).await;
        }
        let Some(kept) = kept else {
            return Err(ExitFailure::new(
                Exit::Error,
                format_args!("the agent on {} keeps no history", socket.display()),
            )
            .advise(format!("{START}\nor name a recording with --in FILE.")));
        };
        let path = kept.file.clone();
        if let Err(error) = File::open(&path) {
            return Err(unreadable(&kept, &error));
        }
        if let Some(why) = &kept.failing {
            eprintln!("memwatch: the agent cannot continue its history: {why}; reporting what it has so far");
        }
        Ok(Self { path, window, history: Some(kept), streamed: None })
    }
}

/// Advice to enable the agent's history.
const START: &str = "Have it keep one: sudo memwatch agent --history /var/lib/memwatch (the systemd unit does),";

fn without_agent(socket: &Path, why: &NoAgent) -> ExitFailure {
    let sentence = match why {
        NoAgent::Absent => format!("no agent listens on {}", socket.display()),
        NoAgent::Unusable(why) => format!("the agent on {} cannot be used: {why}", socket.display()),
    };
    let advice = "--since and --until without --in read the history of an agent: sudo memwatch agent --history /var/lib/memwatch\n\
                  keeps one from its start. To report on a recording, add --in FILE.";
    ExitFailure::new(Exit::Error, sentence).advise(advice)
}

fn not_for_all(what: &str) -> ExitFailure {
    ExitFailure::new(Exit::NotPermitted, format_args!("{what} contains the processes of all users: permission denied"))
        .advise(
            "Ask as root, or become a member of the group that sees all, log in again, and restart the agent:\n\
             sudo groupadd -f -r memwatch && sudo usermod -aG memwatch $USER",
        )
}

fn unreadable(kept: &HistoryFiles, error: &io::Error) -> ExitFailure {
    let path = kept.file.display();
    match (error.kind(), &kept.failing) {
        (io::ErrorKind::PermissionDenied, _) => not_for_all(&path.to_string()),
        (io::ErrorKind::NotFound, Some(why)) => {
            ExitFailure::new(Exit::Error, format_args!("the agent has no history: it cannot be written ({why})"))
        }
        (io::ErrorKind::NotFound, None) => {
            ExitFailure::new(Exit::Error, format_args!("the agent reports its history at {path}, which does not exist"))
                .advise("An agent in a container names its own path: mount the directory under the same path.")
        }
        _ => ExitFailure::new(Exit::Error, format_args!("{path}: {error}")),
    }
}
