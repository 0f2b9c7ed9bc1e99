//! A command of the user's, run by the shell, and ended after its time limit with the processes that it has started.
//!
//! Those are its process group and its descendants, also in groups and sessions of their own. A process whose parent has ended and that has left
//! the group, as a daemon does, is not found.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{ExitStatus, Stdio};

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::sources::procfs::ProcReader;

/// Looks at a command that goes on starting processes end after so many.
const LOOKS: usize = 8;

/// Runs a command to its end, with these bytes on its standard input; `None` where `expired` came first, and the command was ended.
///
/// # Errors
/// When it cannot be started or waited for.
pub(super) async fn execute(
    line: &str,
    expired: impl Future<Output = ()>,
    input: &[u8],
) -> io::Result<Option<ExitStatus>> {
    let mut command = Command::new("sh");
    // What it prints must not get into a report.
    command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).kill_on_drop(true);
    let mut child = command.spawn()?;
    let family = Family { leader: child.id() };
    let mut pipe = child.stdin.take();
    let done = async {
        if let Some(pipe) = &mut pipe {
            // It may end without having read it all.
            let _ = pipe.write_all(input).await;
        }
        drop(pipe);
        child.wait().await
    };
    let status = tokio::select! {
        status = done => Some(status?),
        () = expired => None,
    };
    if status.is_some() {
        family.has_ended();
    } else {
        family.end().await;
        // No child stays behind.
        child.wait().await?;
    }
    Ok(status)
}

/// A command's processes, until they have ended: where nobody waits for it any more, its group is ended.
#[derive(Debug)]
struct Family {
    /// Its first process, which was not waited for: its number is its own, and that of its group.
    leader: Option<u32>,
}

impl Family {
    /// It has ended by itself, and its number may be another's.
    fn has_ended(mut self) {
        self.leader = None;
    }

    /// Ends all of it. `/proc` may be long: looked at on another thread.
    async fn end(mut self) {
        let Some(leader) = self.leader.take() else { return };
        if tokio::task::spawn_blocking(move || end(leader)).await.is_err() {
            signal_group(leader, libc::SIGKILL);
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            signal_group(leader, libc::SIGKILL);
        }
    }
}

/// Stops the group and all descendants first: what stands still starts nothing and loses no parent.
fn end(leader: u32) {
    signal_group(leader, libc::SIGSTOP);
    let (processes, leaders) = (ProcReader::new("/proc"), BTreeSet::from([leader]));
    let mut handles: BTreeMap<u32, OwnedFd> = BTreeMap::new();
    let mut family = BTreeSet::new();
    for _ in 0..LOOKS {
        let found = processes.descendants(&leaders);
        // A number of the look before, which is a descendant's still, was a descendant's when its handle was opened.
        let (known, new): (BTreeSet<u32>, BTreeSet<u32>) =
            found.into_iter().partition(|tgid| handles.contains_key(tgid));
        for tgid in &known {
            signal(&handles[tgid], libc::SIGSTOP);
        }
        family.extend(known);
        if new.is_empty() {
            break;
        }
        handles.extend(new.into_iter().filter_map(|tgid| Some((tgid, handle(tgid)?))));
    }
    signal_group(leader, libc::SIGKILL);
    for tgid in &family {
        signal(&handles[tgid], libc::SIGKILL);
    }
}

fn signal_group(leader: u32, number: i32) {
    if let Ok(group) = i32::try_from(leader) {
        // SAFETY: a plain system call. The leader was not waited for, so the number is its group's.
        unsafe { libc::kill(-group, number) };
    }
}

/// A process, whoever gets its number later; `None` where it has ended.
fn handle(tgid: u32) -> Option<OwnedFd> {
    let tgid = libc::pid_t::try_from(tgid).ok()?;
    // SAFETY: a plain system call.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tgid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: it was just opened, and belongs to nobody else.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn signal(process: &OwnedFd, number: i32) {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open, and no further facts go with the signal.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), number, none, 0) };
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use tokio::time::sleep;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const POLL: Duration = Duration::from_millis(10);

    /// A shell with a child, a grandchild, and a child in a session of its own; it writes their process ids.
    const LINE: &str = "sleep 300 & echo $! >> pids; setsid sleep 300 & echo $! >> pids; \
                        (sleep 300 & echo $! >> pids; wait) & echo $! >> pids; wait";
    const STARTED: usize = 4;

    fn block<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(future)
    }

    fn started(directory: &Path) -> Vec<u32> {
        let text = std::fs::read_to_string(directory.join("pids")).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
    }

    fn has_own_session(tgid: u32) -> bool {
        let tgid = tgid.cast_signed();
        // SAFETY: a plain system call.
        unsafe { libc::getsid(tgid) == tgid }
    }

    /// Waits until all are started, the third in a session of its own.
    async fn until_started(directory: &Path) {
        let begun = Instant::now();
        loop {
            let all = started(directory);
            if all.len() == STARTED && all.iter().any(|tgid| has_own_session(*tgid)) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{all:?}");
            sleep(POLL).await;
        }
    }

    /// Waits until none of them runs; ends those that do at last, and then it is a failure.
    fn assert_all_end(all: &[u32]) {
        let processes = ProcReader::new("/proc");
        let begun = Instant::now();
        let left = || all.iter().copied().filter(|tgid| !processes.is_over(*tgid)).collect::<Vec<_>>();
        while !left().is_empty() && begun.elapsed() < PATIENCE {
            std::thread::sleep(POLL);
        }
        let left = left();
        left.iter().filter_map(|tgid| handle(*tgid)).for_each(|process| signal(&process, libc::SIGKILL));
        assert!(left.is_empty(), "they run on: {left:?}");
    }

    fn line(directory: &Path) -> String {
        format!("cd '{}'; {LINE}", directory.display())
    }

    #[test]
    fn what_it_has_started_ends_with_it_also_in_a_session_of_its_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let ended = block(execute(&line(directory.path()), until_started(directory.path()), b"{}"));
        assert!(ended.expect("it was started").is_none(), "it does not end by itself");
        assert_all_end(&started(directory.path()));
    }

    #[test]
    fn a_command_that_nobody_waits_for_any_more_ends_with_its_group() {
        let directory = tempfile::tempdir().expect("a directory");
        block(async {
            let line = line(directory.path()).replace("setsid sleep", "sleep");
            let running = execute(&line, std::future::pending(), b"{}");
            let written = async {
                while started(directory.path()).len() < STARTED {
                    sleep(POLL).await;
                }
            };
            tokio::select! {
                ended = running => panic!("it ended: {ended:?}"),
                () = written => {}
            }
        });
        assert_all_end(&started(directory.path()));
    }
}
