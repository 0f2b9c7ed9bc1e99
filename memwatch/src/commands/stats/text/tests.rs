use super::*;
use crate::render::fixture;

fn reported(snapshot: &Snapshot) -> String {
    let mut out = Vec::new();
    write(&mut out, snapshot, &fixture::clock(), &TableOptions::default()).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn stats_text_matches_the_pytorch_layout_and_marks_inexact_numbers() {
    assert_eq!(reported(&fixture::training_node()), include_str!("training.txt"));
}

#[test]
fn a_machine_without_a_framework_says_so() {
    let reported = reported(&fixture::quiet_node());
    assert!(
        reported.starts_with("No allocator of PyTorch, JAX, TensorFlow, ONNX Runtime, ggml, RAPIDS or CuPy found.\n"),
        "{reported}"
    );
}

#[test]
fn every_reason_has_its_sentence() {
    use memwatch_core::allocators::pytorch::Doubt;
    let unseen = why("unseen");
    for doubt in Doubt::ALL {
        let is_reported = matches!(doubt, Doubt::Unseen | Doubt::NotCounted) || why(doubt.name()) != unseen;
        assert!(is_reported, "{}", doubt.name());
    }
}

/// Returns the text for a process with ggml buffers (weights and a graph) on a device, with all
/// buffers known or only some. With `None` there is no device.
fn with_buffers(is_all: Option<bool>) -> String {
    use memwatch_core::decode::BufferUsage;
    use memwatch_core::snapshot::{BufferTensorView, DeviceBuffersView, UsageView};
    use memwatch_core::words::Framework;

    let mut snapshot = fixture::training_node();
    let exact = is_all == Some(true);
    let usage = |usage, bytes| UsageView { usage, buffers: 1, bytes };
    let tensor = |number: u64| BufferTensorView {
        name: format!("blk.{number}.weight"),
        usage: BufferUsage::Weights,
        bytes: (12 - number) << 10,
    };
    let device = |are_all: bool| DeviceBuffersView {
        device: 0,
        uuid: Some(snapshot.gpus[0].uuid.clone()),
        buffers: are_all.then_some(2),
        bytes_in_use: are_all.then_some(5 << 20),
        peak_bytes_in_use: are_all.then_some(6 << 20),
        num_buffers: are_all.then_some(7),
        known_buffers: 2,
        known_bytes: 5 << 20,
        known_peak_bytes: 6 << 20,
        usages: vec![usage(BufferUsage::Weights, 4 << 20), usage(BufferUsage::Compute, 1 << 20)],
        num_tensors: are_all.then_some(12),
        tensors: if are_all { (0..12).map(tensor).collect() } else { Vec::new() },
    };
    let devices = is_all.map(device).into_iter().collect();
    let view = BuffersView {
        framework: Framework::Ggml,
        exact,
        older_unknown: !exact,
        scratch_traced: exact,
        out_of_step: 0,
        devices,
    };
    let process = snapshot.processes.iter_mut().find(|process| process.tensors.is_some()).expect("one has PyTorch");
    let tensors = process.tensors.as_mut().expect("it has");
    tensors.allocators.clear();
    tensors.buffers = Some(view);
    reported(&snapshot)
}

#[test]
fn stats_text_lists_ggml_buffers_by_usage_and_tensors() {
    let text = with_buffers(Some(true));
    let lines: Vec<&str> = text.lines().take(7).collect();
    let [heading, titles, weights, compute, all, peak, made] = lines[..] else { panic!("{text}") };
    assert!(heading.ends_with("GPU 0  ggml  in use 5.0 MiB  peak 6.0 MiB"), "{text}");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(titles), "USE BUFFERS SIZE BYTES");
    assert_eq!(words(weights), "weights 1 4.0 MiB 4194304");
    assert_eq!(words(compute), "compute 1 1.0 MiB 1048576");
    assert_eq!(words(all), "all 2 5.0 MiB 5242880");
    assert_eq!(words(peak), "peak 6.0 MiB 6291456");
    assert_eq!(made, "7 buffers made so far");
    let tensors: Vec<String> = text.lines().skip(7).map(words).collect();
    assert_eq!(tensors[..2], ["TENSOR USE SIZE BYTES", "blk.0.weight weights 12.0 KiB 12288"], "{text}");
    assert_eq!(tensors[11], "2 more tensors: all with --json", "{text}");
    assert!(!text.contains("not known"), "{text}");
}

#[test]
fn where_buffers_may_be_older_than_the_attach_no_sum_is_that_of_all() {
    let text = with_buffers(Some(false));
    assert!(text.contains("ggml  in use at least 5.0 MiB\n"), "{text}");
    assert!(text.contains("\nknown ") && text.contains("\npeak of the known ") && !text.contains("\nall "), "{text}");
    assert!(!text.contains("made so far"), "{text}");
    let none = with_buffers(None);
    assert!(none.contains("ggml  no buffer was made since the attach\n"), "{none}");
    for text in [text, none] {
        assert!(
            text.contains("\n- buffers from before the attach are not known: ggml keeps no list of them\n"),
            "{text}"
        );
        assert!(text.contains("\nthe pool for temporaries is not traced"), "{text}");
    }
}

/// Returns the text for a process with a pool changed by `change`.
fn with_pool(change: impl FnOnce(&mut memwatch_core::snapshot::PoolView)) -> String {
    use memwatch_core::decode::PoolKind;
    use memwatch_core::snapshot::{PoolView, PoolsView};
    use memwatch_core::words::Framework;

    let mut snapshot = fixture::training_node();
    let mut pool = PoolView {
        framework: Framework::Rmm,
        kind: PoolKind::Pool,
        device: Some(0),
        uuid: Some(snapshot.gpus[0].uuid.clone()),
        device_by: "segment".into(),
        bytes_in_use: Some(5 << 20),
        peak_bytes_in_use: Some(6 << 20),
        num_allocs: Some(7),
        pool_bytes: Some(8 << 20),
        block_bytes: None,
        known_blocks: 2,
        known_bytes: 5 << 20,
        divided_bytes: 1 << 20,
        exact: true,
        older_unknown: false,
        out_of_step: 0,
    };
    change(&mut pool);
    let process = snapshot.processes.iter_mut().find(|process| process.tensors.is_some()).expect("one has PyTorch");
    let tensors = process.tensors.as_mut().expect("it has");
    tensors.allocators.clear();
    tensors.pools = Some(PoolsView { frameworks: vec![Framework::Rmm, Framework::CuPy], pools: vec![pool] });
    reported(&snapshot)
}

#[test]
fn stats_text_lists_pools_and_frameworks_without_a_pool() {
    let text = with_pool(|_| ());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("cupy  no pool was made or used since the attach"), "{text}");
    assert!(lines[1].ends_with("GPU 0  rmm pool  in use 5.0 MiB  peak 6.0 MiB  pool 8.0 MiB"), "{text}");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(lines[3]), "pool_bytes 8.0 MiB 8388608");
    assert_eq!(words(lines[9]), "divided by other allocators 1.0 MiB 1048576");
    assert!(!text.contains("not known"), "{text}");
}

#[test]
fn stats_text_states_unknown_pool_numbers_below_the_pool() {
    let text = with_pool(|pool| {
        (pool.older_unknown, pool.bytes_in_use, pool.peak_bytes_in_use) = (true, None, None);
        (pool.out_of_step, pool.pool_bytes, pool.device_by) = (2, None, "unknown".into());
    });
    for part in [
        "in use at least 5.0 MiB  pool -\n",
        "blocks from before the attach are not known: RAPIDS' pools keep no list of them",
        "this build does not show how large its pool is",
        "out of step with the pool 2 times: in no sum of exact numbers",
        "its GPU is not known",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text =
        with_pool(|pool| (pool.older_unknown, pool.known_bytes, pool.device_by) = (true, 1 << 20, "name".into()));
    assert!(text.contains("1.0 MiB of 5.0 MiB are known one by one"), "{text}");
    assert!(text.contains("is reported by the pool only"), "{text}");
}
