//! Unwinds this process itself, and compares the result with the C library's.

use std::arch::asm;
use std::ffi::c_void;

use memwatch_common::native::{COPY_BYTES, NativeItem, Registers};
use memwatch_core::stack::native::{NativeEnd, NativeStack};
use proptest::prelude::*;

use super::maps::{CodeLocation, Maps};
use super::rules::{self, RBP, REGISTERS, RETURN_ADDRESS, RSP};
use super::{NativeFiles, NativeProcess, unwind};
use crate::sources::clock;

unsafe extern "C" {
    /// glibc's function: stores as many return addresses as fit, the innermost first.
    fn backtrace(addresses: *mut *mut c_void, room: i32) -> i32;
}

/// A stack as the kernel half copies it, and the return addresses of `backtrace`.
struct Copied {
    registers: Registers,
    stack: Vec<u8>,
    returns: Vec<u64>,
}

impl Copied {
    fn item(&self) -> NativeItem<'_> {
        NativeItem {
            flags: 0,
            tgid: std::process::id(),
            tid: 0,
            id: 7,
            time_ns: clock::boottime_ns(),
            registers: self.registers,
            stack: &self.stack,
        }
    }
}

#[inline(never)]
fn copy() -> Copied {
    let mut registers = Registers::default();
    // SAFETY: it writes eight words to a struct of eight words.
    unsafe {
        asm!(
            "mov [{to}], rbx", "mov [{to} + 8], rbp", "mov [{to} + 16], rsp", "mov [{to} + 24], r12",
            "mov [{to} + 32], r13", "mov [{to} + 40], r14", "mov [{to} + 48], r15",
            "lea {here}, [rip + 2f]", "mov [{to} + 56], {here}", "2:",
            to = in(reg) &raw mut registers, here = out(reg) _,
        );
    }
    let mut addresses = [std::ptr::null_mut(); 64];
    // SAFETY: the array has as many entries as requested.
    let count = unsafe { backtrace(addresses.as_mut_ptr(), 64) };
    let returns = addresses[..usize::try_from(count).expect("a count")].iter().map(|address| *address as u64);
    let line = stack_end(registers.rsp);
    let bytes = usize::try_from(line - registers.rsp).expect("a stack").min(COPY_BYTES);
    // SAFETY: the stack is mapped up to this address; it is read as bytes.
    let stack = unsafe { std::slice::from_raw_parts(registers.rsp as *const u8, bytes) }.to_vec();
    Copied { registers, stack, returns: returns.collect() }
}

/// Returns the end of the mapping that contains this address.
fn stack_end(address: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
    let ranges = maps.lines().filter_map(|line| line.split_ascii_whitespace().next()?.split_once('-'));
    let ranges = ranges.map(|(start, end)| [start, end].map(|text| u64::from_str_radix(text, 16).expect("an address")));
    ranges.into_iter().find(|[start, end]| (*start..*end).contains(&address)).expect("the stack is mapped")[1]
}

/// Called by the C library's `qsort`.
extern "C" fn compare(first: *const c_void, _second: *const c_void) -> i32 {
    // SAFETY: the first of the two elements is what the test sorts: a place for the copy.
    let place = unsafe { &mut *(*first.cast::<*mut Option<Copied>>()) };
    place.get_or_insert_with(copy);
    0
}

fn copy_below_the_c_library() -> Copied {
    let mut place: Option<Copied> = None;
    let mut sorted = [&raw mut place; 2];
    // SAFETY: two elements of eight bytes, and a function that reads them so.
    unsafe { libc::qsort(sorted.as_mut_ptr().cast(), 2, 8, Some(compare)) };
    place.expect("two elements are compared")
}

fn unwound(copied: &Copied) -> NativeStack {
    let (mut process, mut files) = (NativeProcess::new(std::process::id()), NativeFiles::default());
    process.unwind(&mut files, &copied.item()).expect("it is the first")
}

#[test]
fn every_caller_is_found_that_the_c_library_finds() {
    let copied = copy_below_the_c_library();
    let mut files = NativeFiles::default();
    let mut maps = Maps::new(std::process::id());
    maps.be_as_new_as(clock::boottime_ns(), &mut files.images);
    let (frames, end) = unwind::unwind(&mut maps, &mut files.images, &copied.item());
    assert_eq!(end, NativeEnd::Complete);
    let mut place = |address: u64| match maps.code(address - 1) {
        CodeLocation::OfFile(image, offset) => {
            (image, files.images.named(image).expect("it is there").0.address(offset).expect("loaded"))
        }
        other => panic!("{address:x}: {other:?}"),
    };
    // Both begin in `copy`, at different instructions.
    let expected: Vec<_> = copied.returns[1..].iter().map(|address| place(*address)).collect();
    // The C library does not return the first function of a thread.
    assert_eq!(frames[1..=expected.len()], expected);
    assert!(frames.len() - 1 - expected.len() <= 1, "{frames:?}");
}

/// Adds this number of programs, each a separate file.
fn take_in(files: &mut NativeFiles, directory: &std::path::Path, numbers: std::ops::Range<usize>) -> Vec<usize> {
    let one = |number: usize| {
        let path = directory.join(number.to_string());
        std::fs::copy("/bin/true", &path).expect("a copy of a program");
        let opened = std::fs::File::open(&path).expect("it is there");
        files.images.of(&opened, path.as_os_str().as_encoded_bytes()).expect("it is a program")
    };
    numbers.map(one).collect()
}

#[test]
fn native_files_mapped_by_no_process_are_closed_and_forgotten() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut files = NativeFiles::default();
    let is_known = |files: &NativeFiles, number: usize| files.images.named(number).is_some();
    let first = take_in(&mut files, directory.path(), 0..100);
    assert!(first.iter().all(|number| is_known(&files, *number)));
    files.keep_those_of(std::iter::empty());
    assert!(first.iter().all(|number| !is_known(&files, *number)), "nobody has them");
    let mut process = NativeProcess::new(std::process::id());
    process.unwind(&mut files, &copy_below_the_c_library().item()).expect("it is the first");
    let used: Vec<usize> = process.images().collect();
    assert_ne!(used, Vec::<usize>::new());
    let later = take_in(&mut files, directory.path(), 100..300);
    files.keep_those_of(std::iter::once(&process));
    assert!(used.iter().all(|number| is_known(&files, *number)), "what somebody has stays, with its number");
    assert!(later.iter().all(|number| !is_known(&files, *number)));
    assert!(first.iter().all(|number| !used.contains(number)), "a number is never another file's");
}

#[test]
fn functions_have_the_names_of_their_symbols() {
    let stack = unwound(&copy_below_the_c_library());
    let names: Vec<_> = stack.frames.iter().map(|frame| frame.name.as_deref().unwrap_or("?")).collect();
    let place = |part: &str| names.iter().position(|name| name.contains(part)).unwrap_or_else(|| panic!("{names:?}"));
    assert!(place("tests7compare") < place("qsort"), "{names:?}");
    assert!(place("qsort") < place("24copy_below_the_c_library"), "{names:?}");
    let qsort = &stack.frames[place("qsort")];
    assert!(qsort.library.contains("/libc"), "{}", qsort.library);
}

#[test]
fn a_copy_that_is_too_short_ends_the_stack_and_says_so() {
    let copied = copy_below_the_c_library();
    let whole = unwound(&copied);
    for bytes in [0, 8, 100, 256, 700] {
        let stack = unwound(&Copied { stack: copied.stack[..bytes].to_vec(), ..clone(&copied) });
        assert_eq!(stack.end, NativeEnd::CopyEnds, "{bytes}");
        assert_eq!(stack.frames[..], whole.frames[..stack.frames.len()], "{bytes}");
        assert!(stack.frames.len() < whole.frames.len());
    }
}

#[test]
fn code_of_no_file_and_a_stack_of_nonsense_end_the_stack() {
    let mut copied = copy_below_the_c_library();
    let nowhere = unwound(&Copied { registers: Registers { rip: 0x1234, ..copied.registers }, ..clone(&copied) });
    assert_eq!((nowhere.frames.len(), nowhere.end), (0, NativeEnd::NoInformation));
    copied.stack.iter_mut().for_each(|byte| *byte = 0x5A);
    let nonsense = unwound(&copied);
    assert_eq!((nonsense.frames.len(), nonsense.end), (1, NativeEnd::NoInformation));
}

#[test]
fn the_same_frames_have_one_number_and_others_another() {
    let (mut process, mut files) = (NativeProcess::new(std::process::id()), NativeFiles::default());
    let mut report = |id: u64, copied: &Copied| {
        let item = NativeItem { id, ..copied.item() };
        let unwound = process.distinguish(&mut files, &item);
        (unwound.id, unwound.stack.is_some())
    };
    let all: Vec<_> = (0..2).map(|_| copy_below_the_c_library()).collect();
    let other = copy_below_the_c_library();
    assert_eq!(report(1, &all[0]), (1, true));
    assert_eq!(report(2, &all[1]), (1, false));
    assert_eq!(report(3, &other), (3, true));
    let cut = Copied { stack: other.stack[..512].to_vec(), ..clone(&other) };
    assert_eq!(report(4, &cut), (4, true), "what is cut may have been another");
}

#[test]
fn native_stacks_of_one_python_stack_are_reduced_to_the_common_frames() {
    let (mut process, mut files) = (NativeProcess::new(std::process::id()), NativeFiles::default());
    let [first, again] = std::array::from_fn(|_| copy_below_the_c_library());
    let other = copy_below_the_c_library();
    let mut unwind = |copied: &Copied| process.unwind(&mut files, &copied.item());
    let whole = unwind(&first).expect("it is the first");
    assert_eq!(unwind(&again), None, "it is the same");
    let shorter = Copied { stack: first.stack[..512].to_vec(), ..clone(&first) };
    assert_eq!(unwind(&shorter), None, "what is known of it is the same");
    let common = unwind(&other).expect("it was called elsewhere");
    assert_eq!(common.end, NativeEnd::Differing);
    assert_eq!(common.frames[..], whole.frames[..common.frames.len()]);
    assert!(common.frames.len() < whole.frames.len());
    assert_eq!(unwind(&first), None, "it stays so");
}

proptest! {
    /// An untrusted program controls these bytes. Damaged descriptions are refused or read
    /// differently, without a panic.
    #[test]
    fn unwind_rules_from_damaged_descriptions_never_panic(
        damage in proptest::collection::vec((0_usize..256, any::<u8>()), 1..8),
        values in any::<[Option<u64>; REGISTERS]>(),
        into in 0_u64..64,
    ) {
        // A common part and an entry as compilers write them: both with a length, the entry with
        // its offset to the common part and the range of its function; and expressions as in the C
        // library's signal frames.
        let mut common = vec![24, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', b'S', 0, 1, 0x78, 16, 1, 0x1B, 0x0C, 7, 8, 0x90, 1, 0, 0, 0, 0, 0];
        let mut entry = vec![44, 0, 0, 0, 32, 0, 0, 0, 0, 1, 0, 0, 64, 0, 0, 0, 0, 0x41, 0x0E, 16, 0x83, 2, 0x0F, 5, 0x77, 8, 6, 0x23, 4];
        entry.extend([0x10, 16, 5, 0x77, 0x80, 1, 0x23, 8, 0x16, 6, 3, 0x77, 8, 6, 0x43, 0x0A, 0x0B, 0, 0]);
        for (at, byte) in damage {
            let all = common.len() + entry.len();
            let place = common.iter_mut().chain(&mut entry).nth(at % all).expect("within both");
            *place = byte;
        }
        if let Some(rules) = rules::of(&common, &entry, 0x1000, 0x1108 + into) {
            let _ = rules.caller(&values, &|address: u64| (!address.is_multiple_of(3)).then_some(address));
        }
    }
}

#[test]
fn an_undamaged_description_is_understood() {
    let common = [20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1B, 0x0C, 7, 8, 0x90, 1, 0, 0];
    let entry = [20, 0, 0, 0, 28, 0, 0, 0, 0, 1, 0, 0, 64, 0, 0, 0, 0, 0x41, 0x0E, 16, 0x86, 2, 0, 0];
    // The function begins at 0x1000 + 8 + 0x100. Its first instruction has one byte and pushes rbp.
    let mut values = [None; REGISTERS];
    values[RSP] = Some(0x7000);
    let read = |address: u64| Some(address * 2);
    let caller = |address| rules::of(&common, &entry, 0x1000, address).map(|rules| rules.caller(&values, &read));
    let first = caller(0x1108).expect("it is about this address").expect("there is a caller");
    assert_eq!((first[RSP], first[RETURN_ADDRESS], first[RBP]), (Some(0x7008), Some(0xE000), None));
    let pushed = caller(0x1109).expect("it is about this address").expect("there is a caller");
    assert_eq!((pushed[RSP], pushed[RETURN_ADDRESS], pushed[RBP]), (Some(0x7010), Some(0xE010), Some(0xE000)));
    assert!(caller(0x1107).is_none() && caller(0x1148).is_none(), "it is about no other address");
}

fn clone(copied: &Copied) -> Copied {
    Copied { registers: copied.registers, stack: copied.stack.clone(), returns: copied.returns.clone() }
}
