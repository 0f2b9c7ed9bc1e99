//! The agent's socket, which only one living agent listens on, and the access to it.
//!
//! All users may connect (mode 0666). The peer's credentials decide which processes a client sees
//! (`credentials`).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};

use super::directory::OwnDirectory;
use super::publish::AgentState;

/// Mode of a directory created for the socket, and mode of the socket.
const DIRECTORY_MODE: u32 = 0o755;
const SOCKET_MODE: u32 = 0o666;

/// A socket that this process listens on. Its file is removed on drop.
#[derive(Debug)]
pub(crate) struct OpenSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, so that another agent's socket is not removed.
    file: (u64, u64),
    /// Lock held as long as the agent lives. The kernel releases it when the process ends, for
    /// whatever reason.
    _lock: File,
}

impl OpenSocket {
    /// Listens on `path`. A socket left by a dead agent is replaced.
    ///
    /// # Errors
    /// Another agent listens there, a different file is there, or the socket cannot be created.
    pub(crate) fn open(path: &Path, group: Option<u32>) -> anyhow::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = OwnDirectory::open(parent, DIRECTORY_MODE)?;
        let lock = lock(path)?;
        remove_stale(path)?;
        let listener =
            UnixListener::bind(path).with_context(|| format!("no socket can be made at {}", path.display()))?;
        let socket = directory.socket(path)?;
        // Fails if the agent is not root. The user who started the agent has then chosen the group.
        let _ = group.map(|group| socket.give_to(group));
        socket.set_mode(SOCKET_MODE).context("the socket's mode cannot be set")?;
        listener.set_nonblocking(true)?;
        // SAFETY: listen has no memory preconditions, and the descriptor is open. If the call
        // fails, the queue keeps its length.
        let _ = unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) };
        Ok(Self { listener, path: path.to_owned(), file: socket.identity()?, _lock: lock })
    }

    /// Returns a listener for the async runtime.
    ///
    /// # Errors
    /// There is no runtime.
    pub(crate) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        let removed = is_ours.then(|| fs::remove_file(&self.path));
        if let Some(Err(error)) = removed {
            log::warn!("{} cannot be removed, the next agent will: {error}", self.path.display());
        }
    }
}

/// Maximum number of clients waiting to be accepted, if the system allows it
/// (`net.core.somaxconn`). It is large, so that a client that keeps connecting does not fill it.
const BACKLOG: i32 = 4096;

/// Takes a lock next to the socket, so that two agents that start at the same time do not take each
/// other's socket for a dead agent's.
fn lock(path: &Path) -> anyhow::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&name).with_context(|| format!("{} cannot be opened", name.display()))?;
    // SAFETY: flock has no memory preconditions, and the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            bail!("another agent is running: it listens on {}", path.display());
        }
        return Err(error).with_context(|| format!("{} cannot be locked", name.display()));
    }
    Ok(file)
}

fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        bail!("{} already exists and is not a socket", path.display());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).with_context(|| format!("{} of a dead agent cannot be removed", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => bail!("another program is running that listens on {}", path.display()),
    }
}

/// Maximum numbers of connected clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimit {
    /// All clients. Some of these places are reserved for clients that see everything.
    pub(super) clients: usize,
    /// Clients that see only their own processes.
    pub(super) users: usize,
    /// Clients of one user.
    pub(super) per_user: usize,
}

/// Default limits. Tests use lower ones.
pub(super) const CONNECTION_LIMIT: ConnectionLimit = ConnectionLimit { clients: 80, users: 64, per_user: 8 };

/// Counters of connected and earlier clients.
#[derive(Debug)]
pub(super) struct AccessPolicy {
    limit: ConnectionLimit,
    inside: Mutex<BTreeMap<(bool, u32), usize>>,
    total: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
}

/// Admission of a client, which ends on drop.
#[derive(Debug)]
pub(super) struct Permit {
    access: Arc<AccessPolicy>,
    /// Whether the client sees only its own processes, and its login user.
    who: (bool, u32),
}

impl AccessPolicy {
    /// Creates a policy without clients.
    pub(super) fn new(limit: ConnectionLimit) -> Arc<Self> {
        let none = || AtomicU64::new(0);
        Arc::new(Self { limit, inside: Mutex::default(), total: none(), refused: none(), dropped: none() })
    }

    /// Admits a client if the limits allow it; otherwise returns the reason. `owner` is the login
    /// user that the client counts for. `is_user`: the client sees only its own processes.
    pub(super) fn enter(self: &Arc<Self>, owner: u32, is_user: bool) -> Result<Permit, &'static str> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let of_all = inside.values().sum::<usize>();
        let of_users = inside.iter().filter(|((is_user, _), _)| *is_user).map(|(_, count)| *count).sum::<usize>();
        let of_this = inside.get(&(is_user, owner)).copied().unwrap_or(0);
        if of_all >= self.limit.clients || (is_user && of_users >= self.limit.users) {
            return Err("the agent has reached its limit of clients");
        }
        if is_user && of_this >= self.limit.per_user {
            return Err("this user has reached the agent's limit of clients");
        }
        inside.insert((is_user, owner), of_this + 1);
        self.total.fetch_add(1, Ordering::Relaxed);
        Ok(Permit { access: Arc::clone(self), who: (is_user, owner) })
    }

    /// Counts a client that was refused.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a client that was dropped because it did not read or send in time.
    pub(super) fn time_out(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the client counters of the agent's state.
    pub(super) fn state(&self) -> AgentState {
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        AgentState {
            clients: u64::try_from(inside.values().sum::<usize>()).unwrap_or(u64::MAX),
            clients_total: self.total.load(Ordering::Relaxed),
            clients_refused_total: self.refused.load(Ordering::Relaxed),
            clients_dropped_total: self.dropped.load(Ordering::Relaxed),
            ..AgentState::default()
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut inside = self.access.inside.lock().unwrap_or_else(PoisonError::into_inner);
        match inside.get_mut(&self.who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                inside.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_dead_agents_socket_is_replaced_and_a_living_ones_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made/memwatch.sock");
        let first = OpenSocket::open(&path, None).expect("nobody is there");
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, SOCKET_MODE);
        assert_eq!(
            fs::metadata(path.parent().expect("a directory")).expect("it is there").mode() & 0o777,
            DIRECTORY_MODE
        );
        let refusal = OpenSocket::open(&path, None).expect_err("one is there").to_string();
        assert!(refusal.contains("another agent is running") && refusal.contains("memwatch.sock"), "{refusal}");
        assert!(UnixStream::connect(&path).is_ok(), "and the first one still listens");
        drop(first);
        assert!(!path.exists());
        // The state that a killed agent leaves.
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(path.exists() && UnixStream::connect(&path).is_err());
        let second = OpenSocket::open(&path, None).expect("nobody lives there");
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
    }

    #[test]
    fn agent_socket_path_of_another_kind_is_left_untouched() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "precious").expect("a file");
        let refusal = OpenSocket::open(&file, None).expect_err("a file").to_string();
        assert!(refusal.contains("is not a socket"), "{refusal}");
        assert_eq!(fs::read_to_string(&file).expect("it is there"), "precious");
        let other = directory.path().join("other");
        let _listener = UnixListener::bind(&other).expect("a socket");
        let refusal = OpenSocket::open(&other, None).expect_err("somebody's").to_string();
        assert!(refusal.contains("another program is running"), "{refusal}");
    }

    #[test]
    fn a_directory_that_others_can_change_gets_no_socket() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("run");
        fs::create_dir(&directory).expect("it is ours");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("it is ours");
        let refusal = OpenSocket::open(&directory.join("socket"), None).expect_err("not there").to_string();
        assert!(refusal.contains("can be changed by others"), "{refusal}");
        assert_eq!(fs::read_dir(&directory).expect("it is there").count(), 0);
    }

    #[test]
    fn a_socket_that_is_another_agents_by_now_is_not_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let first = OpenSocket::open(&path, None).expect("nobody is there");
        fs::remove_file(&path).expect("it is there");
        let _other = UnixListener::bind(&path).expect("a socket");
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn agent_connection_limits_protect_other_users_and_root() {
        let access = AccessPolicy::new(ConnectionLimit { clients: 5, users: 3, per_user: 2 });
        let mut inside = vec![access.enter(1, true).expect("room"), access.enter(1, true).expect("room")];
        assert!(access.enter(1, true).expect_err("two are enough").contains("this user has reached"));
        inside.push(access.enter(2, true).expect("room"));
        assert!(access.enter(3, true).is_err(), "the users' part is full");
        inside.extend([access.enter(0, false).expect("room"), access.enter(0, false).expect("room")]);
        assert!(access.enter(0, false).is_err(), "all is full");
        assert_eq!((access.state().clients, access.state().clients_total), (5, 5));
        inside.remove(0);
        assert!(access.enter(3, true).is_ok(), "who leaves makes room");
        inside.clear();
        assert_eq!((access.state().clients, access.state().clients_total), (0, 6));
        assert!(access.inside.lock().expect("nobody panicked").is_empty());
    }
}
