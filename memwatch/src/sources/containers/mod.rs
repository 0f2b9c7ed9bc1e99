//! What runtimes call the containers that are watched, and what the kubelet has promised to pods, asked on a thread of its own.
//!
//! A runtime that is absent, hangs or answers with garbage costs the names it would have given, and is asked less and less often. Only
//! containers with living processes and without names are asked for; what they are called is kept by the pipeline and not here.

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

use memwatch_core::attribution::names::{Nameless, Names};
use memwatch_core::input::Input;
use memwatch_core::owner::{ContainerKey, ContainerNames, Promise};
use memwatch_core::words::Name;
use tokio::sync::{mpsc, watch};

pub(crate) use self::sockets::RuntimeSockets;

/// As many containers are asked for at a time, and as many of one user's; a node has some hundred.
const MOST_WANTED: usize = 4096;
const MOST_OF_USER: usize = 256;

/// A container whose names are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    id: String,
    runtime: Option<Name>,
    /// In whose slice it runs; `None` where in nobody's.
    user: Option<u32>,
    /// The user who answers for its id, if it is one's.
    of_user: Option<u32>,
    /// Which of the containers that have had this id.
    life: u64,
}

/// All containers whose names are wanted at some moment.
#[derive(Clone, Debug, Default)]
struct WantedNames {
    revision: u64,
    containers: Vec<Wanted>,
}

/// What the thread has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Names, each with the life of the container that was asked for.
    Names(Vec<(u64, ContainerNames)>),
    /// All that the kubelet has promised.
    Promised(Vec<Promise>),
    /// All containers of this request have been asked for once.
    Asked { revision: u64 },
}

/// The thread, seen from outside. It ends with this.
pub(crate) struct RuntimeNames {
    requests: watch::Sender<WantedNames>,
    found: mpsc::Receiver<Found>,
    asked: Option<u64>,
}

impl RuntimeNames {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread, or no epoll instance, to give.
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

    /// Informs the thread which containers have no names. Costs nothing while they stay the same.
    pub(crate) fn want(&self, known: &Names) {
        let revision = known.revision();
        if self.requests.borrow().revision != revision {
            let containers = share(known.nameless().map(Wanted::from));
            // The receiver is gone where the thread is, and then nobody is asked.
            let _ = self.requests.send(WantedNames { revision, containers });
        }
    }

    /// Whether every container without names has been asked for at least once since it appeared.
    pub(crate) fn is_settled(&self) -> bool {
        self.requests.is_closed() || self.asked == Some(self.requests.borrow().revision)
    }

    /// What the thread has found: waits for it. Never, where the thread is gone.
    ///
    /// Dropped while it waits, it has taken nothing.
    pub(crate) async fn next(&mut self) -> Found {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// What has been found as an input of the pipeline, if it is one; `known` is what the pipeline knows now.
    pub(crate) fn take(&mut self, found: Found, known: &Names) -> Option<Input> {
        match found {
            Found::Asked { revision } => {
                self.asked = Some(revision);
                None
            }
            Found::Promised(promised) => Some(Input::Promised(promised)),
            Found::Names(names) => {
                // Since it was asked for, the container may have ended and its id be another's.
                let names = names.into_iter().filter(|(life, names)| known.lacks(&names.key(), *life));
                Some(Input::Names(names.map(|(_, names)| names).collect()))
            }
        }
    }
}

impl Wanted {
    fn key(&self) -> ContainerKey {
        (self.of_user, self.id.clone())
    }
}

/// As many of these as are asked for at a time.
fn share(wanted: impl Iterator<Item = Wanted>) -> Vec<Wanted> {
    let mut of_users = BTreeMap::<u32, usize>::new();
    let has_room = |wanted: &Wanted| {
        let Some(user) = wanted.user else { return true };
        let own = of_users.entry(user).or_default();
        *own += 1;
        *own <= MOST_OF_USER
    };
    wanted.filter(has_room).take(MOST_WANTED).collect()
}

impl From<Nameless<'_>> for Wanted {
    fn from(nameless: Nameless<'_>) -> Self {
        let Nameless { container, cgroup, life } = nameless;
        let user = cgroup.and_then(slice_user);
        Self { id: container.id.clone(), runtime: container.runtime.clone(), user, of_user: container.of_user, life }
    }
}

/// The user in whose slice a path is: `/user.slice/user-1000.slice/…` (systemd-logind.service(8)). Root's runtimes are the machine's, and
/// what a container calls its groups says nothing.
fn slice_user(cgroup: &str) -> Option<u32> {
    let (user, _) = cgroup.strip_prefix("/user.slice/user-")?.split_once(".slice/")?;
    user.parse().ok().filter(|user| *user != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_containers_leave_room_for_others() {
        let wanted =
            |number: usize, user| Wanted { id: format!("{number:04x}"), runtime: None, user, of_user: None, life: 1 };
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
