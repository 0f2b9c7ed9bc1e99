//! Whether memwatch runs in the initial pid namespace, whose process ids the kernel half and NVML use.

use std::os::unix::fs::MetadataExt as _;

/// Initial namespaces with their inode numbers (include/linux/proc_ns.h of the kernel).
const INITIAL: [(&str, u64); 2] = [("pid", 0xEFFF_FFFC), ("user", 0xEFFF_FFFD)];

/// Returns whether this process is in the initial namespace of this kind; `None` if unknown.
pub(crate) fn is_initial(kind: &str) -> Option<bool> {
    let (_, initial) = INITIAL.iter().find(|(name, _)| *name == kind)?;
    let inode = std::fs::metadata(format!("/proc/self/ns/{kind}")).ok()?.ino();
    Some(inode == *initial)
}
