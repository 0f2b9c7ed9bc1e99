//! A started program and its output, line by line.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::TIMEOUT;

const POLL: Duration = Duration::from_millis(10);

/// Returns the resident memory of a process in bytes.
///
/// # Panics
/// When the process has exited.
pub fn resident_bytes(tgid: u32) -> u64 {
    size_bytes(tgid, "VmRSS:")
}

/// Returns the peak of a process's resident memory in bytes, since its start or the last
/// [`forget_peak`].
///
/// # Panics
/// When the process has exited.
pub fn peak_resident_bytes(tgid: u32) -> u64 {
    size_bytes(tgid, "VmHWM:")
}

/// Resets the peak of a process's resident memory.
///
/// # Panics
/// When the process has exited or the kernel has no `clear_refs` file.
pub fn forget_peak(tgid: u32) {
    std::fs::write(format!("/proc/{tgid}/clear_refs"), "5").expect("the process is alive");
}

fn size_bytes(tgid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{tgid}/status")).expect("the process is alive");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a resident size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
}

/// A running program in its own process group. When it is dropped, the program gets SIGTERM, and
/// its group is killed afterwards.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    lines: Receiver<String>,
}

impl RunningProgram {
    /// Starts a command without input.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Self {
        let mut child =
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let output = child.stdout.take().expect("standard output is piped");
        Self::reading(child, output)
    }

    /// Starts a command whose standard error is read instead of standard output.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with_errors(mut command: Command) -> Self {
        let command = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let errors = child.stderr.take().expect("standard error is piped");
        Self::reading(child, errors)
    }

    fn reading(child: Child, output: impl Read + Send + 'static) -> Self {
        let output = BufReader::new(output).lines();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Returns the process id.
    pub fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line, or `None` at the end of the output.
    ///
    /// # Panics
    /// When neither a line nor the end comes in time.
    pub fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the program says nothing and does not end"),
        }
    }

    /// Returns the next line if one has already arrived.
    pub fn next_line_if_any(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Drops the lines that have already arrived.
    pub fn skip_lines(&mut self) {
        while self.lines.try_recv().is_ok() {}
    }

    /// Waits for a line that contains this text.
    ///
    /// # Panics
    /// When no such line comes in time.
    pub fn until_line_with(&mut self, text: &str) -> String {
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            let line = self.next_line().unwrap_or_else(|| panic!("the program has ended without a line with {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?}")
    }

    /// Sends the program a signal.
    pub fn signal(&self, number: i32) {
        if number == libc::SIGSTOP {
            crate::stop(self.tgid());
        } else if let Ok(tgid) = i32::try_from(self.tgid()) {
            // SAFETY: the child has not been waited for, so the number is its own.
            unsafe { libc::kill(tgid, number) };
        }
    }

    /// Waits until the program exits. Returns its exit code, or -1 if a signal ended it.
    ///
    /// # Panics
    /// When the program does not exit.
    pub fn end(&mut self) -> i32 {
        while self.next_line().is_some() {}
        self.child.wait().expect("the program is ours").code().unwrap_or(-1)
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.signal(libc::SIGTERM);
        // The program removes its probes before it exits.
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < TIMEOUT {
            std::thread::sleep(POLL);
        }
        if let Ok(group) = i32::try_from(self.tgid()) {
            // SAFETY: a plain system call; the group's number is kept while one of its processes is
            // there.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        let _ = self.child.wait();
    }
}
