//! Where the rows' functions lie in frameworks' libraries: local symbols among half a million.
//!
//! The string table of `libtorch_cpu.so` alone is 78 MB. It is searched in pieces for the beginnings of names, and the symbols that point to
//! what was found are picked out of the symbol table; neither is ever in memory as a whole.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;

use memchr::memmem::Finder;
use memwatch_common::tensor::{BlockPlan, Point, TENSOR_PROBES, TensorMeaning, TensorPlan, TensorProbe, VERSION};

use crate::sources::kernel::resolve::{FunctionLocation, Layout, ResolveError, SYMBOL_BYTES, Table};
use crate::sources::pieces::in_pieces;

/// Longest name that is distinguished from others with the same beginning.
const NAME_BYTES: usize = 1024;
/// Parts of a function that the compiler has moved away from its entry carry its name and one of these.
const NO_ENTRY: [&str; 3] = [".cold", ".part.", ".isra."];

/// Where a row is probed in one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorPoint {
    /// The row.
    pub(crate) row: &'static TensorProbe,
    /// Offset of the probed instruction from the start of the file.
    pub(crate) file_offset: u64,
    /// What to capture there.
    pub(crate) plan: TensorPlan,
}

impl TensorPoint {
    /// What the row says, at this offset.
    pub(crate) fn new(row: &'static TensorProbe, file_offset: u64) -> Self {
        Self { row, file_offset, plan: row.plan }
    }

    /// The row with this meaning, with what is read of an allocator's own books; `None` where there is none.
    pub(crate) fn with_block(meaning: TensorMeaning, file_offset: u64, block: BlockPlan) -> Option<Self> {
        let row = TENSOR_PROBES.iter().find(|row| row.meaning == meaning)?;
        Some(Self { row, file_offset, plan: TensorPlan { block, ..row.plan } })
    }

    /// Whether that is when the function returns: no row but [`Point::Count`] can be so, since an exception on its way through such a probe ends the
    /// program.
    pub(crate) fn is_return(&self) -> bool {
        self.row.point == Point::Count && !self.plan.thread_variable
    }
}

/// All functions of a file, each once; of one that has more than `most`, one more.
pub(super) fn functions(file: &File, layout: &Layout<'_>, most: usize) -> Result<Vec<FunctionLocation>, ResolveError> {
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

/// A symbol that is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymbolName {
    /// What it is called in the answer.
    pub(crate) key: u16,
    /// What its mangled name begins with; [`VERSION`] in it stands for the namespace of a version, or for none.
    pub(crate) beginning: &'static str,
    /// What it ends with.
    pub(crate) ending: &'static str,
}

impl SymbolName {
    /// A row's.
    pub(crate) const fn of(row: &TensorProbe) -> Self {
        Self { key: row.id, beginning: row.symbol, ending: row.ending }
    }
}

/// What was found, by the keys of the names.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Functions.
    pub(crate) functions: BTreeMap<u16, FunctionLocation>,
    /// Data: addresses as the file counts.
    pub(crate) objects: BTreeMap<u16, u64>,
}

/// Looks for symbols in a file. What is exported is in the small table; the large one is searched only for the rest.
///
/// # Errors
/// A table cannot be read.
pub(crate) fn symbols(file: &File, layout: &Layout<'_>, wanted: &[SymbolName]) -> Result<Symbols, ResolveError> {
    let mut found = Symbols::default();
    for table in layout.tables() {
        let is_missing =
            |name: &&SymbolName| !found.functions.contains_key(&name.key) && !found.objects.contains_key(&name.key);
        let missing: Vec<SymbolName> = wanted.iter().filter(is_missing).copied().collect();
        if !missing.is_empty() {
            search(file, layout, (table, &missing), &mut found)
                .map_err(|_unreadable| ResolveError::Damaged { what: "symbol table" })?;
        }
    }
    Ok(found)
}

/// Adds what a table has of these names.
fn search(
    file: &File,
    layout: &Layout<'_>,
    (table, wanted): (Table, &[SymbolName]),
    found: &mut Symbols,
) -> io::Result<()> {
    let names = names(file, table, wanted)?;
    if names.is_empty() {
        return Ok(());
    }
    in_pieces(file, table.symbols, |_, piece| {
        for symbol in piece.as_chunks::<SYMBOL_BYTES>().0 {
            let name = u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]);
            let Some(key) = names.get(&u64::from(name)) else { continue };
            if let Some(location) = layout.function(symbol) {
                found.functions.entry(*key).or_insert(location);
            } else if let Some(address) = Layout::object(symbol) {
                found.objects.entry(*key).or_insert(address);
            }
        }
        // Symbols are 24 bytes: what is left of a piece goes with the next.
        piece.len() % SYMBOL_BYTES
    })
}

/// The offsets, in the string table, of the names that are meant and are no part of a function's, with their keys.
fn names(file: &File, table: Table, wanted: &[SymbolName]) -> io::Result<HashMap<u64, u16>> {
    let parts = |name: &SymbolName| name.beginning.split_once(VERSION).unwrap_or((name.beginning, ""));
    let finders: Vec<(&SymbolName, &str, Finder<'_>)> = wanted
        .iter()
        .map(|name| {
            let (head, versioned) = parts(name);
            (name, versioned, Finder::new(head))
        })
        .collect();
    let mut names = HashMap::new();
    in_pieces(file, table.strings, |offset, piece| {
        for (wanted, versioned, finder) in &finders {
            for start in finder.find_iter(piece) {
                let name = &piece[start..piece.len().min(start + NAME_BYTES)];
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                // A name that is cut at the end of a piece is judged again, whole, in the next.
                let place = offset + start as u64;
                let is_it = is_entry(name, finder.needle()) && goes_on_with(name, finder.needle(), versioned);
                if is_it && name.ends_with(wanted.ending.as_bytes()) {
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

/// A row's symbol is the beginning of a mangled name, which goes on with its arguments' types, or a whole name of C.
fn is_entry(name: &[u8], beginning: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let is_mangled = beginning.starts_with(b"_Z");
    (is_mangled || name.len() == beginning.len()) && !NO_ENTRY.iter().any(|part| name.contains(part))
}

/// Whether this comes in a name behind what it begins with, and behind the namespace of a version where there is one: `10_RMM_26_10`.
fn goes_on_with(name: &[u8], beginning: &[u8], versioned: &str) -> bool {
    let rest = name.get(beginning.len()..).unwrap_or_default();
    [Some(rest), behind_version(rest)].into_iter().flatten().any(|rest| rest.starts_with(versioned.as_bytes()))
}

/// What comes behind such a namespace: its length, and then a name in capitals.
fn behind_version(rest: &[u8]) -> Option<&[u8]> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // A version begins with an underscore, so that all digits are the length's.
    let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let (version, behind) = rest[digits..].split_at_checked(length)?;
    let is_version = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    (version.first() == Some(&b'_') && version.iter().all(is_version)).then_some(behind)
}

#[cfg(test)]
mod tests {
    use super::{goes_on_with, is_entry};

    #[test]
    fn the_namespace_of_a_version_may_stand_in_a_name_or_not() {
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
