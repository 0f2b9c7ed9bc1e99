//! Where symbols were found in large files, kept on disk by build id: the next memwatch reads them there, and does not search a table of half a million.
//! Files without one (as XLA's) are distinguished by their headers.
//!
//! A build id is what whoever made a file has written into it, and a file that pretends to be another must not have memwatch put probes where no instruction
//! begins. So nothing is believed of the file that the file does not say itself: what is kept of a symbol is where in the symbol table it stands, and it
//! counts where its name is read there again. What was not found cannot be looked at again; that is believed of files of the same owner alone, so that nobody
//! hides another's symbols.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{NAME_BYTES, Place, SymbolName, Symbols, is_meant};
use crate::frameworks::pytorch::known_builds::state_folder;
use crate::own_folder::own_uid;
use crate::sources::kernel::resolve::{Layout, SYMBOL_BYTES};

/// The directory below that of the agent's state.
const FOLDER: &str = "symbols";
/// A file whose names take less is searched in no time.
const MUCH_BYTES: u64 = 8 << 20;
/// So many files are remembered, and so many searches in each.
const MOST_FILES: usize = 64;
const MOST_SEARCHES: usize = 16;
/// So much is looked at of a file's beginning and of its end, where it has no build id.
const HEADER_BYTES: usize = 4 << 10;
/// What is kept of one is never longer.
const LONGEST_BYTES: u64 = 256 << 10;
/// What [`Kept`] is written as.
const FORMAT: u32 = 1;
/// Of a file system whose server says whose its files are (`FUSE_SUPER_MAGIC` in linux/magic.h).
const FUSE: libc::c_long = 0x6573_5546;
/// Bits of a mode (inode(7)): others may write.
const WRITABLE: u32 = 0o022;

/// What is kept of one file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    format: u32,
    searches: Vec<Search>,
}

/// One search.
#[derive(Debug, Serialize, Deserialize)]
struct Search {
    /// Key, beginning and ending of each name.
    wanted: Vec<(u16, String, String)>,
    /// Where those stand that were found: key, which of the symbol tables, and the symbol's offset in it.
    found: Vec<(u16, usize, u64)>,
}

/// Where what is known of one file is kept.
#[derive(Debug)]
pub(super) struct Shelf {
    path: PathBuf,
}

impl Shelf {
    /// That of a file, where there is one and the search would take a while.
    pub(super) fn of(file: &File, layout: &Layout<'_>) -> Option<Self> {
        let names_bytes: u64 = layout.tables().map(|table| table.strings.1).sum();
        (names_bytes >= MUCH_BYTES).then_some(())?;
        Self::within(&state_folder()?.join(FOLDER), file, layout)
    }

    fn within(directory: &Path, file: &File, layout: &Layout<'_>) -> Option<Self> {
        let build = layout.build_id().filter(|build| (8..=128).contains(&build.len())).map(str::to_owned);
        let build = build.or_else(|| mark(file, layout).ok())?;
        (!is_fuse(file)).then_some(())?;
        let owner = file.metadata().ok()?.uid();
        is_own(directory).then(|| Self { path: directory.join(format!("{build}-{owner}.json")) })
    }

    /// What an earlier search for the same names has found in this file, or in one like it; `None` where this one does not have it there.
    pub(super) fn recall(&self, file: &File, layout: &Layout<'_>, wanted: &[SymbolName]) -> Option<Symbols> {
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

    /// Keeps what a search has found. That it cannot be kept costs the next search its time, and nothing else.
    pub(super) fn keep(&self, wanted: &[SymbolName], places: &[Place]) {
        let mut kept = self.read().unwrap_or_default();
        kept.format = FORMAT;
        kept.searches.retain(|search| !search.is_for(wanted));
        let text = |name: &SymbolName| (name.key, name.beginning.to_owned(), name.ending.to_owned());
        let found = places.iter().map(|place| (place.key, place.table, place.offset)).collect();
        kept.searches.push(Search { wanted: wanted.iter().map(text).collect(), found });
        let surplus = kept.searches.len().saturating_sub(MOST_SEARCHES);
        kept.searches.drain(..surplus);
        let written = self.write(&kept);
        if let Err(error) = written {
            log::info!("where symbols were found cannot be kept in {}: {error}", self.path.display());
        }
    }

    fn read(&self) -> Option<Kept> {
        let mut text = Vec::new();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&self.path).ok()?;
        file.take(LONGEST_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok().filter(|kept: &Kept| kept.format == FORMAT)
    }

    /// Whoever reads meanwhile has the one from before.
    fn write(&self, kept: &Kept) -> io::Result<()> {
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

impl Search {
    fn is_for(&self, wanted: &[SymbolName]) -> bool {
        let is_it = |((key, beginning, ending), name): (&(u16, String, String), &SymbolName)| {
            (*key, beginning.as_str(), ending.as_str()) == (name.key, name.beginning, name.ending)
        };
        self.wanted.len() == wanted.len() && self.wanted.iter().zip(wanted).all(is_it)
    }
}

/// What distinguishes files that have no build id: where their tables are, and their first and last bytes, which are headers.
fn mark(file: &File, layout: &Layout<'_>) -> io::Result<String> {
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

/// Whether it is a directory into which nobody else may write. One that is not there is made, where what it is to be in is.
fn is_own(directory: &Path) -> bool {
    // That it is there is the usual case.
    let _ = DirBuilder::new().mode(0o700).create(directory);
    let found = fs::symlink_metadata(directory);
    found.is_ok_and(|found| found.is_dir() && found.uid() == own_uid() && found.mode() & WRITABLE == 0)
}

/// The files that were written longest ago go.
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
    // SAFETY: the descriptor is open, and there is room for the answer, of which all bytes are set.
    let (answer, status) = unsafe { (libc::fstatfs(file.as_raw_fd(), status.as_mut_ptr()), status.assume_init()) };
    answer != 0 || status.f_type == FUSE
}

#[cfg(test)]
mod tests;
