//! What the path of one control group reports: containers, pods, Slurm jobs, services and sessions, by the names that their managers give
//! to groups. Names are read component by component, from the outside in; the innermost of its kind counts.
//!
//! Whoever may make groups may give them any name: a path says what its maker wants it to say.

use std::borrow::Cow;

use super::slurm;
use super::{Container, Pod, SlurmJob, is_number};

/// Hex digits of an id that OCI runtimes' callers make (docker, containerd's CRI, CRI-O, podman).
const ID_HEX_DIGITS: usize = 64;

/// `PREFIX-ID` and `PREFIX-ID.scope` are the group of a container: of the systemd cgroup drivers of these runtimes, of podman's cgroupfs driver, of
/// CRI-O's. With a colon in place of the dash: containerd with systemd's notation given to its cgroupfs driver.
const PREFIXES: [(&str, &str); 6] = [
    ("crio", "cri-o"),
    ("cri-containerd", "containerd"),
    ("docker", "docker"),
    ("libpod-payload", "podman"),
    ("libpod", "podman"),
    ("nerdctl", "nerdctl"),
];

/// `FOLDER/ID` is the group of a container: docker's cgroupfs driver, containerd's CRI where a container has no parent.
const FOLDERS: [(&str, &str); 2] = [("docker", "docker"), ("k8s.io", "containerd")];

/// `PREFIX-ID` is not the container but who looks after it: conmon, of CRI-O and podman.
const BESIDE: [&str; 2] = ["crio-conmon", "libpod-conmon"];

/// What a path reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) container: Option<Container>,
    pub(super) pod: Option<Pod>,
    pub(super) slurm: Option<SlurmJob>,
    /// Inside its container or job, where it is in one.
    pub(super) unit: Option<String>,
    pub(super) session: Option<String>,
    /// The user below whose manager it is: what is below that has the names that the user gives it.
    of_user: Option<u32>,
    /// How many things it reports, of nested ones each.
    reported: u32,
}

impl Place {
    /// Reads a path, below the root of its hierarchy or of a cgroup namespace (`/../…`, cgroup_namespaces(7)).
    pub(super) fn of(path: &str) -> Self {
        let parts = parts(path);
        let mut place = Self::default();
        let mut qos = None;
        let mut at = 0;
        while at < parts.len() {
            qos = qos_of(parts[at]).or(qos);
            at += place.pass(&parts, at, qos).max(1);
        }
        place
    }

    /// How much it reports: a container, pod or job more than any service or session, those more than nothing; then the deeper.
    pub(super) fn weight(&self) -> (u8, u32) {
        let of_workload = self.container.is_some() || self.pod.is_some() || self.slurm.is_some();
        let of_system = self.unit.is_some() || self.session.is_some();
        (if of_workload { 2 } else { u8::from(of_system) }, self.reported)
    }

    /// What another path of the same process reports besides.
    pub(super) fn add(&mut self, other: Self) {
        if self.container.is_none() && self.pod.is_none() {
            (self.container, self.pod) = (other.container, other.pod);
        }
        self.slurm = self.slurm.take().or(other.slurm);
    }

    /// Takes in what begins at a component; how many components that was.
    fn pass(&mut self, parts: &[&str], at: usize, qos: Option<&'static str>) -> usize {
        let is_of_root = self.of_user.is_none();
        if let Some((job, length)) = slurm::job(&parts[at..]).filter(|_| is_of_root) {
            self.enter(1 + u32::from(job.step.is_some()) + u32::from(job.task.is_some()));
            self.slurm = Some(job);
            return length;
        }
        if let Some((container, length)) = container(&parts[at..]) {
            self.enter(1);
            self.container = Some(Container { of_user: self.of_user, ..container });
            return length;
        }
        let part = parts[at];
        if is_beside(&parts[at..]) {
            self.pod = None;
            return parts.len();
        }
        if let Some((uid, qos)) = pod(part, qos).filter(|_| is_of_root) {
            self.enter(1);
            self.pod = Some(Pod { uid, qos: qos.map(Cow::Borrowed), ..Pod::default() });
        } else if part.len() > ".service".len() && part.ends_with(".service") {
            self.reported += 1;
            self.unit = Some(self.of_its_user(part));
            self.of_user = self.of_user.or_else(|| user_of_manager(parts[..at].last()?, part));
        } else if part.starts_with("session-") && without_scope(part) != part {
            self.reported += 1;
            self.session = Some(self.of_its_user(part));
        }
        1
    }

    /// A name that its user has given: it is nobody else's of that name.
    fn of_its_user(&self, name: &str) -> String {
        self.of_user.map_or_else(|| name.to_owned(), |uid| format!("user-{uid}/{name}"))
    }

    /// From here on inside: services around it are its surroundings, not its own.
    fn enter(&mut self, reported: u32) {
        self.reported += reported;
        self.unit = None;
        self.session = None;
    }
}

/// The user whose manager has this group, `user-N.slice/user@N.service` (systemd.special(7), "user@.service"): it is the user who makes groups below.
fn user_of_manager(slice: &str, service: &str) -> Option<u32> {
    let uid = service.strip_prefix("user@")?.strip_suffix(".service")?;
    (slice.strip_prefix("user-")?.strip_suffix(".slice")? == uid).then(|| uid.parse().ok())?
}

/// The components, with `SLICE:PREFIX:ID` taken apart.
fn parts(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != "..") {
        match part.rsplit_once(':') {
            Some((before, id)) if is_id(without_scope(id)) => parts.extend(before.split(':').chain([id])),
            _ => parts.push(part),
        }
    }
    parts
}

/// What a container's group says of it: its runtime, its id, and in how many components.
type Named<'a> = (Option<&'static str>, Cow<'a, str>, usize);

/// The container whose group begins here, and how many components name it.
fn container(parts: &[&str]) -> Option<(Container, usize)> {
    let next = parts.get(1).copied();
    let (runtime, id, length): Named<'_> = match (parts[0], next) {
        ("buildkit", Some(id)) if is_build(id) => (Some("buildkit"), id.into(), 2),
        ("ecs", _) => {
            let (id, length) = task(parts)?;
            (Some("ecs"), id.into(), length)
        }
        ("lxc" | "lxc.payload", Some(name)) => (Some("lxc"), name.into(), 2),
        ("machine.slice", Some(unit)) => {
            let inside = parts.get(2).is_some_and(|part| *part == "payload");
            (Some("nspawn"), machine(unit, inside)?, 2)
        }
        (part, next) => match part.strip_prefix("lxc.payload.").filter(|name| !name.is_empty()) {
            Some(name) => (Some("lxc"), name.into(), 1),
            None => oci(part, next)?,
        },
    };
    let container = Container { runtime: runtime.map(Cow::Borrowed), id: id.into_owned(), ..Container::default() };
    Some((container, length))
}

fn oci<'a>(part: &'a str, next: Option<&'a str>) -> Option<Named<'a>> {
    let name = without_scope(part);
    for (prefix, runtime) in PREFIXES {
        let own = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
        if let Some(id) = own.filter(|id| is_id(id)) {
            return Some((Some(runtime), id.into(), 1));
        }
    }
    if let Some(id) = next.map(without_scope).filter(|id| is_id(id)) {
        let mut known = PREFIXES.iter().chain(&FOLDERS);
        if let Some((_, runtime)) = known.find(|(folder, _)| *folder == part) {
            return Some((Some(runtime), id.into(), 2));
        }
    }
    // The kubelet's cgroupfs driver, and docker's with a parent of the caller's choice, name the group by the id alone.
    is_id(part).then(|| (None, part.into(), 1))
}

/// Who looks after a container and is in a group beside it: conmon, LXC's monitor, nspawn's supervisor.
fn is_beside(parts: &[&str]) -> bool {
    let name = without_scope(parts[0]);
    let of_oci = |prefix: &&str| name.strip_prefix(*prefix).is_some_and(|rest| rest.starts_with(['-', ':']));
    BESIDE.iter().any(of_oci) || name == "lxc.monitor" || name.starts_with("lxc.monitor.")
}

/// Amazon ECS: `ecs/[CLUSTER/]TASK/CONTAINER`.
fn task<'a>(parts: &[&'a str]) -> Option<(&'a str, usize)> {
    let is_task = |part: &str| is_hex(part, 32);
    let is_member = |part: &str| {
        is_id(part) || part.split_once('-').is_some_and(|(task, number)| is_task(task) && is_number(number))
    };
    let at = (1..=2).find(|at| parts.get(*at).is_some_and(|part| is_task(part)))?;
    parts.get(at + 1).filter(|part| is_member(part)).map(|part| (*part, at + 2))
}

/// systemd-nspawn(1): a template's instance, or a scope of `systemd-machined` whose container is in `payload`.
fn machine(unit: &str, has_payload: bool) -> Option<Cow<'_, str>> {
    if let Some(name) = unit.strip_prefix("systemd-nspawn@").and_then(|rest| rest.strip_suffix(".service")) {
        return (!name.is_empty()).then(|| name.into());
    }
    let name = unit.strip_prefix("machine-")?.strip_suffix(".scope").filter(|name| has_payload && !name.is_empty())?;
    // systemd-escape(1) of what a machine's name may hold: letters, digits, dots and dashes (hostname(7)).
    Some(name.replace("\\x2d", "-").into())
}

/// The pod whose group this is, and its class: `podUID`, `kubepods-burstable-podUID.slice`, behind any parents' names.
fn pod(part: &str, qos: Option<&'static str>) -> Option<(String, Option<&'static str>)> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let (before, uid) = name.rsplit_once("pod")?;
    if !(before.is_empty() || before.ends_with('-')) || !is_pod_uid(uid) {
        return None;
    }
    let own = before.strip_suffix('-').and_then(qos_of);
    Some((uid.replace('_', "-"), own.or(qos)))
}

/// The class of the pods in a group.
fn qos_of(part: &str) -> Option<&'static str> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let is = |word: &str| name == word || name.strip_suffix(word).is_some_and(|before| before.ends_with('-'));
    let named = ["burstable", "besteffort"].into_iter().find(|word| is(word));
    named.or_else(|| is("kubepods").then_some("guaranteed"))
}

fn without_scope(part: &str) -> &str {
    part.strip_suffix(".scope").unwrap_or(part)
}

fn is_id(text: &str) -> bool {
    is_hex(text, ID_HEX_DIGITS)
}

/// BuildKit's ids: 25 digits to the base of 36 (its `identity` package).
fn is_build(text: &str) -> bool {
    text.len() == 25 && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

/// A UUID with dashes or, in systemd's slices, underscores; of a static pod the MD5 of its file.
fn is_pod_uid(text: &str) -> bool {
    let dash = |byte: u8| matches!(byte, b'-' | b'_');
    let is_uuid = || {
        let mut bytes = text.bytes().enumerate();
        bytes.all(|(at, byte)| if matches!(at, 8 | 13 | 18 | 23) { dash(byte) } else { is_hex_digit(byte) })
    };
    is_hex(text, 32) || (text.len() == 36 && is_uuid())
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(is_hex_digit)
}

fn is_hex_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}
