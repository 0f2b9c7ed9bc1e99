//! Finds the driver libraries that a CUDA program on this host would load.
//!
//! These files are probed before any process loads them, so that no call is missed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::maps::is_library;

/// Directories where distributions, containers and NVIDIA's own installers put the library.
pub(super) const DIRECTORIES: [&str; 16] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib64",
    "usr/lib64/nvidia",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "var/lib/snapd/lib/gl",
];

/// The loader's cache, which `ldconfig` writes.
const LOADER_CACHE: &str = "etc/ld.so.cache";
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const CACHE_HEADER_BYTES: usize = 48;
const CACHE_ENTRY_BYTES: usize = 24;
/// Magic of a cache that older loaders can read, too (glibc before 2.32): their entries come first,
/// then a whole cache in the newer format.
const OLD_CACHE_MAGIC: &[u8] = b"ld.so-1.7.0";
const OLD_CACHE_HEADER_BYTES: usize = 16;
const OLD_CACHE_ENTRY_BYTES: usize = 12;
/// Maximum length of a name or path.
const LONGEST_TEXT_BYTES: usize = 4096;

/// Returns paths below `root` that may be the library `stem`; some do not exist.
pub(crate) fn candidates(root: &Path, stem: &str) -> Vec<PathBuf> {
    let cache = fs::read(root.join(LOADER_CACHE)).unwrap_or_default();
    let mut paths: Vec<PathBuf> = cached(&cache, stem).map(|path| below(root, path)).collect();
    let compatibility = compatibility_directories(root);
    let directories = DIRECTORIES.iter().map(|directory| root.join(directory)).chain(compatibility);
    for directory in directories {
        paths.extend([directory.join(format!("{stem}.1")), directory.join(stem)]);
    }
    paths
}

/// Returns the directories `/usr/local/cuda*/compat` of the forward-compatibility package.
fn compatibility_directories(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join("usr/local")) else {
        return Vec::new();
    };
    let mut directories: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"cuda"))
        .map(|entry| entry.path().join("compat"))
        .collect();
    directories.sort();
    directories
}

/// Converts an absolute path of the host to a path below `root`.
pub(crate) fn below(root: &Path, path: &[u8]) -> PathBuf {
    let relative = path.iter().position(|&byte| byte != b'/').map_or(&[][..], |start| &path[start..]);
    root.join(OsStr::from_bytes(relative))
}

/// Returns the paths of the library in a loader cache in glibc's format since 2.2, alone or after
/// the older format. Entries that point outside the file are skipped; an unknown format yields
/// nothing.
pub(super) fn cached<'a>(cache: &'a [u8], stem: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let cache = behind_old_format(cache).unwrap_or(cache);
    let known = cache.starts_with(CACHE_MAGIC);
    let count = word(cache, CACHE_MAGIC.len()).filter(|_| known).unwrap_or(0);
    let entries = cache.get(CACHE_HEADER_BYTES..).unwrap_or(&[]);
    entries.as_chunks::<CACHE_ENTRY_BYTES>().0.iter().take(count).filter_map(move |entry| {
        let name = text(cache, word(entry, 4)?)?;
        is_library(name, stem).then(|| text(cache, word(entry, 8)?)).flatten()
    })
}

/// Returns the newer cache inside one that begins with entries for older loaders. Its offsets count
/// from its own first byte.
fn behind_old_format(cache: &[u8]) -> Option<&[u8]> {
    let count = cache.starts_with(OLD_CACHE_MAGIC).then(|| word(cache, 12)).flatten()?;
    let end = count.checked_mul(OLD_CACHE_ENTRY_BYTES)?.checked_add(OLD_CACHE_HEADER_BYTES)?;
    cache.get(end.next_multiple_of(8)..)
}

/// Reads the 32-bit number at `offset`, in the machine's byte order as glibc writes it.
fn word(bytes: &[u8], offset: usize) -> Option<usize> {
    let word = bytes.get(offset..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_ne_bytes(*word)).ok()
}

/// Returns the NUL-terminated text at `offset`.
fn text(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let rest = bytes.get(offset..)?;
    let window = &rest[..rest.len().min(LONGEST_TEXT_BYTES)];
    window.split(|&byte| byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a loader cache with these `(name, path)` entries.
    fn loader_cache(rows: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut entries = Vec::new();
        let strings_start = CACHE_HEADER_BYTES + rows.len() * CACHE_ENTRY_BYTES;
        for row in rows {
            let mut place = |text: &str| {
                let offset = u32::try_from(strings_start + strings.len()).expect("short");
                strings.extend(text.bytes().chain([0]));
                offset.to_ne_bytes()
            };
            entries.extend([[0x03, 0x03, 0, 0], place(row.0), place(row.1), [0; 4], [0; 4], [0; 4]].concat());
        }
        let mut cache = CACHE_MAGIC.to_vec();
        cache.extend(u32::try_from(rows.len()).expect("few").to_ne_bytes());
        cache.resize(CACHE_HEADER_BYTES, 0);
        [cache, entries, strings].concat()
    }

    fn paths(cache: &[u8]) -> Vec<&[u8]> {
        cached(cache, "libcuda.so").collect()
    }

    #[test]
    fn the_loader_cache_names_the_library() {
        let cache = loader_cache(&[
            ("libc.so.6", "/lib/libc.so.6"),
            ("libcuda.so.1", "/opt/driver/libcuda.so.1"),
            ("libcudart.so.12", "/opt/cuda/libcudart.so.12"),
            ("libcuda.so", "/opt/driver/libcuda.so"),
        ]);
        assert_eq!(paths(&cache), [&b"/opt/driver/libcuda.so.1"[..], b"/opt/driver/libcuda.so"]);
    }

    #[test]
    fn a_cache_behind_one_for_older_loaders_is_read() {
        let cache = loader_cache(&[("libcuda.so.1", "/opt/driver/libcuda.so.1")]);
        for count in [0_u8, 1, 2, 5] {
            let mut old = OLD_CACHE_MAGIC.to_vec();
            old.extend([0, count, 0, 0, 0]);
            old.resize((OLD_CACHE_HEADER_BYTES + usize::from(count) * OLD_CACHE_ENTRY_BYTES).next_multiple_of(8), 0);
            assert_eq!(paths(&[&old[..], &cache].concat()), [&b"/opt/driver/libcuda.so.1"[..]], "{count} entries");
            assert_eq!(paths(&old), Vec::<&[u8]>::new());
        }
    }

    #[test]
    fn a_text_without_an_end_is_cut_off() {
        let mut cache = loader_cache(&[("libcuda.so.1", "/opt/libcuda.so.1")]);
        cache.pop();
        cache.resize(1 << 20, b'x');
        assert!(paths(&cache).iter().all(|path| path.len() <= LONGEST_TEXT_BYTES));
    }

    #[test]
    fn a_damaged_loader_cache_yields_what_is_left_and_never_panics() {
        let cache = loader_cache(&[("libcuda.so.1", "/opt/libcuda.so.1"); 3]);
        assert_eq!(paths(&[b"ld.so-1.7.0", &cache[..]].concat()), Vec::<&[u8]>::new());
        for length in 0..cache.len() {
            assert!(paths(&cache[..length]).len() <= 3);
        }
        for index in 0..cache.len() {
            let mut damaged = cache.clone();
            damaged[index] = 0xff;
            assert!(paths(&damaged).len() <= 3);
        }
    }

    #[test]
    fn every_usual_place_is_a_candidate_below_the_root() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, contents: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, contents).expect("a file");
        };
        write("etc/ld.so.cache", &loader_cache(&[("libcuda.so.1", "/opt/libcuda.so.1")]));
        write("usr/local/cuda-12.4/compat/libcuda.so.1", b"");
        let found = candidates(root.path(), "libcuda.so");
        for path in ["opt/libcuda.so.1", "usr/local/cuda-12.4/compat/libcuda.so.1", "usr/lib64/libcuda.so.1"] {
            assert!(found.contains(&root.path().join(path)), "{path}");
        }
        assert!(found.iter().all(|path| path.starts_with(root.path())));
    }
}
