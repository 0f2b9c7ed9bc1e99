//! Schedules the requests for container names: which engine is asked for which container, and when
//! it is retried.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::owner::{ContainerKey, ContainerNames};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::exchange::{EngineSocket, ExchangeError};
use super::sockets::{Engines, Language};
use super::words::is_plain;
use super::{NamelessContainer, RuntimeMessage, WantedNames, cri, docker};

/// First pause after a request that failed or found nothing. Doubles each time up to
/// [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Maximum number of names reported together. A node's first hundred containers need not wait for
/// one another.
const TOGETHER: usize = 64;

/// Maximum number of sockets with a pause in each queue.
const MOST_RESTING: usize = 256;

/// Maximum duration of one round with the machine's engines, and with one user's, before new
/// containers are considered.
const MACHINES_TIME: Duration = Duration::from_secs(10);
const USERS_TIME: Duration = Duration::from_secs(1);

/// An engine that takes longer to answer that a container is unknown gets a pause.
const SLOW: Duration = Duration::from_millis(250);

/// A pause that doubles.
#[derive(Clone, Copy, Debug)]
struct EnginePause {
    until: Instant,
    length: Duration,
    /// Owner of the engine; `None` for the machine's.
    user: Option<u32>,
}

impl EnginePause {
    fn after(earlier: Option<Self>, user: Option<u32>, now: Instant) -> Self {
        let length = earlier.map_or(FIRST_REST, |rest| (rest.length * 2).min(LONGEST_REST));
        Self { until: now + length, length, user }
    }
}

/// A container to request names for; `named` is set once they are found.
#[derive(Clone, Debug)]
struct PendingContainer {
    wanted: NamelessContainer,
    rest: Option<EnginePause>,
    named: bool,
}

/// State between two rounds of requests.
struct RequestRound {
    engines: Engines,
    pending: BTreeMap<ContainerKey, PendingContainer>,
    resting: BTreeMap<PathBuf, EnginePause>,
}

/// Runs rounds of requests until the receiver is dropped.
pub(super) async fn ask_forever(
    engines: Engines,
    mut requests: watch::Receiver<WantedNames>,
    found: mpsc::Sender<RuntimeMessage>,
) {
    let mut round = RequestRound { engines, pending: BTreeMap::new(), resting: BTreeMap::new() };
    let mut asked = None;
    loop {
        let WantedNames { revision, containers } = requests.borrow_and_update().clone();
        round.adopt(containers);
        let mut reported = round.ask_due(&found).await;
        if asked.replace(revision) != Some(revision) {
            reported &= found.send(RuntimeMessage::Asked { revision }).await.is_ok();
        }
        if !reported {
            return;
        }
        let due = round.next_due();
        tokio::select! {
            changed = requests.changed() => if changed.is_err() {
                return;
            },
            () = until(due) => {}
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl RequestRound {
    /// Replaces the wanted containers. A container that was wanted before keeps its pause.
    fn adopt(&mut self, containers: Vec<NamelessContainer>) {
        let mut before = std::mem::take(&mut self.pending);
        for wanted in containers {
            let known = before.remove(&wanted.key()).filter(|pending| pending.wanted == wanted);
            let pending =
                known.unwrap_or_else(|| PendingContainer { wanted: wanted.clone(), rest: None, named: false });
            self.pending.insert(wanted.key(), pending);
        }
    }

    /// Requests the names of all due containers: all queues in parallel, each within its time.
    /// Returns whether the receiver is still open.
    async fn ask_due(&mut self, found: &mpsc::Sender<RuntimeMessage>) -> bool {
        let mut running = JoinSet::new();
        for (user, wanted) in self.queues() {
            let resting = self.resting.iter().filter(|(_, rest)| rest.user == user);
            let resting = resting.map(|(path, rest)| (path.clone(), *rest)).collect();
            let queue = Queue { user, wanted, resting };
            running.spawn(queue.ask(self.engines.clone(), found.clone()));
        }
        let mut is_heard = true;
        while let Some(asked) = running.join_next().await {
            let Ok(asked) = asked else { continue };
            is_heard &= asked.is_heard;
            self.resting.retain(|_, rest| rest.user != asked.user);
            self.resting.extend(asked.resting);
            let now = Instant::now();
            for (id, named) in asked.outcomes {
                if let Some(pending) = self.pending.get_mut(&id) {
                    pending.named = named;
                    pending.rest = (!named).then(|| EnginePause::after(pending.rest, asked.user, now));
                }
            }
        }
        is_heard
    }

    /// Returns the due containers by the owner of the engine to ask.
    fn queues(&self) -> BTreeMap<Option<u32>, Vec<NamelessContainer>> {
        let mut queues = BTreeMap::<Option<u32>, Vec<NamelessContainer>>::new();
        for PendingContainer { wanted, .. } in self.pending.values().filter(|pending| is_due(pending)) {
            let engines = self.engines.of(wanted.runtime.as_deref(), wanted.user);
            let user = engines.first().and_then(|(_, place)| place.user);
            queues.entry(user).or_default().push(wanted.clone());
        }
        queues
    }

    /// Returns when the next request is due: now, if a queue ran out of time.
    fn next_due(&self) -> Option<Instant> {
        let nameless = self.pending.values().filter(|pending| !pending.named);
        nameless.map(|pending| pending.rest.map_or_else(Instant::now, |rest| rest.until)).min()
    }
}

fn is_due(pending: &PendingContainer) -> bool {
    !pending.named && pending.rest.is_none_or(|rest| rest.until <= Instant::now())
}

/// Containers of the machine's engines or of one user's, so that a user's slow engine delays no
/// other.
struct Queue {
    user: Option<u32>,
    wanted: Vec<NamelessContainer>,
    resting: BTreeMap<PathBuf, EnginePause>,
}

/// Result of a queue.
struct QueueResult {
    user: Option<u32>,
    resting: BTreeMap<PathBuf, EnginePause>,
    /// Requested containers and whether names were found. Missing containers are still due.
    outcomes: Vec<(ContainerKey, bool)>,
    is_heard: bool,
}

impl Queue {
    async fn ask(self, engines: Engines, found: mpsc::Sender<RuntimeMessage>) -> QueueResult {
        let Self { user, wanted, resting } = self;
        let time = if user.is_some() { USERS_TIME } else { MACHINES_TIME };
        let end = Instant::now() + time;
        let mut asked = QueueResult { user, resting, outcomes: Vec::new(), is_heard: true };
        let mut names = Vec::new();
        for wanted in wanted {
            let answer = ask(&engines, &mut asked.resting, &wanted).await;
            asked.outcomes.push((wanted.key(), answer.is_some()));
            names.extend(answer.map(|answer| (wanted.life, ContainerNames { of_user: wanted.of_user, ..answer })));
            let is_over = Instant::now() >= end;
            if names.len() == TOGETHER || is_over {
                asked.is_heard = send(&found, &mut names).await;
            }
            if is_over || !asked.is_heard {
                return asked;
            }
        }
        asked.is_heard = send(&found, &mut names).await;
        asked
    }
}

/// Sends the names, if there are any. Returns whether the receiver is still open.
async fn send(found: &mpsc::Sender<RuntimeMessage>, names: &mut Vec<(u64, ContainerNames)>) -> bool {
    names.is_empty() || found.send(RuntimeMessage::Names(std::mem::take(names))).await.is_ok()
}

/// Asks one engine after the other, except those with a pause.
async fn ask(
    engines: &Engines,
    resting: &mut BTreeMap<PathBuf, EnginePause>,
    wanted: &NamelessContainer,
) -> Option<ContainerNames> {
    if !is_plain(&wanted.id) {
        return None;
    }
    for (language, place) in engines.of(wanted.runtime.as_deref(), wanted.user) {
        let rest = resting.get(&place.path).copied();
        if rest.is_some_and(|rest| rest.until > Instant::now()) {
            continue;
        }
        let begin = Instant::now();
        match ask_one(language, &place, &wanted.id).await {
            Ok(names) => {
                resting.remove(&place.path);
                return Some(names);
            }
            Err(ExchangeError::Unknown(why)) => {
                log::debug!("{} does not know {}: {}", place.path.display(), wanted.id, why.escape_debug());
                // A user's engine should know the user's containers, and no engine takes long to
                // answer that one is unknown; otherwise it gets a pause.
                if place.user.is_some() || begin.elapsed() > SLOW {
                    note_rest(resting, place, rest);
                } else {
                    resting.remove(&place.path);
                }
            }
            Err(ExchangeError::Absent) => {
                note_rest(resting, place, rest);
            }
            Err(ExchangeError::Failed(why)) => {
                log::info!("no names from {}: {}", place.path.display(), why.escape_debug());
                note_rest(resting, place, rest);
            }
        }
    }
    None
}

async fn ask_one(language: Language, place: &EngineSocket, id: &str) -> Result<ContainerNames, ExchangeError> {
    match language {
        Language::Docker => docker::ask(place, id).await,
        Language::Cri => cri::ask(place, id).await,
    }
}

fn note_rest(resting: &mut BTreeMap<PathBuf, EnginePause>, place: EngineSocket, earlier: Option<EnginePause>) {
    let EngineSocket { path, user, .. } = place;
    let now = Instant::now();
    if resting.len() >= MOST_RESTING {
        resting.retain(|_, rest| rest.until > now);
    }
    if resting.len() < MOST_RESTING || resting.contains_key(&path) {
        resting.insert(path, EnginePause::after(earlier, user, now));
    }
}

#[cfg(test)]
mod tests;
