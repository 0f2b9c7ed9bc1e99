//! Sockets of container runtimes: the runtimes' defaults, or those the user names.

use std::path::PathBuf;

use super::exchange::EngineSocket;

/// Default sockets of Docker (dockerd(8), `--host`) and of Podman's compatible API
/// (podman-system-service(1)).
const DOCKER: &str = "/run/docker.sock";
const PODMAN: &str = "/run/podman/podman.sock";

/// Default sockets of the Container Runtime Interface: containerd and CRI-O (their configuration
/// manuals), cri-dockerd, and containerd as shipped with k3s and RKE2, k0s and MicroK8s.
const CRI: [&str; 6] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];

/// Directory of users' own engines, each in a subdirectory named by the uid (`XDG_RUNTIME_DIR`;
/// pam_systemd(8)).
const OF_USERS: &str = "/run/user";

/// Default socket of the kubelet (Kubernetes' documentation, "Monitoring device plugin resources").
const KUBELET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// Sockets named by the user. A kind without any uses the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeSockets {
    /// Sockets of Docker, or of Podman's Docker-compatible API.
    pub(crate) docker: Vec<PathBuf>,
    /// Sockets of Kubernetes runtimes.
    pub(crate) cri: Vec<PathBuf>,
    /// Socket of the kubelet's pod resources.
    pub(crate) kubelet: Option<PathBuf>,
}

/// Sockets to ask for names, by runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Engines {
    docker: Vec<EngineSocket>,
    podman: Vec<EngineSocket>,
    cri: Vec<EngineSocket>,
    /// Directory of users' own engines, if these are asked, too: a subdirectory for each uid.
    of_users: Option<PathBuf>,
}

/// Protocol of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// Docker's HTTP API.
    Docker,
    /// The Container Runtime Interface.
    Cri,
}

impl RuntimeSockets {
    pub(super) fn engines(&self) -> Engines {
        let or_usual = |paths: &[PathBuf], usual: &[&str]| -> Vec<EngineSocket> {
            let usual = || usual.iter().map(|path| well_known(path)).collect();
            if paths.is_empty() { usual() } else { paths.iter().cloned().map(named).collect() }
        };
        let (docker, podman) = (or_usual(&self.docker, &[DOCKER]), or_usual(&self.docker, &[PODMAN]));
        let cri = or_usual(&self.cri, &CRI);
        Engines { docker, podman, cri, of_users: self.docker.is_empty().then(|| PathBuf::from(OF_USERS)) }
    }

    /// Returns every socket that may be asked, with a description of its server; users' own are not
    /// included.
    pub(crate) fn places(&self) -> Vec<(&'static str, PathBuf)> {
        let Engines { docker, podman, cri, .. } = self.engines();
        let kinds = [("Docker", docker), ("Podman", podman), ("a Kubernetes runtime", cri)];
        let mut places: Vec<(&'static str, PathBuf)> = Vec::new();
        for (what, place) in
            kinds.into_iter().flat_map(|(what, of_kind)| of_kind.into_iter().map(move |place| (what, place)))
        {
            if !places.iter().any(|(_, known)| *known == place.path) {
                places.push((what, place.path));
            }
        }
        places.push(("the kubelet", self.kubelet().path));
        places
    }

    pub(super) fn kubelet(&self) -> EngineSocket {
        self.kubelet.clone().map_or_else(|| well_known(KUBELET), named)
    }
}

impl Engines {
    /// Replaces the directory of users' own engines.
    #[cfg(test)]
    pub(super) fn with_users(self, folder: PathBuf) -> Self {
        Self { of_users: Some(folder), ..self }
    }

    /// Returns the engines to ask for a container, most likely first. `runtime` is the runtime
    /// named in its cgroup path, `user` the owner of its slice.
    pub(super) fn of(&self, runtime: Option<&str>, user: Option<u32>) -> Vec<(Language, EngineSocket)> {
        let own = |socket: &str| {
            let (folder, user) = (self.of_users.as_ref()?, user?);
            let path = folder.join(user.to_string()).join(socket);
            Some(vec![EngineSocket { path, well_known: true, user: Some(user) }])
        };
        let docker = || own("docker.sock").unwrap_or_else(|| self.docker.clone());
        let podman = || own("podman/podman.sock").unwrap_or_else(|| self.podman.clone());
        let speaking =
            |language: Language, places: Vec<EngineSocket>| places.into_iter().map(move |place| (language, place));
        match runtime {
            Some("docker") => speaking(Language::Docker, docker()).collect(),
            Some("podman") => speaking(Language::Docker, podman()).collect(),
            Some("containerd" | "cri-o") => speaking(Language::Cri, self.cri.clone()).collect(),
            // A bare id: Kubernetes without systemd's cgroups, or Docker with a custom parent
            // cgroup.
            None => speaking(Language::Cri, self.cri.clone()).chain(speaking(Language::Docker, docker())).collect(),
            Some(_) => Vec::new(),
        }
    }
}

fn well_known(path: &str) -> EngineSocket {
    EngineSocket { path: PathBuf::from(path), well_known: true, user: None }
}

fn named(path: PathBuf) -> EngineSocket {
    EngineSocket { path, well_known: false, user: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(asked: &[(Language, EngineSocket)]) -> Vec<&str> {
        asked.iter().filter_map(|(_, place)| place.path.to_str()).collect()
    }

    #[test]
    fn a_path_that_names_its_runtime_has_only_that_asked() {
        let engines = RuntimeSockets::default().engines();
        assert_eq!(paths(&engines.of(Some("docker"), None)), [DOCKER]);
        assert_eq!(paths(&engines.of(Some("podman"), None)), [PODMAN]);
        assert_eq!(paths(&engines.of(Some("containerd"), None)), CRI);
        assert_eq!(engines.of(Some("lxc"), None), []);
        assert_eq!(paths(&engines.of(None, None)).len(), CRI.len() + 1);
    }

    #[test]
    fn for_a_users_container_only_that_users_own_engine_is_asked() {
        let engines = RuntimeSockets::default().engines();
        let asked = engines.of(Some("podman"), Some(1000));
        assert_eq!(paths(&asked), ["/run/user/1000/podman/podman.sock"]);
        assert_eq!(asked[0].1.user, Some(1000));
        assert_eq!(paths(&engines.of(Some("docker"), Some(1000))), ["/run/user/1000/docker.sock"]);
    }

    #[test]
    fn named_engine_sockets_replace_the_defaults_of_their_kind() {
        let sockets = RuntimeSockets { docker: vec!["/a".into()], cri: vec!["/b".into()], kubelet: Some("/c".into()) };
        let engines = sockets.engines();
        for runtime in ["docker", "podman"] {
            assert_eq!(paths(&engines.of(Some(runtime), Some(1000))), ["/a"], "{runtime}");
        }
        assert_eq!(paths(&engines.of(None, None)), ["/b", "/a"]);
        assert_eq!(sockets.kubelet(), named("/c".into()));
    }
}
