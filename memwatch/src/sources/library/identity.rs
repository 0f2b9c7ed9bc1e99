//! Identifies files independently of their paths: the kernel attaches a uprobe to an inode, not to
//! a path.
//!
//! Paths, mount points and even `(device, inode)` differ between containers that run the very same
//! file: every overlay mount reports a device number of its own. The file handle does not differ.
//! Measured on Linux 6.18 (ext4, overlayfs): all overlay mounts of one lower file give one handle,
//! which ends with the lower file's own handle.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::linux::fs::MetadataExt;

use memwatch_common::arming::ArmGroup;

/// Handle type of overlayfs (`OVL_FILEID_V1`).
const OVERLAY_HANDLE: i32 = 248;
/// Layout of an overlay handle (`struct ovl_fh`, all versions so far): 3 bytes of padding, then
/// version, magic, length and flags, then the fields at the offsets below.
const OVERLAY_INNER_KIND: usize = 7;
const OVERLAY_VOLUME: usize = 8;
const OVERLAY_INNER: usize = 24;

/// The identity of one file's contents on this machine, stable across paths, mounts and renames.
///
/// Two identities are compared with [`FileIdentity::is_same_file`]. In doubt they differ: a file
/// mistaken for two is probed twice, which the kernel half detects; two files mistaken for one
/// would leave one unprobed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    handle: Option<VolumeHandle>,
    inode: u64,
    owner: u32,
    size_bytes: u64,
    /// Modification time in seconds and nanoseconds.
    modified: (i64, i64),
    /// Change time in seconds and nanoseconds. A copied-up overlay file keeps the lower file's
    /// handle, inode and other times.
    changed: (i64, i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct VolumeHandle {
    volume: Volume,
    kind: i32,
    bytes: Vec<u8>,
}

/// The file system of a handle; handles are unique only within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Volume {
    /// `st_dev` of a file system that is not an overlay.
    Device(u64),
    /// UUID of the file system below an overlay; zero if it has none.
    BelowOverlay([u8; 16]),
}

impl FileIdentity {
    /// Reads the identity of an open file; `O_PATH` is enough.
    ///
    /// With kernels before 6.5, and on file systems without handles, the identity is inode, size
    /// and modification time.
    ///
    /// # Errors
    /// The file cannot be examined (`fstat` failed).
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            handle: file_handle(file).map(|(kind, bytes)| VolumeHandle::new(kind, &bytes, metadata.st_dev())),
            inode: metadata.st_ino(),
            owner: metadata.st_uid(),
            size_bytes: metadata.st_size(),
            modified: (metadata.st_mtime(), metadata.st_mtime_nsec()),
            changed: (metadata.st_ctime(), metadata.st_ctime_nsec()),
        })
    }

    /// Whether both are the same file, so that a probe in one fires for the other.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        if self.size_bytes != other.size_bytes {
            return false;
        }
        let (Some(ours), Some(theirs)) = (&self.handle, &other.handle) else {
            return self.inode == other.inode && self.modified == other.modified;
        };
        if ours.kind != theirs.kind || ours.bytes != theirs.bytes {
            return false;
        }
        match (ours.volume, theirs.volume) {
            (Volume::Device(a), Volume::Device(b)) => a == b,
            (Volume::BelowOverlay(a), Volume::BelowOverlay(b)) => a == b && self.changed == other.changed,
            _ => self.changed == other.changed,
        }
    }

    /// Returns a key of hexadecimal digits and dashes: equal for the same file, and almost
    /// certainly different for two files. In doubt keys differ.
    ///
    /// The change time is included only where [`FileIdentity::is_same_file`] needs it, since
    /// removing a file's name changes that time.
    pub(crate) fn key(&self) -> String {
        let (sum, is_complete) = match &self.handle {
            Some(VolumeHandle { volume, kind, bytes }) => {
                let mut sum = crc32fast::Hasher::new();
                sum.update(&kind.to_le_bytes());
                sum.update(bytes);
                if let Volume::Device(device) = volume {
                    sum.update(&device.to_le_bytes());
                }
                (u64::from(sum.finalize()), matches!(volume, Volume::Device(_)))
            }
            None => (self.inode, false),
        };
        let (seconds, nanoseconds) = if is_complete { (0, 0) } else { self.changed };
        format!("{sum:x}-{:x}-{seconds:x}-{nanoseconds:x}", self.size_bytes)
    }

    /// Returns the handle that reopens the file, even without a name; `None` if it has no handle or
    /// only that of an overlay.
    pub(crate) fn handle(&self) -> Option<FileHandle> {
        let VolumeHandle { volume, kind, bytes } = self.handle.as_ref()?;
        match volume {
            Volume::Device(device) => Some(FileHandle { device: *device, kind: *kind, bytes: bytes.clone() }),
            Volume::BelowOverlay(_) => None,
        }
    }

    /// Returns the group in which the file's probes are armed.
    pub(crate) fn group(&self) -> ArmGroup {
        ArmGroup::of_file(self.owner, self.inode)
    }

    /// Returns the inode number, as in `/proc/<tgid>/maps` for the same mount.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }
}

impl VolumeHandle {
    fn new(kind: i32, bytes: &[u8], device: u64) -> Self {
        Self::below_overlay(kind, bytes).unwrap_or_else(|| Self {
            volume: Volume::Device(device),
            kind,
            bytes: bytes.to_vec(),
        })
    }

    /// Unwraps an overlay handle to the handle of the file below. `None` keeps the handle whole: it
    /// is of another file system, or nothing in it distinguishes two file systems below (no UUID,
    /// and a generation of zero in the inner handle, as on squashfs).
    fn below_overlay(kind: i32, bytes: &[u8]) -> Option<Self> {
        if kind != OVERLAY_HANDLE {
            return None;
        }
        let uuid: [u8; 16] = bytes.get(OVERLAY_VOLUME..OVERLAY_INNER)?.try_into().ok()?;
        let inner = bytes.get(OVERLAY_INNER..)?;
        let generation = inner.last_chunk::<4>()?;
        if uuid == [0; 16] && *generation == [0; 4] {
            return None;
        }
        Some(Self {
            volume: Volume::BelowOverlay(uuid),
            kind: i32::from(bytes[OVERLAY_INNER_KIND]),
            bytes: inner.to_vec(),
        })
    }
}

/// `MAX_HANDLE_SZ` of the kernel.
const MAX_HANDLE_BYTES: u8 = 128;

/// File handle: reopens a file while it is in use, independent of its paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHandle {
    /// `st_dev` of the file system.
    pub(super) device: u64,
    pub(super) kind: i32,
    pub(super) bytes: Vec<u8>,
}

impl FileHandle {
    /// Returns the handle of an open file.
    pub(super) fn of(file: &File) -> Option<Self> {
        FileIdentity::of(file).ok()?.handle()
    }

    /// Formats the handle as hexadecimal digits and two dashes.
    pub(crate) fn to_text(&self) -> String {
        let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
        let bytes: String = self.bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect();
        format!("{:x}-{:x}-{bytes}", self.device, self.kind)
    }

    /// Parses the output of [`Self::to_text`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let device = u64::from_str_radix(parts.next()?, 16).ok()?;
        let kind = i32::from_str_radix(parts.next()?, 16).ok()?;
        let (pairs, []) = parts.next()?.as_bytes().as_chunks::<2>() else { return None };
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes = pairs.iter().map(byte).collect::<Option<Vec<u8>>>()?;
        parts.next().is_none().then_some(Self { device, kind, bytes })
    }
}

/// `struct file_handle` with space for the largest handle.
#[repr(C)]
pub(super) struct RawHandle {
    handle_bytes: u32,
    handle_type: i32,
    f_handle: [u8; MAX_HANDLE_BYTES as usize],
}

impl RawHandle {
    /// Converts a handle to the kernel's struct; `None` if it is too long.
    pub(super) fn of(handle: &FileHandle) -> Option<Self> {
        let mut f_handle = [0; MAX_HANDLE_BYTES as usize];
        f_handle.get_mut(..handle.bytes.len())?.copy_from_slice(&handle.bytes);
        let handle_bytes = u32::try_from(handle.bytes.len()).ok()?;
        Some(Self { handle_bytes, handle_type: handle.kind, f_handle })
    }
}

/// Returns a file's handle type and bytes, if the kernel and the file system support handles.
fn file_handle(file: &File) -> Option<(i32, Vec<u8>)> {
    const { assert!(offset_of!(RawHandle, f_handle) == size_of::<libc::file_handle>()) };
    let mut handle =
        RawHandle { handle_bytes: MAX_HANDLE_BYTES.into(), handle_type: 0, f_handle: [0; MAX_HANDLE_BYTES as usize] };
    let mut mount_id = 0;
    // SAFETY: `handle` has the layout of `struct file_handle` followed by `handle_bytes` bytes, the
    // path is a C string, and both outlive the call.
    let status = unsafe {
        libc::name_to_handle_at(
            file.as_raw_fd(),
            c"".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount_id,
            libc::AT_EMPTY_PATH | libc::AT_HANDLE_FID,
        )
    };
    let length = usize::try_from(handle.handle_bytes).ok()?;
    (status == 0).then_some((handle.handle_type, handle.f_handle.get(..length)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handle that Linux 6.18 returned for an ext4 file, directly and inside an overlay handle.
    const PLAIN: [u8; 8] = [0x1e, 0x60, 0x9c, 0x00, 0x7b, 0xb8, 0x89, 0xfe];

    fn overlay(uuid: [u8; 16], inner: &[u8]) -> Vec<u8> {
        let front = [0, 0, 0, 0, 0xfb, u8::try_from(inner.len()).expect("short") + 21, 0, 1];
        [&front[..], &uuid, inner].concat()
    }

    fn identity(kind: i32, bytes: &[u8], device: u64) -> FileIdentity {
        FileIdentity {
            handle: Some(VolumeHandle::new(kind, bytes, device)),
            inode: 10_248_222,
            owner: 0,
            size_bytes: 13_672,
            modified: (1, 2),
            changed: (3, 4),
        }
    }

    #[test]
    fn overlay_mounts_of_one_lower_file_are_one_file() {
        let handle = overlay([0; 16], &PLAIN);
        let first = identity(OVERLAY_HANDLE, &handle, 0x27);
        let second = identity(OVERLAY_HANDLE, &handle, 0x29);
        let lower = identity(1, &PLAIN, 0xfe00);
        assert!(first.is_same_file(&second));
        assert!(first.is_same_file(&lower) && lower.is_same_file(&first));
    }

    #[test]
    fn a_copied_up_file_is_another_file_though_its_handle_is_the_lower_ones() {
        let lower = identity(1, &PLAIN, 0xfe00);
        let handle = overlay([0; 16], &PLAIN);
        let copied_up = FileIdentity { changed: (5, 6), ..identity(OVERLAY_HANDLE, &handle, 0x27) };
        assert!(!copied_up.is_same_file(&lower));
        assert!(!copied_up.is_same_file(&identity(OVERLAY_HANDLE, &handle, 0x29)));
    }

    #[test]
    fn equal_handles_on_two_file_systems_are_two_files() {
        assert!(!identity(1, &PLAIN, 1).is_same_file(&identity(1, &PLAIN, 2)));
        let below = |uuid| identity(OVERLAY_HANDLE, &overlay(uuid, &PLAIN), 0x27);
        assert!(!below([1; 16]).is_same_file(&below([2; 16])));
        // The handle does not identify the squashfs image below, so each mount counts.
        let squashfs = overlay([0; 16], &[9, 0, 0, 0, 0, 0, 0, 0]);
        let mounted = |device| identity(OVERLAY_HANDLE, &squashfs, device);
        assert!(mounted(1).is_same_file(&mounted(1)));
        assert!(!mounted(1).is_same_file(&mounted(2)));
    }

    #[test]
    fn a_touched_file_is_still_the_same_file() {
        let before = identity(1, &PLAIN, 1);
        let after = FileIdentity { modified: (9, 9), changed: (9, 9), ..before.clone() };
        assert!(before.is_same_file(&after));
        assert!(!before.is_same_file(&FileIdentity { size_bytes: 1, ..before.clone() }));
    }

    #[test]
    fn without_handles_inode_size_and_modification_time_decide() {
        let bare = FileIdentity { handle: None, ..identity(1, &PLAIN, 1) };
        assert!(bare.is_same_file(&bare.clone()));
        assert!(bare.is_same_file(&identity(1, &PLAIN, 1)));
        assert!(!bare.is_same_file(&FileIdentity { inode: 1, ..bare.clone() }));
        assert!(!bare.is_same_file(&FileIdentity { modified: (0, 0), ..bare.clone() }));
    }

    #[test]
    fn cut_off_overlay_handles_are_kept_whole() {
        let handle = overlay([7; 16], &PLAIN);
        for length in 0..OVERLAY_INNER + 4 {
            assert_eq!(VolumeHandle::below_overlay(OVERLAY_HANDLE, &handle[..length]), None);
        }
    }

    #[test]
    fn an_open_file_is_itself_and_not_its_copy() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name| directory.path().join(name);
        std::fs::write(path("a"), "contents").expect("a written file");
        std::fs::copy(path("a"), path("copy")).expect("a copy");
        std::fs::hard_link(path("a"), path("link")).expect("a hard link");
        let of = |name| {
            let file = File::open(path(name)).expect("an open file");
            FileIdentity::of(&file).expect("an identity")
        };
        assert!(of("a").is_same_file(&of("link")));
        assert!(!of("a").is_same_file(&of("copy")));
    }
}
