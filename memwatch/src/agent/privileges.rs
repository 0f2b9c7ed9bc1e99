//! Drops the privileges that the agent does not need, before a second thread exists, since
//! capabilities are per thread.
//!
//! See capabilities(7) and prctl(2). `doctor/privilege.rs` explains the purpose of each capability.
//! CAP_SYS_ADMIN is for classic uprobes only (Linux ba677dbe77af, "perf: Revert to requiring
//! CAP_SYS_ADMIN for uprobes"). The crate caps handles the sets, but not PR_SET_NO_NEW_PRIVS.

use std::io;

/// Numbers from include/uapi/linux/capability.h. Optional capabilities have their names in `setcap`
/// and systemd.
const DAC_READ_SEARCH: (u32, &str) = (2, "cap_dac_read_search");
const SYS_PTRACE: (u32, &str) = (19, "cap_sys_ptrace");
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// A number greater than the last capability of any kernel.
const END: u32 = 64;

/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits, in two halves.
const VERSION_3: u32 = 0x2008_0522;

/// A set of capabilities, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities(u64);

impl Capabilities {
    /// Returns the capabilities that the agent needs. `classic`: uprobes are classic, which needs
    /// one more.
    pub(crate) fn needed(classic: bool) -> Self {
        let admin = classic.then_some(SYS_ADMIN);
        let all = [BPF, PERFMON, SYS_PTRACE.0, DAC_READ_SEARCH.0].into_iter().chain(admin);
        Self(all.fold(0, |set, bit| set | 1 << bit))
    }

    const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// Returns the capabilities in `self` and not in `other`.
    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Reduces this process, and any program it starts, to the `needed` capabilities. Returns the
/// missing ones.
///
/// Without CAP_SETPCAP the bounding set stays unchanged, which has no effect, since no privileges
/// can be gained from files.
///
/// # Errors
/// The kernel refuses to drop privileges.
pub(crate) fn keep_only(needed: Capabilities) -> io::Result<Capabilities> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    for bit in (0..END).filter(|bit| !needed.has(*bit)) {
        // Fails with EINVAL beyond the kernel's last capability, and with EPERM without
        // CAP_SETPCAP.
        let _ = prctl(libc::PR_CAPBSET_DROP, bit.into(), 0);
    }
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL.cast_unsigned().into(), 0)?;
    let had = permitted()?;
    let kept = Capabilities(had.0 & needed.0);
    set(kept)?;
    Ok(needed.without(kept))
}

/// Returns a sentence about missing optional capabilities and the consequences. For the other
/// capabilities the kernel reports errors on use.
pub(crate) fn cost_of(lacking: Capabilities) -> Option<String> {
    let optional = [SYS_PTRACE, DAC_READ_SEARCH].into_iter().filter(|(bit, _)| lacking.has(*bit));
    let names: Vec<_> = optional.map(|(_, name)| name).collect();
    let costs = if lacking.has(SYS_PTRACE.0) {
        "driver libraries in other users' containers and in closed directories are not found, and PyTorch's numbers of other users are not read"
    } else {
        "driver libraries in closed directories are not found"
    };
    (!names.is_empty()).then(|| format!("not granted: {}; {costs}", names.join(", ")))
}

/// `struct __user_cap_header_struct` of capget(2).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    tid: i32,
}

/// `struct __user_cap_data_struct`, of which version 3 has two.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityHalf {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Header for the calling thread, which has pid 0 here.
static OWN: CapabilityHeader = CapabilityHeader { version: VERSION_3, tid: 0 };

fn permitted() -> io::Result<Capabilities> {
    let mut halves = [CapabilityHalf::default(); 2];
    // SAFETY: header and data have the layout of version 3, and live until the call returns.
    let status = unsafe { libc::syscall(libc::SYS_capget, &raw const OWN, halves.as_mut_ptr()) };
    check(status)?;
    Ok(Capabilities(u64::from(halves[1].permitted) << 32 | u64::from(halves[0].permitted)))
}

/// Sets the permitted and the effective set, and clears the inheritable set.
fn set(capabilities: Capabilities) -> io::Result<()> {
    let half = |shift: u32| {
        let bits = u32::try_from(capabilities.0 >> shift & u64::from(u32::MAX)).expect("32 bits were masked out");
        CapabilityHalf { effective: bits, permitted: bits, inheritable: 0 }
    };
    let halves = [half(0), half(32)];
    // SAFETY: header and data have the layout of version 3, and live until the call returns.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const OWN, halves.as_ptr()) })
}

fn prctl(option: i32, second: u64, third: u64) -> io::Result<()> {
    // SAFETY: none of the options used here takes a pointer.
    check(unsafe { libc::prctl(option, second, third, 0_u64, 0_u64) }.into())
}

fn check(status: libc::c_long) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_capabilities_are_needed_and_one_more_for_classic_uprobes() {
        assert_eq!(Capabilities::needed(false).0, 1 << 39 | 1 << 38 | 1 << 19 | 1 << 2);
        assert_eq!(Capabilities::needed(true).without(Capabilities::needed(false)).0, 1 << 21);
    }

    #[test]
    fn missing_capabilities_are_named_with_their_consequence() {
        assert_eq!(cost_of(Capabilities(0)), None);
        assert_eq!(cost_of(Capabilities(1 << BPF)), None, "the kernel says that itself");
        let text = cost_of(Capabilities::needed(true)).expect("a sentence");
        assert!(text.contains("not granted: cap_sys_ptrace, cap_dac_read_search;"), "{text}");
    }

    #[test]
    fn dropped_capabilities_leave_none_and_cannot_be_regained() {
        // Capabilities are per thread, so other tests keep theirs.
        let status = std::thread::spawn(|| {
            keep_only(Capabilities(0)).expect("taking away is always permitted");
            std::fs::read_to_string("/proc/thread-self/status").expect("proc(5)")
        });
        let status = status.join().expect("no panic");
        for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel says");
            assert_eq!(line.trim(), "0000000000000000", "{name}");
        }
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    }
}
