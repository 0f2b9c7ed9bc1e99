//! Makes file systems read-only for the agent: a process with root's user id owns root's files,
//! whatever capabilities it has dropped.
//!
//! The effect is that of `ProtectSystem=strict` in the systemd unit, for an agent that is started
//! by hand: private mounts, read-only except for the folders that the agent writes to
//! (mount_namespaces(7), mount_setattr(2)).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

/// `MOUNT_ATTR_RDONLY` of include/uapi/linux/mount.h.
const MOUNT_ATTR_RDONLY: u64 = 1;

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Makes everything read-only to this process except these folders. Returns false if that is
/// impossible, because the process may not have private mounts, or because its mounts would keep
/// the machine's from being unmounted. Must be called before there is a second thread.
///
/// # Errors
/// The kernel refuses one of the steps. All mounts are then as before.
pub(super) fn confine(writable: &[PathBuf]) -> io::Result<bool> {
    // Later unmounts reach a private copy only if the root's mounts are shared, which systemd sets
    // up on all machines (systemd(1)).
    if !passes_mounts_on(&std::fs::read_to_string("/proc/self/mountinfo")?) {
        return Ok(false);
    }
    let before = File::open("/proc/self/ns/mnt")?;
    // SAFETY: unshare takes no pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::PermissionDenied { Ok(false) } else { Err(error) };
    }
    make_read_only(writable).map(|()| true).inspect_err(|_| {
        // SAFETY: the descriptor is open. The call cannot fail, since these were this process's
        // mounts.
        unsafe { libc::setns(before.as_raw_fd(), libc::CLONE_NEWNS) };
    })
}

/// Whether new and removed mounts below the root are propagated to copies of it: its line has
/// `shared:` among the optional fields. The last line for the root counts (proc_pid_mountinfo(5)).
fn passes_mounts_on(mounts: &str) -> bool {
    let of_root = |line: &&str| line.split(' ').nth(4) == Some("/");
    let fields = mounts.lines().rfind(of_root).and_then(|line| line.split(" - ").next());
    fields.is_some_and(|fields| fields.split(' ').skip(6).any(|field| field.starts_with("shared:")))
}

fn make_read_only(writable: &[PathBuf]) -> io::Result<()> {
    let root = Path::new("/");
    // Mounts made here are not propagated; the machine's mounts still are.
    mount(None, root, libc::MS_REC | libc::MS_SLAVE)?;
    for folder in writable {
        mount(Some(folder), folder, libc::MS_BIND | libc::MS_REC)?;
    }
    set_attributes(root, &MountAttributes { set: MOUNT_ATTR_RDONLY, ..MountAttributes::default() })?;
    for folder in writable {
        set_attributes(folder, &MountAttributes { clear: MOUNT_ATTR_RDONLY, ..MountAttributes::default() })?;
    }
    Ok(())
}

fn mount(from: Option<&Path>, to: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let from = from.map(text).transpose()?;
    let to = text(to)?;
    let source = from.as_ref().map_or(ptr::null(), |from| from.as_ptr());
    // SAFETY: the strings live until the call returns; these kinds of mount take neither a type nor
    // data.
    check(unsafe { libc::mount(source, to.as_ptr(), ptr::null(), flags, ptr::null()) }.into())
}

/// Sets attributes of the mount at this folder and of all mounts below it.
fn set_attributes(folder: &Path, attributes: &MountAttributes) -> io::Result<()> {
    let folder = text(folder)?;
    // SAFETY: string and attributes live until the call returns, and the size is that of the
    // attributes.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            folder.as_ptr(),
            libc::AT_RECURSIVE,
            ptr::from_ref(attributes),
            size_of::<MountAttributes>(),
        )
    })
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn check(status: libc::c_long) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_of_the_root_says_whether_mounts_are_passed_on() {
        let private = "21 1 253:0 / / rw,relatime - ext4 /dev/vda rw\n22 21 0:20 / /proc rw shared:5 - proc proc rw\n";
        assert!(!passes_mounts_on(private));
        let shared = format!("{private}23 21 253:0 / / rw,relatime shared:1 - ext4 /dev/shared:7 rw\n");
        assert!(passes_mounts_on(&shared));
        assert!(!passes_mounts_on(&format!("{shared}24 23 253:0 / / rw master:1 - ext4 /dev/vda rw\n")));
        assert!(!passes_mounts_on(""));
    }
}
