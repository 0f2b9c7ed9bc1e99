//! A containerd of the test's own with its CRI plugin, and pods created as a kubelet does. It has
//! no network, and no state that outlives the test.

mod cri;

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use self::cri::{ContainerConfig, CriImageSpec, CriKeyValue, CriMount, PodSandboxConfig};
use crate::enclosure::{Cgroups, Enclosure, machine_proc, need_program, workload_in_group};
use crate::workload::Pipes;
use crate::{SimulatedGpu, SimulatedWorkload, rootfs};

/// Name of the image in a registry that does not exist.
pub const IMAGE: &str = "registry.test/memwatch:1";

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    // Dropped before the directory, which containerd's processes use.
    enclosure: Enclosure,
    directory: TempDir,
    machine: String,
}

/// Names of a pod with one container.
#[derive(Clone, Copy, Debug)]
pub struct TestPodNames<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub pod: &'a str,
    /// Id of the pod in the API server.
    pub uid: &'a str,
    /// Name of the container in the pod.
    pub container: &'a str,
}

impl Containerd {
    /// Starts containerd. Ignores the test if it is not installed.
    ///
    /// # Panics
    /// When containerd does not start.
    pub fn start(gpu: &SimulatedGpu, cgroups: Cgroups) -> Self {
        ["containerd", "ctr", "runc"].into_iter().for_each(need_program);
        let directory = TempDir::with_prefix("memwatch-cri-").expect("a temporary directory");
        let path = directory.path().to_str().expect("a plain path");
        fs::write(directory.path().join("config.toml"), configuration(path))
            .expect("a file in the temporary directory");
        let script = "mount -t tmpfs tmpfs /run && exec containerd --config \"$1/config.toml\"";
        let enclosure = Enclosure::start(directory.path(), cgroups, script, &["kubepods/burstable", "kubepods"]);
        let machine = gpu.directory().to_str().expect("a plain path").to_owned();
        let mut containerd = Self { enclosure, directory, machine };
        let socket = containerd.socket();
        containerd.enclosure.wait_until(|| {
            let mut version = Command::new("ctr");
            version.args(["--address", &socket, "version"]).stdout(Stdio::null()).stderr(Stdio::null());
            version.status().is_ok_and(|status| status.success())
        });
        containerd.import(gpu);
        containerd
    }

    /// Returns the path of containerd's socket as a command-line argument.
    ///
    /// # Panics
    /// When the temporary directory's path is not UTF-8.
    pub fn socket(&self) -> String {
        self.directory.path().join("containerd.sock").to_str().expect("a plain path").to_owned()
    }

    fn import(&self, gpu: &SimulatedGpu) {
        let root = rootfs::make(gpu, self.directory.path());
        let archive = rootfs::archive(&root, self.directory.path(), IMAGE);
        let mut import = Command::new("ctr");
        import.args(["--address", &self.socket(), "--namespace", "k8s.io", "images", "import"]).arg(archive);
        let output = import.output().expect("ctr starts");
        assert!(output.status.success(), "{output:#?}");
    }

    /// Creates a pod with one container that runs the workload, as a kubelet does. Labels are left
    /// out if `labels` is false.
    ///
    /// Returns the workload, its process id in the machine's namespace, and the container's id.
    ///
    /// # Panics
    /// When the runtime refuses.
    pub fn run(&mut self, names: TestPodNames<'_>, labels: bool) -> (SimulatedWorkload, u32, String) {
        let mut pod = PodSandboxConfig::on_the_machine_network(names.pod, names.uid, names.namespace);
        let group = format!("kubepods/burstable/pod{}", names.uid);
        pod.linux.get_or_insert_default().cgroup_parent = format!("/{group}");
        self.enclosure.owns_group(group);
        let pipes = Pipes::make(&self.directory.path().join(names.pod));
        let mut container = self.workload_container(names.container, &pipes);
        if labels {
            let all = [("pod.name", names.pod), ("pod.namespace", names.namespace), ("pod.uid", names.uid)];
            let all = all.into_iter().chain([("container.name", names.container)]);
            container.labels = all.map(|(key, value)| (format!("io.kubernetes.{key}"), value.to_owned())).collect();
        }
        let id = cri::start(&self.socket(), &pod, container);
        let workload = SimulatedWorkload::behind(pipes);
        let tgid = workload_in_group(&id);
        (workload, tgid, id)
    }

    fn workload_container(&self, name: &str, pipes: &Pipes) -> ContainerConfig {
        let mount =
            |host: &str, container: &str| CriMount { container_path: container.to_owned(), host_path: host.to_owned() };
        let proc = machine_proc(self.directory.path());
        let text = |path: &std::path::Path| path.to_str().expect("a plain path").to_owned();
        let variable = |key: &str, value: &str| CriKeyValue { key: key.to_owned(), value: value.as_bytes().to_vec() };
        let command = format!("exec {} </pipes/questions >/pipes/answers", rootfs::WORKLOAD);
        ContainerConfig {
            metadata: Some(cri::CriContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(CriImageSpec { image: IMAGE.to_owned() }),
            command: vec!["/bin/sh".to_owned(), "-c".to_owned(), command],
            envs: vec![
                variable("LD_LIBRARY_PATH", rootfs::LIBRARIES),
                variable("GPUSIM_LEDGER", "/machine/ledger"),
                variable("GPUSIM_PROC", "/machine-proc"),
            ],
            mounts: vec![
                mount(&self.machine, rootfs::MACHINE),
                mount(&text(&proc), "/machine-proc"),
                mount(&text(pipes.directory()), "/pipes"),
            ],
            ..ContainerConfig::default()
        }
    }
}

fn configuration(directory: &str) -> String {
    format!(
        r#"
version = 2
root = "{directory}/root"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  disable_tcp_service = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"#
    )
}
