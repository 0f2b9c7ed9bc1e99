//! A client of the Container Runtime Interface with the calls that a pod needs. Field numbers are
//! from `pkg/apis/runtime/v1/api.proto` of kubernetes/cri-api.

use std::collections::BTreeMap;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<CriPodSandboxMetadata>,
    #[prost(message, optional, tag = "8")]
    pub(super) linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CriPodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    pub(super) cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub(super) security_context: Option<SecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(super) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(super) network: i32,
    #[prost(int32, tag = "2")]
    pub(super) processes: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<CriContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(super) image: Option<CriImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(super) command: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) envs: Vec<CriKeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(super) mounts: Vec<CriMount>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(super) labels: BTreeMap<String, String>,
    #[prost(message, optional, tag = "15")]
    pub(super) linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxContainerConfig {
    #[prost(message, optional, tag = "2")]
    pub(super) security_context: Option<ContainerSecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerSecurityContext {
    #[prost(message, optional, tag = "3")]
    pub(super) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CriContainerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(uint32, tag = "2")]
    pub(super) attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CriImageSpec {
    #[prost(string, tag = "1")]
    pub(super) image: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CriKeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CriMount {
    #[prost(string, tag = "1")]
    pub(super) container_path: String,
    #[prost(string, tag = "2")]
    pub(super) host_path: String,
}

#[derive(Clone, PartialEq, Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<PodSandboxConfig>,
}

/// An id, the only field of several messages.
#[derive(Clone, PartialEq, Message)]
struct Id {
    #[prost(string, tag = "1")]
    id: String,
}

/// Values of `NamespaceMode`: `NODE` and `CONTAINER`.
const NODE: i32 = 2;
const CONTAINER: i32 = 1;

fn namespaces() -> NamespaceOption {
    NamespaceOption { network: NODE, processes: CONTAINER }
}

impl PodSandboxConfig {
    /// Returns the configuration of a pod that needs no network plugin.
    pub(super) fn on_the_machine_network(name: &str, uid: &str, namespace: &str) -> Self {
        let text = |text: &str| text.to_owned();
        let metadata = CriPodSandboxMetadata { name: text(name), uid: text(uid), namespace: text(namespace) };
        let security_context = Some(SecurityContext { namespace_options: Some(namespaces()) });
        let linux = LinuxPodSandboxConfig { security_context, ..LinuxPodSandboxConfig::default() };
        Self { metadata: Some(metadata), linux: Some(linux) }
    }
}

/// Creates a pod and its container, starts the container and returns its id.
pub(super) fn start(socket: &str, pod: &PodSandboxConfig, mut container: ContainerConfig) -> String {
    let security_context = Some(ContainerSecurityContext { namespace_options: Some(namespaces()) });
    container.linux = Some(LinuxContainerConfig { security_context });
    let sandbox: Id = call(socket, "RunPodSandbox", &RunPodSandboxRequest { config: Some(pod.clone()) });
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox.id,
        config: Some(container),
        sandbox_config: Some(pod.clone()),
    };
    let created: Id = call(socket, "CreateContainer", &request);
    let _: Id = call(socket, "StartContainer", &created);
    created.id
}

fn call<A: Message + Default>(socket: &str, method: &str, request: &impl Message) -> A {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    let body = Full::new(Bytes::from([&[0], length.as_slice(), &message].concat()));
    let request = Request::post(format!("http://localhost/runtime.v1.RuntimeService/{method}"))
        .version(Version::HTTP_2)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(body)
        .expect("a plain request");
    runtime.block_on(async {
        let stream = TokioIo::new(UnixStream::connect(socket).await.expect("the runtime listens"));
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        let response = sender.send_request(request).await.expect("an answer");
        let early = response.headers().clone();
        let body = response.into_body().collect().await.expect("a whole answer");
        let trailers = body.trailers().unwrap_or(&early);
        assert_eq!(trailers.get("grpc-status").map(HeaderValue::as_bytes), Some(&b"0"[..]), "{method}: {trailers:?}");
        A::decode(&body.to_bytes()[5..]).expect("a message")
    })
}
