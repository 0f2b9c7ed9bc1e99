//! Finds the mount of the cgroup v2 tree: `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` next to v1
//! hierarchies.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// `FILEID_KERNFS` of include/linux/exportfs.h: the handle is the 64-bit id of the group (Linux
/// 5.5).
const FILEID_KERNFS: i32 = 0xfe;

/// `struct file_handle` of name_to_handle_at(2) with a group's id in it.
#[repr(C)]
struct GroupHandle {
    handle_bytes: u32,
    handle_type: i32,
    id: [u8; 8],
}

/// A mounted cgroup v2 tree.
#[derive(Debug)]
pub(super) struct Mount {
    /// Mount point.
    pub(super) point: PathBuf,
    root: File,
}

impl Mount {
    /// Opens the tree that `/proc/self/mountinfo` shows as a whole.
    pub(super) fn open(mountinfo: &[u8]) -> Option<Self> {
        let point = unified_mount(mountinfo)?;
        let root = File::open(&point).ok()?;
        Some(Self { point, root })
    }

    /// Returns the path of the group with this id, in the format of `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// `ESTALE` or `NotFound` if the group is gone, `NotFound` if it is outside the mounted tree,
    /// `EPERM` without `cap_dac_read_search` (open_by_handle_at(2)).
    pub(super) fn path_of(&self, id: u64) -> io::Result<String> {
        const { assert!(std::mem::offset_of!(GroupHandle, id) == size_of::<libc::file_handle>()) };
        let mut handle = GroupHandle { handle_bytes: 8, handle_type: FILEID_KERNFS, id: id.to_ne_bytes() };
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: `handle` has the layout of `struct file_handle` followed by the stated eight
        // bytes, and outlives the call.
        let group = unsafe { libc::open_by_handle_at(self.root.as_raw_fd(), (&raw mut handle).cast(), flags) };
        if group < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let path = std::fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd()))?;
        // A group outside the mounted tree has another path; one that was just removed has a
        // suffix.
        let below = path.strip_prefix(&self.point).ok().ok_or(io::ErrorKind::NotFound)?;
        let below = String::from_utf8_lossy(below.as_os_str().as_bytes());
        if below.ends_with(" (deleted)") {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(format!("/{below}"))
    }
}

/// Returns the mount that shows most of the tree: the root of this process's cgroup namespace, or
/// an ancestor `/../..` (a host's tree in a container). Fields: proc_pid_mountinfo(5).
fn unified_mount(mountinfo: &[u8]) -> Option<PathBuf> {
    let is_above = |root: &[u8]| root.split(|byte| *byte == b'/').all(|part| part.is_empty() || part == b"..");
    let mounts = mountinfo.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (root, point) = (fields.nth(3)?, fields.next()?);
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        (is_above(root) && kind == b"cgroup2").then_some((root.len(), point))
    });
    // Prefers the first of several equal mounts.
    mounts.rev().max_by_key(|(above, _)| *above).map(|(_, point)| unescaped(point))
}

/// Undoes octal escapes such as `\040` for a space.
fn unescaped(path: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|digit| matches!(digit, b'0'..=b'7')));
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    Path::new(&OsString::from_vec(plain)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_tree_is_found_alone_or_beside_the_hierarchies_of_v1() {
        let find = |text: &str| unified_mount(text.as_bytes());
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime shared:9 master:1 - cgroup cgroup rw,name=systemd\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(find(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(find("30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"), Some("/sys/fs/cgroup".into()));
        let in_pod = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 23 0:26 /../../.. /host/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(find(in_pod), Some("/host/cgroup".into()));
        assert_eq!(find("30 23 0:26 / /a\\040b\\134 rw - cgroup2 cgroup2 rw"), Some("/a b\\".into()));
        for none in [
            "",
            "30 23 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "1 2 3 / /cgroup2 rw - tmpfs cgroup2 rw",
            "1 2 3 /",
        ] {
            assert_eq!(find(none), None, "{none:?}");
        }
    }

    #[test]
    fn paths_with_broken_escapes_are_kept() {
        assert_eq!(unescaped(b"/a\\04"), PathBuf::from("/a\\04"));
        assert_eq!(unescaped(b"/a\\999\\777"), PathBuf::from("/a\\999\\777"));
    }
}
