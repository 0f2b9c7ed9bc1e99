use std::io::Cursor;

use object::read::ReadCache;

use super::*;

/// Location of the fixture's code segment in memory and in the file.
const TEXT_ADDRESS: u64 = 0x40_1000;
const TEXT_OFFSET: u64 = 0x200;
const TEXT_BYTES: u64 = 0x100;
const SECTION_HEADER_BYTES: usize = 64;

/// One row of the fixture's symbol table.
struct FixtureSymbol {
    name: &'static str,
    kind: u8,
    section: u16,
    address: u64,
    size_bytes: u64,
}

const FUNC: u8 = 0x12; // global function
const OBJECT: u8 = 0x11;
const IFUNC: u8 = 0x1a;

fn function(name: &'static str, address: u64, size_bytes: u64) -> FixtureSymbol {
    FixtureSymbol { name, kind: FUNC, section: 1, address, size_bytes }
}

fn exports() -> Vec<FixtureSymbol> {
    vec![
        function("cuMemAlloc_v2", TEXT_ADDRESS + 0x10, 0x20),
        function("cuMemFree_v2", TEXT_ADDRESS + 0x30, 0),
        FixtureSymbol { section: 0, ..function("imported", 0, 0) },
        FixtureSymbol { kind: OBJECT, ..function("data", TEXT_ADDRESS, 8) },
        FixtureSymbol { kind: IFUNC, ..function("chosen_at_run_time", TEXT_ADDRESS, 8) },
        function("outside", 0xdead_0000, 8),
        function("too_long", TEXT_ADDRESS + 0x40, 1 << 40),
        function("cuMemAlloc_v2", TEXT_ADDRESS + 0x80, 4),
    ]
}

/// A library file with two segments (code, notes) and four sections after the null section.
struct Fixture {
    symbols: Vec<FixtureSymbol>,
    symbol_section: u32,
}

impl Default for Fixture {
    fn default() -> Self {
        Self { symbols: exports(), symbol_section: 11 }
    }
}

impl Fixture {
    fn build(&self) -> Vec<u8> {
        let mut strings = b"\0libcuda.so.1\0".to_vec();
        let mut symbols = vec![0; 24];
        for symbol in &self.symbols {
            let name = u32::try_from(strings.len()).expect("short");
            strings.extend(symbol.name.bytes().chain([0]));
            symbols.extend(name.to_le_bytes());
            symbols.extend([symbol.kind, 0]);
            symbols.extend(symbol.section.to_le_bytes());
            symbols.extend(symbol.address.to_le_bytes());
            symbols.extend(symbol.size_bytes.to_le_bytes());
        }
        let mut note = words(&[4, 4, 3]);
        note.extend(b"GNU\0\xde\xad\x00\x0f");
        let mut file = vec![0; usize::try_from(TEXT_OFFSET).expect("small")];
        file.extend((0..TEXT_BYTES).map(|i| u8::try_from(i).expect("below 256")));
        let mut place = |bytes: &[u8]| {
            file.resize(file.len().next_multiple_of(8), 0);
            let offset = file.len() as u64;
            file.extend(bytes);
            (offset, bytes.len() as u64)
        };
        let note = place(&note);
        let symbols = place(&symbols);
        let strings = place(&strings);
        let dynamic = place(&longs(&[14, 1, 0, 0]));
        let headers = [
            section_header(0, (0, 0), 0),
            section_header(self.symbol_section, symbols, 2),
            section_header(3, strings, 0),
            section_header(6, dynamic, 2),
        ]
        .concat();
        let (headers, _) = place(&headers);
        let segments = [segment(1, 5, (TEXT_OFFSET, TEXT_BYTES), TEXT_ADDRESS), segment(4, 4, note, 0)];
        let front = [file_header(headers, 4), segments.concat()].concat();
        file[..front.len()].copy_from_slice(&front);
        file
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn file_header(section_headers: u64, sections: u16) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend([3, 0, 62, 0, 1, 0, 0, 0]); // ET_DYN, EM_X86_64, EV_CURRENT
    header.extend(longs(&[0, 64, section_headers])); // entry, program and section headers
    header.extend(words(&[0]));
    for half in [64, 56, 2, 64, sections, 0_u16] {
        header.extend(half.to_le_bytes());
    }
    header
}

fn segment(kind: u32, flags: u32, (offset, bytes): (u64, u64), address: u64) -> Vec<u8> {
    let mut header = words(&[kind, flags]);
    header.extend(longs(&[offset, address, address, bytes, bytes, 4]));
    header
}

fn section_header(kind: u32, (offset, bytes): (u64, u64), link: u32) -> Vec<u8> {
    let mut header = words(&[0, kind]);
    header.extend(longs(&[0, 0, offset, bytes]));
    header.extend(words(&[link, 0]));
    header.extend(longs(&[8, 0]));
    assert_eq!(header.len(), SECTION_HEADER_BYTES);
    header
}

fn machine_field(file: &mut [u8], machine: u16) {
    file[18..20].copy_from_slice(&machine.to_le_bytes());
}

fn parse(file: &[u8]) -> SymbolTable<'_> {
    SymbolTable::parse(file).expect("a good file")
}

fn refusal(file: &[u8]) -> ResolveError {
    SymbolTable::parse(file).expect_err("a bad file")
}

#[test]
fn a_function_is_found_at_its_file_offset() {
    let file = Fixture::default().build();
    let table = parse(&file);
    let location = table.function("cuMemAlloc_v2").expect("an exported function");
    let expected = FunctionLocation { address: TEXT_ADDRESS + 0x10, file_offset: TEXT_OFFSET + 0x10, size_bytes: 0x20 };
    assert_eq!(location, expected);
    let code: Vec<u8> = (0x10..0x30).collect();
    assert_eq!(table.code(&location), code);
}

#[test]
fn only_functions_that_the_file_holds_are_listed() {
    let file = Fixture::default().build();
    let table = parse(&file);
    let names: Vec<_> = table.functions.keys().copied().collect();
    assert_eq!(names, ["cuMemAlloc_v2", "cuMemFree_v2"]);
    assert_eq!(table.function("imported"), None);
}

#[test]
fn a_function_without_a_size_has_no_code_to_judge() {
    let file = Fixture::default().build();
    let table = parse(&file);
    let location = table.function("cuMemFree_v2").expect("an exported function");
    assert_eq!(location.file_offset, TEXT_OFFSET + 0x30);
    assert_eq!(table.code(&location), [0_u8; 0]);
    let longest = FunctionLocation { size_bytes: MAX_FUNCTION_BYTES + 1, ..location };
    assert_eq!(table.code(&longest), [0_u8; 0]);
}

#[test]
fn elf_file_reports_its_build_id_and_machine() {
    let mut file = Fixture::default().build();
    let table = parse(&file);
    assert_eq!(table.build_id(), Some("dead000f"));
    assert_eq!(table.machine(), InstructionSet::X86_64);
    for (number, machine) in [(183, InstructionSet::Aarch64), (243, InstructionSet::Other(243))] {
        machine_field(&mut file, number);
        assert_eq!(parse(&file).machine(), machine);
    }
}

#[test]
fn static_symbol_table_is_used_without_a_dynamic_one() {
    let file = Fixture { symbol_section: 2, ..Fixture::default() }.build();
    let table = parse(&file);
    assert!(table.function("cuMemAlloc_v2").is_some());
    let file = Fixture { symbol_section: 1, ..Fixture::default() }.build();
    assert_eq!(refusal(&file), ResolveError::NoSymbols);
}

#[test]
fn a_file_is_read_piecewise_as_well_as_from_memory() {
    let file = Fixture::default().build();
    let cache = ReadCache::new(Cursor::new(file.clone()));
    let table = SymbolTable::parse(&cache).expect("a good file");
    let in_memory = parse(&file);
    assert_eq!(table.functions, in_memory.functions);
    assert_eq!(table.build_id(), in_memory.build_id());
}

#[test]
fn files_of_another_kind_are_refused_by_name() {
    let good = Fixture::default().build();
    let with = |index: usize, value: u8| {
        let mut file = good.clone();
        file[index] = value;
        file
    };
    for (file, error) in [
        (vec![], ResolveError::NotElf),
        (b"\x7fELF".to_vec(), ResolveError::NotElf),
        (b"#!/bin/sh\necho hello\n".to_vec(), ResolveError::NotElf),
        (with(4, 1), ResolveError::ThirtyTwoBit),
        (with(5, 2), ResolveError::BigEndian),
        (with(4, 9), ResolveError::Damaged { what: "ELF class" }),
        (good[..40].to_vec(), ResolveError::Damaged { what: "ELF header" }),
        (good[..good.len() - 1].to_vec(), ResolveError::Damaged { what: "section headers" }),
    ] {
        assert_eq!(refusal(&file), error);
    }
}

#[test]
fn an_absurd_table_is_refused_before_it_is_read() {
    let mut file = Fixture::default().build();
    let headers = file.len() - 4 * SECTION_HEADER_BYTES;
    let size = headers + SECTION_HEADER_BYTES + 32;
    file[size..size + 8].copy_from_slice(&(MAX_TABLE_BYTES + 24).to_le_bytes());
    assert_eq!(refusal(&file), ResolveError::Damaged { what: "symbol table" });
}

#[test]
fn no_truncation_and_no_changed_byte_makes_it_panic() {
    let good = Fixture::default().build();
    let visit = |file: &[u8]| {
        if let Ok(table) = SymbolTable::parse(file) {
            for location in table.functions.values() {
                assert!(location.file_offset < file.len() as u64);
                assert!(table.code(location).len() as u64 <= location.size_bytes);
            }
        }
    };
    for length in 0..good.len() {
        visit(&good[..length]);
    }
    let mut file = good.clone();
    for index in 0..good.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, good[index] ^ 1] {
            file[index] = value;
            visit(&file);
        }
        file[index] = good[index];
    }
}

#[test]
fn names_that_no_linker_writes_are_left_out() {
    let long = "x".repeat(MAX_NAME_BYTES + 1).leak();
    let longest = "y".repeat(MAX_NAME_BYTES).leak();
    let symbols = vec![function(long, TEXT_ADDRESS, 1), function(longest, TEXT_ADDRESS, 1)];
    let file = Fixture { symbols, ..Fixture::default() }.build();
    let table = parse(&file);
    let names: Vec<_> = table.functions.keys().copied().collect();
    assert_eq!(names, [&*longest]);
}
