//! The PyTorch versions between the oldest and the newest, in a newer system: one training on each
//! is compared with PyTorch's own numbers.
//!
//! Python there is an executable with fixed addresses whose heap begins below 4 GiB, and the C
//! library is newer than that of most machines.

use memwatch_tests::places::{AttributedBytes, AttributionWatch, assert_agreement, measured, seen};
use memwatch_tests::statistics::{assert_all_exact, compare_statistics, held_job, stats_of};
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator};

/// Returns the bytes that hooks in the program measured.
fn truth(gpu: &SimulatedGpu, version: &str) -> AttributedBytes {
    let mut job = gpu.torch(version, TorchAllocator::Native, &["stages_truth.py", "transformer", "--control"]);
    let mut shares = AttributedBytes::new();
    while let Some(checkpoint) = job.next_checkpoint() {
        shares.extend(measured(&checkpoint["truth"]));
        job.go_on();
    }
    shares
}

/// Asserts that every statistic at every checkpoint equals PyTorch's, and that all bytes are in the
/// modules that hooks measured.
fn training_is_what_it_says(version: &str) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let truth = truth(&gpu, version);
    let mut job = held_job(&gpu, version, TorchAllocator::Native, &["stages_truth.py", "transformer"]);
    let (tgid, places) = (job.tgid(), AttributionWatch::start(&gpu, "module", &[&job]));
    let mut statistics = stats_of(&gpu, &[&job]);
    job.go_on();
    let mut checkpoint = job.next_checkpoint().expect("a training has checkpoints");
    loop {
        let report = statistics.next_fresh();
        compare_statistics(&report, &checkpoint, tgid);
        assert_all_exact(&report, &checkpoint, tgid);
        if checkpoint["label"] == "trained" {
            break;
        }
        job.go_on();
        checkpoint = job.next_checkpoint().expect("it ends with the training");
    }
    // The job still holds its model, from which module names are read.
    let report = places.interrupt();
    assert_agreement("modules", &truth, &seen(&report, tgid, 0));
    let device = &report["data"]["processes"][0]["devices"][0];
    let modules = device["modules"].as_array().expect("a list");
    assert!(modules.iter().all(|module| module["kind"] != "not_known"), "{modules:#?}");
}

#[test]
fn a_training_on_2_9_in_a_newer_system() {
    training_is_what_it_says("2.9");
}

#[test]
fn a_training_on_2_10_in_a_newer_system() {
    training_is_what_it_says("2.10");
}

#[test]
fn a_training_on_2_11_in_a_newer_system() {
    training_is_what_it_says("2.11");
}
