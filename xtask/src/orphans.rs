//! Adopts orphaned processes, so that a task leaves no process running.

use anyhow::{Context as _, Result};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// Children that must not be killed.
static SPARED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Excludes this child from [`end_all`], including its exit status: it runs in parallel with the
/// tests.
pub(crate) fn spare(tgid: u32) {
    SPARED.lock().unwrap_or_else(PoisonError::into_inner).push(tgid);
}

/// Makes this process the parent of orphaned descendants.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn adopt() -> Result<()> {
    // SAFETY: this option takes plain numbers only.
    let answer = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("cannot adopt orphaned processes") }
}

/// Waits for our children to exit, kills the rest after `grace`, and returns their command lines.
pub(crate) fn end_all(grace: Duration) -> Vec<String> {
    let start = Instant::now();
    let mut killed = Vec::new();
    loop {
        let (ended, running): (Vec<Child>, Vec<Child>) = children().into_iter().partition(|child| child.has_ended);
        for child in ended {
            // SAFETY: a null status pointer is allowed, so no memory is written.
            unsafe { libc::waitpid(child.tgid, std::ptr::null_mut(), libc::WNOHANG) };
        }
        if running.is_empty() {
            return killed;
        }
        if start.elapsed() >= grace {
            for Child { tgid, command, .. } in running {
                // SAFETY: a plain system call; the child has not been reaped, so its id cannot have
                // been reused.
                unsafe { libc::kill(tgid, libc::SIGKILL) };
                killed.push(format!("{tgid} ({command})"));
            }
        }
        std::thread::sleep(POLL);
    }
}

/// A child process.
struct Child {
    tgid: i32,
    /// Command line, or the process name if it has none.
    command: String,
    /// Whether the child has exited and was not reaped yet.
    has_ended: bool,
}

/// Returns our children that are not excluded.
fn children() -> Vec<Child> {
    let us = std::process::id().to_string();
    let spared = SPARED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let child = |entry: std::fs::DirEntry| {
        let tgid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = String::from_utf8_lossy(&std::fs::read(entry.path().join("stat")).ok()?).into_owned();
        // The name may contain spaces and parentheses; the state and the parent follow its last
        // parenthesis.
        let (head, tail) = stat.rsplit_once(") ")?;
        let mut fields = tail.split(' ');
        let has_ended = fields.next()? == "Z";
        let is_ours = fields.next()? == us && !spared.contains(&tgid.cast_unsigned());
        let name = || head.split_once('(').map_or("", |(_, name)| name).to_owned();
        is_ours.then(|| Child { tgid, command: command(&entry.path()).unwrap_or_else(name), has_ended })
    };
    processes.filter_map(child).collect()
}

/// Returns the command line of a process, which shows the test that left the process running.
fn command(folder: &Path) -> Option<String> {
    let words = std::fs::read(folder.join("cmdline")).ok()?;
    let words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let text = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}
