//! Reads the devices the kubelet has promised to the containers of its pods, used or not:
//! `v1.PodResourcesLister.List` (`pkg/apis/podresources/v1/api.proto` of kubernetes/kubelet;
//! KEP-606, and KEP-3695 for dynamic resources).

use memwatch_core::owner::Promise;
use prost::Message;

use super::exchange::{EngineSocket, ExchangeError, call};
use super::words::name;

/// Maximum size of the answer, the same as gRPC's default. A node has 110 pods by default, each
/// with some kilobytes here.
const MOST_BYTES: usize = 4 << 20;

/// Maximum number of promises, and of devices in each.
const MOST_PROMISES: usize = 4096;
const MOST_DEVICES: usize = 256;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodResourcesRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) pod_resources: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) devices: Vec<ContainerDevices>,
    #[prost(message, repeated, tag = "5")]
    pub(super) dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub(super) resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DynamicResource {
    #[prost(message, repeated, tag = "4")]
    pub(super) claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClaimResource {
    #[prost(string, tag = "2")]
    pub(super) driver_name: String,
    #[prost(string, tag = "4")]
    pub(super) device_name: String,
}

/// Asks the kubelet for all its promises of devices.
pub(super) async fn ask(kubelet: &EngineSocket) -> Result<Vec<Promise>, ExchangeError> {
    let answer: ListPodResourcesResponse =
        call(kubelet, "/v1.PodResourcesLister/List", &ListPodResourcesRequest {}, MOST_BYTES).await?;
    Ok(read(&answer))
}

/// Returns the promises in order of pods. The kubelet lists devices by NUMA node, so a container
/// may have several entries of one resource.
fn read(answer: &ListPodResourcesResponse) -> Vec<Promise> {
    let mut promises: Vec<Promise> = Vec::new();
    let containers = answer.pod_resources.iter().flat_map(|pod| pod.containers.iter().map(move |held| (pod, held)));
    for (pod, container) in containers {
        let plugins = container.devices.iter().map(|held| (held.resource_name.as_str(), held.device_ids.as_slice()));
        let claims = container.dynamic_resources.iter().flat_map(|held| &held.claim_resources);
        let claims = claims.map(|claim| (claim.driver_name.as_str(), std::slice::from_ref(&claim.device_name)));
        for (resource, devices) in plugins.chain(claims) {
            let promise = Promise {
                namespace: name(&pod.namespace).unwrap_or_default(),
                pod: name(&pod.name).unwrap_or_default(),
                container: name(&container.name).unwrap_or_default(),
                resource: name(resource).unwrap_or_default(),
                devices: Vec::new(),
            };
            add(&mut promises, promise, devices);
        }
    }
    promises
}

fn add(promises: &mut Vec<Promise>, promise: Promise, devices: &[String]) {
    let place = |of: &Promise| [&of.namespace, &of.pod, &of.container, &of.resource].map(String::clone);
    if promises.last().map(place) != Some(place(&promise)) {
        if promises.len() == MOST_PROMISES {
            return;
        }
        promises.push(promise);
    }
    let Some(Promise { devices: held, .. }) = promises.last_mut() else { return };
    held.extend(devices.iter().take(MOST_DEVICES.saturating_sub(held.len())).filter_map(|device| name(device)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
        ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    fn pod(containers: Vec<ContainerResources>) -> ListPodResourcesResponse {
        let pod = PodResources { name: "train-0".to_owned(), namespace: "ml".to_owned(), containers };
        ListPodResourcesResponse { pod_resources: vec![pod] }
    }

    #[test]
    fn pod_devices_of_one_resource_are_merged_and_dra_entries_kept_by_driver() {
        let claim = ClaimResource { driver_name: "gpu.nvidia.com".to_owned(), device_name: "gpu-3".to_owned() };
        let main = ContainerResources {
            name: "main".to_owned(),
            devices: vec![devices("nvidia.com/gpu", &["GPU-a"]), devices("nvidia.com/gpu", &["GPU-b"])],
            dynamic_resources: vec![DynamicResource { claim_resources: vec![claim] }],
        };
        let idle = ContainerResources { name: "idle".to_owned(), ..ContainerResources::default() };
        let promises = read(&pod(vec![main, idle]));
        let reported: Vec<_> =
            promises.iter().map(|promise| (promise.resource.as_str(), promise.devices.join(","))).collect();
        assert_eq!(reported, [("nvidia.com/gpu", "GPU-a,GPU-b".to_owned()), ("gpu.nvidia.com", "gpu-3".to_owned())]);
        assert!(promises.iter().all(|promise| promise.pod == "train-0" && promise.container == "main"));
    }

    #[test]
    fn pod_device_list_is_limited_to_the_machine_maximum() {
        let many: Vec<String> = (0..2000).map(|number| format!("GPU-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let twice = vec![devices("nvidia.com/gpu", &many), devices("nvidia.com/gpu", &many)];
        let main = ContainerResources { devices: twice, ..ContainerResources::default() };
        let promises = read(&pod(vec![main]));
        assert_eq!(promises.iter().map(|promise| promise.devices.len()).collect::<Vec<_>>(), [MOST_DEVICES]);
    }
}
