//! Waiting for what must happen, and no longer than that makes sense.

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen, before it fails.
pub const TIMEOUT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// Waits for something that must happen: asks for it until it is there.
///
/// # Panics
/// When it does not happen.
pub fn until<T>(what: &str, mut happens: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        if let Some(found) = happens() {
            return found;
        }
        std::thread::sleep(POLL);
    }
    panic!("not in all this time: {what}")
}

/// Stops a process, and returns when none of its threads runs any more: the signal alone only says that they will not.
///
/// # Panics
/// When there is no such process of ours, or it does not stop.
pub fn stop(tgid: u32) {
    let number = libc::pid_t::try_from(tgid).expect("a process id");
    // SAFETY: kill has no preconditions; the caller has not waited for the process, so that the number is its own.
    assert_eq!(unsafe { libc::kill(number, libc::SIGSTOP) }, 0, "process {tgid} is there");
    let is_stopped = |status: &str| status.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
    let threads = || std::fs::read_dir(format!("/proc/{tgid}/task")).expect("its threads are listed").flatten();
    let all = || {
        threads().all(|thread| {
            // One that has ended meanwhile runs no more.
            std::fs::read_to_string(thread.path().join("stat")).map_or(true, |status| is_stopped(&status))
        })
    };
    until("the process stands still", || all().then_some(()));
}
