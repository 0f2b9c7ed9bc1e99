//! Files below `/proc`, and files with a loader's search paths: names, paths and command lines are
//! untrusted.
//!
//! The first byte selects the file. For a process, the next bytes are the lengths of all its files
//! except the last. For an owner, the next byte is the length of `environ`, and the rest is
//! `cgroup`.

use std::cell::RefCell;
use std::fs;

use memwatch_core::owner::{Environment, Owner, VARIABLES};
use tempfile::TempDir;

use crate::sources::library::{cached_libraries, driver_libraries, loader};
use crate::sources::procfs::ProcReader;

const TGID: u32 = 7;
/// The reader's limit for a command line.
const COMMAND_BYTES: usize = 4096;
/// The kernel's limit for a path, and the length to which an owner's names are cut.
const PATH_BYTES: usize = 4096;
const NAME_BYTES: usize = 256;
/// Files of a process. Each has at most 255 bytes, except the last.
const FILES: [&str; 6] = ["stat", "comm", "status", "cgroup", "environ", "cmdline"];

thread_local! {
    static PROC: RefCell<Option<(TempDir, ProcReader)>> = const { RefCell::new(None) };
}

/// Parses the bytes as one of the files.
///
/// # Panics
/// When the parsed values exceed the reader's limits, or the simulated tree cannot be written.
pub fn run(data: &[u8]) {
    let Some((selector, rest)) = data.split_first() else { return };
    match selector % 6 {
        0 => maps(rest),
        2 => owner(rest),
        4 => loader_cache(rest),
        5 => search_paths(rest),
        _ => process(rest),
    }
}

fn maps(file: &[u8]) {
    for path in driver_libraries(file) {
        assert_eq!(path.first(), Some(&b'/'), "a path is absolute");
        let name = path.rsplit(|byte| *byte == b'/').next().expect("a split has a part");
        assert!(name == b"libcuda.so" || name.starts_with(b"libcuda.so."), "{name:?}");
    }
}

fn loader_cache(file: &[u8]) {
    for path in cached_libraries(file) {
        assert!(path.len() <= PATH_BYTES && !path.contains(&0), "{path:?}");
    }
}

fn search_paths(file: &[u8]) {
    let lists = loader::search_paths(file);
    assert!(lists.len() <= 2 && lists.iter().all(|list| list.len() < PATH_BYTES && !list.contains(&0)), "{lists:?}");
}

fn process(data: &[u8]) {
    let Some((lengths, mut rest)) = data.split_at_checked(FILES.len() - 1) else { return };
    let lengths = lengths.iter().map(|length| usize::from(*length)).chain([usize::MAX]);
    PROC.with_borrow_mut(|made| {
        let (root, reader) = made.get_or_insert_with(|| {
            let root = TempDir::new().expect("a temporary directory");
            let reader = ProcReader::new(root.path());
            fs::create_dir(root.path().join(TGID.to_string())).expect("a made-up process");
            (root, reader)
        });
        let folder = root.path().join(TGID.to_string());
        for (name, length) in FILES.into_iter().zip(lengths) {
            let (bytes, after) = rest.split_at(length.min(rest.len()));
            fs::write(folder.join(name), bytes).expect("a made-up file");
            rest = after;
        }
        let facts = reader.facts(TGID, false);
        assert_eq!(facts, reader.facts(TGID, false), "the same files say the same");
        if let Some(facts) = facts {
            assert_eq!(facts.tgid, TGID);
            // A byte that is not UTF-8 becomes a character of three bytes.
            assert!(facts.command.len() <= 3 * COMMAND_BYTES && !facts.command.contains('\0'), "{facts:?}");
            assert!(facts.environment.keys().all(|name| VARIABLES.contains(&&**name)), "{facts:?}");
            assert!(facts.environment.values().all(|value| !value.contains('\0')), "{facts:?}");
            check(&facts.cgroups.unwrap_or_default(), &facts.environment);
        }
    });
}

fn owner(data: &[u8]) {
    let Some((length, rest)) = data.split_first() else { return };
    let (environ, groups) = rest.split_at(usize::from(*length).min(rest.len()));
    let values = environ.split(|byte| *byte == 0).map(|value| String::from_utf8_lossy(value).into_owned());
    let environment = VARIABLES.into_iter().map(Into::into).zip(values).collect();
    check(&String::from_utf8_lossy(groups), &environment);
}

fn check(groups: &str, environment: &Environment) {
    let owner = Owner::decide(groups, environment);
    assert_eq!(owner, Owner::decide(groups, environment), "the same groups have the same owner");
    assert!(owner.cgroup.as_ref().is_none_or(|path| path.starts_with('/') && path.len() <= PATH_BYTES), "{owner:?}");
    let container = owner.container.iter().map(|container| &container.id);
    let pod = owner.pod.iter().map(|pod| &pod.uid);
    let parts = container.chain(pod).chain(&owner.unit).chain(&owner.session);
    assert!(parts.map(String::len).sum::<usize>() <= PATH_BYTES, "{owner:?}");
    if let Some(job) = &owner.slurm {
        let names =
            [&job.job_id, &job.sluid, &job.step, &job.task, &job.name, &job.account, &job.partition, &job.cluster];
        assert!(names.into_iter().flatten().all(|name| (1..=NAME_BYTES).contains(&name.len())), "{owner:?}");
    }
}
