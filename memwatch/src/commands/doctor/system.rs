//! Checks of the kernel's build and boot options.

use std::fs;
use std::io;

use super::check::{Barrier, Check, CheckState, Topic};
use crate::sources::kernel::btf::{Btf, BtfError};
use crate::sources::kernel::load::KERNEL_BTF;
use crate::sources::kernel::site::KernelVersion;

/// Oldest supported kernel.
const OLDEST: KernelVersion = KernelVersion { major: 5, minor: 15 };
/// The first kernel with `uprobe_multi` links.
pub(crate) const UPROBE_MULTI: KernelVersion = KernelVersion { major: 6, minor: 6 };
/// Struct members that the kernel half needs the offsets of.
const MEMBERS: [(&str, &str); 3] = [("task_struct", "tgid"), ("task_struct", "signal"), ("signal_struct", "live")];

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// Returns the checks of the kernel that need no permission.
pub(crate) fn checks(release: &str) -> Vec<Check> {
    let lockdown = fs::read_to_string(LOCKDOWN);
    let btf = fs::read(KERNEL_BTF);
    vec![
        judge_release(release),
        judge_architecture(std::env::consts::ARCH),
        judge_btf(btf.as_deref()),
        judge_lockdown(lockdown.as_deref()),
    ]
}

/// Returns the release as in `/proc/sys/kernel/osrelease`; empty if the file cannot be read.
pub(crate) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn judge_release(release: &str) -> Check {
    let check = |state, fact| Check::new(Topic::Kernel, "kernel", state, fact);
    match KernelVersion::from_release(release) {
        None => check(CheckState::NotChecked, format!("release {release:?} is not understood; the trial run decides")),
        Some(version) if version < OLDEST => {
            check(CheckState::Missing(Barrier::Machine), format!("Linux {release} is older than 5.15"))
                .fix("install and boot a kernel of version 5.15 or later; 6.6 or later is best")
        }
        Some(version) if version < UPROBE_MULTI => check(
            CheckState::Degraded,
            format!("Linux {release}: without uprobe_multi (6.6) each function takes a probe of its own, and detaching is slow"),
        )
        .fix("boot a kernel of version 6.6 or later when there is one; until then watching works"),
        Some(_) => check(CheckState::Ok, format!("Linux {release}")),
    }
}

fn judge_architecture(architecture: &str) -> Check {
    let check = |state, fact: &str| Check::new(Topic::Kernel, "architecture", state, format!("{architecture}{fact}"));
    match architecture {
        "x86_64" => check(CheckState::Ok, ""),
        "aarch64" => {
            check(CheckState::Degraded, ": probes stay on the first instruction, which may cost more per call")
        }
        _ => check(
            CheckState::Missing(Barrier::Machine),
            ": memwatch knows the calling conventions of x86_64 and aarch64",
        ),
    }
}

fn judge_btf(bytes: Result<&[u8], &io::Error>) -> Check {
    let missing = |fact| {
        Check::new(Topic::Kernel, "btf", CheckState::Missing(Barrier::Machine), fact)
            .fix("boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (every current distribution's is)")
            .fix("in a container: mount the host's /sys/kernel/btf into it, read-only")
    };
    let bytes = match bytes {
        Ok([]) => return missing(format!("{KERNEL_BTF} is empty")),
        Ok(bytes) => bytes,
        Err(error) => return missing(format!("{KERNEL_BTF} cannot be read: {error}")),
    };
    match find_members(bytes) {
        Ok(()) => Check::new(Topic::Kernel, "btf", CheckState::Ok, format!("{KERNEL_BTF} has every member needed")),
        Err(error) => missing(error.to_string()),
    }
}

fn find_members(bytes: &[u8]) -> Result<(), BtfError> {
    let btf = Btf::parse(bytes)?;
    MEMBERS.iter().try_for_each(|(structure, member)| btf.member_offset_bytes(structure, member).map(drop))
}

/// Judges the text of `/sys/kernel/security/lockdown`, which has the active mode in brackets.
fn judge_lockdown(text: Result<&str, &io::Error>) -> Check {
    let check = |state, fact: String| Check::new(Topic::Kernel, "lockdown", state, fact);
    let text = match text {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return check(CheckState::Ok, "none: this kernel shows no lockdown".to_owned());
        }
        Err(error) => return check(CheckState::NotChecked, format!("{LOCKDOWN}: {error}; the trial run decides")),
    };
    let active = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(mode, _)| mode);
    match active {
        Some("none") => check(CheckState::Ok, "none".to_owned()),
        Some("integrity") => check(CheckState::Ok, "integrity: does not stop memwatch, which only reads".to_owned()),
        Some("confidentiality") => check(
            CheckState::Missing(Barrier::Machine),
            "confidentiality: eBPF programs may not read memory".to_owned(),
        )
        .fix("take lockdown=confidentiality off the kernel command line and reboot"),
        _ => check(CheckState::NotChecked, format!("{:?} is not understood; the trial run decides", text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{Barrier, CheckState, judge_architecture, judge_btf, judge_lockdown, judge_release};

    #[test]
    fn kernels_are_judged_by_what_they_can_attach() {
        let state = |release| judge_release(release).state;
        assert_eq!(state("6.18.44-generic"), CheckState::Ok);
        assert_eq!(state("6.6.0"), CheckState::Ok);
        assert_eq!(state("6.5.13"), CheckState::Degraded);
        assert_eq!(state("5.15.0-100-generic"), CheckState::Degraded);
        assert_eq!(state("5.14.0-503.el9.x86_64"), CheckState::Missing(Barrier::Machine));
        assert_eq!(state("4.19.0"), CheckState::Missing(Barrier::Machine));
        assert_eq!(state("gvisor"), CheckState::NotChecked);
        assert_eq!(state(""), CheckState::NotChecked);
    }

    #[test]
    fn only_confidentiality_locks_memwatch_out() {
        let state = |text| judge_lockdown(Ok(text)).state;
        assert_eq!(state("[none] integrity confidentiality\n"), CheckState::Ok);
        assert_eq!(state("none [integrity] confidentiality\n"), CheckState::Ok);
        assert_eq!(state("none integrity [confidentiality]\n"), CheckState::Missing(Barrier::Machine));
        assert_eq!(state("]["), CheckState::NotChecked);
        assert_eq!(judge_lockdown(Err(&io::ErrorKind::NotFound.into())).state, CheckState::Ok);
        assert_eq!(judge_lockdown(Err(&io::ErrorKind::PermissionDenied.into())).state, CheckState::NotChecked);
    }

    #[test]
    fn btf_that_is_absent_empty_or_garbage_is_missing_with_a_fix() {
        let absent = io::Error::from(io::ErrorKind::NotFound);
        for bytes in [Err(&absent), Ok(&[][..]), Ok(&b"garbage"[..]), Ok(&[0x9f, 0xeb, 1, 0, 24, 0, 0, 0][..])] {
            let check = judge_btf(bytes);
            assert_eq!(check.state, CheckState::Missing(Barrier::Machine), "{bytes:?}");
            assert!(check.fixes[0].contains("CONFIG_DEBUG_INFO_BTF"), "{bytes:?}");
        }
    }

    #[test]
    fn architectures_without_a_kernel_half_are_missing() {
        assert_eq!(judge_architecture("x86_64").state, CheckState::Ok);
        assert_eq!(judge_architecture("aarch64").state, CheckState::Degraded);
        assert_eq!(judge_architecture("riscv64").state, CheckState::Missing(Barrier::Machine));
    }
}
