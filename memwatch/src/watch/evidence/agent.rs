//! The agent of this machine as a source of snapshots: its processes, restricted to the targets.

use std::collections::BTreeSet;
use std::path::Path;

use memwatch_core::snapshot::{ProcessView, Snapshot, Viewer};
use memwatch_core::words::Tgid;

use crate::client::protocol::OutlookMessage;
use crate::client::{AgentClient, NoAgent, TimedSnapshot};
use crate::exit::{Exit, ExitFailure};
use crate::options::{CommonArgs, DEFAULT_SOCKET, TargetArgs};

/// Processes of the agent, restricted to the targets.
pub(crate) struct AgentWatch {
    pub(super) client: AgentClient,
    pub(super) family: TargetFamily,
    pub(super) last: Option<TimedSnapshot>,
}

impl AgentWatch {
    /// Connects to the agent that listens on `path`, to show these processes.
    ///
    /// # Errors
    /// A target does not exist or may not be seen by this user. The inner error means that no agent
    /// can be used.
    pub(crate) async fn meet(path: &Path, targets: &TargetArgs) -> Result<Result<Self, NoAgent>, ExitFailure> {
        match AgentClient::meet(path).await {
            Ok(mut client) => {
                let tgids = &targets.selected.tgids;
                let charged = if tgids.iter().all(|tgid| exists(tgid.0)) { None } else { client.snapshot().await.ok() };
                let family = TargetFamily::new(tgids, client.viewer(), charged.as_ref().map(|seen| &seen.snapshot))?;
                Ok(Ok(Self { client, family, last: None }))
            }
            Err(why) => Ok(Err(why)),
        }
    }

    /// Requests from the agent that the peaks of a process be reset.
    ///
    /// # Errors
    /// The agent refuses or is gone.
    pub(crate) async fn reset_peaks(&self, tgid: Tgid) -> Result<(), ExitFailure> {
        let path = self.client.path();
        let gone = |why| ExitFailure::new(Exit::Error, format_args!("the agent on {}: {why}", path.display()));
        AgentClient::reset_peaks(path, tgid).await.map_err(gone)
    }

    /// Requests, with each snapshot, which processes grow and whether memory runs out.
    pub(crate) fn want_outlook(&mut self) {
        self.client.want_outlook();
    }

    /// Returns which processes grew as of the last snapshot and whether memory runs out, for
    /// everything that this viewer may see.
    pub(crate) fn outlook(&self) -> OutlookMessage {
        self.client.outlook()
    }

    /// Returns the living processes of the last snapshot.
    pub(super) fn family_tgids(&self) -> Vec<Tgid> {
        let shown = self.last.iter().flat_map(|seen| &seen.snapshot.processes);
        shown.filter(|process| process.ended_ns.is_none()).map(|process| process.tgid).collect()
    }

    /// Requests a snapshot and restricts it to the shown processes.
    ///
    /// # Errors
    /// The agent is gone.
    pub(crate) async fn snapshot(&mut self) -> Result<TimedSnapshot, ExitFailure> {
        let gone =
            |path: &Path, why| ExitFailure::new(Exit::Error, format_args!("the agent on {}: {why}", path.display()));
        match self.client.snapshot().await {
            Ok(mut seen) => {
                self.family.apply(&mut seen.snapshot);
                self.last = Some(seen.clone());
                Ok(seen)
            }
            Err(why) => Err(gone(self.client.path(), why)),
        }
    }
}

/// Returns the agent's socket; `None` if the options require a session of this program, explicitly
/// or because the agent could not obey them.
pub(crate) fn agent_to_ask(common: &CommonArgs) -> Option<&Path> {
    let for_own_watch = !common.libcuda.is_empty()
        || common.nvml_lib.is_some()
        || common.ring_bytes.is_some()
        || common.classic_uprobes
        || common.poll_libraries;
    match &common.agent {
        _ if common.no_agent => None,
        Some(path) => Some(path),
        None if for_own_watch => None,
        None => Some(Path::new(DEFAULT_SOCKET)),
    }
}

/// Returns the printable name of a process, empty if the process has exited.
pub(crate) fn comm(tgid: u32) -> String {
    let comm = std::fs::read(format!("/proc/{tgid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&comm).trim().escape_debug().to_string()
}

/// Selects the processes to show among all that the agent shows. Without targets all are shown.
#[derive(Debug, Default)]
pub(super) struct TargetFamily {
    targets: Vec<AgentTarget>,
    /// Living targets and children of targets, with their start times, since process numbers are
    /// reused. A child stays in the set when its parent has exited.
    living: BTreeSet<(Tgid, Option<u64>)>,
}

#[derive(Debug)]
struct AgentTarget {
    tgid: Tgid,
    seen: bool,
    /// Start time, if known. A process with the same number and another start time is a different
    /// process.
    start_ns: Option<u64>,
    ended: bool,
}

impl TargetFamily {
    /// Checks the targets. An exited process may be a target as long as NVML charges it, as far as
    /// this viewer may see it in `machine`.
    ///
    /// # Errors
    /// A target does not exist, or this viewer may not see it.
    fn new(tgids: &[Tgid], viewer: Viewer, machine: Option<&Snapshot>) -> Result<Self, ExitFailure> {
        let shown = || machine.iter().flat_map(|machine| &machine.processes);
        for &Tgid(tgid) in tgids {
            if !exists(tgid) {
                if shown().any(|process| process.tgid.0 == tgid && process.left_behind.is_some()) {
                    continue;
                }
                return Err(ExitFailure::no_process(tgid));
            }
            if let Viewer::User(uid) = viewer {
                check_owner(tgid, uid)?;
            }
        }
        let target = |&tgid| AgentTarget { tgid, seen: false, start_ns: None, ended: false };
        Ok(Self { targets: tgids.iter().map(target).collect(), living: BTreeSet::new() })
    }

    fn apply(&mut self, snapshot: &mut Snapshot) {
        if self.targets.is_empty() {
            return;
        }
        // Processes are ordered by age: of several with a reused number, the oldest is the target.
        snapshot.processes.retain_mut(|process| {
            process.target = self.targets.iter_mut().any(|target| target.is(process));
            let key = (process.tgid, process.start_ns);
            // An exited child is shown for as long as the agent shows it.
            let is_child = || process.ancestors.iter().any(|ancestor| self.is_living_target(ancestor.tgid));
            process.target || self.living.contains(&key) || is_child()
        });
        for target in &mut self.targets {
            let shown = snapshot.processes.iter().find(|process| process.target && process.tgid == target.tgid);
            let has_ended = shown.map_or(target.seen, |process| process.ended_ns.is_some());
            target.ended |= has_ended || !exists(target.tgid.0);
        }
        let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        self.living = living.map(|process| (process.tgid, process.start_ns)).collect();
    }

    fn is_living_target(&self, tgid: Tgid) -> bool {
        self.targets.iter().any(|target| target.tgid == tgid && !target.ended)
    }

    pub(super) fn is_anybody_left(&self) -> bool {
        let is_left = |target: &AgentTarget| !target.ended;
        self.targets.is_empty() || !self.living.is_empty() || self.targets.iter().any(is_left)
    }

    pub(super) fn unseen(&self) -> impl Iterator<Item = u32> {
        self.targets.iter().filter(|target| !target.seen).map(|target| target.tgid.0)
    }
}

impl AgentTarget {
    /// Whether this is the target. A process with its number that had exited before the first
    /// snapshot was another one.
    fn is(&mut self, process: &ProcessView) -> bool {
        if process.tgid != self.tgid || (!self.seen && process.ended_ns.is_some() && process.left_behind.is_none()) {
            return false;
        }
        let known = (self.start_ns, process.start_ns);
        let is = !matches!(known, (Some(own), Some(other)) if own != other);
        if is {
            self.seen = true;
            self.start_ns = self.start_ns.or(process.start_ns);
        }
        is
    }
}

/// Whether the process exists, whatever its user.
fn exists(tgid: u32) -> bool {
    let Ok(tgid) = i32::try_from(tgid) else { return false };
    // SAFETY: signal 0 sends nothing; kill has no memory preconditions.
    let sent = unsafe { libc::kill(tgid, 0) } == 0;
    sent || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// # Errors
/// The process belongs to another user.
fn check_owner(tgid: u32, uid: u32) -> Result<(), ExitFailure> {
    let status = std::fs::read_to_string(format!("/proc/{tgid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let owner = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u32>().ok());
    match owner {
        Some(owner) if owner == uid => Ok(()),
        _ => Err(ExitFailure::new(
            Exit::NotPermitted,
            format_args!(
                "process {tgid} ({}) belongs to another user: the agent shows you only your own processes",
                comm(tgid)
            ),
        )
        .advise(format!(
            "Ask as root: sudo memwatch --pid {tgid}\n\
             or become a member of the group that sees all, log in again, and restart the agent:\n\
             sudo groupadd -f -r memwatch && sudo usermod -aG memwatch $USER"
        ))),
    }
}

#[cfg(test)]
mod tests;
