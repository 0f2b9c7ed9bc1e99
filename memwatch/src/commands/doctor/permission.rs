//! Checks of the user, the capabilities and the environment.

use std::path::Path;

use super::check::{Barrier, Check, CheckState, Topic};
use super::privilege::{
    BPF, Capability, ContainerRuntime, DAC_READ_SEARCH, PERFMON, Privilege, SYS_ADMIN, SYS_PTRACE, quoted,
};
use super::system::UPROBE_MULTI;
use crate::sources::kernel::site::KernelVersion;

/// Capabilities that tracing requires.
const NEEDED: [Capability; 2] = [BPF, PERFMON];
/// Capabilities without which only some processes can be traced.
const WANTED: [Capability; 2] = [SYS_PTRACE, DAC_READ_SEARCH];

/// Whether a kernel of this release lacks `uprobe_multi`, so that probes require [`SYS_ADMIN`].
pub(crate) fn is_classic(release: &str) -> bool {
    KernelVersion::from_release(release).is_some_and(|version| version < UPROBE_MULTI)
}

/// Id of the check of process ids.
pub(crate) const PID_NAMESPACE: &str = "pid_namespace";

/// Returns all checks of permission.
pub(crate) fn checks(privilege: &Privilege) -> Vec<Check> {
    let mut checks = vec![judge_user(privilege)];
    checks.extend(judge_capabilities(privilege));
    checks.extend(judge_namespaces(privilege));
    checks.extend(judge_place(privilege));
    checks.extend(judge_sudo(privilege));
    checks
}

/// Returns ways to get the missing permissions, one line each, for this user, environment and
/// kernel.
pub(crate) fn ways(privilege: &Privilege) -> Vec<String> {
    if privilege.is_in_foreign_user_namespace() {
        return vec![way_to_the_hosts_users(privilege.place).to_owned()];
    }
    let names = names(privilege.classic);
    let mut ways = Vec::new();
    let program = privilege.program();
    if privilege.uid != 0 {
        ways.push(format!("sudo {program} doctor"));
        ways.push(format!("sudo setcap {}+ep {program}", names.join(",")));
    }
    match privilege.place {
        ContainerRuntime::Host if privilege.uid == 0 => ways.push(format!(
            "root was stripped of it: whoever starts memwatch must leave it {} (systemd: CapabilityBoundingSet=, AmbientCapabilities=)",
            names.join(", ")
        )),
        ContainerRuntime::Host => {}
        place => ways.push(container_way(place, &names)),
    }
    ways
}

fn way_to_the_hosts_users(place: ContainerRuntime) -> &'static str {
    match place {
        ContainerRuntime::Kubernetes => "pod spec: hostUsers: true",
        ContainerRuntime::Podman => "podman run: as root (sudo), without --userns",
        ContainerRuntime::Docker => "docker run: add --userns=host, with a daemon that is not rootless",
        ContainerRuntime::Host => "run memwatch outside of unshare, bubblewrap or rootless containers",
    }
}

/// Returns a hint where a security module logs a refusal.
pub(crate) fn security_module_line() -> String {
    "look for the refusal of a security module: ausearch -m avc -ts recent; dmesg | grep -iE 'apparmor|selinux|lockdown'".to_owned()
}

/// Returns what to add to the container's options.
fn container_way(place: ContainerRuntime, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| name.trim_start_matches("cap_").to_uppercase()).collect();
    match place {
        ContainerRuntime::Kubernetes => {
            format!(
                "pod spec: hostPID: true; container: securityContext: {{capabilities: {{add: [{}]}}}}",
                names.join(", ")
            )
        }
        ContainerRuntime::Host | ContainerRuntime::Docker | ContainerRuntime::Podman => {
            let command = if place == ContainerRuntime::Podman { "podman" } else { "docker" };
            format!("{command} run: add --pid=host --cap-add={}", names.join(" --cap-add="))
        }
    }
}

/// Returns the names of the capabilities to request.
fn names(classic: bool) -> Vec<&'static str> {
    let admin = classic.then_some(SYS_ADMIN);
    NEEDED.into_iter().chain(WANTED).chain(admin).map(|capability| capability.name).collect()
}

fn judge_user(privilege: &Privilege) -> Check {
    let fact = match privilege.uid {
        0 => "root".to_owned(),
        uid => format!("uid {uid}"),
    };
    Check::new(Topic::Permission, "user", CheckState::Ok, fact)
}

fn judge_capabilities(privilege: &Privilege) -> Vec<Check> {
    let admin = privilege.classic.then_some(SYS_ADMIN);
    let needed =
        NEEDED.into_iter().chain(admin).map(|capability| (capability, CheckState::Missing(Barrier::Permission)));
    let wanted = WANTED.map(|capability| (capability, CheckState::Degraded));
    let judge = |(capability, without): (Capability, CheckState)| {
        if privilege.is_in_foreign_user_namespace() {
            let fact = format!("counts in the host's user namespace only: {}", capability.purpose);
            return Check::new(Topic::Permission, capability.name, CheckState::NotChecked, fact);
        }
        if privilege.has(capability) {
            return Check::new(Topic::Permission, capability.name, CheckState::Ok, capability.purpose);
        }
        Check::new(Topic::Permission, capability.name, without, format!("not granted: {}", capability.purpose))
            .fixes(ways(privilege))
    };
    needed.chain(wanted).map(judge).collect()
}

fn judge_namespaces(privilege: &Privilege) -> Vec<Check> {
    let mut checks = Vec::new();
    if privilege.is_in_foreign_user_namespace() {
        let fact = "not the host's: the kernel grants eBPF in the host's user namespace only";
        let missing = CheckState::Missing(Barrier::Permission);
        let check = Check::new(Topic::Permission, "user_namespace", missing, fact);
        checks.push(check.fix(way_to_the_hosts_users(privilege.place)));
    }
    let pids = |state, fact| Check::new(Topic::Permission, PID_NAMESPACE, state, fact);
    checks.push(match privilege.initial_pid_namespace {
        Some(true) => pids(CheckState::Ok, "the host's: every process can be named"),
        Some(false) => pids(
            CheckState::Missing(Barrier::Permission),
            "a container's: its process ids are not the ones that the kernel and NVML report",
        )
        .fix(match privilege.place {
            ContainerRuntime::Kubernetes => "pod spec: hostPID: true".to_owned(),
            ContainerRuntime::Podman => "podman run: add --pid=host".to_owned(),
            ContainerRuntime::Docker => "docker run: add --pid=host".to_owned(),
            ContainerRuntime::Host => format!("sudo nsenter --target 1 --pid --mount {} doctor", privilege.program()),
        }),
        None => pids(CheckState::NotChecked, "/proc/self/ns/pid cannot be examined"),
    });
    checks
}

/// Checks for a container; `None` without signs of one.
fn judge_place(privilege: &Privilege) -> Option<Check> {
    let fact = match (privilege.place, privilege.initial_pid_namespace) {
        (ContainerRuntime::Host, _) => return None,
        (place, Some(true)) => format!("signs of {}, with the host's process ids", place.name()),
        (place, _) => format!("signs of {}", place.name()),
    };
    Some(Check::new(Topic::Permission, "container", CheckState::Ok, fact))
}

/// Checks that sudo finds the program; `None` if this user does not use sudo.
fn judge_sudo(privilege: &Privilege) -> Option<Check> {
    let in_cargo = privilege.program.parent().is_some_and(|parent| parent.ends_with(".cargo/bin"));
    let is_concerned = privilege.uid != 0 || privilege.sudo || in_cargo;
    if privilege.is_found_by_sudo() || !is_concerned || privilege.place != ContainerRuntime::Host {
        return None;
    }
    let directory = privilege.program.parent().unwrap_or(Path::new("/"));
    let fact = format!("does not look in {}: `sudo memwatch` is not found", quoted(directory));
    let check = Check::new(Topic::Permission, "sudo", CheckState::Degraded, fact)
        .fix(format!("sudo {} doctor", privilege.program()));
    Some(check.fix(format!("sudo ln -s {} /usr/local/bin/memwatch", privilege.program())))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Barrier, Check, CheckState, ContainerRuntime, Privilege, checks, is_classic, ways};
    use crate::commands::doctor::privilege::tests::{root, user};

    /// CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
    const FOUR: u64 = 1 << 39 | 1 << 38 | 1 << 19 | 1 << 2;

    /// The privilege on a kernel before 6.6.
    fn old(privilege: Privilege) -> Privilege {
        Privilege { classic: true, ..privilege }
    }

    fn failing(checks: &[Check]) -> Vec<(&'static str, CheckState)> {
        checks.iter().filter(|check| check.state != CheckState::Ok).map(|check| (check.id, check.state)).collect()
    }

    #[test]
    fn kernels_before_6_6_are_probed_the_classic_way() {
        assert!(is_classic("6.5.13") && is_classic("5.15.0-100-generic"));
        assert!(!is_classic("6.6.0") && !is_classic("6.18.44") && !is_classic("unknown"));
    }

    #[test]
    fn root_on_a_host_lacks_nothing() {
        assert_eq!(failing(&checks(&root())), []);
        assert_eq!(failing(&checks(&old(root()))), []);
    }

    #[test]
    fn four_capabilities_suffice_with_uprobe_multi_and_not_without() {
        let four = Privilege { effective: FOUR, ..user() };
        assert_eq!(failing(&checks(&four)), []);
        assert_eq!(failing(&checks(&old(four))), [("cap_sys_admin", CheckState::Missing(Barrier::Permission))]);
    }

    #[test]
    fn an_ordinary_user_is_reported_both_command_lines() {
        let checks = checks(&user());
        let missing = CheckState::Missing(Barrier::Permission);
        let expected = [
            ("cap_bpf", missing),
            ("cap_perfmon", missing),
            ("cap_sys_ptrace", CheckState::Degraded),
            ("cap_dac_read_search", CheckState::Degraded),
        ];
        assert_eq!(failing(&checks), expected);
        let fixes = &checks.iter().find(|check| check.id == "cap_bpf").expect("the check").fixes;
        assert_eq!(fixes[0], "sudo /usr/bin/memwatch doctor");
        let setcap = "sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep /usr/bin/memwatch";
        assert_eq!(fixes[1], setcap);
    }

    #[test]
    fn each_kind_of_container_gets_its_own_words() {
        let stripped = |place| ways(&Privilege { effective: 0, place, ..root() }).join("\n");
        let docker =
            "docker run: add --pid=host --cap-add=BPF --cap-add=PERFMON --cap-add=SYS_PTRACE --cap-add=DAC_READ_SEARCH";
        assert_eq!(stripped(ContainerRuntime::Docker), docker);
        assert!(stripped(ContainerRuntime::Podman).starts_with("podman run: add --pid=host"));
        assert!(stripped(ContainerRuntime::Kubernetes).contains("add: [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH]"));
        assert!(stripped(ContainerRuntime::Host).contains("CapabilityBoundingSet"));
    }

    #[test]
    fn foreign_namespaces_are_no_place_to_watch_from() {
        let inside = Privilege {
            initial_user_namespace: Some(false),
            initial_pid_namespace: Some(false),
            place: ContainerRuntime::Docker,
            ..root()
        };
        let all = checks(&inside);
        let missing: Vec<_> =
            all.iter().filter(|check| check.state.barrier().is_some()).map(|check| check.id).collect();
        assert_eq!(missing, ["user_namespace", "pid_namespace"]);
        let capability = all.iter().find(|check| check.id == "cap_bpf").expect("the check");
        assert_eq!(capability.state, CheckState::NotChecked);
        assert_eq!(ways(&inside), ["docker run: add --userns=host, with a daemon that is not rootless"]);
    }

    #[test]
    fn doctor_binary_in_a_home_directory_is_reported_to_sudo_users() {
        let program = PathBuf::from("/home/ann/.cargo/bin/memwatch");
        let ids = |privilege: &Privilege| failing(&checks(privilege));
        let at_home = Privilege { program: program.clone(), effective: u64::MAX, ..user() };
        assert_eq!(ids(&at_home), [("sudo", CheckState::Degraded)]);
        assert_eq!(ids(&Privilege { program: PathBuf::from("/opt/memwatch/memwatch"), ..root() }), []);
        let through_sudo = Privilege { program, sudo: true, ..root() };
        let all = checks(&through_sudo);
        assert_eq!(
            all.last().expect("a check").fixes[1],
            "sudo ln -s /home/ann/.cargo/bin/memwatch /usr/local/bin/memwatch"
        );
    }
}
