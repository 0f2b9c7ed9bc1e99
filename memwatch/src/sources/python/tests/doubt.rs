//! Processes that are not Python, are not the claimed version of Python, or have implausible
//! memory: reading gives an error or nothing, and no wrong stack.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memwatch_common::tensor::StackFrame;
use object::{Object as _, ObjectSymbol as _};
use proptest::prelude::*;

use super::interpreters::{READ, StoppingScript, TIMEOUT, VERSIONS, interpreter};
use super::script;
use crate::sources::address_space::AddressSpace;
use crate::sources::python::check::LayoutCheck;
use crate::sources::python::interpreter;
use crate::sources::python::memory::{MemoryAccess, ProcessMemory};
use crate::sources::python::resolver::{Resolver, Sent};
use crate::sources::python::walk;
use crate::sources::python::{PythonError, PythonProcess};
use memwatch_inspect::python::layout::{self, CpythonLayout, DEBUG_WORDS, PythonVersion};

/// Starts a script and waits until it stops at its first place.
fn stopped(version: &str) -> Option<(StoppingScript, u64)> {
    let mut script = StoppingScript::run(&interpreter(version)?, &script("places.py"), None);
    let place = script.place().expect("a place");
    script.wait_for_stop(place.tid);
    Some((script, place.thread))
}

#[test]
fn a_process_without_python_has_none() {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep starts");
    let found = PythonProcess::attach(child.id());
    child.kill().and_then(|()| child.wait()).expect("it ends");
    assert!(matches!(found, Ok(None)), "{found:?}");
    assert!(matches!(PythonProcess::attach(child.id()), Err(PythonError::Unreadable(_))), "it has gone");
}

#[test]
fn a_process_that_is_laid_out_as_another_version_is_refused() {
    for version in VERSIONS {
        let Some((script, _)) = stopped(version) else { continue };
        let space = AddressSpace::open(script.tgid()).expect("it is readable");
        let binary = interpreter::find(script.tgid(), &space).expect("it is readable").expect("it is Python");
        let memory = ProcessMemory::open(script.tgid()).expect("it is readable");
        let own = crate::sources::python::version(&binary, &memory).expect("it says its version");
        for minor in 9..=12 {
            let other = PythonVersion { major: 3, minor };
            let mut layout = layout::of_version(other).expect("it is in the table");
            layout.walk.interpreters_head += binary.address("_PyRuntime").expect("it is Python");
            let code_type = binary.address("PyCode_Type").expect("it is Python");
            let checked = LayoutCheck { tgid: script.tgid(), memory: &memory, layout: &layout, code_type }.check();
            match checked {
                Ok(()) => assert_eq!(own, other, "{version} passes for {other}"),
                Err(PythonError::UnexpectedLayout(_) | PythonError::Idle) => assert_ne!(own, other),
                Err(error) => panic!("{version} as {other}: {error}"),
            }
        }
    }
}

/// Layouts as a distribution's patch might change them: each with one field at another offset.
#[test]
fn a_table_with_any_offset_wrong_is_refused() {
    type Change = fn(&mut CpythonLayout);
    const CHANGES: [(&str, Change); 12] = [
        ("interpreters", |layout| layout.walk.interpreters_head += 16),
        ("threads", |layout| layout.walk.interpreter_threads += 8),
        ("thread", |layout| layout.walk.thread_id += 8),
        ("native thread", |layout| layout.native_thread = layout.native_thread.map(|offset| offset + 8)),
        ("frame", |layout| layout.walk.thread_frame += 8),
        ("code", |layout| layout.walk.frame_code += 8),
        ("previous", |layout| layout.walk.frame_previous += 8),
        ("instruction", |layout| layout.walk.frame_instruction += 8),
        ("file", |layout| layout.code.file += 40),
        ("name", |layout| layout.code.qualified_name = Some(layout.code.lines)),
        ("lines", |layout| layout.code.lines = layout.code.file - 8),
        ("instructions", |layout| layout.code.adaptive += 1 << 16),
    ];
    let Some((script, _)) = stopped("3.11") else { return };
    let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
    let (memory, code_type) = (python.resolver.memory(), python.resolver.code_type());
    for (name, change) in CHANGES {
        let mut layout = *python.resolver.layout();
        change(&mut layout);
        let checked = LayoutCheck { tgid: script.tgid(), memory, layout: &layout, code_type }.check();
        assert!(matches!(checked, Err(PythonError::UnexpectedLayout(_) | PythonError::Idle)), "{name}: {checked:?}");
    }
}

#[test]
fn a_process_at_work_is_recognized() {
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else { continue };
        let mut script = StoppingScript::run(&interpreter, &super::script("busy.py"), None);
        assert_eq!(script.line().as_deref(), Some("begun"));
        for _ in 0..20 {
            let found = PythonProcess::attach(script.tgid());
            assert!(matches!(found, Ok(Some(_))), "{version}: {:?}", found.err());
        }
    }
}

#[test]
fn a_thread_that_never_begins_does_not_matter() {
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else { continue };
        let mut script = StoppingScript::run(&interpreter, &super::script("unbound.py"), None);
        assert_eq!(script.line().as_deref(), Some("begun"), "{version}");
        script.wait_for_stop(script.tgid());
        let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
        let threads = walk::threads(python.resolver.memory(), &python.layout()).expect("they are readable");
        assert_eq!(threads.len(), 2, "{version}");
    }
}

#[test]
fn memory_of_a_process_that_has_another_image_reads_as_nothing() {
    let mut child = Command::new("sh").args(["-c", "read line; exec sleep 60"]).stdin(Stdio::piped()).spawn().unwrap();
    let tgid = child.id();
    let stated = move |file: &str| fs::read_to_string(format!("/proc/{tgid}/{file}")).unwrap_or_default();
    let wait_for = |file: &str, begin: &str| {
        let start = Instant::now();
        while !stated(file).starts_with(begin) {
            assert!(start.elapsed() < TIMEOUT, "{file} never begins with {begin}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for("syscall", READ);
    let memory = ProcessMemory::open(tgid).expect("it is readable");
    let address = u64::from_str_radix(stated("maps").split('-').next().expect("a range"), 16).expect("a number");
    let magic = u32::from_le_bytes(*b"\x7fELF");
    let before = memory.u32(address);
    let input = child.stdin.take();
    drop(input);
    wait_for("comm", "sleep");
    let after = memory.u32(address);
    child.kill().and_then(|()| child.wait()).expect("it ends");
    assert_eq!((before, after), (Some(magic), None));
}

#[test]
fn code_objects_go_where_the_symbol_of_their_function_is() {
    let mut compared = 0;
    for version in VERSIONS {
        let Some((script, _)) = stopped(version) else { continue };
        let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
        let place = python.code_dealloc().expect("it is known");
        let bytes = fs::read(place.path()).expect("the file is readable");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let Some(symbol) = file.symbols().find(|symbol| symbol.name() == Ok("code_dealloc")) else {
            eprintln!("SKIPPED: {} is stripped", place.display);
            continue;
        };
        let range = file.segments();
        let offset = object::ObjectSegment::file_range;
        let own = range.into_iter().find_map(|segment| {
            let into = symbol.address().checked_sub(object::ObjectSegment::address(&segment))?;
            (into < object::ObjectSegment::size(&segment)).then(|| offset(&segment).0 + into)
        });
        assert_eq!(Some(place.file_offset), own, "{version}");
        compared += 1;
    }
    println!("{compared} symbols");
}

/// Memory of a hostile process: every address leads to the same few words.
#[derive(Debug, Clone)]
struct Hostile(Vec<u8>);

impl MemoryAccess for Hostile {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        if self.0.is_empty() || into.len() > 1 << 20 {
            return false;
        }
        let start = usize::try_from(address % self.0.len() as u64).expect("below a length");
        into.iter_mut().zip(self.0.iter().cycle().skip(start)).for_each(|(to, from)| *to = *from);
        true
    }
}

/// Returns words that look like plausible values: addresses, small numbers, flags.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        0..64u64,
        (0x10_0000..0x10_0400u64).prop_map(|address| address & !7),
        Just(0x6000_0000_0000_0014),
        Just(0xe4),
        Just(u64::MAX),
        any::<u64>(),
    ];
    prop::collection::vec(word, 1..160).prop_map(|words| words.into_iter().flat_map(u64::to_le_bytes).collect())
}

fn layouts() -> impl Strategy<Value = CpythonLayout> {
    prop::sample::select((9..=12u8).collect::<Vec<_>>()).prop_map(|minor| {
        let mut layout = layout::of_version(PythonVersion { major: 3, minor }).expect("it is in the table");
        layout.walk.interpreters_head = 0x10_0000;
        layout.walk.module_codes = [0x10_0000, 0x10_0008];
        layout
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn python_stack_walk_of_arbitrary_memory_is_bounded(words in words(), layout in layouts(), object in any::<u64>()) {
        let memory = Hostile(words);
        let threads = walk::threads(&memory, &layout.walk).unwrap_or_default();
        let walked = threads.first().and_then(|thread| walk::frames(&memory, &layout.walk, *thread));
        let mut frames = walked.unwrap_or_default().frames;
        frames.truncate(8);
        for code in [0, 8, 0x10_0000, u64::MAX] {
            frames.push(StackFrame { code, instruction: 0x10_0100, object });
            frames.push(StackFrame { code, instruction: u64::MAX, object: 0x10_0010 });
        }
        // Any word may be the address of the code type: with it, some objects are code objects.
        let code_type = memory.u64(8).unwrap_or(0);
        let mut resolver = Resolver::new(memory, layout, code_type);
        let stack = resolver.resolve_sent(Sent { id: 1, frames: frames.into(), truncated: false, entries: [0; 2] });
        for code in stack.frames.iter().filter_map(|frame| frame.code.as_ref()) {
            prop_assert!(code.file.chars().count() <= 10 * 4096 && !code.file.chars().any(char::is_control));
        }
        let _ = resolver.forget_code(0x10_0000, 0);
    }

    #[test]
    fn python_frame_size_from_arbitrary_debug_offsets_is_bounded(mut words in prop::collection::vec(0..200u64, DEBUG_WORDS), minor in 13..=14u8) {
        words[0] = u64::from_le_bytes(*b"xdebugpy");
        words[1] = (3 << 8 | u64::from(minor)) << 16;
        words[2] = 0;
        let words: [u64; DEBUG_WORDS] = words.try_into().expect("as many");
        if let Ok(layout) = layout::of_debug_offsets(PythonVersion { major: 3, minor }, &words) {
            let walk = layout.walk;
            for offset in [walk.frame_code, walk.frame_previous, walk.frame_instruction, walk.frame_local0] {
                prop_assert!(offset + 8 <= walk.frame_bytes && walk.frame_bytes <= 128);
            }
            prop_assert!(walk.frame_owner <= walk.frame_bytes);
        }
    }
}

#[test]
fn debug_offsets_of_a_free_threaded_build_are_refused() {
    let mut words = [0; DEBUG_WORDS];
    words[0] = u64::from_le_bytes(*b"xdebugpy");
    words[1] = 0x30d_00f0;
    words[2] = 1;
    let version = PythonVersion { major: 3, minor: 13 };
    assert_eq!(layout::of_debug_offsets(version, &words).err(), Some(PythonError::FreeThreaded));
    words[0] = 0;
    assert!(matches!(layout::of_debug_offsets(version, &words), Err(PythonError::UnexpectedLayout(_))));
}

#[test]
fn versions_that_are_not_known_are_refused() {
    for minor in [8, 15] {
        let version = PythonVersion { major: 3, minor };
        let refused = Some(PythonError::UnknownVersion(version));
        assert_eq!(layout::of_version(version).err(), refused);
        assert_eq!(layout::of_debug_offsets(version, &[0; DEBUG_WORDS]).err(), refused);
    }
}
