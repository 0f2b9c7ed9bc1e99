use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use object::read::ReadCache;
use tempfile::TempDir;

use super::super::look_for;
use super::*;

/// A library that every machine has, with exported functions of these names.
const LIBRARY: [&str; 2] = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"];
const fn name(key: u16, name: &'static str) -> SymbolName {
    SymbolName { key, beginning: name, ending: name }
}
const WANTED: [SymbolName; 3] = [name(1, "qsort"), name(2, "no_such_function"), name(3, "environ")];

/// Copies the library into a folder that also contains a cache.
fn library() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a directory");
    let copy = folder.path().join("copy.so");
    let library = LIBRARY.into_iter().find(|path| Path::new(path).exists()).expect("a C library");
    fs::copy(library, &copy).expect("it can be read");
    fs::create_dir(folder.path().join("cache")).expect("it is ours");
    (folder, copy)
}

/// Calls `look` with an open file, its headers and its entry in the cache.
fn with<T>(folder: &TempDir, path: &Path, look: impl FnOnce(&File, &SymbolLayout<'_>, Shelf) -> T) -> T {
    let file = File::open(path).expect("it is there");
    let data = ReadCache::new(file.try_clone().expect("a descriptor"));
    let layout = SymbolLayout::parse(&data).expect("a library");
    let shelf = Shelf::within(&folder.path().join("cache"), &file, &layout).expect("it has a build id");
    look(&file, &layout, shelf)
}

fn searched(folder: &TempDir, path: &Path) -> Symbols {
    with(folder, path, |file, layout, shelf| {
        let (found, places) = look_for(file, layout, &WANTED).expect("it can be read");
        shelf.keep(&WANTED, &places);
        found
    })
}

fn recalled(folder: &TempDir, path: &Path, wanted: &[SymbolName]) -> Option<Symbols> {
    with(folder, path, |file, layout, shelf| shelf.recall(file, layout, wanted))
}

#[test]
fn symbol_cache_returns_only_the_results_of_the_same_search() {
    let (folder, path) = library();
    assert!(recalled(&folder, &path, &WANTED).is_none(), "nothing was found yet");
    let found = searched(&folder, &path);
    assert_eq!((found.functions.len(), found.objects.len()), (1, 1), "{found:?}");
    let again = recalled(&folder, &path, &WANTED).expect("it is remembered");
    assert_eq!((again.functions, again.objects), (found.functions, found.objects));
    assert!(recalled(&folder, &path, &WANTED[..2]).is_none(), "that is another search");
    let other = name(1, "bsearch");
    assert!(recalled(&folder, &path, &[other, WANTED[1], WANTED[2]]).is_none(), "and so is that");
}

#[test]
fn symbol_cache_searches_a_file_with_a_copied_build_id_itself() {
    let (folder, path) = library();
    let mut bytes = fs::read(&path).expect("it is ours");
    searched(&folder, &path);
    let at = memchr::memmem::find(&bytes, b"\0qsort\0").expect("it is exported");
    bytes[at + 1] = b'p';
    let pretender = folder.path().join("pretender.so");
    fs::write(&pretender, &bytes).expect("it is ours");
    assert!(recalled(&folder, &pretender, &WANTED).is_none(), "its name is another there");
    assert!(searched(&folder, &pretender).functions.is_empty());
    assert!(recalled(&folder, &path, &WANTED).is_some_and(|found| found.functions.is_empty()), "of the same owner");
}

#[test]
fn a_file_without_a_build_id_is_known_by_its_headers() {
    let (folder, path) = library();
    let mark_of = |path: &Path| with(&folder, path, |file, layout, _| mark(file, layout).expect("it can be read"));
    let (one, mut bytes) = (mark_of(&path), fs::read(&path).expect("it is ours"));
    assert_eq!(mark_of(&path), one);
    assert!(one.starts_with("mark-") && one.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{one}");
    let last = bytes.len() - 1;
    for at in [100, last] {
        bytes[at] ^= 1;
        let other = folder.path().join("other.so");
        fs::write(&other, &bytes).expect("it is ours");
        assert_ne!(mark_of(&other), one);
        bytes[at] ^= 1;
    }
}

#[test]
fn symbol_cache_does_not_share_results_between_file_owners() {
    let (folder, path) = library();
    // SAFETY: it has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("SKIPPED: takes root, to have files of two owners");
    }
    let of_another = folder.path().join("another.so");
    fs::copy(&path, &of_another).expect("it is ours");
    std::os::unix::fs::chown(&of_another, Some(64_001), None).expect("as root");
    searched(&folder, &of_another);
    assert!(recalled(&folder, &of_another, &WANTED).is_some());
    assert!(recalled(&folder, &path, &WANTED).is_none());
}

#[test]
fn a_damaged_cache_is_none_and_is_written_again() {
    let (folder, path) = library();
    searched(&folder, &path);
    let file = |shelf: Shelf| shelf.path;
    let kept = with(&folder, &path, |_, _, shelf| file(shelf));
    let text = fs::read_to_string(&kept).expect("it is ours");
    let far = format!("[1,0,{}]", u64::MAX / 24 * 24);
    let start = text.rfind("[1,").expect("the place of the first");
    let end = start + text[start..].find(']').expect("its end") + 1;
    let elsewhere = [&text[..start], &far, &text[end..]].concat();
    for damaged in ["", "{}", "something", &text[..text.len() / 2], &elsewhere] {
        fs::write(&kept, damaged).expect("it is ours");
        assert!(recalled(&folder, &path, &WANTED).is_none(), "{damaged}");
    }
    searched(&folder, &path);
    assert!(recalled(&folder, &path, &WANTED).is_some());
}

#[test]
fn symbol_cache_rejects_shared_directories_and_drops_its_oldest_files() {
    let (folder, path) = library();
    let cache = folder.path().join("cache");
    for number in 0..2 * MOST_FILES {
        fs::write(cache.join(format!("{number}.json")), "old").expect("it is ours");
    }
    searched(&folder, &path);
    assert_eq!(fs::read_dir(&cache).expect("it is ours").count(), MOST_FILES);
    assert!(recalled(&folder, &path, &WANTED).is_some());
    fs::set_permissions(&cache, Permissions::from_mode(0o777)).expect("it is ours");
    assert!(!is_own(&cache));
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/tmp", &link).expect("it is ours");
    assert!(!is_own(&link) && !is_own(&folder.path().join("no/such")));
    assert!(is_own(&folder.path().join("made")), "where it can be made it is");
}
