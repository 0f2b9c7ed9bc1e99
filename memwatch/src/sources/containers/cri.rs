//! Reads a container's names from a Kubernetes runtime (containerd, CRI-O, cri-dockerd):
//! `ContainerStatus` of the Container Runtime Interface, and the pod's own description if the
//! kubelet's labels are missing.
//!
//! The messages declare only the fields that are read, with the numbers of
//! `pkg/apis/runtime/v1/api.proto` of kubernetes/cri-api.

use std::collections::BTreeMap;

use memwatch_core::owner::{ContainerNames, PodNames};
use prost::Message;

use super::exchange::{EngineSocket, ExchangeError, call};
use super::words::{name, pod_in};

/// Maximum size of a container's or pod's description. Annotations may have 256 KiB (Kubernetes'
/// own limit).
const MOST_BYTES: usize = 1 << 20;

/// `ContainerStatusRequest` and `PodSandboxStatusRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerIdRequest {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "8")]
    pub(super) image: Option<ImageSpec>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(super) image: String,
    #[prost(string, tag = "18")]
    pub(super) user_specified_image: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) filter: Option<ContainerIdRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<CriContainer>,
}

/// `Container` of the interface.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CriContainer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<PodSandboxStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxStatus {
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<PodSandboxMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
}

/// Asks a runtime for the names of a container.
pub(super) async fn ask(runtime: &EngineSocket, id: &str) -> Result<ContainerNames, ExchangeError> {
    let asked = ContainerIdRequest { id: id.to_owned() };
    let answer: ContainerStatusResponse =
        call(runtime, "/runtime.v1.RuntimeService/ContainerStatus", &asked, MOST_BYTES).await?;
    let status = answer.status.filter(|status| status.id == id);
    let status = status.ok_or_else(|| ExchangeError::Unknown("the engine returned another container".to_owned()))?;
    let mut names = read(status);
    if names.pod.is_none() {
        // The container's own name is useful without the pod's.
        names.pod = ask_pod(runtime, asked, names.name.clone()).await.ok().flatten();
    }
    Ok(names)
}

fn read(status: ContainerStatus) -> ContainerNames {
    let image = status.image.unwrap_or_default();
    // Which of the two the user wrote depends on the runtime's version; the other one is a digest
    // or empty.
    let images = [image.user_specified_image, image.image];
    let stated = images.iter().find(|image| !image.is_empty() && !image.starts_with("sha256:"));
    ContainerNames {
        of_user: None,
        id: status.id,
        name: status.metadata.and_then(|metadata| name(&metadata.name)),
        image: stated.or(images.last()).and_then(|image| name(image)),
        pod: pod_in(&status.labels),
    }
}

async fn ask_pod(
    runtime: &EngineSocket,
    asked: ContainerIdRequest,
    container: Option<String>,
) -> Result<Option<PodNames>, ExchangeError> {
    let list = ListContainersRequest { filter: Some(asked) };
    let listed: ListContainersResponse =
        call(runtime, "/runtime.v1.RuntimeService/ListContainers", &list, MOST_BYTES).await?;
    let filter = list.filter.unwrap_or_default();
    let Some(found) = listed.containers.into_iter().find(|listed| listed.id == filter.id) else { return Ok(None) };
    let sandbox = ContainerIdRequest { id: found.pod_sandbox_id };
    let pod: PodSandboxStatusResponse =
        call(runtime, "/runtime.v1.RuntimeService/PodSandboxStatus", &sandbox, MOST_BYTES).await?;
    let metadata = pod.status.and_then(|status| status.metadata).unwrap_or_default();
    let names = name(&metadata.name).zip(name(&metadata.namespace));
    let pod_names =
        |(pod, namespace)| PodNames { uid: name(&metadata.uid).unwrap_or_default(), namespace, name: pod, container };
    Ok(names.map(pod_names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_with(user_specified_image: &str, image: &str) -> ContainerStatus {
        let image = ImageSpec { image: image.to_owned(), user_specified_image: user_specified_image.to_owned() };
        ContainerStatus { id: "0a".to_owned(), image: Some(image), ..ContainerStatus::default() }
    }

    #[test]
    fn the_image_is_what_a_person_wrote_where_the_runtime_still_knows() {
        let image = |specified, image| read(status_with(specified, image)).image;
        assert_eq!(image("ml:7", "sha256:77"), Some("ml:7".to_owned()));
        assert_eq!(image("", "ml:7"), Some("ml:7".to_owned()));
        assert_eq!(image("sha256:77", "ml:7"), Some("ml:7".to_owned()));
        assert_eq!(image("", "sha256:77"), Some("sha256:77".to_owned()));
        assert_eq!(image("", ""), None);
    }
}
