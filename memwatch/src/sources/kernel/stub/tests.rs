//! Libraries as linkers write them, and bytes that no linker would write.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{AGAIN, CodePosition, DISTANCE_BYTES, ENDBR64, IOCTL, NoStub, Scan, SlotUse, find, use_before};

const CALLS: &str = "int ioctl(int, unsigned long, ...);\n\
    int ask(int fd, unsigned long request, void *argument) { return ioctl(fd, request, argument) + 1; }\n";

/// Compiles a shared library with these flags. Returns `None`, with the reason on standard error,
/// if there is no compiler.
pub(in crate::sources::kernel) fn library(directory: &Path, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (from, to) = (directory.join("library.c"), directory.join("library.so"));
    std::fs::write(&from, source).expect("written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wl,-z,lazy"]).args(flags).arg("-o").arg(&to).arg(&from);
    if !compiler.status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: there is no C compiler");
        return None;
    }
    Some(to)
}

/// Returns the first bytes of each stub, or the reason why there is none. Returns `None` without a
/// compiler.
fn stubs_of(source: &str, flags: &[&str]) -> Option<Result<Vec<[u8; 4]>, String>> {
    let directory = TempDir::with_prefix("memwatch-test-").expect("a directory");
    let path = library(directory.path(), source, flags)?;
    let bytes = std::fs::read(&path).expect("it was made");
    let first = |offset: u64| {
        let offset = usize::try_from(offset).expect("within a file");
        *bytes[offset..].first_chunk().expect("a stub")
    };
    let found = find(&File::open(&path).expect("it was made"), IOCTL);
    Some(found.map(|stubs| stubs.into_iter().map(first).collect()).map_err(|error| error.to_string()))
}

#[test]
fn a_lazy_table_and_one_for_indirect_branch_tracking_have_one_stub_each() {
    let Some(found) = stubs_of(CALLS, &["-fcf-protection=none"]) else { return };
    assert!(matches!(found.as_deref(), Ok([[0xff, 0x25, ..]])), "{found:x?}");
    let found = stubs_of(CALLS, &["-fcf-protection", "-Wl,-z,ibtplt"]);
    assert_eq!(found, Some(Ok(vec![ENDBR64])));
    let found = stubs_of(CALLS, &["-fcf-protection=none", "-Wl,-z,now"]);
    assert!(matches!(found.as_ref().map(|found| found.as_deref()), Some(Ok([[0xff, 0x25, ..]]))), "{found:x?}");
}

#[test]
fn all_stubs_are_found_where_there_are_several() {
    let second = "__asm__(\".text\\n.p2align 4\\n.globl other\\nother: jmp *ioctl@GOTPCREL(%rip)\\n.p2align 4\\n\");\n\
        int other(int, unsigned long, void *);\n\
        int both(int fd, void *argument) { return other(fd, 1, argument); }\n";
    let Some(found) = stubs_of(&format!("{CALLS}{second}"), &["-fcf-protection=none"]) else { return };
    assert!(matches!(found.as_deref(), Ok([[0xff, 0x25, ..], [0xff, 0x25, ..]])), "{found:x?}");
}

#[test]
fn a_library_that_calls_without_a_stub_is_refused_with_that_reason() {
    let refused = |source: &str, flags: &[&str]| stubs_of(source, flags).map(|found| found.expect_err("no stub"));
    let without = Some(NoStub::WithoutStub("ioctl").to_string());
    if refused(CALLS, &["-fno-plt"]).is_none() {
        return;
    }
    assert_eq!(refused(CALLS, &["-fno-plt"]), without);
    let kept = format!("{CALLS} void *kept(void) {{ return (void *)ioctl; }}\n");
    assert_eq!(refused(&kept, &[]), without);
    let pointer = format!("{CALLS} int (*pointer)(int, unsigned long, ...) = ioctl;\n");
    assert_eq!(refused(&pointer, &[]), without);
    assert_eq!(refused("int nothing(void) { return 1; }", &[]), Some(NoStub::NotImported("ioctl").to_string()));
    let weak = "__asm__(\".data\\n.quad 0\\n.text\\n\"); int getpid(void); int ask(void) { return getpid(); }";
    assert_eq!(refused(weak, &[]), Some(NoStub::NotImported("ioctl").to_string()), "another function");
}

#[test]
fn an_instruction_is_known_by_its_opcode_and_a_stub_by_where_it_begins() {
    let before = |bytes: &[u8], address| use_before(bytes, address);
    assert_eq!(before(&[0xff, 0x25], 0x1000), Some(SlotUse::Stub(0)));
    assert_eq!(before(&[0xff, 0x25], 0x1004), Some(SlotUse::Other), "a jump from within a function");
    assert_eq!(before(&[0, 0, 0, 0xf2, 0xff, 0x25], 0x1005), Some(SlotUse::Stub(3)));
    assert_eq!(before(&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25], 0x1010), Some(SlotUse::Stub(0)));
    for other in [[0xff, 0x15], [0x8b, 0x05], [0x8d, 0x3d]] {
        assert_eq!(before(&other, 0x1000), Some(SlotUse::Other), "{other:x?}");
    }
    assert_eq!(before(&[0x8b, 0x45], 0x1000), None, "memory at a register");
    assert_eq!(before(&[0x90, 0x90], 0x1000), None);
}

#[test]
fn stub_scan_finds_a_stub_across_a_piece_boundary_once() {
    let jump = |end: i32, slot: i32| [&[0xff, 0x25][..], &(slot - end).to_le_bytes()].concat();
    let mut code = [0x90; 0x40];
    code[0x10..0x14].copy_from_slice(&ENDBR64);
    code[0x14..0x1a].copy_from_slice(&jump(0x501a, 0x9000));
    code[0x28..0x2e].copy_from_slice(&jump(0x502e, 0x9008));
    let found = |split: usize| {
        let mut scan = Scan { slots: &[0x9000, 0x9008], stubs: Vec::new(), others: 0 };
        scan.look(&code[..split], CodePosition { file: 0x400, address: 0x5000 }, 0);
        let again = AGAIN.min(split);
        let at = (split - again) as u64;
        let first = split.saturating_sub(DISTANCE_BYTES - 1) - (split - again);
        scan.look(&code[split - again..], CodePosition { file: 0x400 + at, address: 0x5000 + at }, first);
        (scan.stubs, scan.others)
    };
    for split in 0..code.len() {
        assert_eq!(found(split), (vec![0x410, 0x428], 0), "{split}");
    }
}

#[test]
fn a_file_that_is_cut_or_made_up_is_refused_and_nothing_panics() {
    let file_of = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file
    };
    assert!(matches!(find(&file_of(b"not a library"), IOCTL), Err(NoStub::Damaged(_))));
    let directory = TempDir::with_prefix("memwatch-test-").expect("a directory");
    let Some(path) = library(directory.path(), CALLS, &[]) else { return };
    let whole = std::fs::read(path).expect("it was made");
    for length in (0..whole.len()).step_by(97) {
        // After the parts that the loader needs there are only names for debuggers.
        let _ = find(&file_of(&whole[..length]), IOCTL);
    }
    assert!(find(&file_of(&whole[..0x800]), IOCTL).is_err());
    for at in (0..whole.len().min(0x400)).chain((0x2c00..whole.len()).step_by(7)) {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        let _ = find(&file_of(&changed), IOCTL);
    }
}
