//! Remembers the block layout of PyTorch's builds, as proven by readings, for later readings of the
//! same builds in this and later runs of memwatch.
//!
//! A remembered layout is a proposal: a reading that fails with it searches the layout itself. A
//! damaged or foreign file therefore does no harm.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use memwatch_inspect::pytorch::{BlockLayout, Calibration};
use serde::{Deserialize, Serialize};

use crate::frameworks::state_folder::state_folder;

/// Maximum number of remembered builds; the most recently proven ones are kept.
const MOST_BUILDS: usize = 64;
/// Maximum size of the file. 64 builds take 8 KB.
const MOST_FILE_BYTES: u64 = 64 << 10;
/// Maximum hexadecimal digits of a build id. SHA-1 has 40.
const MOST_DIGITS: usize = 128;
/// File name in the agent's state directory, and the temporary name it is written under.
const FILE: &str = "pytorch-builds.json";
const UNFINISHED: &str = "pytorch-builds.json.new";
/// Permissions of the file.
const MODE: u32 = 0o600;

/// All known builds.
static KNOWN: LazyLock<Mutex<KnownBuilds>> = LazyLock::new(|| Mutex::new(KnownBuilds::of(state_folder())));

/// Returns the layout that an earlier reading proved for a build.
pub(super) fn known(build_id: &str) -> Option<Calibration> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(build_id)
}

/// Remembers the layout that a complete reading proved for a build.
pub(super) fn remember(build_id: &str, proven: Calibration) {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).put(build_id, proven);
}

/// One entry of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownBuild {
    build_id: String,
    /// Block layout as returned by [`BlockLayout::numbers`].
    block: [usize; 8],
}

impl KnownBuild {
    fn is_possible(&self) -> bool {
        let is_id = (1..=MOST_DIGITS).contains(&self.build_id.len())
            && self.build_id.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_id && BlockLayout::of_numbers(self.block).is_some()
    }
}

/// The known builds and the directory of their file.
#[derive(Debug, Default)]
struct KnownBuilds {
    /// Most recently proven build first.
    builds: VecDeque<KnownBuild>,
    folder: Option<PathBuf>,
}

impl KnownBuilds {
    /// Loads the file in this directory; an unreadable file counts as empty.
    fn of(folder: Option<PathBuf>) -> Self {
        let builds = folder.as_deref().map_or_else(|| Ok(VecDeque::new()), read);
        let builds = builds.unwrap_or_else(|error| {
            log::debug!("cannot read PyTorch build layouts from {FILE}: {error}");
            VecDeque::new()
        });
        Self { builds, folder }
    }

    fn get(&self, build_id: &str) -> Option<Calibration> {
        let build = self.builds.iter().find(|build| build.build_id == build_id)?;
        BlockLayout::of_numbers(build.block).map(|block| Calibration { block })
    }

    fn put(&mut self, build_id: &str, proven: Calibration) {
        let build = KnownBuild { build_id: build_id.to_owned(), block: proven.block.numbers() };
        if self.builds.contains(&build) || !build.is_possible() {
            return;
        }
        self.builds.retain(|known| known.build_id != build.build_id);
        self.builds.push_front(build);
        self.builds.truncate(MOST_BUILDS);
        if let Some(folder) = &self.folder
            && let Err(error) = write(folder, &self.builds)
        {
            log::debug!("cannot write PyTorch build layouts to {FILE}: {error}");
        }
    }
}

/// Opens the directory and returns its files' paths through that descriptor, so that a link put in
/// its place later leads nowhere else.
fn open_folder(folder: &Path) -> io::Result<(File, [PathBuf; 2])> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(folder)?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    Ok((opened, [FILE, UNFINISHED].map(|name| below.join(name))))
}

fn read(folder: &Path) -> io::Result<VecDeque<KnownBuild>> {
    let (_opened, [path, _]) = open_folder(folder)?;
    // Opening or reading a FIFO in its place would block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    file.take(MOST_FILE_BYTES).read_to_end(&mut bytes)?;
    let mut builds: VecDeque<KnownBuild> = serde_json::from_slice(&bytes)?;
    builds.retain(KnownBuild::is_possible);
    builds.truncate(MOST_BUILDS);
    Ok(builds)
}

/// Writes a temporary file and renames it, so that readers never see half a file.
fn write(folder: &Path, builds: &VecDeque<KnownBuild>) -> io::Result<()> {
    let (_opened, [path, unfinished]) = open_folder(folder)?;
    // Removes a leftover temporary file, or a link itself instead of its target.
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).custom_flags(flags).open(&unfinished)?;
    file.write_all(&serde_json::to_vec(builds)?)?;
    std::fs::rename(unfinished, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn layout(pool: usize) -> Calibration {
        let numbers = [20, pool - 2, pool - 1, pool, pool + 1, pool + 2, pool + 3, pool + 4];
        Calibration { block: BlockLayout::of_numbers(numbers).expect("a layout") }
    }

    fn in_folder(folder: &Path) -> KnownBuilds {
        KnownBuilds::of(Some(folder.to_owned()))
    }

    #[test]
    fn known_build_layouts_are_stored_for_later_runs_owner_readable_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut builds = in_folder(folder.path());
        assert_eq!(builds.get("a1"), None);
        builds.put("a1", layout(8));
        builds.put("b2", layout(9));
        let next = in_folder(folder.path());
        assert_eq!([next.get("a1"), next.get("b2"), next.get("c3")], [Some(layout(8)), Some(layout(9)), None]);
        let found = std::fs::metadata(folder.path().join(FILE)).expect("it is there");
        assert_eq!(found.mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 1);
    }

    #[test]
    fn a_damaged_file_is_as_good_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let impossible = r#"[{"build_id":"a1","block":[20,99,7,8,9,10,11,12]}]"#;
        let long = format!("[{}1]", "1,".repeat(100_000));
        for text in ["", "garbage", "[{\"build_id\":1}]", impossible, &long] {
            std::fs::write(&path, text).expect("it is ours");
            let mut builds = in_folder(folder.path());
            assert_eq!(builds.get("a1"), None, "{text:.60}");
            builds.put("a1", layout(8));
            assert_eq!(in_folder(folder.path()).get("a1"), Some(layout(8)), "{text:.60}");
        }
    }

    #[test]
    fn no_link_is_followed_and_nothing_else_than_a_file_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, elsewhere) = (folder.path().join("own"), folder.path().join("elsewhere"));
        std::fs::create_dir(&own).expect("it is ours");
        std::fs::write(&elsewhere, "precious").expect("it is ours");
        for name in [FILE, UNFINISHED] {
            symlink(&elsewhere, own.join(name)).expect("it is ours");
        }
        let mut builds = in_folder(&own);
        builds.put("a1", layout(8));
        assert_eq!(std::fs::read(&elsewhere).expect("it is there"), b"precious");
        assert!(std::fs::symlink_metadata(own.join(FILE)).expect("it is there").is_file());
        std::fs::remove_file(own.join(FILE)).expect("it is there");
        std::fs::create_dir(own.join(FILE)).expect("it is ours");
        assert_eq!(in_folder(&own).get("a1"), None);
        builds.put("b2", layout(9));
        assert_eq!(builds.get("b2"), Some(layout(9)), "what cannot be written is known until the end");
    }

    #[test]
    fn the_builds_that_were_proven_last_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut builds = in_folder(folder.path());
        for number in 0..2 * MOST_BUILDS {
            builds.put(&format!("{number:x}"), layout(8));
        }
        let next = in_folder(folder.path());
        assert_eq!(next.builds.len(), MOST_BUILDS);
        assert_eq!((next.get("0"), next.get("7f")), (None, Some(layout(8))));
        builds.put("not hexadecimal", layout(8));
        assert_eq!(builds.get("not hexadecimal"), None);
    }
}
