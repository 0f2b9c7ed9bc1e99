//! Reads a container's names from Docker, or from Podman's Docker-compatible API: `GET
//! /containers/{id}/json` (Docker Engine API, "Inspect a container", the same in all versions since
//! 1.24; Podman's documentation, podman-system-service(1)).

use std::collections::BTreeMap;

use memwatch_core::owner::ContainerNames;
use serde::Deserialize;

use super::exchange::{EngineSocket, ExchangeError, get};
use super::words::{name, pod_in};

/// Maximum size of a description. Those with many mounts and variables have tens of kilobytes.
const MOST_BYTES: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerContainer {
    id: String,
    name: Option<String>,
    config: Option<Config>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    image: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

/// Asks an engine for the names of a container.
pub(super) async fn ask(engine: &EngineSocket, id: &str) -> Result<ContainerNames, ExchangeError> {
    let body = get(engine, &format!("/containers/{id}/json"), MOST_BYTES).await?;
    let names = read(id, &body)?;
    // A user's own engine may answer anything. A false container name harms no other user, but a
    // false pod would.
    Ok(if engine.user.is_some() { ContainerNames { pod: None, ..names } } else { names })
}

fn read(id: &str, body: &[u8]) -> Result<ContainerNames, ExchangeError> {
    let container: DockerContainer =
        serde_json::from_slice(body).map_err(|error| ExchangeError::Failed(error.to_string()))?;
    // The engine also accepts names and id prefixes, and a container's name may be another one's
    // id.
    if container.id != id {
        return Err(ExchangeError::Unknown("the engine returned another container".to_owned()));
    }
    let config = container.config.as_ref();
    Ok(ContainerNames {
        of_user: None,
        id: container.id,
        name: container.name.and_then(|text| name(text.trim_start_matches('/'))),
        image: config.and_then(|config| name(config.image.as_deref()?)),
        // Set by kubelets that use Docker (cri-dockerd).
        pod: config.and_then(|config| pod_in(config.labels.as_ref()?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_image_and_pod_are_read_and_all_else_is_left() {
        let body = br#"{"Id":"0a","Name":"/train","State":{"Pid":7},"Config":{"Image":"ml:7","Env":["SECRET=1"],
            "Labels":{"io.kubernetes.pod.name":"train-0","io.kubernetes.pod.namespace":"ml","io.kubernetes.pod.uid":"u",
            "io.kubernetes.container.name":"main"}}}"#;
        let names = read("0a", body).unwrap();
        assert_eq!((names.name.as_deref(), names.image.as_deref()), (Some("train"), Some("ml:7")));
        let pod = names.pod.unwrap();
        assert_eq!((pod.name.as_str(), pod.container.as_deref()), ("train-0", Some("main")));
    }

    #[test]
    fn docker_missing_fields_are_none() {
        let bare = ContainerNames { id: "0a".to_owned(), ..ContainerNames::default() };
        assert_eq!(read("0a", br#"{"Id":"0a"}"#), Ok(bare.clone()));
        assert_eq!(read("0a", br#"{"Id":"0a","Name":"/","Config":{"Image":"","Labels":null}}"#), Ok(bare));
    }

    #[test]
    fn a_container_that_is_only_named_so_is_not_the_one() {
        assert!(matches!(read("0a", br#"{"Id":"0b","Name":"/0a"}"#), Err(ExchangeError::Unknown(_))));
    }

    #[test]
    fn docker_answer_that_is_not_a_container_is_a_failure() {
        for body in [b"".as_slice(), b"[]", b"{\"Id\":7}", b"{\"Id\":\"0a\",\"Name\":\"\xff\"}"] {
            assert!(matches!(read("0a", body), Err(ExchangeError::Failed(_))), "{body:?}");
        }
    }
}
