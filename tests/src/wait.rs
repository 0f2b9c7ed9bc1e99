//! Waiting for events, with a timeout.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time after which a test fails if an event does not happen.
pub const TIMEOUT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// Polls for an event until it happens, and returns its value.
///
/// # Panics
/// When the event does not happen in time.
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

/// Stops a process and returns when none of its threads runs. SIGSTOP alone only announces the
/// stop.
///
/// The process is not stopped while it has locked the simulator's ledger: every other user of the
/// ledger would wait until it continues.
///
/// # Panics
/// When there is no such process of ours or it does not stop.
pub fn stop(tgid: u32) {
    let number = libc::pid_t::try_from(tgid).expect("a process id");
    // SAFETY: kill has no preconditions; the caller has not waited for the process, so that the
    // number is its own.
    let send = |signal| assert_eq!(unsafe { libc::kill(number, signal) }, 0, "process {tgid} is there");
    until("the process stands still without the ledger", || {
        send(libc::SIGSTOP);
        until("the process stands still", || stands_still(tgid).then_some(()));
        if ledger_of(tgid).is_some_and(|ledger| has_locked(tgid, &ledger)) {
            send(libc::SIGCONT);
            return None;
        }
        Some(())
    });
}

fn stands_still(tgid: u32) -> bool {
    let is_stopped = |status: &str| status.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
    let mut threads = std::fs::read_dir(format!("/proc/{tgid}/task")).expect("its threads are listed").flatten();
    threads.all(|thread| {
        // A thread that has exited meanwhile counts as stopped.
        std::fs::read_to_string(thread.path().join("stat")).map_or(true, |status| is_stopped(&status))
    })
}

/// Returns the simulator's ledger as the process sees it, from its environment, or `None` if it has
/// none.
fn ledger_of(tgid: u32) -> Option<Metadata> {
    let environment = std::fs::read(format!("/proc/{tgid}/environ")).ok()?;
    let path = environment.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(b"GPUSIM_LEDGER="))?;
    let path = Path::new(OsStr::from_bytes(path));
    let from_its_root = path.strip_prefix("/").unwrap_or(path);
    std::fs::metadata(Path::new(&format!("/proc/{tgid}/root")).join(from_its_root)).ok()
}

/// Returns whether a process has locked a file with `flock(2)` (proc_locks(5): `1: FLOCK ADVISORY
/// WRITE PID MAJOR:MINOR:INODE …`). A lock that is still waited for has an arrow after its number.
fn has_locked(tgid: u32, file: &Metadata) -> bool {
    let locks = std::fs::read_to_string("/proc/locks").expect("it is there");
    let (owner, inode) = (tgid.to_string(), file.ino().to_string());
    locks.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some("FLOCK")
            && words.nth(2) == Some(&owner)
            && words.next().and_then(|place| place.rsplit(':').next()) == Some(&inode)
    })
}

#[cfg(test)]
mod tests {
    use super::{has_locked, stop};
    use std::process::{Command, Stdio};

    #[test]
    fn file_lock_is_detected_for_its_process_and_file_while_held() {
        let [file, other] = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
        let [its, others] = [&file, &other].map(|file| file.metadata().expect("it is open"));
        let own = std::process::id();
        assert!(!has_locked(own, &its));
        file.lock().expect("nobody else has it");
        assert!(has_locked(own, &its) && !has_locked(own + 1, &its) && !has_locked(own, &others));
        file.unlock().expect("it is ours");
        assert!(!has_locked(own, &its));
    }

    #[test]
    fn a_process_that_always_holds_another_lock_stops_all_the_same() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [ledger, other] = ["ledger", "other"].map(|name| folder.path().join(name));
        std::fs::write(&ledger, "").expect("there is room");
        let mut command = Command::new("flock");
        command.args([
            "--no-fork".as_ref(),
            other.as_os_str(),
            "sh".as_ref(),
            "-c".as_ref(),
            "echo held; exec sleep 600".as_ref(),
        ]);
        let mut holder =
            command.env("GPUSIM_LEDGER", &ledger).stdout(Stdio::piped()).spawn().expect("util-linux is there");
        let mut held = String::new();
        let mut lines = std::io::BufReader::new(holder.stdout.take().expect("it is a pipe"));
        std::io::BufRead::read_line(&mut lines, &mut held).expect("the holder speaks");
        assert!(has_locked(holder.id(), &std::fs::metadata(&other).expect("it is there")), "{held}");
        stop(holder.id());
        holder.kill().expect("it is ours");
        holder.wait().expect("it is ours");
    }
}
