//! Plays a recording and returns the numbers that are compared. All uses of memwatch-core are in
//! this file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;

use memwatch_core::Pipeline;
use memwatch_core::allocators::pytorch::LineAction;
use memwatch_core::features::simulate::model::{PolicyPlan, Settings};
use memwatch_core::features::simulate::view::SimulationView;
use memwatch_core::recording::{Ending, RecordingPart, RecordingReader};
use memwatch_core::snapshot::{AllocatorView, ProcessView, Snapshot};
use memwatch_core::words::Tgid;

use crate::tables::{folder, number};

/// A recording that was played to its end.
pub(crate) struct PlayedRecording {
    pub(crate) pipeline: Pipeline,
    pub(crate) snapshot: Snapshot,
    /// Number of inputs.
    pub(crate) inputs: u64,
}

/// Peak bytes with a setting, reserved and allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peaks {
    pub(crate) reserved: u64,
    pub(crate) allocated: u64,
}

/// Plays a recording to its end. Calls `after` after each input.
pub(crate) fn play(name: &str, mut pipeline: Pipeline, mut after: impl FnMut(&mut Pipeline)) -> PlayedRecording {
    let path = folder().join(name).with_extension("mwr");
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = RecordingReader::open(BufReader::new(file)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut inputs = 0;
    while let Some(part) = reader.next_part().expect("the file can be read") {
        let RecordingPart::Chunk(chunk) = part else { panic!("{name} has a keyframe") };
        let played = chunk.for_each(|input| {
            pipeline.step(input);
            after(&mut pipeline);
            inputs += 1;
        });
        assert_eq!(played, Ok(()), "{name} is damaged");
    }
    let Some(Ending::Whole(end)) = reader.ending() else { panic!("{name} was cut off") };
    assert_eq!(end.inputs, inputs, "{name}");
    let snapshot = pipeline.snapshot();
    PlayedRecording { pipeline, snapshot, inputs }
}

/// Plays a recording to its end for its snapshot only.
pub(crate) fn played(name: &str) -> PlayedRecording {
    play(name, Pipeline::new(true), |_| {})
}

impl PlayedRecording {
    /// Returns the process that uses the GPU. The recordings also have children that do not use it.
    pub(crate) fn process(&self) -> &ProcessView {
        let mut users = self.snapshot.processes.iter().filter(|process| !process.gpus.is_empty());
        let process = users.next().expect("a process uses the GPU");
        assert!(users.next().is_none(), "there is more than one");
        process
    }

    /// Returns the caching allocator of the only device, or `None` if the process does not use
    /// PyTorch.
    pub(crate) fn allocator(&self) -> Option<&AllocatorView> {
        let allocators = &self.process().tensors.as_ref()?.allocators;
        assert_eq!(allocators.len(), 1, "there is one GPU");
        allocators.first()
    }

    /// Returns the peak bytes of driver calls.
    pub(crate) fn driver_peak_bytes(&self) -> u64 {
        let [gpu] = &self.process().gpus[..] else { panic!("there is one GPU") };
        gpu.peak_bytes
    }

    /// Returns the number of failed driver calls for memory.
    pub(crate) fn failed_calls(&self) -> u64 {
        self.process().gpus.iter().map(|gpu| gpu.failed_allocations).sum()
    }

    /// Returns `torch.cuda.memory_stats()` with `None` for unknown values.
    pub(crate) fn memory_stats(&self) -> BTreeMap<String, Option<i64>> {
        let allocator = self.allocator().expect("it uses PyTorch");
        let keys = allocator.statistics.keys().map(|key| (key.to_string(), allocator.statistic(key)));
        keys.collect()
    }

    /// Returns whether nothing was lost, from the process's start to its end.
    pub(crate) fn is_complete(&self) -> bool {
        let Snapshot { complete, losses, .. } = &self.snapshot;
        let process = self.process();
        *complete && losses.is_empty() && process.exact && process.from_start && process.unknown_frees == 0
    }

    /// Returns the totals of attribution by code. Each list adds up to what the allocator reported.
    pub(crate) fn sums(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let devices = &self.process().tensors.as_ref().expect("it uses PyTorch").attribution.devices;
        let [device] = &devices[..] else { panic!("there is one GPU") };
        assert_eq!(device.unplaced_bytes, 0);
        let add = |rows: Vec<(u64, u64)>| rows.into_iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        BTreeMap::from([
            ("all", (device.total.allocations, device.total.total_bytes)),
            ("lines", add(device.sites.iter().map(|row| (row.sum.allocations, row.sum.total_bytes)).collect())),
            ("modules", add(device.modules.iter().map(|row| (row.sum.allocations, row.sum.total_bytes)).collect())),
            ("phases", add(device.phases.iter().map(|row| (row.sum.allocations, row.sum.total_bytes)).collect())),
        ])
    }
}

/// Returns the requested bytes of PyTorch's last `count` allocations by line of Python, as
/// `file:line:function`. Threads without Python are listed as `none`.
pub(crate) fn bytes_by_line(name: &str, count: usize) -> BTreeMap<String, u64> {
    let tgid = played(name).process().tgid;
    let mut is_kept = false;
    let keep = |pipeline: &mut Pipeline| {
        if !is_kept && pipeline.state.has_trace(tgid) {
            pipeline.state.keep_history(tgid, 1 << 20);
            is_kept = true;
        }
    };
    let history =
        play(name, Pipeline::new(true), keep).pipeline.state.history(Tgid(tgid.0), false).expect("it is kept");
    let [device] = &history.devices[..] else { panic!("there is one GPU") };
    let all: Vec<_> = device.lines.iter().filter(|line| line.action == LineAction::Alloc).collect();
    let mut sums = BTreeMap::new();
    for line in &all[all.len() - count..] {
        let frame = history.stacks[line.stack].first().filter(|frame| frame.line > 0);
        // PyTorch's own history has a function's name without its class.
        let name = frame.map_or_else(
            || "none".to_owned(),
            |frame| format!("{}:{}:{}", frame.file, frame.line, frame.name.rsplit('.').next().unwrap_or_default()),
        );
        *sums.entry(name).or_default() += line.bytes;
    }
    sums
}

/// Returns what a recording predicts for these settings, and the peaks of its program.
pub(crate) fn simulated(name: &str, settings: &[&str]) -> (Peaks, Vec<Peaks>) {
    let plan = |text: &&str| PolicyPlan::PyTorch(Settings::parse(text).expect("it is a setting"));
    let mut pipeline = Pipeline::new(true);
    pipeline.simulate(settings.iter().map(plan).collect(), None);
    let views = play(name, pipeline, |_| {}).pipeline.simulations();
    let [SimulationView { measured, policies, lost: 0, .. }] = &views[..] else {
        panic!("there is one GPU: {views:?}")
    };
    let measured = Peaks { reserved: measured.peak_reserved_bytes, allocated: measured.peak_allocated_bytes };
    let peaks = policies.iter().map(|policy| {
        assert_eq!(policy.failure, None);
        Peaks { reserved: policy.peak_reserved_bytes, allocated: policy.peak_allocated_bytes }
    });
    (measured, peaks.collect())
}

/// Returns the out-of-memory failures: requested bytes, PyTorch's allocated and reserved bytes at
/// that time, and the line of the program.
pub(crate) fn out_of_memory(name: &str) -> Vec<(u64, u64, u64, String)> {
    let mut pipeline = Pipeline::new(true);
    pipeline.watch_ooms();
    let watched = play(name, pipeline, |_| {});
    let failures = watched.pipeline.ooms().0.map(|failure| {
        let cache = failure.cache.expect("PyTorch is watched");
        let line = failure.whose.as_ref().and_then(|whose| whose.site.name.clone());
        (failure.wanted_bytes, cache.allocated_bytes, cache.reserved_bytes, line.expect("the line is known"))
    });
    failures.collect()
}

/// Parses peaks from two columns.
pub(crate) fn peaks(reserved: &str, allocated: &str) -> Peaks {
    Peaks { reserved: number(reserved), allocated: number(allocated) }
}
