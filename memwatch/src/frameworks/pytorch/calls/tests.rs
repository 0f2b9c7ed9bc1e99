//! In each PyTorch version that the tests run, a single probe shows everything about a block.

use std::fs::File;
use std::path::Path;

use memwatch_common::tensor::{BlockPlan, FrameworkLibrary, TensorMeaning};

use super::allocator_points;
use crate::frameworks::points::TensorPoint;
use crate::sources::kernel::site::KernelVersion;

/// Folder of each version's package in the target folder, and the offset of a block's size.
const BUILDS: [(&str, u16); 6] = [
    ("torch-2.6.0/venv/lib/python3.11/site-packages", 0x30),
    ("torch-2.8.0/venv/lib/python3.11/site-packages", 0x30),
    ("torch-2.9.1/site-packages", 0x30),
    ("torch-2.10.0/site-packages", 0x30),
    ("torch-2.11.0/site-packages", 0x38),
    ("torch-2.15.0/venv/lib/python3.11/site-packages", 0x38),
];
const ALLOCATED: u16 = 0x1a8;

fn found(package: &str) -> Option<Vec<TensorPoint>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/torch").join(package);
    let Ok(file) = File::open(file.join("torch/lib/libc10_cuda.so")) else {
        eprintln!("SKIPPED: {package} is not installed: cargo xtask test integration does that");
        return None;
    };
    let kernel = KernelVersion::from_release("6.18.0").expect("a version");
    Some(allocator_points(&file, FrameworkLibrary::C10Cuda, kernel).expect("it is a library"))
}

#[test]
fn one_probe_shows_all_of_a_block_in_every_version() {
    for (package, size) in BUILDS {
        let Some(points) = found(package) else { continue };
        let of = |meaning| points.iter().filter(move |point| point.row.meaning == meaning);
        let count = |meaning| of(meaning).count();
        let granted = of(TensorMeaning::Granted).map(|point| point.plan.block);
        assert!(granted.clone().count() == 1, "{package}");
        assert!(
            granted.clone().all(|plan| matches!(plan, BlockPlan::Granted { offset_bytes, .. } if offset_bytes == size)),
            "{package}: {:?}",
            granted.collect::<Vec<_>>()
        );
        let given_back = of(TensorMeaning::GivenBack).map(|point| point.plan.block);
        let is_expected = |plan| matches!(plan, BlockPlan::GivenBack { offset_bytes: ALLOCATED, .. });
        assert_eq!((given_back.clone().count(), given_back.clone().all(is_expected)), (1, true), "{package}");
        // At events that no stream waits for any longer, and where all events are waited for.
        assert!(count(TensorMeaning::Completed) >= 2, "{package}");
        // Allocation and release of segments of both kinds, a snapshot and a failure.
        assert!(count(TensorMeaning::TracedRarely) >= 6, "{package}: {}", count(TensorMeaning::TracedRarely));
        let mut places: Vec<u64> = points.iter().map(|point| point.file_offset).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), points.len(), "{package}: no instruction twice");
    }
}
