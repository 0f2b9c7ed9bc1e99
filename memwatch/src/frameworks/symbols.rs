//! Finds the probed functions in frameworks' libraries: local symbols among half a million.
//!
//! The string table of `libtorch_cpu.so` alone has 78 MB. It is searched piece by piece for the
//! beginnings of names, then the symbol table is searched for symbols with these names. Neither
//! table is ever in memory as a whole.

mod remembered;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;

use memchr::memmem::Finder;
use memwatch_common::tensor::{TensorProbe, VERSION};

use self::remembered::Shelf;
use crate::sources::kernel::resolve::{FunctionLocation, ResolveError, SYMBOL_BYTES, SymbolLayout, SymbolTableRange};
use crate::sources::pieces::in_pieces;

/// Maximum bytes of a name. Longer names with the same first bytes are not distinguished.
const NAME_BYTES: usize = 1024;
/// Maximum number of matching names in one file. Real files have some hundred.
const MOST_NAMES: usize = 1 << 14;
/// Suffixes of function parts that the compiler moved away from the entry.
const NO_ENTRY: [&str; 3] = [".cold", ".part.", ".isra."];

/// Returns all functions of a file without duplicates, and at most `most` + 1 of them.
pub(crate) fn functions(
    file: &File,
    layout: &SymbolLayout<'_>,
    most: usize,
) -> Result<Vec<FunctionLocation>, ResolveError> {
    let mut all = BTreeMap::new();
    for table in layout.tables() {
        in_pieces(file, table.symbols, |_, piece| {
            let (symbols, rest) = piece.as_chunks::<SYMBOL_BYTES>();
            let functions = symbols.iter().filter_map(|symbol| layout.function(symbol)).map(|at| (at.address, at));
            all.extend(functions.take((most + 1).saturating_sub(all.len())));
            rest.len()
        })
        .map_err(|_unreadable| ResolveError::Damaged { what: "symbol table" })?;
    }
    Ok(all.into_values().collect())
}

/// A symbol to search for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymbolName {
    /// Key of the symbol in the result.
    pub(crate) key: u16,
    /// Beginning of the mangled name; [`VERSION`] in it matches an optional version namespace.
    pub(crate) beginning: &'static str,
    /// Ending of the name.
    pub(crate) ending: &'static str,
}

impl SymbolName {
    /// Returns the symbol of a probe.
    pub(crate) const fn of(row: &TensorProbe) -> Self {
        Self { key: row.id, beginning: row.symbol, ending: row.ending }
    }

    /// Returns the part before and the part after the version namespace.
    fn parts(&self) -> (&'static str, &'static str) {
        self.beginning.split_once(VERSION).unwrap_or((self.beginning, ""))
    }
}

/// Symbols found, by the keys of their names.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Functions by key.
    pub(crate) functions: BTreeMap<u16, FunctionLocation>,
    /// Addresses of data objects in the file's address space, by key.
    pub(crate) objects: BTreeMap<u16, u64>,
}

impl Symbols {
    /// Records a symbol for a key that has none. Returns false if the file does not define the
    /// symbol.
    fn note(&mut self, layout: &SymbolLayout<'_>, key: u16, symbol: &[u8; SYMBOL_BYTES]) -> bool {
        if let Some(location) = layout.function(symbol) {
            self.functions.entry(key).or_insert(location);
        } else if let Some(address) = SymbolLayout::object(symbol) {
            self.objects.entry(key).or_insert(address);
        } else {
            return false;
        }
        true
    }

    fn has(&self, key: u16) -> bool {
        self.functions.contains_key(&key) || self.objects.contains_key(&key)
    }
}

/// Position of a found symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SymbolPosition {
    /// Key of the symbol.
    key: u16,
    /// Index of the symbol table.
    table: usize,
    /// Offset of the entry in that table, in bytes.
    offset: u64,
}

/// Finds symbols in a file: at their remembered positions, or by a search of its tables.
///
/// # Errors
/// A table cannot be read.
pub(crate) fn symbols(file: &File, layout: &SymbolLayout<'_>, wanted: &[SymbolName]) -> Result<Symbols, ResolveError> {
    let shelf = Shelf::of(file, layout);
    if let Some(found) = shelf.as_ref().and_then(|shelf| shelf.recall(file, layout, wanted)) {
        return Ok(found);
    }
    let (found, places) = look_for(file, layout, wanted)?;
    if let Some(shelf) = shelf {
        shelf.keep(wanted, &places);
    }
    Ok(found)
}

/// Searches the small table of exported symbols first, then the large one for the missing symbols.
fn look_for(
    file: &File,
    layout: &SymbolLayout<'_>,
    wanted: &[SymbolName],
) -> Result<(Symbols, Vec<SymbolPosition>), ResolveError> {
    let (mut found, mut places) = (Symbols::default(), Vec::new());
    for (number, table) in layout.tables().enumerate() {
        let missing: Vec<SymbolName> = wanted.iter().filter(|name| !found.has(name.key)).copied().collect();
        if missing.is_empty() {
            continue;
        }
        let take = |key, offset, symbol: &[u8; SYMBOL_BYTES]| {
            let is_new = !found.has(key);
            if found.note(layout, key, symbol) && is_new {
                places.push(SymbolPosition { key, table: number, offset });
            }
        };
        search(file, (table, &missing), take).map_err(|_unreadable| ResolveError::Damaged { what: "symbol table" })?;
    }
    Ok((found, places))
}

/// Calls `take` with the key, offset and entry of each symbol of a table with one of these names.
fn search(
    file: &File,
    (table, wanted): (SymbolTableRange, &[SymbolName]),
    mut take: impl FnMut(u16, u64, &[u8; SYMBOL_BYTES]),
) -> io::Result<()> {
    let names = names(file, table, wanted)?;
    if names.is_empty() {
        return Ok(());
    }
    in_pieces(file, table.symbols, |offset, piece| {
        for (at, symbol) in piece.as_chunks::<SYMBOL_BYTES>().0.iter().enumerate() {
            let name = u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]);
            if let Some(key) = names.get(&u64::from(name)) {
                take(*key, offset + (at * SYMBOL_BYTES) as u64, symbol);
            }
        }
        // Symbols have 24 bytes; the remainder of a piece is read again with the next one.
        piece.len() % SYMBOL_BYTES
    })
}

/// Returns the offsets of matching names in the string table, with their keys. Names of moved
/// function parts are excluded.
fn names(file: &File, table: SymbolTableRange, wanted: &[SymbolName]) -> io::Result<HashMap<u64, u16>> {
    let finders: Vec<(&SymbolName, Finder<'_>)> =
        wanted.iter().map(|name| (name, Finder::new(name.parts().0))).collect();
    let mut names = HashMap::new();
    in_pieces(file, table.strings, |offset, piece| {
        for (wanted, finder) in &finders {
            for start in finder.find_iter(piece) {
                let name = &piece[start..piece.len().min(start + NAME_BYTES)];
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                // A name cut off at the end of a piece is checked again as a whole in the next
                // piece.
                let place = offset + start as u64;
                if names.len() < MOST_NAMES && is_meant(name, wanted) {
                    names.insert(place, wanted.key);
                } else if names.get(&place) == Some(&wanted.key) {
                    names.remove(&place);
                }
            }
        }
        NAME_BYTES
    })?;
    Ok(names)
}

/// Whether a name matches the wanted symbol.
fn is_meant(name: &[u8], wanted: &SymbolName) -> bool {
    let (head, versioned) = wanted.parts();
    let begins = name.starts_with(head.as_bytes()) && is_entry(name, head.as_bytes());
    begins && goes_on_with(name, head.as_bytes(), versioned) && name.ends_with(wanted.ending.as_bytes())
}

/// Whether a name is a function's entry. The wanted symbol is the beginning of a mangled name,
/// followed by the argument types, or a whole C name.
fn is_entry(name: &[u8], beginning: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let is_mangled = beginning.starts_with(b"_Z");
    (is_mangled || name.len() == beginning.len()) && !NO_ENTRY.iter().any(|part| name.contains(part))
}

/// Whether `versioned` follows the beginning of a name, with or without a version namespace such as
/// `10_RMM_26_10` between.
fn goes_on_with(name: &[u8], beginning: &[u8], versioned: &str) -> bool {
    let rest = name.get(beginning.len()..).unwrap_or_default();
    [Some(rest), behind_version(rest)].into_iter().flatten().any(|rest| rest.starts_with(versioned.as_bytes()))
}

/// Returns the rest of a name after a version namespace, which is a length and a name in capitals.
fn behind_version(rest: &[u8]) -> Option<&[u8]> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // A version begins with an underscore, so all digits before it are the length.
    let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let (version, behind) = rest[digits..].split_at_checked(length)?;
    let is_version = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    (version.first() == Some(&b'_') && version.iter().all(is_version)).then_some(behind)
}

#[cfg(test)]
mod tests {
    use super::{goes_on_with, is_entry};

    #[test]
    fn symbol_match_allows_an_optional_version_namespace() {
        let goes_on = |name: &str| goes_on_with(name.as_bytes(), b"_ZN3rmm", "2mr6detail4poolE");
        assert!(goes_on("_ZN3rmm10_RMM_26_102mr6detail4poolEPv") && goes_on("_ZN3rmm2mr6detail4poolEPv"));
        assert!(goes_on("_ZN3rmm9_RMM_26_92mr6detail4poolE") && goes_on("_ZN3rmm11_RMM_126_102mr6detail4poolE"));
        for other in [
            "_ZN3rmm10_RMM_26_106detail4poolE",
            "_ZN3rmm4pool2mr6detail4poolE",
            "_ZN3rmm99_RMM_26_102mr6detail4poolE",
            "_ZN3rmm",
            "_ZN3rmm10_RMM_26_10",
            "_ZN3rmm99999999999999999999999_A2mr6detail4poolE",
        ] {
            assert!(!goes_on(other), "{other}");
        }
        assert!(goes_on_with(b"_ZN3c106mallocE", b"_ZN3c10", ""), "one without a version is whole");
    }

    #[test]
    fn a_name_is_the_functions_own_and_not_that_of_a_part_of_it() {
        assert!(is_entry(b"_ZN3c106mallocEmP1S", b"_ZN3c106mallocE"));
        assert!(!is_entry(b"_ZN3c106mallocEmP1S.cold", b"_ZN3c106mallocE"));
        assert!(is_entry(b"nvtxRangePop", b"nvtxRangePop"));
        assert!(!is_entry(b"nvtxRangePop_impl_init_v3", b"nvtxRangePop"), "a name of C is whole");
    }
}
