//! Runs the user's command so that memwatch sees its first allocation and can return its exit code.

use std::ffi::OsString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use tokio::sync::oneshot;

use crate::exit::{Exit, ExitFailure};

/// A forked command, held before exec.
pub(crate) struct HeldCommand {
    /// Process id.
    pub(crate) tgid: u32,
    name: String,
    gate: OwnedFd,
    outcome: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// A running command.
pub(crate) struct RunningCommand {
    tgid: u32,
    name: String,
    outcome: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// Forks the command and holds it before exec.
///
/// # Errors
/// No pipe, thread or process can be created. A program that cannot be executed is reported by [`RunningCommand::wait`].
pub(crate) fn hold(program: &[OsString]) -> Result<HeldCommand, ExitFailure> {
    let (announce_read, announce_write) = pipe()?;
    let (gate_read, gate_write) = pipe()?;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    let (announce, gate) = (raw(&announce_write), raw(&gate_read));
    let gate_writer = raw(&gate_write);
    // SAFETY: between fork and exec this calls only getpid, close, write and read, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::close(gate_writer);
            let tgid = libc::getpid().to_ne_bytes();
            let mut byte = 0_u8;
            uninterrupted(|| libc::write(announce, tgid.as_ptr().cast(), tgid.len()))?;
            // The read returns when memwatch closes the pipe or dies.
            uninterrupted(|| libc::read(gate, (&raw mut byte).cast(), 1))?;
            Ok(())
        });
    }
    let (sender, outcome) = oneshot::channel();
    // spawn() returns only after the exec, so it runs in a thread.
    std::thread::Builder::new()
        .name("command".to_owned())
        .spawn(move || {
            let status = command.spawn().and_then(|mut child| child.wait());
            drop((announce_write, gate_read));
            // The receiver is gone only if memwatch is exiting, which ends this thread, too.
            let _ = sender.send(status);
        })
        .map_err(|error| ExitFailure::new(Exit::Command(125), format_args!("no thread for the command: {error}")))?;
    let tgid = read_tgid(&announce_read)?;
    Ok(HeldCommand { tgid, name: program[0].to_string_lossy().into_owned(), gate: gate_write, outcome })
}

impl HeldCommand {
    /// Ends the command before it has begun.
    pub(crate) fn abandon(self) {
        if let Ok(tgid) = i32::try_from(self.tgid) {
            // SAFETY: kill has no memory preconditions. The command has not been waited for, so its
            // process number is not reused.
            unsafe { libc::kill(tgid, libc::SIGKILL) };
        }
    }

    /// Lets the command exec its program.
    pub(crate) fn release(self) -> RunningCommand {
        drop(self.gate);
        RunningCommand { tgid: self.tgid, name: self.name, outcome: self.outcome }
    }
}

impl RunningCommand {
    /// Waits for the command. Returns its exit code, or 128 + N if signal N killed it.
    ///
    /// # Errors
    /// The program was not started: code 127 if it does not exist, 126 if it cannot be executed.
    pub(crate) async fn wait(&mut self) -> Result<Exit, ExitFailure> {
        match (&mut self.outcome).await {
            Ok(Ok(status)) => Ok(Exit::Command(code(status))),
            Ok(Err(error)) => {
                let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
                Err(ExitFailure::new(Exit::Command(code), format_args!("{}: {error}", self.name)))
            }
            Err(_) => Err(ExitFailure::new(Exit::Command(125), "the thread that waits for the command is gone")),
        }
    }

    /// Forwards a signal.
    pub(crate) fn signal(&self, signal: i32) {
        if let Ok(tgid) = i32::try_from(self.tgid) {
            // SAFETY: kill has no memory preconditions. The command has not been waited for, so its
            // process number is not reused.
            unsafe { libc::kill(tgid, signal) };
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(125);
    u8::try_from(number & 0xFF).unwrap_or(125)
}

fn raw(fd: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(fd)
}

fn pipe() -> Result<(OwnedFd, OwnedFd), ExitFailure> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has space for the two descriptors. Close-on-exec keeps them out of the
    // program.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        let error = io::Error::last_os_error();
        return Err(ExitFailure::new(Exit::Command(125), format_args!("no pipe to hold the command: {error}")));
    }
    // SAFETY: pipe2 has just created both descriptors, and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

fn read_tgid(announce: &OwnedFd) -> Result<u32, ExitFailure> {
    let mut bytes = [0_u8; 4];
    // SAFETY: the buffer is four bytes, and the descriptor is open.
    let got = uninterrupted(|| unsafe { libc::read(raw(announce), bytes.as_mut_ptr().cast(), bytes.len()) });
    match got {
        Ok(4) => Ok(u32::from_ne_bytes(bytes)),
        Ok(_) => Err(ExitFailure::new(Exit::Command(125), "cannot create a process for the command")),
        Err(error) => Err(ExitFailure::new(Exit::Command(125), format_args!("the command cannot be held: {error}"))),
    }
}

/// Repeats a system call that a signal interrupts (signal(7)). Does not allocate, so it is safe
/// between fork and exec.
fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<isize> {
    loop {
        let done = call();
        if done >= 0 {
            return Ok(done);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests;
