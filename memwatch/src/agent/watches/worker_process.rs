//! Starts workers, and waits for what they write.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::worker::WorkerOrder;

/// A worker that is killed when it is dropped.
pub(in crate::agent) struct WorkerProcess(pub(in crate::agent) Child);

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl WorkerProcess {
    /// Starts a worker with options of the agent, and gives it an order.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(in crate::agent) fn start(options: &[OsString], order: &WorkerOrder) -> io::Result<Self> {
        // The file of this program, even if it was replaced by another version since.
        let mut command = Command::new("/proc/self/exe");
        command.args(options).args(["--no-agent", "worker"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut worker = Self(child);
        let stdin = worker.0.stdin.take();
        serde_json::to_writer(stdin.ok_or(io::ErrorKind::BrokenPipe)?, order)?;
        Ok(worker)
    }
}

/// Waits until any of these descriptors can be read, and returns which.
///
/// # Errors
/// Those of `poll(2)`.
pub(in crate::agent) fn ready<const COUNT: usize>(
    descriptors: [i32; COUNT],
    longest: Duration,
) -> io::Result<[bool; COUNT]> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let count = libc::nfds_t::try_from(COUNT).map_err(|_too_many| io::ErrorKind::InvalidInput)?;
    let longest_ms = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the array is as long as `count` says, and lives until the call returns.
    let status = unsafe { libc::poll(polled.as_mut_ptr(), count, longest_ms) };
    if status < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok([false; COUNT]) } else { Err(error) };
    }
    Ok(polled.map(|one| one.revents != 0))
}
