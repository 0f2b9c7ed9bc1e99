//! The output file of `-o`. A file is readable by its owner only, since it contains what root saw
//! of all users; under sudo, the owner is the user that called sudo. `-` is standard output.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

/// Mode of a created file.
const MODE: u32 = 0o600;
/// Number of names to try for a temporary file that replaces an existing one.
const TRIES: u32 = 16;

/// Names of standard output.
const STDOUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// Whether the path names standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.to_str().is_some_and(|path| STDOUT.contains(&path))
}

/// Returns the name for messages.
pub(crate) fn name(path: &Path) -> impl fmt::Display + '_ {
    if is_stdout(path) { Path::new("standard output").display() } else { path.display() }
}

/// Opens the file that `-o` names. An existing file is refused, or with `force` replaced by a new
/// one, which inherits neither its mode nor its owner; a symlink itself is replaced. The file
/// belongs to the user that called sudo, else to the current user. A device or a pipe is written to
/// as it is, unless it or the symlink to it belongs to another user and would show the output to
/// that user.
///
/// # Errors
/// `AlreadyExists` for a file that must not be replaced, `PermissionDenied` for a device or pipe of
/// another user; otherwise the system's error.
pub(crate) fn create(path: &Path, force: bool) -> io::Result<File> {
    let file = create_own(path, force)?;
    if let Some((uid, gid)) = caller()
        && !is_stdout(path)
        && file.metadata()?.is_file()
    {
        // This process just created the file, so the change of owner affects no other user's file.
        fchown(&file, Some(uid), Some(gid))?;
    }
    Ok(file)
}

/// Returns the user and group that called sudo, from the variables that sudo sets; `None` unless
/// this process is root and the caller is not.
pub(crate) fn caller() -> Option<(u32, u32)> {
    caller_by(|name| std::env::var(name).ok())
}

fn caller_by(variable: impl Fn(&str) -> Option<String>) -> Option<(u32, u32)> {
    // SAFETY: it has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let number = |name| variable(name)?.parse().ok();
    let (uid, gid) = (number("SUDO_UID")?, number("SUDO_GID")?);
    (is_root && uid != 0).then_some((uid, gid))
}

/// Like [`create`], but keeps this process as the owner: for a service.
///
/// # Errors
/// Those of [`create`].
pub(crate) fn create_own(path: &Path, force: bool) -> io::Result<File> {
    if is_stdout(path) {
        return Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    }
    check_free(path, force)?;
    if is_special(path) {
        return open_special(path);
    }
    if force { replace(path) } else { create_new(path) }
}

/// Replaces the file of this name by a new one, atomically.
fn replace(path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    for number in 0..TRIES {
        let new = path.with_file_name(format!(".{name}.{}-{number}", std::process::id()));
        match create_new(&new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => {
                return fs::rename(&new, path).map(|()| file).inspect_err(|_failed| {
                    // The file was created by this process.
                    let _ = fs::remove_file(&new);
                });
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Opens a device or a pipe through a descriptor, so that the opened file is the checked one.
fn open_special(path: &Path) -> io::Result<File> {
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?;
    if found.metadata()?.is_file() || !is_trusted(found.metadata()?.uid()) {
        let why = "it is a pipe or a device of another user, who could read the output";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Whether a user is root, the current user, or the user that called sudo.
fn is_trusted(uid: u32) -> bool {
    // SAFETY: it has no preconditions.
    let own = unsafe { libc::geteuid() };
    [0, own].contains(&uid) || caller().is_some_and(|(caller, _)| caller == uid)
}

/// Checks that `-o` may name this path, before the session rather than after it.
///
/// # Errors
/// `AlreadyExists` for a file that must not be replaced.
pub(crate) fn check_free(path: &Path, force: bool) -> io::Result<()> {
    let is_taken = !force && !is_stdout(path) && fs::symlink_metadata(path).is_ok() && !is_special(path);
    if is_taken { Err(io::ErrorKind::AlreadyExists.into()) } else { Ok(()) }
}

/// Whether the path is standard output on a terminal, which cannot show a binary file.
pub(crate) fn is_terminal(path: &Path) -> bool {
    is_stdout(path) && io::stdout().is_terminal()
}

/// Whether the path is a device, a pipe or a socket, which cannot be replaced. Does not follow a
/// symlink of another user.
fn is_special(path: &Path) -> bool {
    let is_followed = fs::symlink_metadata(path).is_ok_and(|found| !found.is_symlink() || is_trusted(found.uid()));
    is_followed && fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::{Read as _, Write as _};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    const ALICE: u32 = 64_001;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o777
    }

    /// Sets the default umask of most shells; other tests create files with modes of their own.
    fn usual_umask() {
        // SAFETY: it has no preconditions.
        unsafe { libc::umask(0o022) };
    }

    #[test]
    fn a_file_is_its_owners_alone_and_one_that_exists_is_refused() {
        usual_umask();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("job.mwr");
        create(&path, false).and_then(|mut file| file.write_all(b"first")).expect("nothing is there");
        assert_eq!(mode(&path), 0o600);
        let refusal = create(&path, false).expect_err("it is there");
        assert_eq!(refusal.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(check_free(&path, false).expect_err("it is there").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).expect("it is ours"), b"first");
    }

    #[test]
    fn output_file_that_is_replaced_gets_fresh_permissions_and_no_link() {
        usual_umask();
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("job.mwr"), directory.path().join("latest"));
        fs::write(&path, "old").expect("it is ours");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("it is ours");
        symlink(&path, &link).expect("it is ours");
        for name in [&path, &link] {
            let mut reader = File::open(name).expect("it is there");
            create(name, true).and_then(|mut file| file.write_all(b"secret")).expect("it is replaced");
            let mut seen = String::new();
            reader.read_to_string(&mut seen).expect("it is open");
            assert_ne!(seen, "secret", "who had opened the old file does not see the new one");
            assert_eq!((mode(name), fs::read(name).expect("it is there")), (0o600, b"secret".to_vec()));
            fs::write(&path, "old").expect("it is ours");
        }
        assert!(fs::symlink_metadata(&link).expect("it is there").is_file(), "the link itself is replaced");
        assert_eq!(fs::read(&path).expect("it is there"), b"old", "and not where it led");
        assert_eq!(fs::read_dir(directory.path()).expect("it is ours").count(), 2, "nothing is left beside them");
    }

    #[test]
    fn output_file_of_another_user_is_neither_followed_nor_written() {
        // SAFETY: it has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: only root can give a file away");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let (pipe, link, broken) =
            (directory.path().join("pipe"), directory.path().join("link"), directory.path().join("broken"));
        let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
        // With a reader on the pipe, opening it for writing does not block.
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).expect("it is ours");
        create(&pipe, false).expect("it is ours");
        chown(&pipe, Some(ALICE), None).expect("root may");
        for force in [false, true] {
            let refusal = create(&pipe, force).expect_err("it is hers");
            assert_eq!(refusal.kind(), io::ErrorKind::PermissionDenied);
        }
        drop(reader);
        symlink("/dev/null", &link).expect("it is ours");
        create(&link, false).expect("our own link leads to it");
        lchown(&link, Some(ALICE), None).expect("root may");
        symlink("nowhere", &broken).expect("it is ours");
        for taken in [&link, &broken] {
            assert_eq!(create(taken, false).expect_err("it is taken").kind(), io::ErrorKind::AlreadyExists);
            create(taken, true).expect("the link is replaced");
            assert!(fs::symlink_metadata(taken).expect("it is there").is_file());
        }
        assert!(!directory.path().join("nowhere").exists());
    }

    #[test]
    fn output_file_under_sudo_belongs_to_the_calling_user() {
        // SAFETY: it has no preconditions.
        let is_root = unsafe { libc::geteuid() } == 0;
        let of = |set: &'static [(&str, &str)]| {
            caller_by(move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        let expected = is_root.then_some((1000, 1001));
        assert_eq!(of(&[("SUDO_UID", "1000"), ("SUDO_GID", "1001")]), expected);
        assert_eq!(of(&[("SUDO_UID", "0"), ("SUDO_GID", "0")]), None, "root called it");
        assert_eq!(of(&[("SUDO_UID", "alice"), ("SUDO_GID", "1001")]), None);
        assert_eq!(of(&[("SUDO_UID", "1000")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_device_is_written_to_and_a_directory_is_not() {
        let null = Path::new("/dev/null");
        let before = fs::metadata(null).expect("it is there").mode();
        for force in [false, true] {
            create(null, force).and_then(|mut file| file.write_all(b"gone")).expect("everybody may");
            assert_eq!(fs::metadata(null).expect("it is there").mode(), before);
        }
        let directory = tempfile::tempdir().expect("a directory");
        assert!(create(directory.path(), false).is_err() && create(directory.path(), true).is_err());
        assert!(directory.path().is_dir());
    }

    #[test]
    fn standard_output_has_its_usual_names() {
        for stdout in ["-", "/dev/stdout", "/dev/fd/1"] {
            assert!(is_stdout(Path::new(stdout)) && check_free(Path::new(stdout), false).is_ok());
            assert_eq!(name(Path::new(stdout)).to_string(), "standard output");
        }
        assert!(!is_stdout(Path::new("./-")));
        assert_eq!(name(Path::new("a/job.mwr")).to_string(), "a/job.mwr");
    }
}
