use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use super::*;

const ELF64: &[u8] = b"\x7fELF\x02\x01\x01 the rest of a library";
const ELF32: &[u8] = b"\x7fELF\x01\x01\x01 the rest of a library";

/// A `/proc` and a host file system in a temporary directory.
struct ScannedMachine {
    directory: tempfile::TempDir,
}

impl ScannedMachine {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(fs::canonicalize(std::env::temp_dir()).expect("a directory"))
            .expect("a temporary directory");
        for part in ["proc/self", "host", "container"] {
            fs::create_dir_all(directory.path().join(part)).expect("a directory");
        }
        Self { directory }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    fn scan(&self) -> LibraryScan {
        LibraryScan::new(self.path("proc")).with_host_root(self.path("host"))
    }

    /// Writes a file in the temporary directory and returns its path.
    fn file(&self, relative: &str, contents: &[u8]) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, contents).expect("a file");
        path
    }

    /// Creates a process with `root` as its root directory that executes one file. Its `maps` lists
    /// the file as `written`; the real file is `file`.
    fn process(&self, tgid: u32, root: &str, written: &[u8], file: &Path) {
        let process = self.path(&format!("proc/{tgid}"));
        fs::create_dir_all(process.join("map_files")).expect("a directory");
        symlink(self.path(root), process.join("root")).expect("a link");
        symlink(file, process.join("map_files/7f1000-7f2000")).expect("a link");
        let inode = FileIdentity::of(&File::open(file).expect("the file")).expect("an identity").inode();
        // No file system has this device number, so the file is not found by its number.
        let line = format!("7f1000-7f2000 r-xp 00001000 ff:ff {inode}         ");
        let maps = [b"00400000-00401000 r-xp 00000000 fe:00 5  /usr/bin/python\n", line.as_bytes(), written, b"\n"];
        fs::write(process.join("maps"), maps.concat()).expect("a file");
    }
}

/// Returns the real path of a found file.
fn really(found: &LibraryFile) -> PathBuf {
    fs::read_link(found.path()).expect("the file is open")
}

fn only<T>(items: &[T]) -> &T {
    assert_eq!(items.len(), 1, "exactly one is expected");
    &items[0]
}

#[test]
fn one_file_used_by_many_is_found_once() {
    let machine = ScannedMachine::new();
    let library = machine.file("host/usr/lib64/libcuda.so.580.95", ELF64);
    symlink("libcuda.so.580.95", machine.path("host/usr/lib64/libcuda.so.1")).expect("a link");
    symlink("libcuda.so.1", machine.path("host/usr/lib64/libcuda.so")).expect("a link");
    for tgid in [30, 4, 100] {
        machine.process(tgid, "host", b"/usr/lib64/libcuda.so.580.95", &library);
    }
    let discovery = machine.scan().scan_all();
    let found = only(&discovery.files);
    assert_eq!(really(found), library);
    assert_eq!(found.mapped_by, [4, 30, 100]);
    assert!(!found.deleted);
    assert_eq!((discovery.processes, discovery.processes_denied), (3, 0));
    assert_eq!(discovery.left_out, []);
}

#[test]
fn a_container_s_own_copy_is_another_file() {
    let machine = ScannedMachine::new();
    let host = machine.file("host/usr/lib64/libcuda.so.1", ELF64);
    let own = machine.file("container/usr/local/cuda/compat/libcuda.so.1", ELF64);
    machine.process(7, "container", b"/usr/local/cuda/compat/libcuda.so.1", &own);
    // The same file at another path in the container: a bind mount.
    machine.process(8, "container", b"/usr/lib/libcuda.so.1", &host);
    let discovery = machine.scan().scan_all();
    let found: Vec<_> = discovery.files.iter().map(|file| (really(file), &file.mapped_by[..])).collect();
    assert_eq!(found, [(host, &[8][..]), (own, &[7])]);
    assert_eq!(discovery.files[1].display, "/usr/local/cuda/compat/libcuda.so.1");
}

#[test]
fn a_replaced_library_is_reached_through_its_mapping() {
    let machine = ScannedMachine::new();
    let old = machine.file("kept-alive", ELF64);
    let new = machine.file("host/usr/lib64/libcuda.so.1", &[ELF64, b"newer"].concat());
    machine.process(9, "host", b"/usr/lib64/libcuda.so.1 (deleted)", &old);
    let discovery = machine.scan().scan_all();
    assert_eq!(discovery.files.len(), 2);
    assert_eq!((really(&discovery.files[0]), discovery.files[0].deleted), (new, false));
    let running = &discovery.files[1];
    assert_eq!(really(running), old);
    assert!(running.deleted);
    assert_eq!(running.display, "/usr/lib64/libcuda.so.1");
}

#[test]
fn without_map_files_the_process_s_root_serves_if_the_inode_agrees() {
    let machine = ScannedMachine::new();
    let own = machine.file("container/lib/libcuda.so.1", ELF64);
    let other = machine.file("other", ELF64);
    for (tgid, file) in [(11, &own), (12, &other)] {
        machine.process(tgid, "container", b"/lib/libcuda.so.1", file);
        fs::remove_dir_all(machine.path(&format!("proc/{tgid}/map_files"))).expect("removed");
    }
    let discovery = machine.scan().scan_all();
    assert_eq!(really(only(&discovery.files)), own);
    let lost = only(&discovery.left_out);
    assert_eq!(lost.reason, LeftOutReason::Unreadable(io::ErrorKind::NotFound));
    assert_eq!(lost.mapped_by, [12]);
}

#[test]
fn a_file_that_is_mapped_at_a_low_address_is_found_in_map_files() {
    let machine = ScannedMachine::new();
    let program = machine.file("elsewhere/python3.13", ELF64);
    let process = machine.path("proc/13");
    fs::create_dir_all(process.join("map_files")).expect("a directory");
    symlink(&program, process.join("map_files/400000-420000")).expect("a link");
    let file = open_mapped_file(&process, "00400000-00420000", b"/usr/bin/python3.13", 1).expect("it is there");
    let (found, really) = (FileIdentity::of(&file), FileIdentity::of(&File::open(&program).expect("the file")));
    assert_eq!(found.expect("an identity").inode(), really.expect("an identity").inode());
}

#[test]
fn library_scan_uses_another_thread_if_the_main_thread_has_ended() {
    let machine = ScannedMachine::new();
    let own = machine.file("container/lib/libcuda.so.1", ELF64);
    // Thread 52 of process 50. The process's own files are empty.
    machine.process(52, "container", b"/lib/libcuda.so.1", &own);
    machine.file("proc/50/maps", b"");
    for tid in [50, 52] {
        fs::create_dir_all(machine.path(&format!("proc/50/task/{tid}"))).expect("a directory");
    }
    let discovery = machine.scan().scan_process(50);
    assert_eq!(really(only(&discovery.files)), own);
    assert_eq!((&discovery.files[0].mapped_by[..], discovery.processes), (&[50][..], 1));
}

#[test]
fn hostile_paths_are_opened_and_shown_safely() {
    let machine = ScannedMachine::new();
    let name = OsStr::from_bytes(b"with space\nand \x1b[31m\xff");
    let directory = machine.path("container").join(name);
    fs::create_dir(&directory).expect("a directory");
    let library = directory.join("libcuda.so.1");
    fs::write(&library, ELF64).expect("a file");
    machine.process(13, "container", b"/with space\\012and \x1b[31m\xff/libcuda.so.1", &library);
    fs::remove_dir_all(machine.path("proc/13/map_files")).expect("removed");
    let discovery = machine.scan().scan_process(13);
    let found = only(&discovery.files);
    assert_eq!(really(found), library);
    assert_eq!(found.display, "/with space\\nand \\x1b[31m\u{fffd}/libcuda.so.1");
}

#[test]
fn files_that_cannot_be_probed_are_left_out_with_a_reason() {
    let machine = ScannedMachine::new();
    machine.file("host/usr/lib/libcuda.so.1", ELF32);
    machine.file("host/usr/lib64/libcuda.so", b"INPUT(libcuda.so.1)");
    machine.file("host/usr/lib64/libcuda.so.1", b"\x7fEL");
    let directory = machine.path("host/usr/local/nvidia/lib64/libcuda.so.1");
    fs::create_dir_all(directory).expect("a directory is no library");
    let missing = machine.path("no/such/file");
    let discovery = machine.scan().with_named(&missing).scan_all();
    assert!(discovery.files.is_empty());
    let reasons: Vec<_> = discovery.left_out.iter().map(|left| left.reason).collect();
    assert_eq!(
        reasons,
        [
            LeftOutReason::Unreadable(io::ErrorKind::NotFound),
            LeftOutReason::NotElf,
            LeftOutReason::NotElf,
            LeftOutReason::ThirtyTwoBit,
        ]
    );
    assert_eq!(discovery.left_out[0].display, missing.display().to_string());
}

#[test]
fn a_thirty_two_bit_library_names_the_processes_that_use_it() {
    let machine = ScannedMachine::new();
    let library = machine.file("host/usr/lib32/libcuda.so.1", ELF32);
    for tgid in [21, 20] {
        machine.process(tgid, "host", b"/usr/lib32/libcuda.so.1", &library);
    }
    let discovery = machine.scan().scan_all();
    let left = only(&discovery.left_out);
    assert_eq!((left.reason, &left.mapped_by[..]), (LeftOutReason::ThirtyTwoBit, &[20, 21][..]));
    assert_eq!(left.reason.to_string(), "32-bit library: only 64-bit processes are watched");
}

#[test]
fn a_named_file_may_have_any_name() {
    let machine = ScannedMachine::new();
    let library = machine.file("somewhere/my-driver", ELF64);
    let discovery = machine.scan().with_named(&library).scan_all();
    assert_eq!(really(only(&discovery.files)), library);
}

#[test]
fn processes_that_are_gone_or_use_no_gpu_are_no_error() {
    let machine = ScannedMachine::new();
    // A directory whose maps file no longer exists, and one whose maps file is empty.
    fs::create_dir(machine.path("proc/40")).expect("a directory");
    machine.file("proc/41/maps", b"");
    // The mapped file disappears with the process between two readings.
    let library = machine.file("soon-gone", ELF64);
    machine.process(42, "container", b"/libcuda.so.1", &library);
    fs::remove_file(&library).expect("removed");
    let discovery = machine.scan().scan_all();
    assert!(discovery.files.is_empty());
    assert_eq!(discovery.processes, 2);
    assert!(machine.scan().scan_process(4_000_000).files.is_empty());
}

#[test]
fn an_identity_survives_a_second_scan() {
    let machine = ScannedMachine::new();
    let library = machine.file("host/usr/lib64/libcuda.so.1", ELF64);
    let first = machine.scan().scan_all();
    let file = File::options().append(true).open(library).expect("the file");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).expect("a new time");
    let second = machine.scan().scan_all();
    assert!(only(&first.files).identity.is_same_file(&only(&second.files).identity));
}

#[test]
fn this_process_has_mapped_its_own_c_library() {
    let tgid = std::process::id();
    let discovery = LibraryScan::new("/proc").with_stems(&["libc.so"]).scan_process(tgid);
    let found = only(&discovery.files);
    assert_eq!(found.mapped_by, [tgid]);
    assert!(found.path().exists() && found.display.starts_with('/'));
    assert!(!found.deleted);
}
