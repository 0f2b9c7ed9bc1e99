//! Who is asked for which container, and when again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::owner::{ContainerKey, ContainerNames};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::exchange::{Place, Refusal};
use super::sockets::{Engines, Language};
use super::words::is_plain;
use super::{Found, Wanted, WantedNames, cri, docker};

/// Who did not answer, or did not know, is asked again after this, then after twice as long, and so on up to the longest.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// As many names are reported together: a node's first hundred containers need not wait for one another.
const TOGETHER: usize = 64;

/// As many sockets are remembered for their failures.
const MOST_RESTING: usize = 256;

/// A rest that doubles.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Instant,
    length: Duration,
}

impl Rest {
    fn after(earlier: Option<Self>, now: Instant) -> Self {
        let length = earlier.map_or(FIRST_REST, |rest| (rest.length * 2).min(LONGEST_REST));
        Self { until: now + length, length }
    }
}

/// A container that is to be asked for.
#[derive(Clone, Debug)]
struct Pending {
    wanted: Wanted,
    rest: Option<Rest>,
    named: bool,
}

/// What is known between two rounds of questions.
struct Round {
    engines: Engines,
    pending: BTreeMap<ContainerKey, Pending>,
    resting: BTreeMap<PathBuf, Rest>,
}

/// Asks until nobody listens.
pub(super) async fn ask_forever(
    engines: Engines,
    mut requests: watch::Receiver<WantedNames>,
    found: mpsc::Sender<Found>,
) {
    let mut round = Round { engines, pending: BTreeMap::new(), resting: BTreeMap::new() };
    let mut asked = None;
    loop {
        let WantedNames { revision, containers } = requests.borrow_and_update().clone();
        round.adopt(containers);
        let names = round.ask_due(&found).await;
        let mut reported = names.is_empty() || found.send(Found::Names(names)).await.is_ok();
        if asked.replace(revision) != Some(revision) {
            reported &= found.send(Found::Asked { revision }).await.is_ok();
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

impl Round {
    /// Those who are wanted from here on; of the same container, the rest goes on.
    fn adopt(&mut self, containers: Vec<Wanted>) {
        let mut before = std::mem::take(&mut self.pending);
        for wanted in containers {
            let known = before.remove(&wanted.key()).filter(|pending| pending.wanted == wanted);
            let pending = known.unwrap_or_else(|| Pending { wanted: wanted.clone(), rest: None, named: false });
            self.pending.insert(wanted.key(), pending);
        }
    }

    /// Asks for everybody who is due. What does not fit into the answer has been sent by then.
    async fn ask_due(&mut self, found: &mpsc::Sender<Found>) -> Vec<(u64, ContainerNames)> {
        let Self { engines, pending, resting } = self;
        let mut names = Vec::new();
        for pending in pending.values_mut().filter(|pending| is_due(pending)) {
            if let Some(answer) = ask(engines, resting, &pending.wanted).await {
                pending.named = true;
                let of_user = pending.wanted.of_user;
                // Of pods the machine's engines know.
                let pod = answer.pod.filter(|_| of_user.is_none());
                names.push((pending.wanted.life, ContainerNames { of_user, pod, ..answer }));
            } else {
                pending.rest = Some(Rest::after(pending.rest, Instant::now()));
            }
            if names.len() == TOGETHER && found.send(Found::Names(std::mem::take(&mut names))).await.is_err() {
                break;
            }
        }
        names
    }

    fn next_due(&self) -> Option<Instant> {
        let nameless = self.pending.values().filter(|pending| !pending.named);
        nameless.filter_map(|pending| pending.rest.map(|rest| rest.until)).min()
    }
}

fn is_due(pending: &Pending) -> bool {
    !pending.named && pending.rest.is_none_or(|rest| rest.until <= Instant::now())
}

/// Asks one engine after the other, but for the ones that have not answered lately.
async fn ask(engines: &Engines, resting: &mut BTreeMap<PathBuf, Rest>, wanted: &Wanted) -> Option<ContainerNames> {
    if !is_plain(&wanted.id) {
        return None;
    }
    for (language, place) in engines.of(wanted.runtime.as_deref(), wanted.user) {
        let rest = resting.get(&place.path).copied();
        if rest.is_some_and(|rest| rest.until > Instant::now()) {
            continue;
        }
        match ask_one(language, &place, &wanted.id).await {
            Ok(names) => {
                resting.remove(&place.path);
                return Some(names);
            }
            Err(Refusal::Unknown(why)) => {
                resting.remove(&place.path);
                log::debug!("{} does not know {}: {}", place.path.display(), wanted.id, why.escape_debug());
            }
            Err(Refusal::Absent) => {
                note_rest(resting, place.path, rest);
            }
            Err(Refusal::Failed(why)) => {
                log::info!("no names from {}: {}", place.path.display(), why.escape_debug());
                note_rest(resting, place.path, rest);
            }
        }
    }
    None
}

async fn ask_one(language: Language, place: &Place, id: &str) -> Result<ContainerNames, Refusal> {
    match language {
        Language::Docker => docker::ask(place, id).await,
        Language::Cri => cri::ask(place, id).await,
    }
}

fn note_rest(resting: &mut BTreeMap<PathBuf, Rest>, path: PathBuf, earlier: Option<Rest>) {
    let now = Instant::now();
    if resting.len() >= MOST_RESTING {
        resting.retain(|_, rest| rest.until > now);
    }
    if resting.len() < MOST_RESTING || resting.contains_key(&path) {
        resting.insert(path, Rest::after(earlier, now));
    }
}

#[cfg(test)]
mod tests;
