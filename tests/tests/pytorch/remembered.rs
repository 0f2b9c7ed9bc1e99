//! A library's symbols that were found once are read from a cache by the next memwatch. If the
//! cache is empty or wrong, it finds the symbols again.

use std::fs;
use std::path::PathBuf;

use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningWatch, SimulatedGpu, TorchAllocator};

/// Returns the cached files with their contents.
fn kept(gpu: &SimulatedGpu) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(gpu.directory().join("symbols")) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.clone(), fs::read(&file).expect("it is ours"))).collect()
}

#[test]
fn second_watch_of_a_build_uses_or_rebuilds_the_symbol_cache() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["two_lines.py"]);
    job.next_checkpoint().expect("it has begun");
    job.go_on();
    let tgid = job.tgid();
    let has_lines = |report: &ReportLine| {
        let process = report.process(tgid);
        process
            .is_some_and(|process| process.0["tensor"]["attribution"][0]["lines"].as_array().map_or(0, Vec::len) >= 2)
    };
    let watch = || {
        let words = ["--no-agent", "--tensors=modules", "--pid", &tgid.to_string()];
        RunningWatch::start(gpu.memwatch(&words)).until(has_lines);
        kept(&gpu)
    };
    let first = watch();
    assert!(!first.is_empty(), "libtorch_cpu.so is large enough");
    assert_eq!(watch(), first, "it was read and not written again");
    for (file, text) in &first {
        fs::write(file, &text[..text.len() / 2]).expect("it is ours");
    }
    assert_eq!(watch(), first, "it was searched again");
}
