//! Files for clusters: the image builds and runs, and the DaemonSet requests no more than the agent
//! needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use memwatch_tests::enclosure::Cgroups;
use memwatch_tests::test;
use memwatch_tests::{Docker, Engine, PrologueShape, SimulatedGpu, rootfs};
use serde_json::Value;
use tempfile::TempDir;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn copy(file: &Path, place: &Path) {
    fs::create_dir_all(place.parent().expect("a file")).expect("a directory in the temporary one");
    fs::copy(file, place).unwrap_or_else(|error| panic!("{error}: {}", file.display()));
}

#[test(alone)]
fn the_image_is_built_from_a_binary_and_runs_it() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let docker = Docker::start(&gpu, Engine::Docker, Cgroups::Machine);
    let memwatch = PathBuf::from(gpu.memwatch(&[]).get_program());
    let context = TempDir::with_prefix("memwatch-image-").expect("a temporary directory");
    let build = |image: &str, words: &[&str], directory: &Path| {
        let directory = directory.to_str().expect("a plain path");
        let mut client = docker.client(&[&["build", "--network", "none", "-t", image], words, &[directory]].concat());
        let output = client.env("DOCKER_BUILDKIT", "0").output().expect("docker starts");
        assert!(output.status.success(), "{output:#?}");
    };
    // The smallest possible base: the libraries that the program is linked with.
    docker.import(&gpu, "shell");
    let base = context.path().join("base");
    for library in rootfs::libraries_of(&memwatch) {
        copy(&library, &base.join(library.strip_prefix("/").expect("an absolute path")));
    }
    fs::write(base.join("Dockerfile"), "FROM shell\nCOPY . /\n").expect("a file");
    build("base", &[], &base);
    let image = context.path().join("image");
    copy(&memwatch, &image.join("bin/memwatch"));
    let file = deploy().join("Dockerfile");
    build("memwatch", &["--build-arg", "BASE=base", "-f", file.to_str().expect("a plain path")], &image);
    let version = docker.ask(&["run", "--rm", "--network", "none", "memwatch", "--version"]);
    assert!(version.starts_with("memwatch "), "{version}");
    let started = docker.ask(&["inspect", "--format", "{{.Config.Entrypoint}} {{.Config.Cmd}}", "memwatch"]);
    assert_eq!(started, "[/usr/local/bin/memwatch] [agent]");
}

/// Returns the lines of the document of this kind in the DaemonSet's file, without comments.
fn document(kind: &str) -> Vec<String> {
    let text = fs::read_to_string(deploy().join("kubernetes/daemonset.yaml")).expect("it is in the tree");
    let found = text.split("\n---\n").find(|document| document.contains(&format!("\nkind: {kind}\n")));
    let lines = found.unwrap_or_else(|| panic!("no {kind}")).lines().filter(|line| !line.trim().starts_with('#'));
    lines.map(|line| line.split(" #").next().unwrap_or_default().trim_end().to_owned()).collect()
}

/// Returns the lines nested below the first line equal to `key`.
fn inner_of(lines: &[String], key: &str) -> Vec<String> {
    let at = lines.iter().position(|line| line.trim_start().trim_start_matches("- ") == key);
    let at = at.unwrap_or_else(|| panic!("no '{key}'"));
    let depth = |line: &str| line.len() - line.trim_start().len();
    // The dash of a list entry does not belong to its key.
    let column = lines[at].len() - key.len();
    let inner = lines[at + 1..].iter().take_while(|line| depth(line) > column);
    inner.cloned().collect()
}

/// Returns the lines nested below `key`, without indentation.
fn below(lines: &[String], key: &str) -> Vec<String> {
    inner_of(lines, key).iter().map(|line| line.trim().to_owned()).collect()
}

#[test(alone)]
fn network_policy_admits_only_prometheus_and_denies_agent_egress() {
    let (policy, agents) = (document("NetworkPolicy"), document("DaemonSet"));
    assert!(
        policy.contains(&"  namespace: memwatch".to_owned()) && agents.contains(&"  namespace: memwatch".to_owned())
    );
    let labels = below(&inner_of(&policy, "podSelector:"), "matchLabels:");
    assert_ne!(labels, Vec::<String>::new());
    let of_pods = below(&inner_of(&inner_of(&agents, "template:"), "metadata:"), "labels:");
    assert!(labels.iter().all(|label| of_pods.contains(label)), "{labels:?} {of_pods:?}");
    assert!(
        policy.contains(&"  policyTypes: [Ingress, Egress]".to_owned()) && policy.contains(&"  egress: []".to_owned())
    );
    let from = below(&policy, "from:");
    // A single entry: both selectors must match. With two entries, matching one of them would be
    // enough.
    assert_eq!(from.iter().filter(|line| line.starts_with("- ")).count(), 1, "{from:?}");
    for line in ["kubernetes.io/metadata.name: monitoring", "app.kubernetes.io/name: prometheus"] {
        assert!(from.iter().any(|own| own == line), "no '{line}' in {from:?}");
    }
    assert_eq!(below(&policy, "ports:"), ["- protocol: TCP", "port: metrics"]);
    assert!(agents.iter().any(|line| line.trim() == "- name: metrics"), "the port has that name");
}

#[test(alone)]
fn daemonset_has_four_capabilities_and_no_service_account_token() {
    let text = fs::read_to_string(deploy().join("kubernetes/daemonset.yaml")).expect("it is in the tree");
    let lines: Vec<&str> = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim()).collect();
    for line in [
        "hostPID: true",
        "automountServiceAccountToken: false",
        "allowPrivilegeEscalation: false",
        "readOnlyRootFilesystem: true",
        "privileged: false",
        "drop: [ALL]",
        "maxUnavailable: 10%",
        "path: /healthz",
        "path: /readyz",
        "containerPort: 9747",
        "args: [agent, --keep, --bpffs, /run/bpf, --history, /var/lib/memwatch]",
        "path: /sys/fs/bpf/memwatch",
        "memory: 512Mi",
    ] {
        assert!(lines.contains(&line), "no '{line}'");
    }
    assert!(
        !lines.iter().any(|line| line.starts_with("hostNetwork")) && !text.contains("hostIPC") && !text.contains('\t')
    );
    let from = lines.iter().position(|line| *line == "add:").expect("capabilities are added");
    let added: BTreeSet<&str> = lines[from + 1..].iter().map_while(|line| line.strip_prefix("- ")).collect();
    assert_eq!(added, BTreeSet::from(["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"]));
    // Mounts of the node are read-only, except for the agent's own directories: probes, socket and
    // history.
    let mounts: Vec<&[&str]> = lines.windows(2).filter(|pair| pair[0].starts_with("mountPath: ")).collect();
    let writable = mounts.iter().filter(|pair| pair[1] != "readOnly: true").map(|pair| pair[0]);
    let own = ["mountPath: /run/bpf/memwatch", "mountPath: /run/memwatch", "mountPath: /var/lib/memwatch"];
    assert_eq!(writable.collect::<Vec<_>>(), own);
}

/// System calls recorded with strace(1): start with probes, a scrape, the page, answers on objects
/// and code, a failed allocation, a killed agent and its successor.
const RECORDED: &str = "accept4 access arch_prctl bind bpf brk capget capset chmod clock_nanosleep clone3 close connect epoll_create1 epoll_ctl \
    epoll_wait eventfd2 execve exit exit_group fchmod fchownat fcntl fdatasync flock fstatfs ftruncate futex getdents64 getegid geteuid getpid getpriority \
    getrandom getsockname getsockopt gettid ioctl listen lseek madvise mkdir mkdirat mmap mprotect mremap munmap name_to_handle_at newfstatat openat \
    openat2 perf_event_open poll prctl pread64 prlimit64 read readlink recvfrom rename rseq rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity \
    sched_getscheduler sched_setscheduler sendto set_robust_list set_tid_address setpriority setsockopt shutdown sigaltstack socket socketpair statx uname \
    unlink unlinkat write writev";

/// What a watch for a client, and a command for an event, call besides, as recorded.
const CHILDREN: [&str; 9] = ["clone3", "dup2", "execve", "kill", "pidfd_open", "pipe2", "setpgid", "vfork", "wait4"];

#[test(alone)]
fn seccomp_profile_permits_agent_calls_and_none_that_alter_the_machine() {
    let text = fs::read_to_string(deploy().join("seccomp/memwatch.json")).expect("it is in the tree");
    let profile: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&profile["defaultAction"], &profile["defaultErrnoRet"]), (&"SCMP_ACT_ERRNO".into(), &1.into()));
    let [rule] = profile["syscalls"].as_array().expect("rules").as_slice() else { panic!("more than one rule") };
    assert_eq!(rule["action"], "SCMP_ACT_ALLOW");
    let names = rule["names"].as_array().expect("names").iter().map(|name| name.as_str().expect("a name"));
    let permitted: BTreeSet<&str> = names.collect();
    for call in RECORDED.split_whitespace().chain(CHILDREN).chain(["open_by_handle_at", "process_vm_readv", "pread64"])
    {
        assert!(permitted.contains(call), "{call} is refused");
    }
    for call in "mount umount2 move_mount fsopen pivot_root chroot setns unshare ptrace process_vm_writev init_module finit_module delete_module \
        kexec_load reboot swapon iopl ioperm settimeofday clock_settime setuid setgid keyctl add_key io_uring_setup userfaultfd personality"
        .split_whitespace()
    {
        assert!(!permitted.contains(call), "{call} is permitted");
    }
    // Besides groups, the unit allows only system calls that the profile allows too.
    let unit = fs::read_to_string(deploy().join("systemd/memwatch-agent.service")).expect("it is in the tree");
    let filters =
        unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")).flat_map(str::split_whitespace);
    let of_unit: BTreeSet<&str> = filters.filter(|name| !name.starts_with('@')).collect();
    assert_eq!(of_unit.difference(&permitted).collect::<Vec<_>>(), [] as [&&str; 0]);
}

#[test(alone)]
fn helm_chart_mounts_its_own_bpffs_directory_and_optional_runtime_sockets() {
    let values = fs::read_to_string(deploy().join("helm/memwatch/values.yaml")).expect("it is in the tree");
    for line in ["  digest: \"\"", "seccompProfile: \"\"", "    memory: 512Mi"] {
        assert!(values.lines().any(|own| own == line), "no '{line}'");
    }
    let template =
        fs::read_to_string(deploy().join("helm/memwatch/templates/daemonset.yaml")).expect("it is in the tree");
    let plain = fs::read_to_string(deploy().join("kubernetes/daemonset.yaml")).expect("it is in the tree");
    for text in [&template, &plain] {
        assert!(text.contains("path: /sys/fs/bpf/memwatch\n            type: DirectoryOrCreate"));
        assert!(
            !text.lines().any(|line| line.trim() == "path: /sys/fs/bpf" || line.trim() == "mountPath: /sys/fs/bpf")
        );
    }
    for line in [
        "{{- if .Values.runtimeDirectory }}",
        "{{- with .Values.runtimeDirectory }}",
        "{{- with .Values.kubeletPodResources }}",
    ] {
        assert!(template.lines().any(|own| own.trim() == line), "no '{line}'");
    }
}
