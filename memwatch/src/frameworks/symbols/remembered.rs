//! Remembers on disk, by build id, where symbols were found in large files, so that the next run of
//! memwatch need not search a table of half a million symbols. Files without a build id, such as
//! XLA's, are identified by their headers.
//!
//! A file's author controls its build id, and a file that imitates another must not make memwatch
//! probe an offset that is no instruction boundary. So every remembered position is verified in the
//! file: only the symbol's index in the table is stored, and its name is read again. The absence of
//! a symbol cannot be verified; it is trusted for files of the same owner only, so that no user can
//! hide another user's symbols.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{NAME_BYTES, SymbolName, SymbolPosition, Symbols, is_meant};
use crate::frameworks::state_folder::state_folder;
use crate::own_folder::own_uid;
use crate::sources::kernel::resolve::{SYMBOL_BYTES, SymbolLayout};

/// Name of the directory in the agent's state directory.
const FOLDER: &str = "symbols";
/// Minimum size of the string tables. Smaller ones are searched in no time.
const MUCH_BYTES: u64 = 8 << 20;
/// Maximum number of remembered files, and of searches for each.
const MOST_FILES: usize = 64;
const MOST_SEARCHES: usize = 16;
/// Bytes hashed at the beginning and at the end of a file without a build id.
const HEADER_BYTES: usize = 4 << 10;
/// Maximum size of the stored data for one file.
const LONGEST_BYTES: u64 = 256 << 10;
/// Format version of [`StoredSearches`].
const FORMAT: u32 = 1;
/// Magic number of FUSE (`FUSE_SUPER_MAGIC` in linux/magic.h). A FUSE server chooses the owners of
/// its files.
const FUSE: libc::c_long = 0x6573_5546;
/// Mode bits (inode(7)) for writing by group or others.
const WRITABLE: u32 = 0o022;

/// Stored data for one file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredSearches {
    format: u32,
    searches: Vec<StoredSearch>,
}

/// One search and its result.
#[derive(Debug, Serialize, Deserialize)]
struct StoredSearch {
    /// Key, beginning and ending of each wanted name.
    wanted: Vec<(u16, String, String)>,
    /// Key, index of the symbol table and offset in it of each symbol found.
    found: Vec<(u16, usize, u64)>,
}

/// Storage for the searches in one file.
#[derive(Debug)]
pub(super) struct Shelf {
    path: PathBuf,
}

impl Shelf {
    /// Returns the storage of a file if a state directory exists and the search would be slow.
    pub(super) fn of(file: &File, layout: &SymbolLayout<'_>) -> Option<Self> {
        let names_bytes: u64 = layout.tables().map(|table| table.strings.1).sum();
        (names_bytes >= MUCH_BYTES).then_some(())?;
        Self::within(&state_folder()?.join(FOLDER), file, layout)
    }

    fn within(directory: &Path, file: &File, layout: &SymbolLayout<'_>) -> Option<Self> {
        let build = layout.build_id().filter(|build| (8..=128).contains(&build.len())).map(str::to_owned);
        let build = build.or_else(|| mark(file, layout).ok())?;
        (!is_fuse(file)).then_some(())?;
        let owner = file.metadata().ok()?.uid();
        is_own(directory).then(|| Self { path: directory.join(format!("{build}-{owner}.json")) })
    }

    /// Returns what an earlier search for the same names found in this file or an equal one; `None`
    /// if a symbol is not at its remembered position.
    pub(super) fn recall(&self, file: &File, layout: &SymbolLayout<'_>, wanted: &[SymbolName]) -> Option<Symbols> {
        let kept = self.read()?;
        let search = kept.searches.iter().find(|search| search.is_for(wanted))?;
        let tables: Vec<_> = layout.tables().collect();
        let mut found = Symbols::default();
        for &(key, table, offset) in &search.found {
            let name = wanted.iter().find(|name| name.key == key)?;
            let table = *tables.get(table)?;
            let is_in = offset.is_multiple_of(SYMBOL_BYTES as u64) && offset < table.symbols.1;
            let mut symbol = [0; SYMBOL_BYTES];
            (is_in && file.read_exact_at(&mut symbol, table.symbols.0 + offset).is_ok()).then_some(())?;
            let at = u64::from(u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]));
            let mut text = vec![0; usize::try_from(table.strings.1.checked_sub(at)?.min(NAME_BYTES as u64)).ok()?];
            file.read_exact_at(&mut text, table.strings.0 + at).ok()?;
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            (is_meant(text, name) && found.note(layout, key, &symbol)).then_some(())?;
        }
        Some(found)
    }

    /// Stores the result of a search. A failure only means that the next search is slow.
    pub(super) fn keep(&self, wanted: &[SymbolName], places: &[SymbolPosition]) {
        let mut kept = self.read().unwrap_or_default();
        kept.format = FORMAT;
        kept.searches.retain(|search| !search.is_for(wanted));
        let text = |name: &SymbolName| (name.key, name.beginning.to_owned(), name.ending.to_owned());
        let found = places.iter().map(|place| (place.key, place.table, place.offset)).collect();
        kept.searches.push(StoredSearch { wanted: wanted.iter().map(text).collect(), found });
        let surplus = kept.searches.len().saturating_sub(MOST_SEARCHES);
        kept.searches.drain(..surplus);
        let written = self.write(&kept);
        if let Err(error) = written {
            log::info!("cannot store symbol positions in {}: {error}", self.path.display());
        }
    }

    fn read(&self) -> Option<StoredSearches> {
        let mut text = Vec::new();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&self.path).ok()?;
        file.take(LONGEST_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok().filter(|kept: &StoredSearches| kept.format == FORMAT)
    }

    /// Replaces the stored data atomically; concurrent readers see the previous version.
    fn write(&self, kept: &StoredSearches) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        make_room(directory)?;
        let new = self.path.with_extension(format!("{}.new", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = file.write_all(&serde_json::to_vec(kept)?).and_then(|()| fs::rename(&new, &self.path));
        if written.is_err() {
            fs::remove_file(&new)?;
        }
        written
    }
}

impl StoredSearch {
    fn is_for(&self, wanted: &[SymbolName]) -> bool {
        let is_it = |((key, beginning, ending), name): (&(u16, String, String), &SymbolName)| {
            (*key, beginning.as_str(), ending.as_str()) == (name.key, name.beginning, name.ending)
        };
        self.wanted.len() == wanted.len() && self.wanted.iter().zip(wanted).all(is_it)
    }
}

/// Identifies a file without a build id by the positions of its tables and its first and last
/// bytes, which are headers.
fn mark(file: &File, layout: &SymbolLayout<'_>) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    let length = file.metadata()?.len();
    let mut headers = [0; HEADER_BYTES];
    for offset in [0, length.saturating_sub(HEADER_BYTES as u64)] {
        file.read_exact_at(&mut headers, offset)?;
        hasher.write(&headers);
    }
    layout.tables().for_each(|table| (table.symbols, table.strings).hash(&mut hasher));
    Ok(format!("mark-{length:x}-{:016x}", hasher.finish()))
}

/// Whether a directory exists into which no other user may write. Creates it if only the last
/// component is missing.
fn is_own(directory: &Path) -> bool {
    // The directory usually exists already.
    let _ = DirBuilder::new().mode(0o700).create(directory);
    let found = fs::symlink_metadata(directory);
    found.is_ok_and(|found| found.is_dir() && found.uid() == own_uid() && found.mode() & WRITABLE == 0)
}

/// Removes the oldest files beyond the limit.
fn make_room(directory: &Path) -> io::Result<()> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(directory)?.map_while(Result::ok) {
        let written = entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        files.insert((written, entry.path()));
    }
    let surplus = files.len().saturating_sub(MOST_FILES - 1);
    files.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
}

fn is_fuse(file: &File) -> bool {
    let mut status = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and `status` is a valid, zero-initialised buffer for the
    // result.
    let (answer, status) = unsafe { (libc::fstatfs(file.as_raw_fd(), status.as_mut_ptr()), status.assume_init()) };
    answer != 0 || status.f_type == FUSE
}

#[cfg(test)]
mod tests;
