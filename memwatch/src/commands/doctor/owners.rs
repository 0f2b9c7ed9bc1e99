//! Checks of the container runtimes that provide owner names, and of the agent.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;

use memwatch_core::snapshot::Viewer;

use super::check::{Check, CheckState, Topic, count};
use crate::client::{AgentClient, NoAgent};
use crate::options::DEFAULT_SOCKET;
use crate::own_folder::Foreign;
use crate::sources::containers::RuntimeSockets;
use crate::sources::kernel::pins::{self, BPFFS, CLOSE, MOUNT};

/// Returns the checks of owner names and of the agent.
pub(crate) fn checks(sockets: &RuntimeSockets) -> Vec<Check> {
    let found = sockets.places().into_iter().filter_map(|(what, path)| {
        let answer = UnixStream::connect(&path).map(drop);
        judge_runtime(what, &path, answer)
    });
    let mut checks: Vec<Check> = found.collect();
    if checks.is_empty() {
        let fact = "no container runtime listens here: containers, if there are any, are shown by their ids";
        checks.push(Check::new(Topic::Owners, "names", CheckState::NotChecked, fact));
    }
    let met = meet();
    checks.push(judge_agent(Path::new(DEFAULT_SOCKET), &met.as_ref().map(|(viewer, _)| *viewer)));
    checks.extend(met.ok().map(|(_, contradictions)| judge_reports(contradictions)));
    checks.push(judge_survival(&pins::count(Path::new(BPFFS))));
    checks
}

/// Asks the agent for its viewer and for the number of contradictions in its reports.
fn meet() -> Result<(Viewer, u64), NoAgent> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = AgentClient::meet(Path::new(DEFAULT_SOCKET)).await?;
        let contradictions = client.snapshot().await?.contradictions;
        Ok((client.viewer(), contradictions))
    })
}

/// Checks a container runtime's socket; `None` if the socket does not exist.
fn judge_runtime(what: &str, path: &Path, answer: io::Result<()>) -> Option<Check> {
    let check = |state, fact| Check::new(Topic::Owners, "names", state, fact);
    let path = path.display();
    match answer {
        Ok(()) => Some(check(CheckState::Ok, format!("{what} listens on {path}"))),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let fact = format!("{what} on {path} does not let this user in: its containers are shown by their ids");
            Some(check(CheckState::Degraded, fact).fix("sudo memwatch …, or ask the agent of this machine"))
        }
        Err(error) => Some(check(CheckState::Degraded, format!("{what} on {path} does not answer: {error}"))),
    }
}

/// Checks whether an agent's session survives a restart of the agent here, and whether pinned
/// probes are left of one.
fn judge_survival(counted: &io::Result<Option<(usize, usize)>>) -> Check {
    let check = |state, fact: String| Check::new(Topic::Owners, "survival", state, fact);
    match *counted {
        Ok(None) => check(
            CheckState::NotChecked,
            format!("{BPFFS} is not a bpf file system: an agent's session ends with the agent"),
        )
        .fix(format!("{MOUNT} {BPFFS}")),
        Ok(Some((0, 0))) => check(CheckState::Ok, format!("no agent has probes pinned in {BPFFS}")),
        Ok(Some((0, running))) => {
            check(CheckState::Ok, format!("the session of {} survives a restart", count(running, "running agent")))
        }
        Ok(Some((left, _))) => {
            let fact =
                format!("{} that no longer runs left its probes in {BPFFS}, for the next one", count(left, "agent"));
            check(CheckState::Degraded, fact)
                .fix("sudo memwatch agent, to resume with them")
                .fix("sudo memwatch agent --uninstall, to remove them")
        }
        Err(ref error) if error.kind() == ErrorKind::PermissionDenied => {
            check(CheckState::NotChecked, format!("only root may look into {BPFFS}"))
        }
        Err(ref error) if error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<Foreign>) => {
            let fact = format!("{BPFFS}, or memwatch's folder in it, {error}: an agent's session ends with the agent");
            check(CheckState::Degraded, fact).fix(format!("{CLOSE} {BPFFS}"))
        }
        Err(ref error) => check(CheckState::Degraded, format!("{BPFFS} cannot be read: {error}")),
    }
}

/// Checks whether the agent's reports are free of contradictions.
fn judge_reports(contradictions: u64) -> Check {
    let check = |state, fact: String| Check::new(Topic::Owners, "reports", state, fact);
    match contradictions {
        0 => check(CheckState::Ok, "no contradiction in the agent's reports".to_owned()),
        contradictions => {
            let times = if contradictions == 1 { "once".to_owned() } else { format!("{contradictions} times") };
            check(CheckState::Degraded, format!("the agent's reports contradicted themselves {times}"))
                .fix("report it, with memwatch_agent_contradictions_total of its metrics: it is a fault of memwatch")
        }
    }
}

fn judge_agent(path: &Path, met: &Result<Viewer, &NoAgent>) -> Check {
    let check = |state, fact: String| Check::new(Topic::Owners, "agent", state, fact);
    let path = path.display();
    match met {
        Ok(Viewer::Everything) => check(CheckState::Ok, format!("one answers on {path}; it shows you all processes")),
        Ok(Viewer::User(_)) => check(CheckState::Ok, format!("one answers on {path}; it shows you your own processes")),
        Err(NoAgent::Absent) => {
            let fact = format!("none listens on {path}: memwatch watches by itself, from when it is started");
            check(CheckState::NotChecked, fact)
                .fix("sudo memwatch agent, for users without privilege and a view from boot on")
        }
        Err(NoAgent::Unusable(why)) => check(CheckState::Degraded, format!("the one on {path} cannot be used: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(answer: io::Result<()>) -> Option<(CheckState, String)> {
        let check = judge_runtime("Docker", Path::new("/run/docker.sock"), answer)?;
        Some((check.state, check.fact))
    }

    #[test]
    fn a_runtime_that_listens_is_named_and_an_absent_one_is_not() {
        let listens = (CheckState::Ok, "Docker listens on /run/docker.sock".to_owned());
        assert_eq!(runtime(Ok(())), Some(listens));
        assert_eq!(runtime(Err(ErrorKind::NotFound.into())), None);
    }

    #[test]
    fn doctor_runtime_that_refuses_is_degraded() {
        let (state, fact) = runtime(Err(ErrorKind::PermissionDenied.into())).expect("it is there");
        assert_eq!(state, CheckState::Degraded);
        assert!(fact.contains("does not let this user in"), "{fact}");
        assert_eq!(
            runtime(Err(ErrorKind::ConnectionRefused.into())).map(|(state, _)| state),
            Some(CheckState::Degraded)
        );
    }

    #[test]
    fn doctor_agent_is_optional_and_its_view_is_stated() {
        let state = |no: NoAgent| judge_agent(Path::new("/s"), &Err(&no)).state;
        assert_eq!(state(NoAgent::Absent), CheckState::NotChecked);
        assert_eq!(state(NoAgent::Unusable("it closed the connection".to_owned())), CheckState::Degraded);
        let own = judge_agent(Path::new("/s"), &Ok(Viewer::User(1000)));
        assert_eq!(
            (own.state, own.fact.as_str()),
            (CheckState::Ok, "one answers on /s; it shows you your own processes")
        );
    }

    #[test]
    fn reports_that_contradict_themselves_are_counted() {
        assert_eq!(judge_reports(0).state, CheckState::Ok);
        let judged = [1, 3].map(judge_reports);
        assert!(judged.iter().all(|check| check.state == CheckState::Degraded && check.fixes.len() == 1));
        assert!(judged[0].fact.ends_with(" once") && judged[1].fact.ends_with(" 3 times"), "{judged:?}");
    }

    #[test]
    fn doctor_orphaned_probes_are_reported_with_two_fixes() {
        let judged = |counted: io::Result<_>| judge_survival(&counted);
        assert_eq!(judged(Ok(None)).state, CheckState::NotChecked);
        assert_eq!(judged(Err(ErrorKind::PermissionDenied.into())).state, CheckState::NotChecked);
        assert_eq!(judged(Ok(Some((0, 0)))).state, CheckState::Ok);
        assert_eq!(judged(Ok(Some((0, 1)))).fact, "the session of 1 running agent survives a restart");
        let left = judged(Ok(Some((1, 1))));
        assert_eq!((left.state, left.fixes.len()), (CheckState::Degraded, 2));
        let open = judged(Err(Foreign::Others.into()));
        assert!(open.fact.contains("can be changed by others") && open.fixes[0].contains("chmod 700"), "{}", open.fact);
    }
}
