use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::dynamic::tests::library;
use super::*;

const RUNPATH: u64 = 29;
const RPATH: u64 = 15;
const ELF64: &[u8] = b"\x7fELF\x02\x01\x01 the rest of a library";

/// A process with its own root directory in a temporary directory.
struct LoaderProcess {
    directory: tempfile::TempDir,
    maps: String,
}

impl LoaderProcess {
    const TGID: u32 = 7;

    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for part in ["proc/7/map_files", "root/home"] {
            std::fs::create_dir_all(directory.path().join(part)).expect("a directory");
        }
        symlink(directory.path().join("root"), directory.path().join("proc/7/root")).expect("a link");
        symlink(directory.path().join("root/home"), directory.path().join("proc/7/cwd")).expect("a link");
        Self { directory, maps: String::new() }
    }

    fn file(&self, path: &str, contents: &[u8]) -> PathBuf {
        let path = self.directory.path().join("root").join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(&path, contents).expect("a file");
        path
    }

    fn environment(&self, entries: &[&str]) {
        let text: Vec<u8> = entries.iter().flat_map(|entry| entry.bytes().chain([0])).collect();
        std::fs::write(self.directory.path().join("proc/7/environ"), text).expect("a file");
    }

    /// Maps a file as executable code.
    fn map(&mut self, path: &str, contents: &[u8]) {
        let file = self.file(path, contents);
        let inode = std::fs::metadata(&file).expect("the file").st_ino();
        let range = format!("{:x}000-{:x}000", self.maps.len() + 1, self.maps.len() + 2);
        symlink(&file, self.directory.path().join("proc/7/map_files").join(&range)).expect("a link");
        writeln!(self.maps, "{range} r-xp 00001000 fe:00 {inode}     {path}").expect("memory takes it");
        std::fs::write(self.directory.path().join("proc/7/maps"), &self.maps).expect("a file");
    }

    /// Returns the found paths as the process sees them.
    fn found(&self) -> Vec<String> {
        let scan = LibraryScan::new(self.directory.path().join("proc"));
        let discovery = LoaderSearch::default().files(&scan, Self::TGID);
        assert!(discovery.files.iter().all(|file| file.mapped_by.is_empty()));
        discovery.files.into_iter().map(|file| file.display).collect()
    }
}

#[test]
fn the_library_path_of_the_environment_is_looked_into() {
    let process = LoaderProcess::new();
    process.environment(&["HOME=/root", "LD_LIBRARY_PATH=/nothing:/opt/a;/opt/b:relative", "XLD_LIBRARY_PATH=/opt/no"]);
    for directory in ["/opt/a", "/opt/b", "/home/relative", "/opt/no"] {
        process.file(&format!("{directory}/libcuda.so.1"), format!("{}{directory}", "\x7fELF\x02\x01\x01").as_bytes());
    }
    assert_eq!(process.found(), ["/opt/a/libcuda.so.1", "/opt/b/libcuda.so.1", "relative/libcuda.so.1"]);
}

#[test]
fn loader_searches_the_paths_named_by_program_and_libraries() {
    let mut process = LoaderProcess::new();
    process.map("/opt/job/bin/program", &library(&[(RUNPATH, "$ORIGIN/../lib:/opt/two")]));
    process.map("/opt/python/lib/torch.so", &library(&[(RPATH, "${ORIGIN}/../$LIB")]));
    process.map("/opt/none.so", b"no library at all");
    for path in ["/opt/job/lib/libcuda.so.1", "/opt/two/libcuda.so", "/opt/python/lib64/libcuda.so.1"] {
        process.file(path, format!("{}{path}", "\x7fELF\x02\x01\x01").as_bytes());
    }
    let mut found = process.found();
    found.sort();
    let expected = ["/opt/job/bin/../lib/libcuda.so.1", "/opt/python/lib/../lib64/libcuda.so.1", "/opt/two/libcuda.so"];
    assert_eq!(found, expected);
}

#[test]
fn loader_searches_hwcaps_subdirectories() {
    let process = LoaderProcess::new();
    process.environment(&["LD_LIBRARY_PATH=/opt"]);
    process.file("/opt/glibc-hwcaps/x86-64-v3/libcuda.so.1", ELF64);
    assert_eq!(process.found(), ["/opt/glibc-hwcaps/x86-64-v3/libcuda.so.1"]);
}

#[test]
fn loader_links_resolve_below_the_root_of_the_process() {
    let process = LoaderProcess::new();
    process.environment(&["LD_LIBRARY_PATH=/opt"]);
    process.file("/drivers/libcuda.so.580", ELF64);
    std::fs::create_dir_all(process.directory.path().join("root/opt")).expect("a directory");
    symlink("/drivers/libcuda.so.580", process.directory.path().join("root/opt/libcuda.so.1")).expect("a link");
    // Both paths lead to the same file.
    symlink("../../../../../drivers/libcuda.so.580", process.directory.path().join("root/opt/libcuda.so"))
        .expect("a link");
    assert_eq!(process.found().len(), 1);
}

#[test]
fn nothing_but_regular_files_is_opened() {
    let process = LoaderProcess::new();
    process.environment(&["LD_LIBRARY_PATH=/opt"]);
    std::fs::create_dir_all(process.directory.path().join("root/opt/libcuda.so.1")).expect("a directory");
    let fifo = process.directory.path().join("root/opt/libcuda.so");
    let path = std::ffi::CString::new(fifo.to_str().expect("a plain path")).expect("no NUL");
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    std::fs::create_dir_all(process.directory.path().join("root/etc")).expect("a directory");
    std::fs::rename(&fifo, process.directory.path().join("root/etc/ld.so.cache")).expect("a pipe there");
    assert_eq!(process.found(), Vec::<String>::new());
}

#[test]
fn a_path_without_end_is_looked_into_as_far_as_the_limit() {
    let process = LoaderProcess::new();
    let path: Vec<String> = (0..5000).map(|number| format!("/d{number:04}")).collect();
    process.environment(&[&format!("LD_LIBRARY_PATH={}", path.join(":"))]);
    for directory in [&path[0], &path[4999]] {
        process.file(&format!("{directory}/libcuda.so.1"), format!("{}{directory}", "\x7fELF\x02\x01\x01").as_bytes());
    }
    assert_eq!(process.found(), ["/d0000/libcuda.so.1"]);
}

#[test]
fn loader_scan_opens_at_most_64_files() {
    let process = LoaderProcess::new();
    let path: Vec<String> = (0..200).map(|number| format!("/d{number:04}")).collect();
    process.environment(&[&format!("LD_LIBRARY_PATH={}", path.join(":"))]);
    for directory in &path {
        process.file(&format!("{directory}/libcuda.so.1"), format!("\x7fELF\x02\x01\x01{directory}").as_bytes());
    }
    assert_eq!(process.found().len(), 64);
}

#[test]
fn a_program_that_is_about_to_start_is_looked_through() {
    let process = LoaderProcess::new();
    let program = process.file("/bin/job", &library(&[(RUNPATH, "$ORIGIN/../lib")]));
    let beside = process.file("/lib/libcuda.so.1", ELF64);
    let named = process.file("/named/libcuda.so.1", b"\x7fELF\x02\x01\x01 another one");
    let library_path = named.parent().expect("a parent").as_os_str().as_encoded_bytes();
    let scan = LibraryScan::new("/proc");
    let found = LoaderSearch::default().files_of_program(&scan, &program, library_path);
    let mut really: Vec<PathBuf> =
        found.files.iter().map(|file| std::fs::read_link(file.path()).expect("it is open")).collect();
    really.sort();
    assert_eq!(really, [beside, named].map(|path| std::fs::canonicalize(path).expect("it is there")));
}

#[test]
fn a_process_that_is_gone_has_nothing() {
    let scan = LibraryScan::new(std::env::temp_dir().join("no such proc"));
    assert!(LoaderSearch::default().files(&scan, 7).files.is_empty());
}

#[test]
fn loader_variable_lib_has_the_directory_of_the_architecture() {
    let expanded = |arch| expand(b"$ORIGIN/../$LIB/${PLATFORM}", b"/opt/bin", arch);
    let expected = |arch: &str| {
        ["lib64".to_owned(), format!("lib/{arch}-linux-gnu"), "lib".to_owned()]
            .map(|lib| format!("/opt/bin/../{lib}/{arch}").into_bytes())
    };
    for arch in ["x86_64", "aarch64"] {
        assert_eq!(expanded(arch), expected(arch));
    }
    assert_eq!(expand(b"/opt/lib", b"", ARCH), [b"/opt/lib"], "without a variable there is one");
}
