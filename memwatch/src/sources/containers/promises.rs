//! The kubelet's promises, asked for now and then, and told when they change.

use std::time::Duration;

use memwatch_core::owner::Promise;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Found;
use super::exchange::{Place, Refusal};
use super::pod_resources;

/// The kubelet lets a hundred such questions through in a second, for all who ask (KEP-606).
const EVERY: Duration = Duration::from_secs(10);

/// After so many questions without an answer the promises are no longer believed: a kubelet restarts in less.
const MOST_FAILURES: u32 = 6;

/// Asks until nobody listens.
pub(super) async fn tell(kubelet: Place, found: mpsc::Sender<Found>) {
    let mut told: Vec<Promise> = Vec::new();
    let mut failures = 0;
    loop {
        let answer = pod_resources::ask(&kubelet).await;
        match &answer {
            Ok(_) => failures = 0,
            Err(Refusal::Absent) => failures += 1,
            Err(Refusal::Unknown(why) | Refusal::Failed(why)) => {
                failures += 1;
                log::info!("the kubelet at {}: {}", kubelet.path.display(), why.escape_debug());
            }
        }
        let promises = match answer {
            Ok(promises) => promises,
            Err(_) if failures < MOST_FAILURES => told.clone(),
            Err(_) => Vec::new(),
        };
        if promises != told {
            told.clone_from(&promises);
            if found.send(Found::Promised(promises)).await.is_err() {
                return;
            }
        }
        sleep(EVERY).await;
    }
}
