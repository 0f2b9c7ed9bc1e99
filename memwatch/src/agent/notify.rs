//! Messages to systemd: readiness, status and watchdog. See sd_notify(3) and
//! sd_watchdog_enabled(3).
//!
//! The crate sd-notify reads the environment with each message, which tests cannot replace. Here
//! the environment is read once, through a replaceable function.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Connection to the service manager, if any.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    socket: Option<UnixDatagram>,
    /// Watchdog timeout, after which the service manager kills the agent.
    watchdog: Option<Duration>,
    last_sign: Option<Instant>,
    status: String,
}

impl Notifier {
    /// Reads the service manager's socket and timeout from the environment.
    pub(crate) fn of_this_process() -> Self {
        let tgid = std::process::id().to_string();
        Self::of(|name| std::env::var_os(name), &tgid)
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>, tgid: &str) -> Self {
        let text = |name| variable(name).and_then(|value| value.into_string().ok());
        // Children inherit the variable, but it applies only to the process that it names.
        let is_ours = text("WATCHDOG_PID").is_none_or(|of| of == tgid);
        let watchdog = text("WATCHDOG_USEC").filter(|_| is_ours).and_then(|time| time.parse().ok());
        Self {
            socket: variable("NOTIFY_SOCKET").and_then(|name| connect(&name)),
            watchdog: watchdog.filter(|time| *time > 0).map(Duration::from_micros),
            ..Self::default()
        }
    }

    /// Returns the maximum interval between two calls of [`Self::alive`].
    pub(crate) fn longest_pause(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 4)
    }

    /// Reports readiness: probes are attached and the socket is open.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports that the agent is stopping.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Reports a status line if it has changed.
    pub(crate) fn status(&mut self, status: String) {
        if status != self.status {
            self.send(&format!("STATUS={status}"));
            self.status = status;
        }
    }

    /// Sends a watchdog message if a quarter of the timeout has passed since the last one. Messages
    /// are then at most half of the timeout apart, as the manual recommends.
    pub(crate) fn alive(&mut self) {
        let Some(watchdog) = self.watchdog else { return };
        if self.last_sign.is_none_or(|last| last.elapsed() >= watchdog / 4) {
            self.send("WATCHDOG=1");
            self.last_sign = Some(Instant::now());
        }
    }

    /// Sends a message. An unreachable manager is not an error.
    fn send(&self, message: &str) {
        let sent = self.socket.as_ref().map(|socket| socket.send(message.as_bytes()));
        if let Some(Err(error)) = sent {
            log::warn!("the service manager cannot be sent {message}: {error}");
        }
    }
}

/// Connects to a socket: a path, or with `@` a name in the abstract namespace.
fn connect(name: &OsStr) -> Option<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(name),
    };
    let connected = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    connected.inspect_err(|error| log::warn!("the service manager's socket {}: {error}", name.display())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).expect("a socket");
        let mut buffer = [0; 256];
        let next =
            || socket.recv(&mut buffer).ok().map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn without_a_manager_nothing_is_stated_and_nothing_fails() {
        let mut notifier = Notifier::of(|_| None, "7");
        notifier.ready();
        notifier.alive();
        notifier.status("fine".to_owned());
        notifier.stopping();
        assert_eq!(notifier.longest_pause(), None);
    }

    #[test]
    fn a_manager_hears_what_is_new_by_path_and_by_abstract_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notify");
        let name = format!("memwatch-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a name");
        let sockets = [
            (UnixDatagram::bind(&path).expect("a socket"), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).expect("a socket"), format!("@{name}").into()),
        ];
        for (socket, address) in sockets {
            let variable = |name: &str| match name {
                "NOTIFY_SOCKET" => Some(address.clone()),
                "WATCHDOG_USEC" => Some("3600000000".into()),
                "WATCHDOG_PID" => Some("7".into()),
                _ => None,
            };
            let mut notifier = Notifier::of(variable, "7");
            notifier.ready();
            for status in ["1 process", "1 process", "2 processes"] {
                notifier.status(status.to_owned());
                notifier.alive();
            }
            notifier.stopping();
            let want = ["READY=1", "STATUS=1 process", "WATCHDOG=1", "STATUS=2 processes", "STOPPING=1"];
            assert_eq!(heard(&socket), want);
            assert_eq!(notifier.longest_pause(), Some(Duration::from_mins(15)));
        }
    }

    #[test]
    fn another_processs_watchdog_and_one_that_makes_no_sense_are_not_ours() {
        for (of, time) in [("8", "1000000"), ("7", "0"), ("7", "soon")] {
            let variable = |name: &str| match name {
                "WATCHDOG_USEC" => Some(time.into()),
                "WATCHDOG_PID" => Some(of.into()),
                _ => None,
            };
            assert_eq!(Notifier::of(variable, "7").longest_pause(), None, "{of} {time}");
        }
    }
}
