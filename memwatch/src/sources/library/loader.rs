//! Finds the driver libraries that the loader of a process may find.
//!
//! A process without a library may load one of these at any moment, and a file probed before that
//! shows its calls from the first on. All locations that `dlopen` searches count (ld.so(8)):
//! `LD_LIBRARY_PATH` as of the process's start, RPATH and RUNPATH of its program and loaded
//! libraries, the loader's cache, and the default directories, each as the process sees it. All of
//! that is untrusted and read with limits.

mod dynamic;
mod rooted;

use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::ARCH;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::linux::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Discovery, FileIdentity, FileOccurrence, LibraryScan, host, open_mapped_file, shown, unescape};
use rooted::Root;

/// Maximum number of searched directories. A job with many Python packages has some 40.
const MOST_DIRECTORIES: usize = 256;
/// Maximum number of loaded libraries that are read. A PyTorch process has some 300.
const MOST_OBJECTS: usize = 1024;
/// Maximum bytes read of an environment; the kernel allows 6 MB.
const MOST_ENVIRONMENT_BYTES: u64 = 1 << 20;
/// Maximum bytes read of a loader's cache. That of a large system has 200 KB.
const MOST_CACHE_BYTES: u64 = 8 << 20;
/// Maximum number of files found in one scan. Each stays open until it is probed, and at most
/// [`super::limits::MOST_OF_OWNER`] of one owner are probed.
const MOST_CANDIDATES: usize = 64;
/// Maximum number of loaded libraries with cached search paths.
const MOST_KNOWN: usize = 4096;

/// Subdirectories with variants for newer CPUs, searched below each directory (glibc 2.33). glibc has
/// none for aarch64 (elf/dl-hwcaps_subdirs.c).
const VARIANTS: [&str; 4] = ["", "glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2"];

/// Lists of directories in a file's RPATH and RUNPATH, unexpanded.
type SearchPaths = Arc<[Vec<u8>]>;

/// Searches as loaders do, and caches the search paths of loaded libraries. May be used by several
/// threads: the lock is not held while a file is read.
#[derive(Debug, Default)]
pub(crate) struct LoaderSearch {
    /// Search paths by device and inode of the file.
    named: Mutex<BTreeMap<(u64, u64), SearchPaths>>,
}

impl LoaderSearch {
    /// Returns the files that a process's loader may find under the library's name, with an empty
    /// `mapped_by`.
    pub(crate) fn files(&self, scan: &LibraryScan, tgid: u32) -> Discovery {
        let process = scan.proc_root.join(tgid.to_string());
        let Ok(root) = Root::of(&process) else { return Discovery::default() };
        let mut directories = Directories::default();
        directories.add_list(&library_path(&process), b"");
        self.add_named_by_objects(&process, &mut directories);
        let mut discovery = Discovery::default();
        for stem in &scan.stems {
            for path in directories.candidates(stem).chain(system(&root, stem)) {
                add(&root, &path, &mut discovery);
            }
        }
        discovery
    }

    /// Returns the files that the loader of a program may find if the program is started with this
    /// `LD_LIBRARY_PATH`.
    pub(crate) fn files_of_program(&self, scan: &LibraryScan, program: &Path, library_path: &[u8]) -> Discovery {
        let mut discovery = Discovery::default();
        let Ok(root) = Root::here() else { return discovery };
        let mut directories = Directories::default();
        directories.add_list(library_path, b"");
        let program = std::fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
        let name = program.as_os_str().as_encoded_bytes();
        if let Ok(file) = root.open(name) {
            let origin = parent(name);
            self.named_by(&file).iter().for_each(|list| directories.add_list(list, origin));
        }
        for stem in &scan.stems {
            directories.candidates(stem).for_each(|path| add(&root, &path, &mut discovery));
        }
        discovery
    }

    /// Adds the directories named by a process's program and loaded libraries.
    fn add_named_by_objects(&self, process: &Path, directories: &mut Directories) {
        let Ok(maps) = File::open(process.join("maps")) else { return };
        let mut seen = BTreeSet::new();
        for line in BufReader::new(maps).split(b'\n').map_while(Result::ok) {
            let Some((range, inode, path)) = executable(&line) else { continue };
            if !seen.insert(inode) {
                continue;
            }
            if seen.len() > MOST_OBJECTS {
                return;
            }
            if let Some(file) = open_mapped_file(process, range, &path, inode) {
                self.named_by(&file).iter().for_each(|list| directories.add_list(list, parent(&path)));
            }
        }
    }

    /// Returns the search paths of a file, which is read once.
    fn named_by(&self, file: &File) -> SearchPaths {
        let Ok(metadata) = file.metadata() else { return SearchPaths::default() };
        let key = (metadata.st_dev(), metadata.st_ino());
        let known = self.named.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return known;
        }
        let paths: SearchPaths = match rooted::reopen(file) {
            // The file is under a lease of its owner and may be readable later.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return SearchPaths::default(),
            opened => opened.map_or_else(|_unreadable| Vec::new(), |file| dynamic::search_paths(&file)).into(),
        };
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= MOST_KNOWN && !named.contains_key(&key) {
            named.clear();
        }
        named.insert(key, Arc::clone(&paths));
        paths
    }
}

/// The directories to search, without duplicates.
#[derive(Default)]
struct Directories(BTreeSet<Vec<u8>>);

impl Directories {
    /// Adds a colon-separated list; `origin` is the directory of the file that contains it.
    fn add_list(&mut self, list: &[u8], origin: &[u8]) {
        if list.is_empty() {
            return;
        }
        for entry in list.split(|byte| matches!(byte, b':' | b';')) {
            for directory in expand(entry, origin, ARCH) {
                if self.0.len() < MOST_DIRECTORIES {
                    self.0.insert(directory);
                }
            }
        }
    }

    fn candidates(&self, stem: &str) -> impl Iterator<Item = Vec<u8>> {
        self.0.iter().flat_map(move |directory| {
            VARIANTS.iter().flat_map(move |variant| {
                [format!("{stem}.1"), stem.to_owned()].map(|name| {
                    let parts: [&[u8]; 3] = [directory, variant.as_bytes(), name.as_bytes()];
                    let parts: Vec<&[u8]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
                    parts.join(&b'/')
                })
            })
        })
    }
}

/// Expands the variables in an entry. `$LIB` differs between distributions, so all its values are
/// returned.
fn expand(entry: &[u8], origin: &[u8], arch: &str) -> Vec<Vec<u8>> {
    let of_debian = format!("lib/{arch}-linux-gnu");
    let libs = ["lib64", &of_debian, "lib"];
    let fixed = replace(&replace(entry, b"ORIGIN", origin), b"PLATFORM", arch.as_bytes());
    let mut expanded: Vec<Vec<u8>> = libs.iter().map(|lib| replace(&fixed, b"LIB", lib.as_bytes())).collect();
    expanded.dedup();
    expanded
}

/// Replaces `$NAME` and `${NAME}`.
fn replace(text: &[u8], name: &[u8], by: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let braced = tail.strip_prefix(b"{").and_then(|tail| tail.strip_prefix(name)?.strip_prefix(b"}"));
        if let Some(after) = braced.or_else(|| tail.strip_prefix(name)).filter(|_| byte == b'$') {
            replaced.extend_from_slice(by);
            rest = after;
        } else {
            replaced.push(byte);
            rest = tail;
        }
    }
    replaced
}

/// Returns `LD_LIBRARY_PATH` as of the process's start: the loader reads it once.
fn library_path(process: &Path) -> Vec<u8> {
    let mut environment = Vec::new();
    let read = File::open(process.join("environ"))
        .and_then(|file| file.take(MOST_ENVIRONMENT_BYTES).read_to_end(&mut environment));
    let found = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"LD_LIBRARY_PATH="));
    found.filter(|_| read.is_ok()).unwrap_or_default().to_vec()
}

/// Returns the paths in the loader's cache and the default directories, as the process sees them.
fn system(root: &Root, stem: &str) -> Vec<Vec<u8>> {
    let mut cache = Vec::new();
    let opened = root.open(b"/etc/ld.so.cache").and_then(|file| rooted::reopen(&file));
    let read = opened.and_then(|file| file.take(MOST_CACHE_BYTES).read_to_end(&mut cache));
    let cached: Vec<Vec<u8>> = host::cached(&cache, stem).take(MOST_DIRECTORIES).map(<[u8]>::to_vec).collect();
    let usual = host::DIRECTORIES.iter().chain(&["lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"]);
    let usual = usual.flat_map(|place| [format!("/{place}/{stem}.1"), format!("/{place}/{stem}")]);
    cached.into_iter().filter(|_| read.is_ok()).chain(usual.map(String::into_bytes)).collect()
}

fn add(root: &Root, path: &[u8], discovery: &mut Discovery) {
    // Most of these paths do not exist in any one process.
    if discovery.files.len() < MOST_CANDIDATES
        && let Ok(file) = root.open(path)
        && let Ok(identity) = FileIdentity::of(&file)
    {
        discovery.add(
            file,
            identity,
            FileOccurrence { display: shown(path), deleted: false, tgid: None, named: false, owner: None },
        );
    }
}

/// Parses a line of `maps` with an executable file mapping and returns its range, inode and path.
fn executable(line: &[u8]) -> Option<(&str, u64, Vec<u8>)> {
    let path_start = line.iter().position(|&byte| byte == b'/')?;
    let mut fields = std::str::from_utf8(&line[..path_start]).ok()?.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let inode = fields.nth(2)?.parse().ok()?;
    (permissions.as_bytes().get(2) == Some(&b'x')).then(|| (range, inode, unescape(&line[path_start..])))
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&byte| byte == b'/').map_or(&[], |slash| &path[..slash.max(1)])
}

#[cfg(test)]
mod tests;
