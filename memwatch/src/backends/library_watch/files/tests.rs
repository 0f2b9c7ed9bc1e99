use std::fmt::Write as _;
use std::fs::File;

use super::*;
use crate::sources::library::LibraryScan;
use crate::sources::library::limits::{MOST_IN_ALL, MOST_OF_OWNER};

/// A machine with files that have the library's name, and processes that map them.
struct MappedFilesMachine {
    directory: tempfile::TempDir,
}

impl MappedFilesMachine {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir_all(directory.path().join("proc")).expect("a directory");
        Self { directory }
    }

    fn library(&self, number: usize) -> FileIdentity {
        let path = self.path(number);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(&path, format!("\x7fELF\x02\x01\x01 library {number}")).expect("a file");
        FileIdentity::of(&File::open(path).expect("the file")).expect("an identity")
    }

    fn path(&self, number: usize) -> std::path::PathBuf {
        self.directory.path().join(number.to_string()).join("libcuda.so.1")
    }

    /// Writes the mappings of these processes and returns what a scan finds.
    fn sweep(&self, maps: &[(u32, &[usize])]) -> Discovery {
        for (tgid, numbers) in maps {
            let process = self.directory.path().join(format!("proc/{tgid}"));
            std::fs::create_dir_all(process.join("map_files")).expect("a directory");
            let mut lines = String::new();
            for number in *numbers {
                let file = File::open(self.path(*number)).expect("the file");
                let inode = FileIdentity::of(&file).expect("an identity").inode();
                let range = format!("{number:x}000-{number:x}fff");
                let _ = std::os::unix::fs::symlink(self.path(*number), process.join("map_files").join(&range));
                writeln!(lines, "{range} r-xp 0 fe:00 {inode} {}", self.path(*number).display())
                    .expect("memory takes it");
            }
            // A process without mappings of libraries has a line too.
            lines.push_str("7f000-7ffff rw-p 0 00:00 0\n");
            std::fs::write(process.join("maps"), lines).expect("a file");
        }
        LibraryScan::new(self.directory.path().join("proc")).scan_all()
    }
}

fn met(identity: &FileIdentity, owner: Option<FileOwner>) -> Met {
    let coverage = LibraryCoverage { probes_attached: 5, ..LibraryCoverage::default() };
    Met::new(identity.clone(), (coverage, LibraryProbes::default()), 100, owner)
}

#[test]
fn library_file_without_users_may_be_evicted() {
    let machine = MappedFilesMachine::new();
    let (own, usual) = (machine.library(1), machine.library(2));
    let mut files = Files::default();
    files.insert(Met { is_usual: true, ..met(&usual, None) });
    assert!(!files.has_idle(), "one in the usual places stays");
    files.insert(met(&own, Some(FileOwner::User(7))));
    assert!(files.has_idle());
    files.note_user(&own, 70, 1);
    assert!(!files.has_idle());
    files.forget_user(70);
    assert!(files.has_idle());
    files.note_wanted(&own, 71);
    assert!(!files.has_idle(), "the loader of a process may find it");
}

fn inode(number: u64) -> MappedInode {
    MappedInode { device: (0, 1), number, generation: 0 }
}

const ANN: FileOwner = FileOwner::User(1000);

#[test]
fn library_file_is_in_use_while_mapped_and_released_after_a_sweep() {
    let machine = MappedFilesMachine::new();
    let mut files = Files::default();
    let [used, usual, wanted] = [1, 2, 3].map(|number| machine.library(number));
    for (identity, owner) in [(&used, Some(ANN)), (&usual, None), (&wanted, Some(ANN))] {
        let mut file = met(identity, owner);
        file.is_usual = owner.is_none();
        files.insert(file);
    }
    files.note_user(&used, 7, 150);
    files.note_wanted(&wanted, 8);
    files.name(inode(5), &used);
    let in_use = |files: &mut Files| -> Option<Vec<bool>> {
        Some(files.new_coverage()?.iter().map(|library| library.in_use).collect())
    };
    assert_eq!(in_use(&mut files), Some(vec![true, false, false]));
    assert_eq!(in_use(&mut files), None, "nothing has changed");

    let nobody = |_: u32| false;
    files.note_sweep(&machine.sweep(&[(7, &[1])]), 200);
    assert!(files.take_unused(200, |_| true).is_empty());
    assert!(files.behind(&inode(5)).is_some());
    // A sweep that began before the last use was noted may have missed it.
    files.note_sweep(&machine.sweep(&[(7, &[])]), 140);
    files.note_user(&used, 7, 150);
    assert_eq!(in_use(&mut files), None, "it is in use still");
    files.note_sweep(&machine.sweep(&[(7, &[])]), 300);
    let gone = files.take_unused(300, nobody);
    assert_eq!(gone.len(), 2, "the one in a usual place stays");
    assert_eq!(in_use(&mut files), Some(vec![false]));
    assert!(files.behind(&inode(5)).is_none(), "an inode can be another file's");
}

#[test]
fn a_file_that_was_probed_after_the_sweep_began_is_not_judged_by_it() {
    let machine = MappedFilesMachine::new();
    let mut files = Files::default();
    files.insert(met(&machine.library(1), Some(ANN)));
    files.note_sweep(&machine.sweep(&[]), 50);
    assert!(files.take_unused(50, |_| false).is_empty());
}

#[test]
fn library_file_limit_applies_per_owner() {
    let machine = MappedFilesMachine::new();
    let mut files = Files::default();
    let ben = FileOwner::User(1001);
    (0..MOST_OF_OWNER).for_each(|number| files.insert(met(&machine.library(number), Some(ANN))));
    assert!(!files.has_room(ANN, std::iter::empty()));
    assert!(files.has_room(ben, std::iter::empty()));
    assert!(!files.has_room(ben, std::iter::repeat_n(ben, MOST_OF_OWNER)), "what is being looked at counts");
    assert!(
        !files.has_room(ben, (0..MOST_IN_ALL).map(|number| FileOwner::Root(u64::try_from(number).expect("small"))))
    );
    files.new_coverage();
    for number in 0..500 {
        files.refuse(inode(number));
        files.refuse(inode(number));
    }
    assert_eq!((files.refused(), files.new_coverage().is_some()), (500, true));
    files.refuse(inode(1));
    assert!(files.new_coverage().is_none());
    files.note_refused(700);
    assert_eq!(files.refused(), 700);
    (0..100_000).for_each(|number| files.refuse(inode(number)));
    assert_eq!(files.refused.len(), MOST_REFUSED);
}

#[test]
fn a_refused_file_is_known_to_its_owner_until_something_is_given_up() {
    let machine = MappedFilesMachine::new();
    let (kept, refused) = (machine.library(1), machine.library(2));
    let (alice, bob) = (FileOwner::User(1), FileOwner::User(2));
    let mut files = Files::default();
    files.insert(met(&kept, Some(alice)));
    files.refuse_file(refused.clone(), alice);
    let knows = |files: &Files, owner| files.known_to(owner).iter().any(|known| known.is_same_file(&refused));
    assert!(knows(&files, Some(alice)) && !knows(&files, Some(bob)) && !knows(&files, None));
    assert!(files.known_to(Some(bob)).iter().any(|known| known.is_same_file(&kept)));
    assert_eq!(files.take_unused(1000, |_| false).len(), 1);
    assert!(!knows(&files, Some(alice)), "there is room again");
    for number in 0..=MOST_REFUSED_FILES {
        files.refuse_file(machine.library(3 + number % 2), bob);
    }
    assert_eq!(files.refused_files.len(), MOST_REFUSED_FILES);
}
