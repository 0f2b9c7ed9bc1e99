//! Runs a user's command in a shell, and kills it after its time limit together with the processes
//! that it started.
//!
//! These are its process group and its descendants, including those in other groups and sessions. A
//! process that has left the group and lost its parent, such as a daemon, is not found.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::{ExitStatus, Stdio};

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::sources::process_handle::process_handle;
use crate::sources::procfs::ProcReader;

/// Maximum number of scans for new processes of a command that keeps starting them.
const LOOKS: usize = 8;

/// Runs a command with these bytes on its standard input; `None` if `expired` came first and the
/// command was killed.
///
/// # Errors
/// The command cannot be started or waited for.
pub(super) async fn execute(
    line: &str,
    expired: impl Future<Output = ()>,
    input: &[u8],
) -> io::Result<Option<ExitStatus>> {
    let mut command = Command::new("sh");
    // The command's output must not get into a report.
    command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).kill_on_drop(true);
    let mut child = command.spawn()?;
    let family = CommandProcesses { leader: child.id() };
    let mut pipe = child.stdin.take();
    let done = async {
        if let Some(pipe) = &mut pipe {
            // The command may exit without reading all its input.
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
        // Reaps the child.
        child.wait().await?;
    }
    Ok(status)
}

/// Processes of a command, killed as a group if dropped before they exited.
#[derive(Debug)]
struct CommandProcesses {
    /// The first process. It was not reaped, so its id, which is also the group's, cannot be
    /// reused.
    leader: Option<u32>,
}

impl CommandProcesses {
    /// Records that the command exited by itself, so that its id may be reused.
    fn has_ended(mut self) {
        self.leader = None;
    }

    /// Kills all processes. Runs on another thread, since reading `/proc` may take long.
    async fn end(mut self) {
        let Some(leader) = self.leader.take() else { return };
        if tokio::task::spawn_blocking(move || end(leader)).await.is_err() {
            signal_group(leader, libc::SIGKILL);
        }
    }
}

impl Drop for CommandProcesses {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            signal_group(leader, libc::SIGKILL);
        }
    }
}

/// Stops the group and all descendants first: a stopped process starts no children and does not
/// lose its parent.
fn end(leader: u32) {
    signal_group(leader, libc::SIGSTOP);
    let (processes, leaders) = (ProcReader::new("/proc"), BTreeSet::from([leader]));
    let mut handles: BTreeMap<u32, OwnedFd> = BTreeMap::new();
    let mut family = BTreeSet::new();
    for _ in 0..LOOKS {
        let found = processes.descendants(&leaders);
        // An id found in the previous scan that still is a descendant's was the same process when
        // its handle was opened.
        let (known, new): (BTreeSet<u32>, BTreeSet<u32>) =
            found.into_iter().partition(|tgid| handles.contains_key(tgid));
        for tgid in &known {
            signal(&handles[tgid], libc::SIGSTOP);
        }
        family.extend(known);
        if new.is_empty() {
            break;
        }
        handles.extend(new.into_iter().filter_map(|tgid| Some((tgid, process_handle(tgid)?))));
    }
    signal_group(leader, libc::SIGKILL);
    for tgid in &family {
        signal(&handles[tgid], libc::SIGKILL);
    }
}

fn signal_group(leader: u32, number: i32) {
    if let Ok(group) = i32::try_from(leader) {
        // SAFETY: a plain system call. The leader was not reaped, so the number is its group's.
        unsafe { libc::kill(-group, number) };
    }
}

fn signal(process: &OwnedFd, number: i32) {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open, and the signal carries no siginfo.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), number, none, 0) };
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use tokio::time::sleep;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const POLL: Duration = Duration::from_millis(10);

    /// A shell with a child, a grandchild, and a child in a session of its own; they write their
    /// process ids.
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
            assert!(begun.elapsed() < TIMEOUT, "{all:?}");
            sleep(POLL).await;
        }
    }

    /// Waits until none of the processes runs; kills the rest at the timeout, which is a failure.
    fn assert_all_end(all: &[u32]) {
        let processes = ProcReader::new("/proc");
        let begun = Instant::now();
        let left = || all.iter().copied().filter(|tgid| !processes.is_over(*tgid)).collect::<Vec<_>>();
        while !left().is_empty() && begun.elapsed() < TIMEOUT {
            std::thread::sleep(POLL);
        }
        let left = left();
        left.iter().filter_map(|tgid| process_handle(*tgid)).for_each(|process| signal(&process, libc::SIGKILL));
        assert!(left.is_empty(), "they run on: {left:?}");
    }

    fn line(directory: &Path) -> String {
        format!("cd '{}'; {LINE}", directory.display())
    }

    #[test]
    fn oom_hook_children_end_with_it_even_in_their_own_session() {
        let directory = tempfile::tempdir().expect("a directory");
        let ended = block(execute(&line(directory.path()), until_started(directory.path()), b"{}"));
        assert!(ended.expect("it was started").is_none(), "it does not end by itself");
        assert_all_end(&started(directory.path()));
    }

    #[test]
    fn oom_hook_that_is_cancelled_ends_with_its_process_group() {
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
