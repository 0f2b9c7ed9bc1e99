//! Polls the kubelet's promises and reports them when they change.

use std::time::Duration;

use memwatch_core::owner::Promise;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::RuntimeMessage;
use super::exchange::{EngineSocket, ExchangeError};
use super::pod_resources;

/// Poll interval. The kubelet accepts a hundred such requests per second from all clients together
/// (KEP-606).
pub(super) const EVERY: Duration = Duration::from_secs(10);

/// Number of failed requests after which the promises are dropped. A kubelet restarts in less time.
const MOST_FAILURES: u32 = 6;

/// Polls until the receiver is dropped, with a pause of `every`.
pub(super) async fn report(kubelet: EngineSocket, every: Duration, found: mpsc::Sender<RuntimeMessage>) {
    let mut reported: Vec<Promise> = Vec::new();
    let mut failures = 0;
    loop {
        let answer = pod_resources::ask(&kubelet).await;
        match &answer {
            Ok(_) => failures = 0,
            Err(ExchangeError::Absent) => failures += 1,
            Err(ExchangeError::Unknown(why) | ExchangeError::Failed(why)) => {
                failures += 1;
                log::info!("the kubelet at {}: {}", kubelet.path.display(), why.escape_debug());
            }
        }
        let promises = match answer {
            Ok(promises) => promises,
            Err(_) if failures < MOST_FAILURES => reported.clone(),
            Err(_) => Vec::new(),
        };
        if promises != reported {
            reported.clone_from(&promises);
            if found.send(RuntimeMessage::Promised(promises)).await.is_err() {
                return;
            }
        }
        sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::sources::containers::listener::{GrpcAnswer, Listener};
    use crate::sources::containers::pod_resources::{
        ContainerDevices, ContainerResources, ListPodResourcesResponse, PodResources,
    };

    fn answer(device: &str) -> GrpcAnswer {
        let devices =
            vec![ContainerDevices { resource_name: "nvidia.com/gpu".to_owned(), device_ids: vec![device.to_owned()] }];
        let container = ContainerResources { name: "main".to_owned(), devices, ..ContainerResources::default() };
        let pod = PodResources { name: "train-0".to_owned(), namespace: "ml".to_owned(), containers: vec![container] };
        GrpcAnswer::of(&ListPodResourcesResponse { pod_resources: vec![pod] })
    }

    fn devices(found: Option<RuntimeMessage>) -> Vec<String> {
        match found {
            Some(RuntimeMessage::Promised(promises)) => {
                promises.into_iter().flat_map(|promise| promise.devices).collect()
            }
            other => panic!("promises were expected, not {other:?}"),
        }
    }

    #[tokio::test]
    async fn pod_devices_are_reported_on_change_and_withdrawn_after_failures() {
        let question = Arc::new(AtomicUsize::new(0));
        let kubelet = Listener::calls(move |method| match question.fetch_add(1, Ordering::Relaxed) {
            0 | 1 if method == "/v1.PodResourcesLister/List" => answer("GPU-a"),
            3 | 4 => answer("GPU-b"),
            // A kubelet that restarts at the third request and ends after the fifth.
            _ => GrpcAnswer::refusal("14"),
        });
        let (sender, mut found) = mpsc::channel(1);
        let task = tokio::spawn(report(kubelet.place(), Duration::from_millis(1), sender));
        assert_eq!(devices(found.recv().await), ["GPU-a"]);
        assert_eq!(devices(found.recv().await), ["GPU-b"]);
        assert_eq!(devices(found.recv().await), Vec::<String>::new());
        assert_eq!(kubelet.asked(), 5 + usize::try_from(MOST_FAILURES).unwrap());
        task.abort();
    }
}
