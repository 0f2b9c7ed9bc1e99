//! Finds virtual functions of a class in a file without symbols, through the type name that such a
//! file keeps.
//!
//! The name is text in the file; the type information points to it, and the class's virtual table
//! points to the type information (Itanium C++ ABI, 2.5.2 and 2.9). Pointers in a library are
//! relocations, which hold their targets before loading. Packed relocations (`.relr.dyn`) are not
//! read, so classes in a file that uses them are not found.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use memchr::memmem::Finder;
use object::LittleEndian;
use object::elf::{FileHeader64, PF_X, PT_LOAD, R_X86_64_RELATIVE, SHT_RELA};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use super::pieces::in_pieces;
use crate::stranger_file::ElfReader;

const LE: LittleEndian = LittleEndian;
/// Maximum number of headers in a valid library.
const MOST_HEADERS: usize = 1024;
/// Maximum number of relocations read from all tables together. ONNX Runtime's library has 32,000.
const MOST_RELOCATIONS: usize = 1 << 20;
/// Maximum number of occurrences of a name, and of pointers to an address, that are followed. A
/// class has one of each, and few virtual tables.
const MOST_PLACES: usize = 64;
/// Size of a relocation: offset, info and addend (`Elf64_Rela`).
const RELOCATION_BYTES: usize = 24;
/// Maximum number of virtual functions of a wanted class.
const MOST_FUNCTIONS: usize = 64;
/// Size of a word: the offset of the name in the type information, and of the functions after the
/// type pointer in a virtual table.
const WORD: u64 = 8;

/// Virtual table of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassTable {
    /// Address of the table in the file. Its functions follow after two words.
    pub(crate) address: u64,
    /// Addresses of the functions in the file.
    pub(crate) functions: Vec<u64>,
}

/// Targets of the pointers in a file, and its code segments.
#[derive(Debug)]
pub(crate) struct ClassPointers {
    /// Address and target of each pointer.
    by_place: Vec<(u64, u64)>,
    segments: Vec<ClassSegment>,
}

#[derive(Clone, Copy, Debug)]
struct ClassSegment {
    address: u64,
    offset: u64,
    bytes: u64,
    is_code: bool,
}

impl ClassPointers {
    /// Reads the relocations of a library; `None` if none can be read.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let cache = ElfReader::new(file.try_clone().ok()?);
        let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
        let headers = header.program_headers(LE, &cache).ok()?;
        let loaded = headers.iter().take(MOST_HEADERS).filter(|header| header.p_type(LE) == PT_LOAD);
        let segments = loaded.map(|header| ClassSegment {
            address: header.p_vaddr(LE),
            offset: header.p_offset(LE),
            bytes: header.p_filesz(LE),
            is_code: header.p_flags(LE).contains(PF_X),
        });
        let segments = segments.collect();
        let sections = header.section_headers(LE, &cache).ok()?;
        let (mut by_place, mut looked_bytes) = (Vec::new(), 0_u64);
        for section in sections.iter().take(MOST_HEADERS).filter(|section| section.sh_type(LE) == SHT_RELA) {
            let range = (section.sh_offset(LE), section.sh_size(LE));
            looked_bytes = range.1.saturating_add(looked_bytes);
            if looked_bytes > (MOST_RELOCATIONS * RELOCATION_BYTES) as u64 {
                return None;
            }
            in_pieces(file, range, |_, piece| {
                by_place.extend(piece.as_chunks::<RELOCATION_BYTES>().0.iter().filter_map(relative));
                piece.len() % RELOCATION_BYTES
            })
            .ok()?;
        }
        by_place.sort_unstable();
        (!by_place.is_empty()).then_some(Self { by_place, segments })
    }

    /// Returns the virtual table of a class by the mangled name of its type; `None` if there is
    /// none or more than one.
    pub(crate) fn table(&self, file: &File, name: &str) -> Option<ClassTable> {
        let mut found = None;
        for text in self.texts(file, name)? {
            for pointer in self.places_of(text) {
                let description = pointer.checked_sub(WORD)?;
                for place in self.places_of(description) {
                    let functions = self.functions(place.checked_add(WORD)?);
                    if functions.is_empty() || !self.begins_an_object(file, place) {
                        continue;
                    }
                    let table = ClassTable { address: place.checked_sub(WORD)?, functions };
                    if found.replace(table).is_some() {
                        return None;
                    }
                }
            }
        }
        found
    }

    /// Returns the addresses at which the name occurs, with its terminating zero.
    fn texts(&self, file: &File, name: &str) -> Option<Vec<u64>> {
        let text = [name.as_bytes(), &[0]].concat();
        let finder = Finder::new(&text);
        let mut found = Vec::new();
        for segment in self.segments.iter().filter(|segment| !segment.is_code) {
            in_pieces(file, (segment.offset, segment.bytes), |offset, piece| {
                let room = MOST_PLACES.saturating_sub(found.len());
                let places = finder.find_iter(piece).map(|at| segment.address.wrapping_add(offset + at as u64));
                found.extend(places.take(room));
                text.len() - 1
            })
            .ok()?;
        }
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// Returns the addresses of pointers to an address.
    fn places_of(&self, address: u64) -> impl Iterator<Item = u64> {
        self.by_place.iter().filter(move |(_, value)| *value == address).map(|(place, _)| *place).take(MOST_PLACES)
    }

    /// Returns the functions to which consecutive pointers refer, starting at an address.
    fn functions(&self, place: u64) -> Vec<u64> {
        let begin = self.by_place.partition_point(|(at, _)| *at < place);
        let pointers = self.by_place[begin..].iter().zip((place..).step_by(8)).take(MOST_FUNCTIONS);
        pointers
            .take_while(|((at, value), expected)| at == expected && self.is_code(*value))
            .map(|(pair, _)| pair.1)
            .collect()
    }

    fn is_code(&self, address: u64) -> bool {
        self.segments.iter().any(|one| one.is_code && address.checked_sub(one.address).is_some_and(|at| at < one.bytes))
    }

    /// Whether the table with its type pointer at `place` is that of the complete object and not of
    /// a base class within it: the word before is 0.
    fn begins_an_object(&self, file: &File, place: u64) -> bool {
        let Some(before) = place.checked_sub(WORD) else { return false };
        let into =
            |one: &ClassSegment| Some((before.checked_sub(one.address).filter(|at| *at < one.bytes)?, one.offset));
        let Some((at, offset)) = self.segments.iter().find_map(into) else { return false };
        let mut word = [0xff; 8];
        let is_pointer = self.by_place.binary_search_by_key(&before, |(at, _)| *at).is_ok();
        !is_pointer && file.read_exact_at(&mut word, offset.saturating_add(at)).is_ok() && word == [0; 8]
    }
}

/// Returns the address and the target of a relative relocation.
fn relative(relocation: &[u8; RELOCATION_BYTES]) -> Option<(u64, u64)> {
    let (words, _) = relocation.as_chunks::<8>();
    let [place, kind, value] = [words[0], words[1], words[2]].map(u64::from_le_bytes);
    (kind & u64::from(u32::MAX) == u64::from(R_X86_64_RELATIVE.0)).then_some((place, value))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Command;

    use super::ClassPointers;

    const SOURCE: &str = "struct Base { virtual ~Base(); virtual int first(); virtual int second(); };
        Base::~Base() {} int Base::first() { return 1; } int Base::second() { return 2; }
        struct Derived : Base { int second() override; };
        int Derived::second() { return 3; }
        Base *made() { return new Derived; }";

    #[test]
    fn a_class_has_its_functions_in_a_file_without_symbols() {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, library) = (folder.path().join("a.cpp"), folder.path().join("a.so"));
        std::fs::File::create(&source).and_then(|mut file| file.write_all(SOURCE.as_bytes())).expect("written");
        let mut compiler = Command::new("c++");
        compiler.args(["-shared", "-fPIC", "-O1", "-s", "-fvisibility=hidden", "-o"]).arg(&library).arg(&source);
        if !compiler.status().is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no C++ compiler");
            return;
        }
        let file = std::fs::File::open(&library).expect("it was made");
        let classes = ClassPointers::of(&file).expect("it has pointers");
        let (base, derived) = (classes.table(&file, "4Base"), classes.table(&file, "7Derived"));
        let (base, derived) = (base.expect("the base"), derived.expect("what is derived from it"));
        // The first two entries are destructors.
        assert_eq!((base.functions.len(), derived.functions.len()), (4, 4));
        assert_eq!(base.functions[2], derived.functions[2], "it is inherited");
        assert_ne!(base.functions[3], derived.functions[3], "it is its own");
        assert_eq!(classes.table(&file, "5Other"), None);
    }

    #[test]
    fn class_pointers_of_a_file_without_a_library_are_none() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(b"\x7fELF and nothing more").expect("written");
        assert!(ClassPointers::of(&file).is_none());
    }
}
