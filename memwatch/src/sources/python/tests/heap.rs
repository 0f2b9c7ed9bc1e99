//! The objects of real interpreters, and the paths to them.

use std::collections::BTreeMap;

use memwatch_inspect::pass::Pass;
use memwatch_inspect::python::frames::RunningFrames;
use memwatch_inspect::python::heap::Heap;
use memwatch_inspect::python::paths::Paths;
use serde::Deserialize;

use super::interpreters::{StoppingScript, VERSIONS, interpreter};
use super::script;
use crate::sources::python::PythonProcess;

/// What `retainers.py` reports about itself.
#[derive(Deserialize)]
struct HeapTruth {
    paths: BTreeMap<String, String>,
    objects: usize,
    tid: u32,
}

/// What `scattered.py` reports about itself.
#[derive(Deserialize)]
struct ScatteredTruth {
    objects: usize,
    tid: u32,
}

/// What memwatch found.
struct FoundObjects {
    paths: BTreeMap<String, Option<String>>,
    objects: usize,
}

fn truth_and_found(version: &str) -> Option<(HeapTruth, FoundObjects)> {
    let mut script = StoppingScript::run(&interpreter(version)?, &script("keepers.py"), None);
    let truth: HeapTruth = serde_json::from_str(&script.line().expect("a line")).expect("JSON");
    script.wait_for_stop(truth.tid);
    let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
    let pass = Pass::new(python.resolver.memory(), u64::MAX);
    let heap = Heap::read(&pass, python.resolver.layout(), 1 << 20).expect("it has lists");
    assert!(!heap.is_partial(), "{version}");
    let paths = Paths::search(&heap, &RunningFrames::default());
    let kept = heap.iter().filter(|(_, class)| class.name == "Kept").map(|(object, _)| object);
    let found = kept.map(|object| {
        let name = heap.objects().attribute(object, "name").and_then(|text| heap.objects().text(text));
        let place = heap.place(object).expect("it is in the heap");
        (name.expect("it has a name"), paths.path(&heap, place).map(|path| path.text))
    });
    let found = FoundObjects { paths: found.collect(), objects: heap.len() };
    Some((truth, found))
}

#[test]
fn retainer_path_of_an_object_is_found_in_every_python_version() {
    for version in VERSIONS {
        let Some((truth, found)) = truth_and_found(version) else { continue };
        for (name, path) in &truth.paths {
            let found = found.paths.get(name).unwrap_or_else(|| panic!("{version}: {name} is not in the heap"));
            let found = found.as_deref().unwrap_or_default();
            assert_eq!(found, path, "{version}: {name}");
        }
    }
}

#[test]
fn retainer_path_of_an_unreachable_object_is_none() {
    for version in VERSIONS {
        let Some((_, found)) = truth_and_found(version) else { continue };
        assert_eq!(found.paths.get("in a cycle"), Some(&None), "{version}");
        assert_eq!(found.paths.get("weakly"), None, "{version}: it has gone");
        assert_eq!(found.paths.get("in a generator that has ended"), None, "{version}: it has gone");
    }
}

#[test]
fn all_objects_that_the_collector_lists_are_read() {
    for version in VERSIONS {
        let Some((truth, found)) = truth_and_found(version) else { continue };
        // From 3.12 on frozen objects are listed too: get_objects leaves out the permanent
        // generation.
        assert!(found.objects + 8 >= truth.objects, "{version}: {} of {}", found.objects, truth.objects);
        assert!(found.objects <= truth.objects + 1024, "{version}: {} of {}", found.objects, truth.objects);
    }
}

#[test]
fn scattered_objects_are_read_a_few_times_and_not_kept() {
    const KEPT_BYTES: usize = 2 << 20;
    let Some(program) = interpreter("system") else { return };
    let mut script = StoppingScript::run(&program, &script("scattered.py"), None);
    let truth: ScatteredTruth = serde_json::from_str(&script.line().expect("a line")).expect("JSON");
    script.wait_for_stop(truth.tid);
    let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
    let read = |most_bytes: usize| {
        let pass = Pass::new(python.resolver.memory(), u64::MAX).keeping(most_bytes);
        let heap = Heap::read(&pass, python.resolver.layout(), 1 << 20).expect("it has lists");
        let paths = Paths::search(&heap, &RunningFrames::default());
        let reached = (0..u32::try_from(heap.len()).expect("few")).filter(|place| paths.is_reached(*place)).count();
        (pass.read_bytes(), reached)
    };
    let (once, all) = read(usize::MAX);
    let (several, reached) = read(KEPT_BYTES);
    assert!(reached == all && all >= truth.objects, "{reached} of {all}");
    assert!(once > 4 * KEPT_BYTES as u64 && several < 6 * once, "{several} bytes, {once} with all of them kept");
}
