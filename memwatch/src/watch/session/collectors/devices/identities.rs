//! Tracks the user and the title of each process. A service may switch to the user it serves after
//! its first call, and the user decides which viewers see the process. A server names its workers
//! once they run (`setproctitle`), which changes their name and their command line.

use memwatch_core::input::{Input, ProcessFacts};
use memwatch_core::words::Tgid;

use crate::sources::login_users::login_user;
use crate::sources::procfs::ProcessIdentity;
use crate::watch::session::life::START_RESOLUTION_NS;
use crate::watch::session::parts::SessionParts;

/// Maximum number of processes checked per device reading; a check takes 20 µs. With more
/// processes, each is checked every few readings.
const MOST_AT_ONCE: usize = 512;

/// Updates processes whose user or title has changed.
pub(super) fn update_identities(time_ns: u64, parts: &mut SessionParts) {
    let tgids: Vec<u32> = parts.sink.state().watched().map(|tgid| tgid.0).collect();
    let (turns, now) = (1 + tgids.len() / MOST_AT_ONCE, usize::try_from(time_ns >> 30).unwrap_or(0));
    for tgid in tgids.into_iter().skip(now % turns).step_by(turns) {
        let Some(known) = parts.sink.state().facts(Tgid(tgid)) else { continue };
        let Some(now) = parts.processes.identity(tgid).filter(|now| known.start_ns == now.start_ns) else { continue };
        let (is_other_user, is_other_name) = (known.uid != Some(now.uid), known.comm != now.comm);
        if !is_other_user && !is_other_name {
            continue;
        }
        let ProcessIdentity { uid, user, comm, .. } = now;
        let mut facts = known.clone();
        if is_other_user {
            log::info!("process {tgid} now belongs to user {uid}");
            facts = ProcessFacts { uid: Some(uid), login_uid: Some(login_user(uid)), user: Some(user), ..facts };
        }
        if is_other_name && parts.processes.may_read(tgid, uid) {
            let read = parts.processes.facts(tgid, facts.target).filter(|read| read.start_ns == facts.start_ns);
            // It is empty where the process's memory cannot be read.
            let command = read.map(|read| read.command).filter(|command| !command.is_empty());
            facts = ProcessFacts { comm, command: command.unwrap_or(facts.command), ..facts };
        }
        parts.sink.step(Input::Process(facts));
    }
    read_readable_again(parts);
    read_put_off(parts);
}

/// Reads `/proc` for processes that were deferred because their user had started too many at
/// once.
fn read_put_off(parts: &mut SessionParts) {
    for tgid in parts.processes.put_off() {
        let Some(known) = parts.sink.state().facts(Tgid(tgid)) else { continue };
        let (target, start_ns, started_under_watch) = (known.target, known.start_ns, known.started_under_watch);
        let now = parts.processes.facts(tgid, target);
        if let Some(now) = now.filter(|now| now.start_ns.abs_diff(start_ns) <= START_RESOLUTION_NS) {
            parts.sink.step(Input::Process(ProcessFacts { start_ns, started_under_watch, ..now }));
        }
    }
}

/// Reads command lines and environments that were unreadable when the processes appeared.
fn read_readable_again(parts: &mut SessionParts) {
    for tgid in parts.processes.readable_again() {
        let Some(known) = parts.sink.state().facts(Tgid(tgid)).cloned() else { continue };
        let now = parts.processes.facts(tgid, known.target).filter(|now| now.start_ns == known.start_ns);
        if let Some(ProcessFacts { command, environment, visibility, .. }) = now {
            parts.sink.step(Input::Process(ProcessFacts { command, environment, visibility, ..known }));
        }
    }
}
