use std::path::Path;

use super::*;
use crate::sources::containers::cri::{
    ContainerMetadata, ContainerStatus, ContainerStatusResponse, CriContainer, ListContainersResponse,
    PodSandboxMetadata, PodSandboxStatus, PodSandboxStatusResponse,
};
use crate::sources::containers::listener::{GrpcAnswer, Listener};
use crate::sources::containers::sockets::RuntimeSockets;

const ID: &str = "0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b";

fn wanted(runtime: Option<&'static str>, life: u64) -> NamelessContainer {
    NamelessContainer { id: ID.to_owned(), runtime: runtime.map(Into::into), user: None, of_user: None, life }
}

fn engines(docker: &[&Path], cri: &[&Path]) -> Engines {
    let own = |paths: &[&Path]| paths.iter().map(|path| path.to_path_buf()).collect();
    RuntimeSockets { docker: own(docker), cri: own(cri), kubelet: None }.engines()
}

async fn asked(engines: &Engines, wanted: &NamelessContainer) -> Option<ContainerNames> {
    ask(engines, &mut BTreeMap::new(), wanted).await
}

fn called(name: &str) -> String {
    format!(r#"{{"Id":"{ID}","Name":"/{name}","Config":{{"Image":"ml:7"}}}}"#)
}

#[tokio::test]
async fn a_docker_container_has_its_name_from_docker() {
    let docker = Listener::reporting(&called("train"));
    let names = asked(&engines(&[&docker.path()], &[]), &wanted(Some("docker"), 1)).await.unwrap();
    assert_eq!((names.name.as_deref(), names.image.as_deref()), (Some("train"), Some("ml:7")));
}

/// Returns a runtime with one container in one pod. The container has these labels.
fn runtime(labels: &'static [(&'static str, &'static str)]) -> Listener {
    Listener::calls(move |method| match method.rsplit('/').next() {
        Some("ContainerStatus") => {
            let metadata = Some(ContainerMetadata { name: "main".to_owned() });
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let status = ContainerStatus { id: ID.to_owned(), metadata, labels, image: None };
            GrpcAnswer::of(&ContainerStatusResponse { status: Some(status) })
        }
        Some("ListContainers") => {
            let listed = CriContainer { id: ID.to_owned(), pod_sandbox_id: "77".to_owned() };
            GrpcAnswer::of(&ListContainersResponse { containers: vec![listed] })
        }
        Some("PodSandboxStatus") => {
            let name = |text: &str| text.to_owned();
            let metadata = PodSandboxMetadata { name: name("sandbox-0"), uid: name("u"), namespace: name("test") };
            GrpcAnswer::of(&PodSandboxStatusResponse { status: Some(PodSandboxStatus { metadata: Some(metadata) }) })
        }
        _ => GrpcAnswer::refusal("12"),
    })
}

#[tokio::test]
async fn a_pods_container_has_its_names_from_the_kubelets_labels() {
    let runtime = runtime(&[
        ("io.kubernetes.pod.name", "train-0"),
        ("io.kubernetes.pod.namespace", "ml"),
        ("io.kubernetes.pod.uid", "8712f785"),
        ("io.kubernetes.container.name", "worker"),
    ]);
    let names = asked(&engines(&[], &[&runtime.path()]), &wanted(Some("containerd"), 1)).await.unwrap();
    let pod = names.pod.unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("ml", "train-0"));
    assert_eq!((pod.container.as_deref(), names.name.as_deref()), (Some("worker"), Some("main")));
}

#[tokio::test]
async fn without_the_kubelets_labels_the_pod_is_asked_for() {
    let runtime = runtime(&[]);
    let names = asked(&engines(&[], &[&runtime.path()]), &wanted(Some("containerd"), 1)).await.unwrap();
    let pod = names.pod.unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("test", "sandbox-0", "u"));
    assert_eq!(pod.container.as_deref(), Some("main"));
}

#[tokio::test]
async fn container_id_without_a_runtime_is_queried_at_every_engine() {
    let runtime = Listener::calls(|_| GrpcAnswer::refusal("5"));
    let docker = Listener::reporting(&called("train"));
    let names = asked(&engines(&[&docker.path()], &[&runtime.path()]), &wanted(None, 1)).await;
    assert_eq!(names.unwrap().name.as_deref(), Some("train"));
    assert_eq!(runtime.asked(), 1);
}

#[tokio::test]
async fn hung_container_engine_is_not_queried_again_and_does_not_block_others() {
    let (hung, docker) = (Listener::saying("", true), Listener::reporting(&called("train")));
    let engines = engines(&[&hung.path(), &docker.path()], &[]);
    let mut resting = BTreeMap::new();
    for _ in 0..3 {
        let names = ask(&engines, &mut resting, &wanted(Some("docker"), 1)).await;
        assert_eq!(names.unwrap().name.as_deref(), Some("train"));
    }
    assert_eq!(hung.asked(), 1);
    assert_eq!(resting.len(), 1);
}

#[tokio::test]
async fn engine_pause_grows_to_a_maximum_and_ends_with_an_answer() {
    let now = Instant::now();
    let mut rest = EnginePause::after(None, None, now);
    assert_eq!(rest.length, FIRST_REST);
    for _ in 0..20 {
        rest = EnginePause::after(Some(rest), None, now);
    }
    assert_eq!(rest.length, LONGEST_REST);
    let docker = Listener::reporting(&called("train"));
    let mut resting = BTreeMap::from([(docker.path(), EnginePause { until: now, length: LONGEST_REST, user: None })]);
    assert!(ask(&engines(&[&docker.path()], &[]), &mut resting, &wanted(Some("docker"), 1)).await.is_some());
    assert_eq!(resting.len(), 0);
}

#[tokio::test]
async fn an_id_that_means_something_in_a_path_is_asked_for_nowhere() {
    let docker = Listener::reporting(&called("train"));
    let hostile = NamelessContainer { id: "../../../images/json?".to_owned(), ..wanted(Some("docker"), 1) };
    assert_eq!(asked(&engines(&[&docker.path()], &[]), &hostile).await, None);
    assert_eq!(docker.asked(), 0);
}

#[tokio::test]
async fn a_container_is_asked_for_once_and_another_of_its_id_again() {
    let docker = Listener::reporting(&called("train"));
    let (requests, receiver) = watch::channel(WantedNames { revision: 1, containers: vec![wanted(Some("docker"), 1)] });
    let (sender, mut found) = mpsc::channel(4);
    let task = tokio::spawn(ask_forever(engines(&[&docker.path()], &[]), receiver, sender));
    let lives = |found: Option<RuntimeMessage>| match found {
        Some(RuntimeMessage::Names(names)) => names.into_iter().map(|(life, _)| life).collect::<Vec<_>>(),
        other => panic!("names were expected, not {other:?}"),
    };
    assert_eq!(lives(found.recv().await), [1]);
    assert_eq!(found.recv().await, Some(RuntimeMessage::Asked { revision: 1 }));
    // A second container has appeared.
    let other = NamelessContainer { id: "no id".to_owned(), ..wanted(None, 2) };
    let both = vec![wanted(Some("docker"), 1), other];
    requests.send(WantedNames { revision: 2, containers: both }).expect("somebody asks");
    assert_eq!(found.recv().await, Some(RuntimeMessage::Asked { revision: 2 }));
    // The first container has ended, and its id is reused.
    requests.send(WantedNames { revision: 3, containers: vec![wanted(Some("docker"), 3)] }).expect("somebody asks");
    assert_eq!(lives(found.recv().await), [3]);
    assert_eq!(docker.asked(), 2);
    drop(requests);
    task.await.expect("it ends when nobody requests anything");
}

/// Returns the socket of a listener as this user's own engine.
fn of_user(listener: &Listener) -> EngineSocket {
    // SAFETY: geteuid has no preconditions.
    EngineSocket { user: Some(unsafe { libc::geteuid() }), ..listener.place() }
}

#[tokio::test]
async fn of_a_users_own_engine_only_name_and_image_are_believed() {
    let labels =
        r#"{"io.kubernetes.pod.name":"train-0","io.kubernetes.pod.namespace":"ml","io.kubernetes.pod.uid":"u"}"#;
    let body = format!(r#"{{"Id":"{ID}","Name":"/mine","Config":{{"Image":"ml:7","Labels":{labels}}}}}"#);
    let engine = Listener::reporting(&body);
    let names = docker::ask(&of_user(&engine), ID).await.unwrap();
    assert_eq!((names.name.as_deref(), names.image.as_deref(), names.pod), (Some("mine"), Some("ml:7"), None));
    let names = docker::ask(&engine.place(), ID).await.unwrap();
    assert_eq!(names.pod.map(|pod| pod.name).as_deref(), Some("train-0"));
}

#[tokio::test]
async fn a_users_engine_that_hangs_delays_no_other_container() {
    let (hung, docker) = (Listener::saying("", true), Listener::reporting(&called("train")));
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let users = tempfile::tempdir().expect("a temporary directory");
    let own = users.path().join(user.to_string());
    std::fs::create_dir(&own).expect("a folder");
    std::os::unix::fs::symlink(hung.path(), own.join("docker.sock")).expect("a link");
    let engines = engines(&[&docker.path()], &[]).with_users(users.path().to_path_buf());
    let of_alice = (0..50).map(|number| NamelessContainer {
        id: format!("{number:064x}"),
        user: Some(user),
        ..wanted(Some("docker"), 1)
    });
    let containers = of_alice.chain([wanted(Some("docker"), 2)]).collect();
    let (requests, receiver) = watch::channel(WantedNames { revision: 1, containers });
    let (sender, mut found) = mpsc::channel(4);
    let task = tokio::spawn(ask_forever(engines, receiver, sender));
    let first = found.recv().await;
    assert!(matches!(&first, Some(RuntimeMessage::Names(names)) if names[0].0 == 2), "{first:?}");
    // All containers have been looked up, although a single one of the fifty was enough to find
    // that the engine does not answer.
    assert_eq!(found.recv().await, Some(RuntimeMessage::Asked { revision: 1 }));
    assert_eq!(hung.asked(), 1);
    drop(requests);
    task.await.expect("it ends when nobody requests anything");
}
