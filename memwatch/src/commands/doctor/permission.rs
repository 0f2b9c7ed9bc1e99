//! Checks of the user, the capabilities and the environment.

use std::path::Path;

use super::check::{Barrier, Check, State, Topic};
use super::privilege::{BPF, Capability, DAC_READ_SEARCH, PERFMON, Place, Privilege, SYS_ADMIN, SYS_PTRACE, quoted};
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
        Place::Host if privilege.uid == 0 => ways.push(format!(
            "root was stripped of it: whoever starts memwatch must leave it {} (systemd: CapabilityBoundingSet=, AmbientCapabilities=)",
            names.join(", ")
        )),
        Place::Host => {}
        place => ways.push(container_way(place, &names)),
    }
    ways
}

fn way_to_the_hosts_users(place: Place) -> &'static str {
    match place {
        Place::Kubernetes => "pod spec: hostUsers: true",
        Place::Podman => "podman run: as root (sudo), without --userns",
        Place::Docker => "docker run: add --userns=host, with a daemon that is not rootless",
        Place::Host => "run memwatch outside of unshare, bubblewrap or rootless containers",
    }
}

/// Returns a hint where a security module logs a refusal.
pub(crate) fn security_module_line() -> String {
    "look for the refusal of a security module: ausearch -m avc -ts recent; dmesg | grep -iE 'apparmor|selinux|lockdown'".to_owned()
}

/// Returns what to add to the container's options.
fn container_way(place: Place, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| name.trim_start_matches("cap_").to_uppercase()).collect();
    match place {
        Place::Kubernetes => {
            format!(
                "pod spec: hostPID: true; container: securityContext: {{capabilities: {{add: [{}]}}}}",
                names.join(", ")
            )
        }
        Place::Host | Place::Docker | Place::Podman => {
            let command = if place == Place::Podman { "podman" } else { "docker" };
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
    Check::new(Topic::Permission, "user", State::Ok, fact)
}

fn judge_capabilities(privilege: &Privilege) -> Vec<Check> {
    let admin = privilege.classic.then_some(SYS_ADMIN);
    let needed = NEEDED.into_iter().chain(admin).map(|capability| (capability, State::Missing(Barrier::Permission)));
    let wanted = WANTED.map(|capability| (capability, State::Degraded));
    let judge = |(capability, without): (Capability, State)| {
        if privilege.is_in_foreign_user_namespace() {
            let fact = format!("counts in the host's user namespace only: {}", capability.purpose);
            return Check::new(Topic::Permission, capability.name, State::NotChecked, fact);
        }
        if privilege.has(capability) {
            return Check::new(Topic::Permission, capability.name, State::Ok, capability.purpose);
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
        let missing = State::Missing(Barrier::Permission);
        let check = Check::new(Topic::Permission, "user_namespace", missing, fact);
        checks.push(check.fix(way_to_the_hosts_users(privilege.place)));
    }
    let pids = |state, fact| Check::new(Topic::Permission, PID_NAMESPACE, state, fact);
    checks.push(match privilege.initial_pid_namespace {
        Some(true) => pids(State::Ok, "the host's: every process can be named"),
        Some(false) => pids(
            State::Missing(Barrier::Permission),
            "a container's: its process ids are not the ones that the kernel and NVML report",
        )
        .fix(match privilege.place {
            Place::Kubernetes => "pod spec: hostPID: true".to_owned(),
            Place::Podman => "podman run: add --pid=host".to_owned(),
            Place::Docker => "docker run: add --pid=host".to_owned(),
            Place::Host => format!("sudo nsenter --target 1 --pid --mount {} doctor", privilege.program()),
        }),
        None => pids(State::NotChecked, "/proc/self/ns/pid cannot be examined"),
    });
    checks
}

/// Checks for a container; `None` without signs of one.
fn judge_place(privilege: &Privilege) -> Option<Check> {
    let fact = match (privilege.place, privilege.initial_pid_namespace) {
        (Place::Host, _) => return None,
        (place, Some(true)) => format!("signs of {}, with the host's process ids", place.name()),
        (place, _) => format!("signs of {}", place.name()),
    };
    Some(Check::new(Topic::Permission, "container", State::Ok, fact))
}

/// Checks that sudo finds the program; `None` if this user does not use sudo.
fn judge_sudo(privilege: &Privilege) -> Option<Check> {
    let in_cargo = privilege.program.parent().is_some_and(|parent| parent.ends_with(".cargo/bin"));
    let is_concerned = privilege.uid != 0 || privilege.sudo || in_cargo;
    if privilege.is_found_by_sudo() || !is_concerned || privilege.place != Place::Host {
        return None;
    }
    let directory = privilege.program.parent().unwrap_or(Path::new("/"));
    let fact = format!("does not look in {}: `sudo memwatch` is not found", quoted(directory));
    let check = Check::new(Topic::Permission, "sudo", State::Degraded, fact)
        .fix(format!("sudo {} doctor", privilege.program()));
    Some(check.fix(format!("sudo ln -s {} /usr/local/bin/memwatch", privilege.program())))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Barrier, Check, Place, Privilege, State, checks, is_classic, ways};
    use crate::commands::doctor::privilege::tests::{root, user};

    /// CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
    const FOUR: u64 = 1 << 39 | 1 << 38 | 1 << 19 | 1 << 2;

    /// The privilege on a kernel before 6.6.
    fn old(privilege: Privilege) -> Privilege {
        Privilege { classic: true, ..privilege }
    }

    fn failing(checks: &[Check]) -> Vec<(&'static str, State)> {
        checks.iter().filter(|check| check.state != State::Ok).map(|check| (check.id, check.state)).collect()
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
        assert_eq!(failing(&checks(&old(four))), [("cap_sys_admin", State::Missing(Barrier::Permission))]);
    }

    #[test]
    fn an_ordinary_user_is_reported_both_command_lines() {
        let checks = checks(&user());
        let missing = State::Missing(Barrier::Permission);
        let expected = [
            ("cap_bpf", missing),
            ("cap_perfmon", missing),
            ("cap_sys_ptrace", State::Degraded),
            ("cap_dac_read_search", State::Degraded),
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
        assert_eq!(stripped(Place::Docker), docker);
        assert!(stripped(Place::Podman).starts_with("podman run: add --pid=host"));
        assert!(stripped(Place::Kubernetes).contains("add: [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH]"));
        assert!(stripped(Place::Host).contains("CapabilityBoundingSet"));
    }

    #[test]
    fn foreign_namespaces_are_no_place_to_watch_from() {
        let inside = Privilege {
            initial_user_namespace: Some(false),
            initial_pid_namespace: Some(false),
            place: Place::Docker,
            ..root()
        };
        let all = checks(&inside);
        let missing: Vec<_> =
            all.iter().filter(|check| check.state.barrier().is_some()).map(|check| check.id).collect();
        assert_eq!(missing, ["user_namespace", "pid_namespace"]);
        let capability = all.iter().find(|check| check.id == "cap_bpf").expect("the check");
        assert_eq!(capability.state, State::NotChecked);
        assert_eq!(ways(&inside), ["docker run: add --userns=host, with a daemon that is not rootless"]);
    }

    #[test]
    fn a_binary_in_a_home_directory_is_reported_to_those_who_use_sudo() {
        let program = PathBuf::from("/home/ann/.cargo/bin/memwatch");
        let ids = |privilege: &Privilege| failing(&checks(privilege));
        let at_home = Privilege { program: program.clone(), effective: u64::MAX, ..user() };
        assert_eq!(ids(&at_home), [("sudo", State::Degraded)]);
        assert_eq!(ids(&Privilege { program: PathBuf::from("/opt/memwatch/memwatch"), ..root() }), []);
        let through_sudo = Privilege { program, sudo: true, ..root() };
        let all = checks(&through_sudo);
        assert_eq!(
            all.last().expect("a check").fixes[1],
            "sudo ln -s /home/ann/.cargo/bin/memwatch /usr/local/bin/memwatch"
        );
    }
}
