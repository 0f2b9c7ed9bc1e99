//! Tracks the user of each process. A service may switch to the user it serves after its first
//! call, and the user decides which viewers see the process.

use memwatch_core::input::{Input, ProcessFacts};
use memwatch_core::words::Tgid;

use super::Session;
use super::life::START_RESOLUTION_NS;
use crate::sources::login_users::login_user;

/// Maximum number of processes checked per device reading; a check takes 20 µs. With more
/// processes, each is checked every few readings.
const MOST_AT_ONCE: usize = 512;

impl Session {
    /// Updates processes whose user has changed.
    pub(super) fn look_at_users(&mut self, time_ns: u64) {
        let tgids: Vec<u32> = self.sink.state().watched().map(|tgid| tgid.0).collect();
        let (turns, now) = (1 + tgids.len() / MOST_AT_ONCE, usize::try_from(time_ns >> 30).unwrap_or(0));
        for tgid in tgids.into_iter().skip(now % turns).step_by(turns) {
            let Some(known) = self.sink.state().facts(Tgid(tgid)) else { continue };
            let Some((uid, user, start_ns)) = self.processes.user_now(tgid) else { continue };
            if known.uid != Some(uid) && known.start_ns == start_ns {
                let facts = ProcessFacts {
                    uid: Some(uid),
                    login_uid: Some(login_user(uid)),
                    user: Some(user),
                    ..known.clone()
                };
                log::info!("process {tgid} now belongs to user {uid}");
                self.sink.step(Input::Process(facts));
            }
        }
        self.look_at_readable_again();
        self.look_at_put_off();
    }

    /// Reads `/proc` for processes that were deferred because their user had started too many at
    /// once.
    fn look_at_put_off(&mut self) {
        for tgid in self.processes.put_off() {
            let Some(known) = self.sink.state().facts(Tgid(tgid)) else { continue };
            let (target, start_ns, started_under_watch) = (known.target, known.start_ns, known.started_under_watch);
            let now = self.processes.facts(tgid, target);
            if let Some(now) = now.filter(|now| now.start_ns.abs_diff(start_ns) <= START_RESOLUTION_NS) {
                self.sink.step(Input::Process(ProcessFacts { start_ns, started_under_watch, ..now }));
            }
        }
    }

    /// Reads command lines and environments that were unreadable when the processes appeared.
    fn look_at_readable_again(&mut self) {
        for tgid in self.processes.readable_again() {
            let Some(known) = self.sink.state().facts(Tgid(tgid)).cloned() else { continue };
            let now = self.processes.facts(tgid, known.target).filter(|now| now.start_ns == known.start_ns);
            if let Some(ProcessFacts { command, environment, visibility, .. }) = now {
                self.sink.step(Input::Process(ProcessFacts { command, environment, visibility, ..known }));
            }
        }
    }
}
