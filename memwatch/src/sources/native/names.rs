//! Resolves names of functions from a file's symbols and demangles C++ names. The crate blazesym is
//! not used because it maps whole files, and truncating a mapped file kills the reader.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cpp_demangle::{DemangleOptions, Symbol};

use super::image::CodeImage;
use crate::printable::printable;
use crate::sources::kernel::resolve::{SYMBOL_BYTES, SymbolLayout, SymbolTableRange};
use crate::sources::pieces::in_pieces;
use crate::stranger_file::ElfReader;

/// Maximum number of functions of a file. `libtorch_cpu.so` has 600,000.
const MOST_FUNCTIONS: usize = 4 << 20;
/// Maximum length of a mangled and of a demangled name. PyTorch's templates have some thousand
/// characters.
const MOST_NAME_BYTES: usize = 16 << 10;
/// Maximum number of cached names; beyond it all are dropped.
const MOST_NAMES: usize = 1 << 16;
/// Number of functions before an address that are checked, since few functions overlap.
const NEAR: usize = 8;

/// A function's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionName {
    /// Name with parameter types.
    pub(super) full: Arc<str>,
    /// Name without parameters.
    pub(super) short: Arc<str>,
}

/// Names by file and address.
#[derive(Debug, Default)]
pub(super) struct FunctionNames {
    files: HashMap<usize, Functions>,
    known: HashMap<(usize, u64), Option<FunctionName>>,
}

/// The functions of a file, in order of addresses.
#[derive(Debug, Default)]
struct Functions {
    all: Vec<FunctionSymbol>,
    /// Offset and length of the string table in the file.
    strings: (u64, u64),
}

/// A function; `name` is the offset of its name in the string table.
#[derive(Clone, Copy, Debug)]
struct FunctionSymbol {
    address: u64,
    bytes: u32,
    name: u32,
}

impl FunctionNames {
    /// Drops the names of all files but these.
    pub(super) fn keep(&mut self, used: &BTreeSet<usize>) {
        self.files.retain(|number, _| used.contains(number));
        self.known.retain(|(number, _), _| used.contains(number));
    }

    /// Returns the name of the function that contains an address of a file; `None` if no symbol
    /// covers it.
    pub(super) fn of(&mut self, number: usize, image: &CodeImage, address: u64) -> Option<FunctionName> {
        if let Some(known) = self.known.get(&(number, address)) {
            return known.clone();
        }
        let functions = self.files.entry(number).or_insert_with(|| Functions::read(&image.file).unwrap_or_default());
        let name = functions.name(&image.file, address);
        if self.known.len() >= MOST_NAMES {
            self.known.clear();
        }
        self.known.insert((number, address), name.clone());
        name
    }
}

impl Functions {
    /// Reads the functions of a file, from the larger symbol table if it has two. `None` for a
    /// damaged file.
    fn read(file: &File) -> Option<Self> {
        let cache = ElfReader::new(file.try_clone().ok()?);
        let layout = SymbolLayout::parse(&cache).ok()?;
        let SymbolTableRange { symbols, strings } = layout.tables().last()?;
        let mut all = Vec::new();
        let read = in_pieces(file, symbols, |_, piece| {
            let found = piece.as_chunks::<SYMBOL_BYTES>().0.iter().filter_map(|symbol| {
                let location = layout.function(symbol).filter(|location| location.size_bytes > 0)?;
                Some(FunctionSymbol {
                    address: location.address,
                    bytes: u32::try_from(location.size_bytes).ok()?,
                    name: u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]),
                })
            });
            let room = MOST_FUNCTIONS.saturating_sub(all.len());
            all.extend(found.take(room));
            piece.len() % SYMBOL_BYTES
        });
        read.ok()?;
        all.shrink_to_fit();
        // The sort is stable: of several names for one function the first in the table is always
        // used.
        all.sort_by_key(|function| function.address);
        Some(Self { all, strings })
    }

    fn name(&self, file: &File, address: u64) -> Option<FunctionName> {
        let after = self.all.partition_point(|function| function.address <= address);
        let before = &self.all[after.saturating_sub(NEAR)..after];
        let covers = |function: &&FunctionSymbol| address - function.address < u64::from(function.bytes);
        let last = before.iter().rev().find(covers)?;
        let function = before.iter().find(|function| function.address == last.address && covers(function))?;
        let (start, length) = self.strings;
        let room = length.checked_sub(u64::from(function.name))?.min(MOST_NAME_BYTES as u64);
        let mut bytes = vec![0; usize::try_from(room).ok()?];
        file.read_exact_at(&mut bytes, start + u64::from(function.name)).ok()?;
        let name = bytes.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
        Some(FunctionName::of(name))
    }
}

impl FunctionName {
    /// Creates the name of a symbol.
    fn of(symbol: &[u8]) -> Self {
        let plain: Arc<str> = printable(&String::from_utf8_lossy(symbol)).into();
        if !symbol.starts_with(b"_Z") {
            return Self { full: Arc::clone(&plain), short: plain };
        }
        // Function parts split off by the compiler have the whole name, a dot and a suffix.
        let whole = symbol.split(|byte| *byte == b'.').next().unwrap_or(symbol);
        let parsed = Symbol::new(whole).ok();
        let written = |options: DemangleOptions| {
            let mut text = Bounded(String::new());
            parsed.as_ref()?.structured_demangle(&mut text, &options).ok()?;
            Some(printable(&text.0).into())
        };
        Self {
            full: written(DemangleOptions::new()).unwrap_or_else(|| Arc::clone(&plain)),
            short: written(DemangleOptions::new().no_params().no_return_type()).unwrap_or(plain),
        }
    }
}

/// A text of limited length, since a short symbol can encode an endless name.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MOST_NAME_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::FunctionName;

    #[test]
    fn names_are_written_with_and_without_their_parameters() {
        let name = FunctionName::of(b"_ZN2at6native10empty_cudaEN3c108ArrayRefIlEE");
        assert_eq!(&*name.full, "at::native::empty_cuda(c10::ArrayRef<long>)");
        assert_eq!(&*name.short, "at::native::empty_cuda");
        assert_eq!(&*FunctionName::of(b"_ZN2at6native10empty_cudaEv.cold").short, "at::native::empty_cuda");
        assert_eq!(&*FunctionName::of(b"_PyEval_EvalFrameDefault.cold").full, "_PyEval_EvalFrameDefault.cold");
        assert_eq!(&*FunctionName::of(b"_Zebra\x1b[31m").full, "_Zebra\\x1b[31m");
    }
}
