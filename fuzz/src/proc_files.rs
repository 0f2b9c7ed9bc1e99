//! Files below `/proc`: names, paths and command lines are whatever a stranger made them.
//!
//! The first byte says which file; for a process, the second and third are the lengths of `stat` and `comm`, and the rest is `cmdline`.

use std::cell::RefCell;
use std::fs;

use tempfile::TempDir;

use crate::sources::library::driver_libraries;
use crate::sources::procfs::ProcReader;

const TGID: u32 = 7;
/// What the reader promises of a command line.
const COMMAND_BYTES: usize = 4096;

thread_local! {
    static PROC: RefCell<Option<(TempDir, ProcReader)>> = const { RefCell::new(None) };
}

/// Reads the bytes as one of the files.
///
/// # Panics
/// When something is read from them that is not what the reader promises, or the made-up tree cannot be written.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((selector, rest)) if selector % 2 == 0 => maps(rest),
        Some((_, rest)) => process(rest),
        None => {}
    }
}

fn maps(file: &[u8]) {
    for path in driver_libraries(file) {
        assert_eq!(path.first(), Some(&b'/'), "a path is absolute");
        let name = path.rsplit(|byte| *byte == b'/').next().expect("a split has a part");
        assert!(name == b"libcuda.so" || name.starts_with(b"libcuda.so."), "{name:?}");
    }
}

fn process(data: &[u8]) {
    let [stat_bytes, comm_bytes, files @ ..] = data else { return };
    let (stat, files) = files.split_at(usize::from(*stat_bytes).min(files.len()));
    let (comm, cmdline) = files.split_at(usize::from(*comm_bytes).min(files.len()));
    PROC.with_borrow_mut(|made| {
        let (root, reader) = made.get_or_insert_with(|| {
            let root = TempDir::new().expect("a temporary directory");
            let reader = ProcReader::new(root.path());
            fs::create_dir(root.path().join(TGID.to_string())).expect("a made-up process");
            (root, reader)
        });
        let folder = root.path().join(TGID.to_string());
        for (name, bytes) in [("stat", stat), ("comm", comm), ("cmdline", cmdline)] {
            fs::write(folder.join(name), bytes).expect("a made-up file");
        }
        let facts = reader.facts(TGID, false);
        assert_eq!(facts, reader.facts(TGID, false), "the same files say the same");
        if let Some(facts) = facts {
            assert_eq!(facts.tgid, TGID);
            // A byte that is no UTF-8 becomes a character of three.
            assert!(facts.command.len() <= 3 * COMMAND_BYTES && !facts.command.contains('\0'), "{facts:?}");
        }
    });
}
