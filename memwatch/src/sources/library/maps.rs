//! Finds the executable mappings of files with given names in a process's `maps`, in one pass.

use std::io::{self, BufRead};

use super::limits::MOST_OF_PROCESS;

/// Suffix that the kernel appends to the path of a mapped file without a name.
const DELETED: &[u8] = b" (deleted)";

/// An executable mapping of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LibraryMapping {
    /// The address range as `maps` writes it.
    pub(crate) range: String,
    /// Inode number of the mapped file.
    pub(crate) inode: u64,
    /// Device number in `maps`; equals the file's `st_dev` on most file systems.
    pub(crate) device: u64,
    /// Absolute path as the process sees it: any bytes but NUL.
    pub(crate) path: Vec<u8>,
    /// Whether the file was removed or replaced since.
    pub(crate) deleted: bool,
}

/// The libraries that a process maps.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// Mapped libraries, one entry for each file.
    pub(crate) libraries: Vec<LibraryMapping>,
    /// Number of files beyond the limit of [`MOST_OF_PROCESS`].
    pub(crate) over_limit: usize,
}

/// Reads the executable mappings of files named after one of these stems, or `stem.<anything>`; one
/// for each file.
///
/// # Errors
/// Reading failed. If the process exits during the reading, the error is `ESRCH` or the result is
/// empty.
pub(crate) fn library_mappings(mut maps: impl BufRead, stems: &[&str]) -> io::Result<Mappings> {
    let mut found = Mappings::default();
    let mut beyond = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok(found);
        }
        let Some(mapping) = parse_line(line.trim_ascii_end(), stems) else {
            continue;
        };
        let known = |seen: &LibraryMapping| seen.inode == mapping.inode && seen.path == mapping.path;
        if found.libraries.iter().any(known) {
            continue;
        }
        if found.libraries.len() < MOST_OF_PROCESS {
            found.libraries.push(mapping);
        } else if beyond.replace(mapping.inode) != Some(mapping.inode) {
            // The mappings of one file are consecutive.
            found.over_limit += 1;
        }
    }
}

/// Parses `start-end perms offset major:minor inode   /path`; anything but an executable mapping
/// of a wanted library is `None`.
fn parse_line(line: &[u8], stems: &[&str]) -> Option<LibraryMapping> {
    let slash = line.iter().rposition(|&byte| byte == b'/')?;
    if !stems.iter().any(|stem| line[slash + 1..].starts_with(stem.as_bytes())) {
        return None;
    }
    let path_start = line.iter().position(|&byte| byte == b'/')?;
    let (written, deleted) = match line[path_start..].strip_suffix(DELETED) {
        Some(written) => (written, true),
        None => (&line[path_start..], false),
    };
    let path = unescape(written);
    if !stems.iter().any(|stem| is_library(&path, stem)) {
        return None;
    }
    let fields = std::str::from_utf8(&line[..path_start]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let range = fields.next()?;
    let permissions = fields.next()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let device = libc::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = fields.next()?.parse().ok()?;
    (permissions.as_bytes().get(2) == Some(&b'x') && is_range(range)).then(|| LibraryMapping {
        range: range.to_owned(),
        inode,
        device,
        path,
        deleted,
    })
}

/// Whether the last component of `path` is `stem` or starts with `stem` and a dot.
pub(crate) fn is_library(path: &[u8], stem: &str) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.strip_prefix(stem.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
}

fn is_range(range: &str) -> bool {
    range
        .split_once('-')
        .is_some_and(|(start, end)| [start, end].iter().all(|part| u64::from_str_radix(part, 16).is_ok()))
}

/// Undoes the only escape in `maps`: `\012` for a newline. A path with these four characters is
/// misread; `map_files` still opens the right file.
pub(crate) fn unescape(written: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut path = Vec::with_capacity(written.len());
    let mut rest = written;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(NEWLINE) {
            path.push(b'\n');
            rest = tail;
        } else {
            path.push(byte);
            rest = tail;
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(maps: &[u8]) -> Vec<Vec<u8>> {
        let mappings = library_mappings(maps, &["libcuda.so"]).expect("readable");
        mappings.libraries.into_iter().map(|mapping| mapping.path).collect()
    }

    fn line(path: &[u8]) -> Vec<u8> {
        [b"7f0000000000-7f0000001000 r-xp 00001000 fe:00 77                         ", path, b"\n"].concat()
    }

    #[test]
    fn the_executable_mapping_of_a_library_is_found_once() {
        let maps = b"\
55d0c0000000-55d0c0001000 r-xp 00000000 fe:00 12   /usr/bin/python3.11
7f1000000000-7f1000100000 r--p 00000000 fe:00 77   /usr/lib/libcuda.so.580.95
7f1000100000-7f1000900000 r-xp 00100000 fe:00 77   /usr/lib/libcuda.so.580.95
7f1000900000-7f1000a00000 r-xp 00900000 fe:00 77   /usr/lib/libcuda.so.580.95
7f1000a00000-7f1000b00000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0    [vdso]
";
        let expected = LibraryMapping {
            range: "7f1000100000-7f1000900000".to_owned(),
            inode: 77,
            device: libc::makedev(0xfe, 0),
            path: b"/usr/lib/libcuda.so.580.95".to_vec(),
            deleted: false,
        };
        assert_eq!(library_mappings(&maps[..], &["libcuda.so"]).expect("readable").libraries, [expected]);
    }

    #[test]
    fn more_files_than_a_process_needs_are_counted_and_left() {
        let line = |number: usize| format!("7f-8f r-xp 0 fe:00 {number} /tmp/{number}/libcuda.so.1\n");
        // Each file has two mappings.
        let maps: String = (0..500).map(|number| line(number) + &line(number)).collect();
        let mappings = library_mappings(maps.as_bytes(), &["libcuda.so"]).expect("readable");
        assert_eq!((mappings.libraries.len(), mappings.over_limit), (MOST_OF_PROCESS, 500 - MOST_OF_PROCESS));
    }

    #[test]
    fn only_the_exact_name_or_a_version_of_it_counts() {
        for (path, counts) in [
            ("/a/libcuda.so", true),
            ("/a/libcuda.so.1", true),
            ("/a/libcuda.so.580.95 (deleted)", true),
            ("/a/libcudart.so.12", false),
            ("/a/libcuda.so_old", false),
            ("/a/libcuda.software", false),
            ("/a/libcuda.so.1/other.so", false),
            ("/memfd:libcuda.so.1 (deleted)", false),
            ("/a/xlibcuda.so.1", false),
        ] {
            assert_eq!(!paths(&line(path.as_bytes())).is_empty(), counts, "{path}");
        }
    }

    #[test]
    fn a_deleted_library_keeps_its_path_without_the_mark() {
        let maps = line(b"/usr/lib/libcuda.so.1 (deleted)");
        let mappings = library_mappings(&maps[..], &["libcuda.so"]).expect("readable");
        assert_eq!(mappings.libraries[0].path, b"/usr/lib/libcuda.so.1");
        assert!(mappings.libraries[0].deleted);
    }

    #[test]
    fn hostile_paths_are_read_as_they_are() {
        for (written, path) in [
            (&b"/a dir/with  spaces/libcuda.so.1"[..], &b"/a dir/with  spaces/libcuda.so.1"[..]),
            (b"/new\\012line/libcuda.so.1", b"/new\nline/libcuda.so.1"),
            (b"/\xff\xfe/libcuda.so.1", b"/\xff\xfe/libcuda.so.1"),
            (b"/back\\slash\\01/libcuda.so.1", b"/back\\slash\\01/libcuda.so.1"),
            (b"/r-xp 00000000 fe:00 5 /libcuda.so.1", b"/r-xp 00000000 fe:00 5 /libcuda.so.1"),
        ] {
            assert_eq!(paths(&line(written)), [path]);
        }
    }

    #[test]
    fn lines_that_are_no_mapping_are_skipped() {
        for garbage in [
            &b""[..],
            b"\n\n\n",
            b"/libcuda.so.1",
            b"r-xp /libcuda.so.1",
            b"7f-8f r-xp 0 fe:00 notanumber /libcuda.so.1\n",
            b"7f r-xp 0 fe:00 5 /libcuda.so.1\n",
            b"../../x-8f r-xp 0 fe:00 5 /libcuda.so.1\n",
            b"\xff\xff-8f r-xp 0 fe:00 5 /libcuda.so.1\n",
            b"7f-8f r-",
        ] {
            assert_eq!(paths(garbage), Vec::<Vec<u8>>::new(), "{garbage:?}");
        }
    }
}
