//! Opens files that were removed or replaced while processes map them, by their file handles.
//!
//! `/proc/PID/map_files` opens them, too, but needs CAP_CHECKPOINT_RESTORE, which the agent does
//! not keep. open_by_handle_at(2) needs CAP_DAC_READ_SEARCH. Only the mapped file is accepted:
//! device and inode number must equal those in `maps`.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::host;
use super::identity::{FileHandle, FileIdentity, RawHandle};
use super::limits::MOST_IN_ALL;
use super::maps::LibraryMapping;

/// `FILEID_INO32_GEN` (include/linux/exportfs.h): inode number and generation, 32 bits each.
const INODE_AND_GENERATION: i32 = 1;

/// Handles of the files found so far, also by an earlier agent. The oldest are dropped first.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownHandles(Arc<Mutex<Vec<FileHandle>>>);

impl KnownHandles {
    /// Starts with these handles.
    pub(crate) fn of(handles: impl IntoIterator<Item = FileHandle>) -> Self {
        let known = Self::default();
        handles.into_iter().for_each(|handle| known.note(handle));
        known
    }

    /// Adds the handle of a file.
    pub(super) fn note(&self, handle: FileHandle) {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if known.contains(&handle) {
            return;
        }
        if known.len() >= MOST_IN_ALL {
            known.remove(0);
        }
        known.push(handle);
    }

    fn on_device(&self, device: u64) -> Vec<FileHandle> {
        let known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.iter().filter(|handle| handle.device == device).cloned().collect()
    }

    /// Opens the file of a process's mapping with `O_PATH`.
    pub(super) fn open(&self, process: &Path, mapping: &LibraryMapping) -> Option<(File, FileIdentity)> {
        let known = self.on_device(mapping.device);
        let root = process.join("root");
        let parent = mapping.path.iter().rposition(|&byte| byte == b'/').map_or(&b"/"[..], |end| &mapping.path[..end]);
        // The directory may have been removed with the file; any directory of the file system will
        // do.
        [host::below(&root, parent), root].iter().find_map(|folder| {
            let folder = open_folder(folder, mapping.device)?;
            let by_number = by_number(&folder, mapping.inode);
            known.iter().chain(&by_number).find_map(|handle| open_handle(&folder, handle, mapping))
        })
    }
}

fn open_folder(path: &Path, device: u64) -> Option<File> {
    let flags = libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    (folder.metadata().ok()?.st_dev() == device).then_some(folder)
}

/// Builds the handle of a file from its inode number, on the file system of `folder`. ext4 accepts
/// a generation of 0 for any ("Currently we don't know the generation for parent directory, so a
/// generation of 0 means accept any", `ext4_nfs_get_inode` of fs/ext4/super.c); others refuse it.
fn by_number(folder: &File, inode: u64) -> Option<FileHandle> {
    let like = FileHandle::of(folder)?;
    let number = u32::try_from(inode).ok()?;
    let fits = like.kind == INODE_AND_GENERATION && like.bytes.len() == 2 * size_of::<u32>();
    let bytes = [number.to_ne_bytes(), [0; size_of::<u32>()]].concat();
    fits.then_some(FileHandle { bytes, ..like })
}

fn open_handle(folder: &File, handle: &FileHandle, mapping: &LibraryMapping) -> Option<(File, FileIdentity)> {
    let mut raw = RawHandle::of(handle)?;
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the handle has the layout of `struct file_handle` and its stated number of bytes, and
    // outlives the call.
    let descriptor = unsafe { libc::open_by_handle_at(folder.as_raw_fd(), (&raw mut raw).cast(), flags) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the descriptor is new and has no other owner.
    let file = unsafe { File::from_raw_fd(descriptor) };
    let metadata = file.metadata().ok()?;
    let is_it = metadata.is_file() && (metadata.st_dev(), metadata.st_ino()) == (mapping.device, mapping.inode);
    let identity = FileIdentity::of(&file).ok().filter(|_| is_it)?;
    Some((file, identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an open file and a mapping as it would be after the removal of its name.
    fn removed(directory: &Path) -> (File, LibraryMapping) {
        let path = directory.join("libcuda.so.1");
        std::fs::write(&path, b"\x7fELF").expect("a file in the temporary directory");
        let file = File::open(&path).expect("it is there");
        let metadata = file.metadata().expect("it is open");
        let path = path.as_os_str().as_encoded_bytes().to_vec();
        let (inode, device) = (metadata.st_ino(), metadata.st_dev());
        (file, LibraryMapping { range: "1000-2000".to_owned(), inode, device, path, deleted: true })
    }

    fn may_open_handles() -> bool {
        // SAFETY: geteuid has no preconditions.
        let may = unsafe { libc::geteuid() } == 0;
        if !may {
            eprintln!("SKIPPED: handles are opened by root");
        }
        may
    }

    #[test]
    fn a_replaced_file_is_opened_by_its_remembered_handle() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (file, mapping) = removed(directory.path());
        let identity = FileIdentity::of(&file).expect("an identity");
        let Some(handle) = identity.handle().filter(|_| may_open_handles()) else { return };
        std::fs::remove_file(directory.path().join("libcuda.so.1")).expect("it is ours");
        std::fs::write(directory.path().join("libcuda.so.1"), b"\x7fELF newer").expect("it is ours");
        let known = KnownHandles::of([handle]);
        let (_, found) = known.open(Path::new("/proc/self"), &mapping).expect("the kernel opens it");
        assert!(found.is_same_file(&FileIdentity::of(&file).expect("an identity")));
        assert_eq!(found.key(), identity.key(), "a removed name changes no key");
        let other = LibraryMapping { device: mapping.device + 1, ..mapping.clone() };
        assert!(known.open(Path::new("/proc/self"), &other).is_none());
        let other = LibraryMapping { inode: mapping.inode + 1, ..mapping };
        assert!(known.open(Path::new("/proc/self"), &other).is_none_or(|(_, found)| !found.is_same_file(&identity)));
    }

    #[test]
    fn a_handle_is_read_back_as_it_was_written() {
        let handle = FileHandle { device: 0xfe00, kind: 1, bytes: vec![0x73, 0, 0xff] };
        assert_eq!(handle.to_text(), "fe00-1-7300ff");
        assert_eq!(FileHandle::parse("fe00-1-7300ff"), Some(handle));
        for garbage in ["", "fe00", "fe00-1", "fe00-1-7", "x-1-73", "fe00-1-7g"] {
            assert_eq!(FileHandle::parse(garbage), None, "{garbage}");
        }
    }
}
