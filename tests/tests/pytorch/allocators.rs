//! Real, unmodified PyTorch on the simulated GPU: at every checkpoint memwatch's numbers equal
//! PyTorch's to the byte.

use memwatch_tests::test;
use memwatch_tests::{CONTEXT_BYTES, PrologueShape, RunningWatch, SimulatedGpu, TorchAllocator};
use serde_json::Value;

/// Runs a script to its end while the whole machine is watched, and compares at every checkpoint.
fn compare(version: &str, allocator: TorchAllocator, words: &[&str]) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut job = gpu.torch(version, allocator, words);
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        compare_checkpoint(&gpu, &mut watch, allocator, &checkpoint);
        checkpoints += 1;
        job.go_on();
    }
    assert!(checkpoints >= 3, "the script has made only {checkpoints} checkpoints");
    let end = watch.until(|report| report.process(job.tgid()).is_some_and(|process| process.has_ended()));
    let process = end.process(job.tgid()).expect("ended processes are shown for a while");
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 0);
    assert!(process.is_exact() && end.is_complete());
}

fn compare_checkpoint(gpu: &SimulatedGpu, watch: &mut RunningWatch, allocator: TorchAllocator, checkpoint: &Value) {
    let tgid = u32::try_from(checkpoint["pid"].as_u64().expect("a checkpoint says who it is")).expect("a pid");
    let stated =
        |field: &str| checkpoint["devices"][0][field].as_u64().unwrap_or_else(|| panic!("{field}: {checkpoint}"));
    let report = watch.settled();
    let process = report.process(tgid).unwrap_or_else(|| panic!("not reported at {checkpoint}: {report:#?}"));
    let on_gpu = process.only_gpu();
    let (live, peak) = match allocator {
        TorchAllocator::Native | TorchAllocator::Expandable => {
            (stated("memory_reserved"), stated("max_memory_reserved"))
        }
        TorchAllocator::Async => (stated("memory_allocated"), stated("max_memory_allocated")),
    };
    assert_eq!(on_gpu.number("driver_allocated_bytes"), live, "live at {checkpoint}");
    assert_eq!(on_gpu.number("peak_bytes"), peak, "peak at {checkpoint}");
    // A pool holds more than is in use; the simulator's ledger says how much.
    let entry = gpu.ledger().process(tgid).expect("the job is in the simulator's ledger");
    let pool_cache = entry.devices[0].pool_backed.live_bytes.saturating_sub(entry.devices[0].pool_used.live_bytes);
    assert_eq!(on_gpu.number("unattributed_bytes"), CONTEXT_BYTES + pool_cache, "unattributed at {checkpoint}");
    assert_eq!(on_gpu.number("preexisting_bytes"), 0);
    assert!(process.is_exact() && report.is_complete(), "lost records at {checkpoint}: {report:#?}");
}

macro_rules! script_matches_memwatch {
    ($($name:ident: $version:literal, $allocator:ident, $words:expr;)*) => {$(
        #[test]
        fn $name() {
            compare($version, TorchAllocator::$allocator, &$words);
        }
    )*};
}

const TRAINING: [&str; 7] = ["transformer.py", "--steps", "2", "--layers", "4", "--dim", "512"];

script_matches_memwatch! {
    training_on_2_15_with_the_native_allocator: "2.15", Native, TRAINING;
    training_on_2_15_with_expandable_segments: "2.15", Expandable, TRAINING;
    training_on_2_15_with_cuda_malloc_async: "2.15", Async, TRAINING;
    training_on_2_8_with_the_native_allocator: "2.8", Native, TRAINING;
    training_on_2_8_with_expandable_segments: "2.8", Expandable, TRAINING;
    training_on_2_8_with_cuda_malloc_async: "2.8", Async, TRAINING;
    growing_and_freeing_on_2_15_with_the_native_allocator: "2.15", Native, ["grow_free.py"];
    growing_and_freeing_on_2_15_with_expandable_segments: "2.15", Expandable, ["grow_free.py"];
    growing_and_freeing_on_2_15_with_cuda_malloc_async: "2.15", Async, ["grow_free.py"];
    growing_and_freeing_on_2_8_with_the_native_allocator: "2.8", Native, ["grow_free.py"];
    growing_and_freeing_on_2_8_with_expandable_segments: "2.8", Expandable, ["grow_free.py"];
    growing_and_freeing_on_2_8_with_cuda_malloc_async: "2.8", Async, ["grow_free.py"];
}
