//! A call site is the program's own line, followed by the package's, wherever packages are
//! installed. A package that is run as the program has call sites too.

use std::path::Path;
use std::process::Command;

use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, MIB, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::Value;

const PIECE_BYTES: u64 = 64 * MIB;

/// Creates a folder with links to the packages installed for the command's Python. Its path does
/// not look like one of packages.
fn packages(gpu: &SimulatedGpu, command: &Command) -> String {
    let folder = gpu.directory().join("own_packages");
    std::fs::create_dir_all(&folder).expect("the folder is made");
    let library = Path::new(command.get_program()).ancestors().nth(2).expect("bin/python").join("lib");
    let mut versions = std::fs::read_dir(&library).expect("lib").map(|entry| entry.expect("it is read").path());
    let installed = versions.find_map(|version| std::fs::read_dir(version.join("site-packages")).ok());
    for package in installed.expect("packages") {
        let package = package.expect("it is read");
        std::os::unix::fs::symlink(package.path(), folder.join(package.file_name())).expect("a link");
    }
    folder.display().to_string()
}

fn data(gpu: &SimulatedGpu, words: &[&str]) -> Value {
    let outcome = CommandOutcome::of(gpu.memwatch(&[words, &["--json"]].concat()));
    outcome.assert_ended_with(0, &[]);
    serde_json::from_str::<Value>(&outcome.stdout).expect("JSON")["data"].clone()
}

/// Returns `main:35` and the library's `store:20`, as far as they are known, of each line that had
/// a piece at the peak.
fn lines(report: &Value) -> Vec<(String, Option<String>)> {
    let place = |row: &Value| {
        let file = Path::new(row["file"].as_str()?).file_name()?.to_str()?.to_owned();
        Some(format!("{file}:{} {}", row["line"], row["function"].as_str()?))
    };
    let sites = report["processes"][0]["devices"][0]["lines"].as_array().expect("lines");
    let held = sites.iter().filter(|row| row["at_peak_bytes"].as_u64() >= Some(PIECE_BYTES));
    let line = |row: &Value| (place(row).expect("a line"), place(&row["library_lines"][0]));
    let mut lines: Vec<_> = held.map(line).collect();
    lines.sort();
    lines
}

#[test]
fn library_packages_in_any_directory_come_after_the_program_line() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch_command("2.15", TorchAllocator::Native, &["lines.py", "--packages"]);
    let packages = packages(&gpu, &job);
    job.arg(&packages);
    let file = gpu.directory().join("job.mwr").display().to_string();
    let outcome = CommandOutcome::of(gpu.memwatch_run(&["-o", &file], &job));
    outcome.assert_ended_with(0, &[]);
    let begin = outcome.stdout.find("{\"label\": \"held\"").expect("its checkpoint");
    let mut checkpoints = serde_json::Deserializer::from_str(&outcome.stdout[begin..]).into_iter::<Value>();
    let checkpoint = checkpoints.next().expect("one").expect("JSON");
    assert!(checkpoint["torch"].as_str().is_some_and(|file| file.starts_with(&packages)), "{checkpoint:#}");
    let number = |place: usize| format!("lines.py:{} main", checkpoint["lines"][place]);
    let found = lines(&data(&gpu, &["where", "--in", &file]));
    // Wrappers around torch functions are skipped, and so is `__torch_function__`.
    let own = [(0, Some("put")), (1, Some("copy")), (2, None), (3, None)];
    for ((place, library), (line, called)) in own.into_iter().zip(&found) {
        assert_eq!(*line, number(place), "{found:?}");
        let called = called.as_ref().map(|called| called.rsplit_once(' ').expect("a function").1);
        assert_eq!(called, library, "{found:?}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
    let text = CommandOutcome::of(gpu.memwatch(&["where", "--in", &file]));
    assert!(text.stdout.contains(&format!("{} in ", number(0))) && text.stdout.contains("__init__.py"), "{text:#?}");
    // If the package is the program, its innermost line that passes nothing on is the call site.
    let mut job = Command::new(job.get_program());
    let plain = gpu.torch_command("2.15", TorchAllocator::Native, &["lines.py"]);
    job.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let workloads = Path::new(plain.get_args().next().expect("the script")).parent().expect("its folder");
    job.env("PYTHONPATH", std::env::join_paths([Path::new(&packages), workloads]).expect("no colons"));
    job.args(["-m", "shelf"]);
    let outcome = CommandOutcome::of(gpu.memwatch_run(&["--force", "-o", &file], &job));
    outcome.assert_ended_with(0, &[]);
    let found = lines(&data(&gpu, &["where", "--in", &file]));
    let places: Vec<_> = found.iter().filter_map(|(line, _)| line.rsplit_once(' ')).collect();
    assert_eq!(places.iter().map(|(_, function)| *function).collect::<Vec<_>>(), ["put", "copy"], "{found:?}");
    assert!(places.iter().all(|(place, _)| place.starts_with("__init__.py:")), "{found:?}");
}
