//! State that a killed or stopped agent leaves for the next one: the kernel half in bpffs, and the
//! journal next to the socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use super::args::AgentArgs;
use crate::exit::{Exit, ExitFailure};
use crate::options::DEFAULT_SOCKET;
use crate::sources::kernel::load::{self, chain};
use crate::sources::kernel::pins::{self, PinPlace};
use crate::watch::journal::Journal;
use crate::watch::session::Session;
use crate::watch::session::survival::SurvivalPlace;

/// Returns where the session keeps state that outlives this process. If that is impossible, prints
/// the reason.
pub(super) fn prepare(agent: &AgentArgs, classic_uprobes: bool) -> Option<SurvivalPlace> {
    let socket = socket_of(agent);
    let why = if load::takes_sys_admin(classic_uprobes) {
        "its probes are classic uprobes, which cannot be pinned".to_owned()
    } else {
        match PinPlace::open(&agent.left.bpffs, &socket) {
            Ok(pins) => return Some(SurvivalPlace { pins: Arc::new(pins), journal: journal(&socket) }),
            Err(error) => chain(&error),
        }
    };
    eprintln!("memwatch: the next agent will not resume this session: {why}");
    None
}

/// If a session was resumed, prints that.
pub(super) fn report(session: &Session) {
    if session.goes_on() {
        let (processes, _) = session.extent();
        let what = if processes == 1 { "process is" } else { "processes are" };
        eprintln!("memwatch: resumed the previous agent's session, {processes} {what} known");
    }
}

/// Ends the session when the agent exits.
pub(super) fn end(session: &mut Session, keeps: bool) {
    if let Err(error) = session.end_survival(keeps) {
        let (what, advice) = if keeps {
            ("cannot leave the state for the next agent", "it will start a new session")
        } else {
            ("cannot remove the kernel half completely", "remove it with: memwatch agent --uninstall")
        };
        eprintln!("memwatch: {what}: {error}; {advice}");
    }
}

/// Runs `memwatch agent --uninstall`.
pub(super) fn uninstall(agent: &AgentArgs) -> Result<Exit, ExitFailure> {
    let (bpffs, socket) = (&agent.left.bpffs, socket_of(agent));
    // An explicit socket selects the agent on that socket.
    let is_one = socket != Path::new(DEFAULT_SOCKET);
    let taken_out = if is_one { pins::remove_of(bpffs, &socket) } else { pins::remove_all(bpffs) };
    let (removed, running) =
        taken_out.with_context(|| format!("cannot remove the pinned BPF objects in {}", bpffs.display()))?;
    if running == 0 {
        let journal = journal(&socket);
        Journal::remove(&journal).with_context(|| format!("{} cannot be removed", journal.display()))?;
    }
    let plural = |count: usize| if count == 1 { "1 agent".to_owned() } else { format!("{count} agents") };
    println!("removed the pinned BPF objects of {}", plural(removed));
    if running > 0 {
        println!("kept those of {}: still running", plural(running));
    }
    Ok(Exit::Ok)
}

/// Returns the absolute path of the socket, so that it does not depend on the current directory.
pub(super) fn socket_of(agent: &AgentArgs) -> PathBuf {
    std::path::absolute(&agent.socket).unwrap_or_else(|_| agent.socket.clone())
}

/// Returns the path of the journal, next to the socket, which no other agent listens on.
fn journal(socket: &Path) -> PathBuf {
    socket.with_added_extension("journal")
}
