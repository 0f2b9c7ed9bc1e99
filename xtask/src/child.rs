//! Programs that must not outlive the task that started them.

use crate::run::line;
use anyhow::{Context as _, Result};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// A running program; dropping it kills the program and its process group if it has its own.
pub(crate) struct OwnedChild {
    child: Child,
    has_own_group: bool,
}

impl OwnedChild {
    /// Starts a program in its own process group: Ctrl-C on the terminal does not reach it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.process_group(0);
        Self::spawn(command, true)
    }

    /// Starts a program that shares our terminal: Ctrl-C reaches both it and us.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn start_on_terminal(command: &mut Command) -> Result<Self> {
        Self::spawn(command, false)
    }

    fn spawn(command: &mut Command, has_own_group: bool) -> Result<Self> {
        // SAFETY: signal and prctl are async-signal-safe and touch only the new process.
        unsafe {
            command.pre_exec(|| {
                // A shell that starts us in the background ignores SIGINT, and a shell below us
                // could not trap it then.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                // Handles the one case in which destructors do not run: SIGKILL of this process.
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", line(command)))?;
        Ok(Self { child, has_own_group })
    }

    /// The process id.
    pub(crate) fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the user and system time so far, from `/proc/PID/stat` (proc(5)), which is exact to
    /// 10 ms.
    ///
    /// # Errors
    /// The program has exited.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.tgid())).context("the program has ended")?;
        let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().collect();
        let ticks = |field: usize| fields.get(field - 3).and_then(|ticks| ticks.parse::<u64>().ok());
        let ticks = ticks(14).zip(ticks(15)).context("stat is not as expected")?;
        // SAFETY: sysconf has no preconditions.
        let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100);
        Ok(Duration::from_millis((ticks.0 + ticks.1) * 1000 / per_second))
    }

    /// Takes the pipes to standard input and output, if the command requested them.
    pub(crate) fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.child.stdin.take(), self.child.stdout.take())
    }

    /// Returns the exit status, or `None` while the program runs.
    ///
    /// # Errors
    /// The kernel cannot report it.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot wait for a program that xtask started")
    }

    /// Waits for the exit, up to a time limit.
    ///
    /// # Errors
    /// Those of [`OwnedChild::ended`].
    pub(crate) fn wait(&mut self, at_most: Duration) -> Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            let ended = self.ended()?;
            if ended.is_some() || start.elapsed() >= at_most {
                return Ok(ended);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGINT, waits, and kills the program if it does not exit.
    ///
    /// # Errors
    /// Those of [`OwnedChild::ended`].
    pub(crate) fn interrupt(&mut self, grace: Duration) -> Result<Option<ExitStatus>> {
        if self.ended()?.is_none() {
            self.send(libc::SIGINT);
        }
        let ended = self.wait(grace)?;
        if ended.is_none() {
            self.send(libc::SIGKILL);
            self.wait(grace)?;
        }
        Ok(ended)
    }

    /// Sends a signal to the program, or to its process group if it has its own.
    fn send(&self, signal: libc::c_int) {
        let tgid = self.child.id().cast_signed();
        // SAFETY: a plain system call without memory of ours.
        unsafe {
            libc::kill(if self.has_own_group { -tgid } else { tgid }, signal);
        }
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        let is_running = matches!(self.child.try_wait(), Ok(None));
        if is_running || self.has_own_group {
            self.send(libc::SIGKILL);
        }
        if is_running {
            // An error could not be reported here, and after SIGKILL the wait succeeds.
            drop(self.child.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;

    fn is_alive(tgid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{tgid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    #[test]
    fn dropped_child_is_killed_with_its_descendants() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo $!; wait"]).stdout(Stdio::piped());
        let mut owned = OwnedChild::start(&mut shell).unwrap();
        let mut grandchild = String::new();
        BufReader::new(owned.pipes().1.unwrap()).read_line(&mut grandchild).unwrap();
        assert!(is_alive(grandchild.trim()));
        let tgid = owned.tgid().to_string();
        drop(owned);
        assert!(!is_alive(&tgid));
        while is_alive(grandchild.trim()) {
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn a_program_that_ends_when_asked_is_not_killed() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap 'exit 7' INT; echo ready; while :; do sleep 0.01; done"]).stdout(Stdio::piped());
        let mut owned = OwnedChild::start(&mut shell).unwrap();
        let mut ready = String::new();
        BufReader::new(owned.pipes().1.unwrap()).read_line(&mut ready).unwrap();
        let status = owned.interrupt(Duration::from_secs(20)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(7));
    }
}
