//! Asks container runtimes for the names of the traced containers, and the kubelet for the devices
//! it has promised to pods, on a separate thread.
//!
//! A runtime that is absent, hangs or answers with garbage costs only its names, and is asked less
//! and less often. Only containers with running processes and without names are requested; the
//! pipeline keeps the names.

mod asking;
mod cri;
mod docker;
mod exchange;
#[cfg(test)]
mod listener;
mod pod_resources;
mod promises;
mod sockets;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::task::{Context, Poll};

use memwatch_core::attribution::names::{ContainerRegistry, Nameless};
use memwatch_core::input::Input;
use memwatch_core::owner::{ContainerKey, ContainerNames, Promise};
use memwatch_core::words::Name;
use tokio::sync::{mpsc, watch};

pub(crate) use self::sockets::RuntimeSockets;

/// Maximum number of containers requested at a time, and of one user's. A node has some hundred.
const MOST_WANTED: usize = 4096;
const MOST_OF_USER: usize = 256;

/// A container without names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamelessContainer {
    id: String,
    runtime: Option<Name>,
    /// Owner of the slice that the container runs in; `None` outside user slices.
    user: Option<u32>,
    /// The user who assigned the container's id, if it was a user.
    of_user: Option<u32>,
    /// Distinguishes successive containers with the same id.
    life: u64,
}

/// All containers without names at one moment.
#[derive(Clone, Debug, Default)]
struct WantedNames {
    revision: u64,
    containers: Vec<NamelessContainer>,
}

/// A message from the thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeMessage {
    /// Names, each with the life number of the requested container.
    Names(Vec<(u64, ContainerNames)>),
    /// All of the kubelet's promises.
    Promised(Vec<Promise>),
    /// All containers of this request have been requested once.
    Asked { revision: u64 },
}

/// Handle of the thread, which ends when this is dropped.
pub(crate) struct RuntimeNames {
    requests: watch::Sender<WantedNames>,
    found: mpsc::Receiver<RuntimeMessage>,
    asked: Option<u64>,
}

impl RuntimeNames {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread or its epoll instance cannot be created.
    pub(crate) fn start(sockets: &RuntimeSockets) -> io::Result<Self> {
        let (requests, receiver) = watch::channel(WantedNames::default());
        let (sender, found) = mpsc::channel(16);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (engines, kubelet) = (sockets.engines(), sockets.kubelet());
        std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            let promises = promises::report(kubelet, promises::EVERY, sender.clone());
            let asking = asking::ask_forever(engines, receiver, sender);
            runtime.block_on(async {
                tokio::select! {
                    () = promises => {}
                    () = asking => {}
                }
            });
        })?;
        Ok(Self { requests, found, asked: None })
    }

    /// Sends the thread the containers without names. Costs nothing while they are unchanged.
    pub(crate) fn want(&self, known: &ContainerRegistry) {
        let revision = known.revision();
        if self.requests.borrow().revision != revision {
            let containers = share(known.nameless().map(NamelessContainer::from));
            // Fails only if the thread has ended; then nothing is requested.
            let _ = self.requests.send(WantedNames { revision, containers });
        }
    }

    /// Whether every container without names has been requested at least once since it appeared.
    pub(crate) fn is_settled(&self) -> bool {
        self.requests.is_closed() || self.asked == Some(self.requests.borrow().revision)
    }

    /// Polls for the next message; `None` once the thread has ended.
    pub(crate) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<RuntimeMessage>> {
        self.found.poll_recv(context)
    }

    /// Converts a message to an input of the pipeline, if it is one. `known` are the names the
    /// pipeline has.
    pub(crate) fn take(&mut self, found: RuntimeMessage, known: &ContainerRegistry) -> Option<Input> {
        match found {
            RuntimeMessage::Asked { revision } => {
                self.asked = Some(revision);
                None
            }
            RuntimeMessage::Promised(promised) => Some(Input::Promised(promised)),
            RuntimeMessage::Names(names) => {
                // The container may have ended since the request and its id been reused.
                let names = names.into_iter().filter(|(life, names)| known.lacks(&names.key(), *life));
                Some(Input::Names(names.map(|(_, names)| names).collect()))
            }
        }
    }
}

impl NamelessContainer {
    fn key(&self) -> ContainerKey {
        (self.of_user, self.id.clone())
    }
}

/// Limits the containers requested at a time, in all and for each user.
fn share(wanted: impl Iterator<Item = NamelessContainer>) -> Vec<NamelessContainer> {
    let mut of_users = BTreeMap::<u32, usize>::new();
    let has_room = |wanted: &NamelessContainer| {
        let Some(user) = wanted.user else { return true };
        let own = of_users.entry(user).or_default();
        *own += 1;
        *own <= MOST_OF_USER
    };
    wanted.filter(has_room).take(MOST_WANTED).collect()
}

impl From<Nameless<'_>> for NamelessContainer {
    fn from(nameless: Nameless<'_>) -> Self {
        let Nameless { container, cgroup, life } = nameless;
        let user = cgroup.and_then(slice_user);
        Self { id: container.id.clone(), runtime: container.runtime.clone(), user, of_user: container.of_user, life }
    }
}

/// Returns the owner of the user slice in a cgroup path: `/user.slice/user-1000.slice/…`
/// (systemd-logind.service(8)). Root's runtimes count as the machine's, and group names inside a
/// container are ignored.
fn slice_user(cgroup: &str) -> Option<u32> {
    let (user, _) = cgroup.strip_prefix("/user.slice/user-")?.split_once(".slice/")?;
    user.parse().ok().filter(|user| *user != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_containers_leave_room_for_others() {
        let wanted = |number: usize, user| NamelessContainer {
            id: format!("{number:04x}"),
            runtime: None,
            user,
            of_user: None,
            life: 1,
        };
        let of_alice = (0..MOST_WANTED * 2).map(|number| wanted(number, Some(1001)));
        let of_machine = [wanted(0xffff, None)];
        let shared = share(of_alice.chain(of_machine.clone()));
        assert_eq!(shared.len(), MOST_OF_USER + 1);
        assert_eq!(shared.last(), of_machine.last());
    }

    #[test]
    fn a_container_in_a_users_slice_is_that_users() {
        let rootless = "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-0a.scope";
        assert_eq!(slice_user(rootless), Some(1000));
        let inside = "/system.slice/docker-0a.scope/user.slice/user-1000.slice/session-1.scope";
        for nobodys in
            ["/docker/0a", "/user.slice/user-0.slice/session-3.scope", "/user.slice/user-x.slice/0a", inside, ""]
        {
            assert_eq!(slice_user(nobodys), None, "{nobodys}");
        }
    }
}
