//! Where the rows' functions lie in frameworks' libraries: local symbols among half a million.
//!
//! The string table of `libtorch_cpu.so` alone is 78 MB. It is searched in pieces for the beginnings of names, and the symbols that point to
//! what was found are picked out of the symbol table; neither is ever in memory as a whole.

mod remembered;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;

use memchr::memmem::Finder;
use memwatch_common::tensor::{
    BlockPlan, OperatorPlan, Point, TENSOR_PROBES, TensorMeaning, TensorPlan, TensorProbe, VERSION,
};

use self::remembered::Shelf;
use crate::sources::kernel::resolve::{FunctionLocation, Layout, ResolveError, SYMBOL_BYTES, Table};
use crate::sources::pieces::in_pieces;

/// Longest name that is distinguished from others with the same beginning.
const NAME_BYTES: usize = 1024;
/// Names in one file that are meant: real ones have some hundred.
const MOST_NAMES: usize = 1 << 14;
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
    /// Where the name of an operator is, of a row with names; such a row has no other plan.
    pub(crate) operator: Option<OperatorPlan>,
}

impl TensorPoint {
    /// What the row says, at this offset.
    pub(crate) fn new(row: &'static TensorProbe, file_offset: u64) -> Self {
        Self { row, file_offset, plan: row.plan, operator: None }
    }

    /// The row with this meaning, with what is read of an allocator's own books; `None` where there is none.
    pub(crate) fn with_block(meaning: TensorMeaning, file_offset: u64, block: BlockPlan) -> Option<Self> {
        let row = TENSOR_PROBES.iter().find(|row| row.meaning == meaning)?;
        Some(Self { plan: TensorPlan { block, ..row.plan }, ..Self::new(row, file_offset) })
    }

    /// Whether that is when the function returns: no row but [`Point::Count`] can be so, since an exception on its way through such a probe ends the
    /// program.
    pub(crate) const fn is_return(&self) -> bool {
        matches!(self.row.point, Point::Count) && !self.plan.thread_variable
    }

    /// What its probe is attached with.
    pub(crate) const fn cookie(&self) -> u64 {
        match self.operator {
            Some(operator) => operator.cookie(self.row.id),
            None => self.plan.cookie(self.row.id, self.is_return()),
        }
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

    /// What a name begins with, and what comes behind the namespace of a version.
    fn parts(&self) -> (&'static str, &'static str) {
        self.beginning.split_once(VERSION).unwrap_or((self.beginning, ""))
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

impl Symbols {
    /// Takes in a symbol for a key, unless it has one; false where it is none that is defined here.
    fn note(&mut self, layout: &Layout<'_>, key: u16, symbol: &[u8; SYMBOL_BYTES]) -> bool {
        if let Some(location) = layout.function(symbol) {
            self.functions.entry(key).or_insert(location);
        } else if let Some(address) = Layout::object(symbol) {
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

/// Where a symbol stands that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Its key.
    key: u16,
    /// In which of the symbol tables.
    table: usize,
    /// Its offset in that, in bytes.
    offset: u64,
}

/// Looks for symbols in a file: where an earlier search has found them, or in its tables.
///
/// # Errors
/// A table cannot be read.
pub(crate) fn symbols(file: &File, layout: &Layout<'_>, wanted: &[SymbolName]) -> Result<Symbols, ResolveError> {
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

/// What is exported is in the small table; the large one is searched only for the rest.
fn look_for(file: &File, layout: &Layout<'_>, wanted: &[SymbolName]) -> Result<(Symbols, Vec<Place>), ResolveError> {
    let (mut found, mut places) = (Symbols::default(), Vec::new());
    for (number, table) in layout.tables().enumerate() {
        let missing: Vec<SymbolName> = wanted.iter().filter(|name| !found.has(name.key)).copied().collect();
        if missing.is_empty() {
            continue;
        }
        let take = |key, offset, symbol: &[u8; SYMBOL_BYTES]| {
            let is_new = !found.has(key);
            if found.note(layout, key, symbol) && is_new {
                places.push(Place { key, table: number, offset });
            }
        };
        search(file, (table, &missing), take).map_err(|_unreadable| ResolveError::Damaged { what: "symbol table" })?;
    }
    Ok((found, places))
}

/// Hands over the key, offset and entry of each symbol of a table that has one of these names.
fn search(
    file: &File,
    (table, wanted): (Table, &[SymbolName]),
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
        // Symbols are 24 bytes: what is left of a piece goes with the next.
        piece.len() % SYMBOL_BYTES
    })
}

/// The offsets, in the string table, of the names that are meant and are no part of a function's, with their keys.
fn names(file: &File, table: Table, wanted: &[SymbolName]) -> io::Result<HashMap<u64, u16>> {
    let finders: Vec<(&SymbolName, Finder<'_>)> =
        wanted.iter().map(|name| (name, Finder::new(name.parts().0))).collect();
    let mut names = HashMap::new();
    in_pieces(file, table.strings, |offset, piece| {
        for (wanted, finder) in &finders {
            for start in finder.find_iter(piece) {
                let name = &piece[start..piece.len().min(start + NAME_BYTES)];
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                // A name that is cut at the end of a piece is judged again, whole, in the next.
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

/// Whether a name is one that is looked for.
fn is_meant(name: &[u8], wanted: &SymbolName) -> bool {
    let (head, versioned) = wanted.parts();
    let begins = name.starts_with(head.as_bytes()) && is_entry(name, head.as_bytes());
    begins && goes_on_with(name, head.as_bytes(), versioned) && name.ends_with(wanted.ending.as_bytes())
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
