//! User, capabilities and environment of this process: read once, so that all checks are functions
//! of values.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::sources::namespace;

/// A capability that memwatch uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    /// Number in include/uapi/linux/capability.h.
    bit: u32,
    /// Name in `setcap` and `capsh`.
    pub(crate) name: &'static str,
    /// What memwatch does with it.
    pub(crate) purpose: &'static str,
}

/// Permits loading programs and maps.
pub(crate) const BPF: Capability = Capability { bit: 39, name: "cap_bpf", purpose: "loads the kernel half" };
/// Permits attaching tracing programs, and programs that read memory.
pub(crate) const PERFMON: Capability = Capability { bit: 38, name: "cap_perfmon", purpose: "attaches the probes" };
/// Permits reading `/proc/PID/maps` and following `/proc/PID/root` of other users' processes.
pub(crate) const SYS_PTRACE: Capability =
    Capability { bit: 19, name: "cap_sys_ptrace", purpose: "finds the libraries of other users' processes" };
/// Permits opening files in directories that this user may not enter.
pub(crate) const DAC_READ_SEARCH: Capability =
    Capability { bit: 2, name: "cap_dac_read_search", purpose: "opens libraries in closed directories" };
/// Implies [`BPF`], [`PERFMON`] and [`CHECKPOINT_RESTORE`], and is the only one that permits
/// classic uprobes (Linux before 6.6).
pub(crate) const SYS_ADMIN: Capability =
    Capability { bit: 21, name: "cap_sys_admin", purpose: "attaches probes without uprobe_multi (Linux before 6.6)" };

/// Permits opening a library through `/proc/PID/map_files`, the only way to one that was replaced
/// under a running process.
pub(crate) const CHECKPOINT_RESTORE: Capability =
    Capability { bit: 40, name: "cap_checkpoint_restore", purpose: "opens libraries that were replaced while in use" };

/// Mode of a seccomp filter in `/proc/PID/status`.
const SECCOMP_FILTER: u64 = 2;

/// Runtime of memwatch's container, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerRuntime {
    /// No sign of a container.
    Host,
    /// `/.dockerenv` exists.
    Docker,
    /// `/run/.containerenv` exists.
    Podman,
    /// The environment variables of a pod exist.
    Kubernetes,
}

impl ContainerRuntime {
    /// Returns the name on screen.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "no container",
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Kubernetes => "Kubernetes",
        }
    }
}

/// User, capabilities and environment of this process.
#[derive(Clone, Debug)]
pub(crate) struct Privilege {
    /// Effective user id.
    pub(crate) uid: u32,
    /// Effective capabilities, one bit each.
    pub(crate) effective: u64,
    /// Whether a seccomp filter is active.
    pub(crate) seccomp_filter: bool,
    /// Whether this is the initial user namespace, the only one where capabilities count; `None` if
    /// `/proc` does not say.
    pub(crate) initial_user_namespace: Option<bool>,
    /// Whether this is the initial pid namespace, so that process ids here are the kernel's; `None`
    /// if `/proc` does not say.
    pub(crate) initial_pid_namespace: Option<bool>,
    /// Container runtime.
    pub(crate) place: ContainerRuntime,
    /// Path of this program.
    pub(crate) program: PathBuf,
    /// Whether the process was started through `sudo`.
    pub(crate) sudo: bool,
    /// Whether probes are classic uprobes here, which require [`SYS_ADMIN`].
    pub(crate) classic: bool,
}

impl Privilege {
    /// Reads all fields. Capabilities that cannot be read count as not granted.
    pub(crate) fn of_this_process(classic: bool) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // SAFETY: geteuid has no preconditions.
        let uid = unsafe { libc::geteuid() };
        Self {
            uid,
            effective: status_field(&status, "CapEff:", 16).unwrap_or(0),
            seccomp_filter: status_field(&status, "Seccomp:", 10) == Some(SECCOMP_FILTER),
            initial_user_namespace: namespace::is_initial("user"),
            initial_pid_namespace: namespace::is_initial("pid"),
            place: place(|path| Path::new(path).exists(), |name| std::env::var_os(name).is_some()),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("memwatch")),
            sudo: std::env::var_os("SUDO_UID").is_some(),
            classic,
        }
    }

    /// Whether a capability is effective on this machine, directly or through one that implies it.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        let set = |one: Capability| self.effective >> one.bit & 1 == 1;
        let stood_in = [BPF, PERFMON, CHECKPOINT_RESTORE].contains(&capability) && set(SYS_ADMIN);
        !self.is_in_foreign_user_namespace() && (set(capability) || stood_in)
    }

    /// Whether the capabilities count only in the user namespace of a container or sandbox.
    pub(crate) fn is_in_foreign_user_namespace(&self) -> bool {
        self.initial_user_namespace == Some(false)
    }

    /// Returns this program for a command line, quoted if a shell needs it.
    pub(crate) fn program(&self) -> String {
        quoted(&self.program)
    }

    /// Whether `sudo memwatch` finds the program: it is in a directory that sudo searches by
    /// default on every distribution.
    pub(crate) fn is_found_by_sudo(&self) -> bool {
        let directories = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin"];
        let named = self.program.file_name() == Some(OsStr::new("memwatch"));
        named && self.program.parent().is_some_and(|parent| directories.iter().any(|known| parent == Path::new(known)))
    }
}

/// Quotes a path as one word of a POSIX shell's command line.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text;
    }
    format!("'{}'", text.escape_debug().to_string().replace("\\'", "'\\''"))
}

fn status_field(status: &str, name: &str, radix: u32) -> Option<u64> {
    let text = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(text.trim(), radix).ok()
}

/// Detects the container runtime. Checks for Kubernetes first, because a pod also has the marks of
/// its runtime.
fn place(exists: impl Fn(&str) -> bool, has_variable: impl Fn(&str) -> bool) -> ContainerRuntime {
    if has_variable("KUBERNETES_SERVICE_HOST") {
        ContainerRuntime::Kubernetes
    } else if exists("/run/.containerenv") {
        ContainerRuntime::Podman
    } else if exists("/.dockerenv") {
        ContainerRuntime::Docker
    } else {
        ContainerRuntime::Host
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::{Path, PathBuf};

    use super::{BPF, ContainerRuntime, PERFMON, Privilege, SYS_ADMIN, SYS_PTRACE, place, quoted, status_field};

    /// Root on a host, with all capabilities.
    pub(crate) fn root() -> Privilege {
        Privilege {
            uid: 0,
            effective: u64::MAX,
            seccomp_filter: false,
            initial_user_namespace: Some(true),
            initial_pid_namespace: Some(true),
            place: ContainerRuntime::Host,
            program: PathBuf::from("/usr/bin/memwatch"),
            sudo: false,
            classic: false,
        }
    }

    /// An ordinary user on a host.
    pub(crate) fn user() -> Privilege {
        Privilege { uid: 1000, effective: 0, ..root() }
    }

    #[test]
    fn the_status_file_yields_hexadecimal_and_decimal_fields() {
        let status = "Name:\tCapEff:\nCapEff:\t000001fffeffffff\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(status_field(status, "CapEff:", 16), Some(0x01ff_feff_ffff));
        assert_eq!(status_field(status, "Seccomp:", 10), Some(2));
        assert_eq!(status_field("CapEff:\tzz", "CapEff:", 16), None);
        assert_eq!(status_field("", "CapEff:", 16), None);
    }

    #[test]
    fn sys_admin_capability_implies_bpf_and_perfmon_only() {
        let admin = Privilege { effective: 1 << 21, ..user() };
        assert!(admin.has(BPF) && admin.has(PERFMON) && admin.has(SYS_ADMIN) && !admin.has(SYS_PTRACE));
        let inside = Privilege { initial_user_namespace: Some(false), ..root() };
        assert!(!inside.has(BPF) && !inside.has(SYS_PTRACE));
        let four = Privilege { effective: 1 << 39 | 1 << 38 | 1 << 19 | 1 << 2, ..user() };
        assert!(four.has(BPF) && four.has(PERFMON) && four.has(SYS_PTRACE) && !four.has(SYS_ADMIN));
    }

    #[test]
    fn a_pod_is_distinguished_from_the_runtime_below_it() {
        assert_eq!(place(|path| path == "/run/.containerenv", |_| true), ContainerRuntime::Kubernetes);
        assert_eq!(place(|path| path == "/run/.containerenv", |_| false), ContainerRuntime::Podman);
        assert_eq!(place(|path| path == "/.dockerenv", |_| false), ContainerRuntime::Docker);
        assert_eq!(place(|_| false, |_| false), ContainerRuntime::Host);
    }

    #[test]
    fn sudo_looks_in_system_directories_only() {
        let found = |program: &str| Privilege { program: PathBuf::from(program), ..user() }.is_found_by_sudo();
        assert!(found("/usr/local/bin/memwatch") && found("/usr/bin/memwatch"));
        assert!(!found("/home/ann/.cargo/bin/memwatch") && !found("/usr/bin/memwatch-0.1"));
    }

    #[test]
    fn a_path_is_one_word_of_a_command_line() {
        assert_eq!(quoted(Path::new("/usr/bin/memwatch")), "/usr/bin/memwatch");
        assert_eq!(quoted(Path::new("/home/a b/memwatch")), "'/home/a b/memwatch'");
        assert_eq!(quoted(Path::new("/o'n/m")), "'/o'\\''n/m'");
        assert_eq!(quoted(Path::new("/x\ny")), "'/x\\ny'");
    }
}
