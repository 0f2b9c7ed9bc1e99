//! Real interpreters, stopped at places that they print themselves.

mod doubt;
mod engines;
mod heap;
mod holdings;
mod interpreters;
mod kernel;
mod radix;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memwatch_common::tensor::STACK_FRAMES;
use memwatch_core::stack::lines::LineTable;
use memwatch_core::stack::{PythonModule, PythonStack};
use serde::Deserialize;

use super::PythonProcess;
use crate::printable::printable;
use crate::sources::clock::boottime_ns;
use interpreters::{ScriptPlace, StoppingScript, TIMEOUT, VERSIONS, interpreter};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sources/python/tests").join(name)
}

/// Returns file, function and line of each frame.
fn shown(stack: &PythonStack) -> Vec<(String, String, Option<u32>)> {
    let frames = stack.frames.iter().map(|frame| {
        let code = frame.code.as_ref().expect("the code is there");
        (code.file.to_string(), code.function.to_string(), code.line)
    });
    frames.collect()
}

/// Returns the frames as they are displayed: without control characters for a terminal, and with
/// unprintable characters replaced.
fn expected(place: &ScriptPlace) -> Vec<(String, String, Option<u32>)> {
    let safe = |text: &str| printable(text).into_owned();
    place.frames.iter().take(STACK_FRAMES).map(|(file, name, line)| (safe(file), safe(name), *line)).collect()
}

#[test]
fn every_frame_has_the_file_the_name_and_the_line_that_python_says() {
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else { continue };
        let mut script = StoppingScript::run(&interpreter, &script("places.py"), None);
        let mut python: Option<PythonProcess> = None;
        let (mut places, mut frames) = (0, 0);
        while let Some(place) = script.place() {
            script.wait_for_stop(place.tid);
            let python = python.get_or_insert_with(|| {
                PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python")
            });
            // Without the kernel half no event reports the code objects freed since the last place.
            python.resolver.forget_all();
            let stack = python.stack_of(place.thread);
            let name = format!("{version}: {}", place.name);
            assert_eq!(shown(&stack), expected(&place), "{name}");
            assert_eq!(stack.truncated, place.frames.len() > STACK_FRAMES, "{name}");
            (places, frames) = (places + 1, frames + stack.frames.len());
            if !place.name.starts_with("thread") {
                script.go_on();
            }
        }
        assert!(places >= 30, "{version}: only {places} places");
        println!("{version} ({}): {places} places, {frames} frames", interpreter.display());
    }
}

/// Runs the models and compares every module on every stack. Returns the number of modules.
fn compare_modules(interpreter: &Path, environment: (&str, &Path)) -> usize {
    let mut script = StoppingScript::run(interpreter, &script("models.py"), Some(environment));
    let mut python: Option<PythonProcess> = None;
    let mut compared = 0;
    while let Some(place) = script.place() {
        script.wait_for_stop(place.tid);
        let python = python.get_or_insert_with(|| {
            PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python")
        });
        python.resolver.forget_all();
        assert_ne!(python.layout().module_codes[0], 0, "the call of modules is known");
        // A tree of modules is read again only after some time.
        let start = Instant::now();
        let mut seen = modules_of(python, place.thread);
        while seen != place.modules && start.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
            seen = modules_of(python, place.thread);
        }
        assert_eq!(seen, place.modules, "{}: {}", interpreter.display(), place.name);
        compared += seen.len();
        script.go_on();
    }
    compared
}

/// Returns class and name of the modules on a stack, innermost first, and the class of the module
/// wrapped by each.
fn modules_of(python: &mut PythonProcess, thread: u64) -> Vec<(String, Option<String>, Option<String>)> {
    let stack = python.stack_of(thread);
    let modules = stack.frames.into_iter().filter_map(|frame| frame.module);
    let text = |module: PythonModule| {
        let wraps = module.wraps.map(|wrapped| wrapped.class.to_string());
        (module.class.to_string(), module.name.map(|name| name.to_string()), wraps)
    };
    modules.map(text).collect()
}

#[test]
fn modules_have_the_names_of_named_modules_in_every_version() {
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else { continue };
        let compared = compare_modules(&interpreter, ("PYTHONPATH", &script("stand_in")));
        assert!(compared > 100, "{version}: only {compared} modules");
        println!("{version} ({}): {compared} modules", interpreter.display());
    }
}

#[test]
fn modules_of_old_pytorch_are_known_by_the_call_that_it_has() {
    let Some(interpreter) = interpreter("3.9") else { return };
    let compared = compare_modules(&interpreter, ("PYTHONPATH", &script("stand_in_old")));
    assert!(compared > 100, "only {compared} modules");
}

#[test]
fn modules_of_real_pytorch_have_the_names_of_named_modules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/torch");
    let installed = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut environments = 0;
    for environment in installed.map(|entry| entry.path()) {
        let (program, runtime) = (environment.join("venv/bin/python"), environment.join("runtime"));
        if program.exists() {
            let compared = compare_modules(&program, ("LD_LIBRARY_PATH", &runtime));
            assert!(compared > 100, "only {compared} modules");
            println!("{}: {compared} modules", program.display());
            environments += 1;
        }
    }
    if environments == 0 {
        eprintln!("SKIPPED: no PyTorch below {}", folder.display());
    }
}

/// Python's own report on a code object's lines.
#[derive(Deserialize)]
struct CodeLines {
    /// Minor version of Python.
    minor: u8,
    table: Vec<u8>,
    first: u32,
    /// Start and end in bytes, and the line.
    ranges: Vec<(u32, u32, Option<u32>)>,
}

#[test]
fn lines_of_pythons_own_library_are_all_that_python_says() {
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else { continue };
        let mut script = StoppingScript::run(&interpreter, &script("lines.py"), None);
        let mut places = 0;
        while let Some(stated) = script.line() {
            let code: CodeLines = serde_json::from_str(&stated).expect("a code object");
            let format = match code.minor {
                9 => LineTable::Increments,
                10 => LineTable::Ranges,
                _ => LineTable::Locations,
            };
            for (start, end, line) in code.ranges.into_iter().filter(|(start, end, _)| start < end) {
                for offset in [start, end - 2] {
                    assert_eq!(format.line(&code.table, code.first, offset), line, "{version}: {offset} of {stated}");
                    places += 1;
                }
            }
        }
        assert!(places > 10_000, "{version}: only {places} instructions");
        println!("{version}: {places} instructions");
    }
}

#[test]
fn code_object_at_a_reused_address_is_read_after_the_old_is_forgotten() {
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else { continue };
        let mut script = StoppingScript::run(&interpreter, &script("reuse.py"), None);
        let mut python: Option<PythonProcess> = None;
        let (mut seen, mut reused) = (HashMap::new(), 0);
        while let Some(place) = script.place() {
            script.wait_for_stop(place.tid);
            let python = python.get_or_insert_with(|| {
                PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python")
            });
            let address: u64 = place.name.parse().expect("an address");
            if let Some(before) = seen.insert(address, place.frames[0].0.clone()) {
                assert_eq!(shown(&python.stack_of(place.thread))[1].0, before, "{version}: it is not read again");
                assert_eq!(python.forget_code(address, u64::MAX), [], "{version}: it was read while it lived");
                reused += 1;
            }
            assert_eq!(shown(&python.stack_of(place.thread))[1..], expected(&place), "{version}");
            script.go_on();
        }
        assert!(reused > 0, "{version}: no address was used again");
    }
}

#[test]
fn a_code_object_that_was_read_after_its_end_is_left_out_of_its_stacks() {
    let Some(interpreter) = interpreter("3.11") else { return };
    let mut script = StoppingScript::run(&interpreter, &script("reuse.py"), None);
    let place = script.place().expect("a place");
    script.wait_for_stop(place.tid);
    let mut python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
    let end_ns = boottime_ns();
    let stack = python.stack_of(place.thread);
    let address = place.name.parse().expect("an address");
    let doubtful = python.forget_code(address, end_ns);
    let [(id, again)] = &doubtful[..] else { panic!("one stack: {doubtful:?}") };
    assert_eq!(*id, place.thread);
    let gone: Vec<bool> = again.frames.iter().map(|frame| frame.code.is_none()).collect();
    assert_eq!(gone, [false, true, false]);
    assert_eq!(again.frames[2], stack.frames[2]);
    assert_eq!(python.forget_code(address, end_ns), [], "it is forgotten");
}
