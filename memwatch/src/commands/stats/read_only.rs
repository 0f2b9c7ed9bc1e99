//! `memwatch stats` of processes with no other framework than PyTorch: reads its allocators' own
//! numbers, and attaches to nothing.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use memwatch_core::Pipeline;
use memwatch_core::input::allocator_state::{AllocatorNumbers, AllocatorState};
use memwatch_core::input::{DeviceReading, Input, ProbeCoverage};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::{Framework, Tgid};

use crate::backends::backend;
use crate::frameworks::FRAMEWORKS;
use crate::frameworks::pytorch::{StateReadError, StateReader};
use crate::options::{CommonArgs, Selected};
use crate::sources::address_space::AddressSpace;
use crate::sources::clock::boottime_ns;
use crate::sources::procfs::ProcReader;
use crate::watch::one_shot::tgids_to_read;
use crate::watch::session::collectors::counters::read_only;

/// Time within which allocators that are in use are read between two of their operations. After
/// that only their counters are read, which takes a moment.
const PATIENCE: Duration = Duration::from_millis(100);
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// Reads the processes and their children once; `None` if a session has to watch them.
pub(crate) async fn snapshot(selected: &Selected, common: &CommonArgs) -> Option<Snapshot> {
    let named: BTreeSet<u32> = tgids_to_read(selected, common).await.ok()?.into_iter().map(|tgid| tgid.0).collect();
    let mut processes = ProcReader::new("/proc");
    let children = processes.descendants(&named);
    let mut pipeline = Pipeline::new(true);
    pipeline.step(Input::Attached { time_ns: boottime_ns() });
    let mechanism = ProbeCoverage::NOTHING.into();
    pipeline.step(Input::Coverage(ProbeCoverage { mechanism, ..ProbeCoverage::default() }));
    let devices = backend().reading(common.nvml_lib.as_deref()).ok()?;
    let users = users(&devices);
    pipeline.step(Input::Devices(devices));
    for tgid in named.iter().chain(&children) {
        // A child that was forked from a user has a copy of its allocators' numbers.
        let read = if users.contains(tgid) { allocators(*tgid)? } else { ReadAllocators::None };
        if matches!(read, ReadAllocators::None) {
            if named.contains(tgid) {
                return None;
            }
            continue;
        }
        pipeline.step(Input::Process(processes.facts(*tgid, true)?));
        let tgid = Tgid(*tgid);
        match read {
            ReadAllocators::None => {}
            ReadAllocators::Whole(state) => {
                let time_ns = state.began_ns;
                pipeline.step(Input::TensorsWatched { tgid, missing: Vec::new(), time_ns });
                pipeline.step(Input::AllocatorState(state));
            }
            ReadAllocators::Counters(numbers) => {
                pipeline.step(Input::TensorLevel(read_only(tgid)));
                pipeline.step(Input::Numbers(numbers));
            }
        }
    }
    pipeline.step(Input::Tick { time_ns: boottime_ns() });
    Some(pipeline.snapshot()).filter(is_whole)
}

/// Returns the processes that use a GPU.
fn users(reading: &DeviceReading) -> BTreeSet<u32> {
    let processes = reading.devices.iter().filter_map(|device| device.processes.as_ref());
    processes.flatten().map(|one| one.tgid.0).collect()
}

/// Whether every allocator is on a known GPU.
fn is_whole(snapshot: &Snapshot) -> bool {
    let tensors = snapshot.processes.iter().filter_map(|process| process.tensors.as_ref());
    let mut allocators = tensors.flat_map(|tensors| &tensors.allocators).peekable();
    allocators.peek().is_some() && allocators.all(|allocator| allocator.uuid.is_some())
}

/// What was read of a process's allocators.
enum ReadAllocators {
    /// The process uses no framework.
    None,
    /// Everything, at a moment at which they were idle.
    Whole(Box<AllocatorState>),
    Counters(Box<AllocatorNumbers>),
}

/// Reads the allocators of a process; `None` if what can be read is not enough for a report.
fn allocators(tgid: u32) -> Option<ReadAllocators> {
    let space = AddressSpace::open(tgid).ok()?;
    let frameworks = FRAMEWORKS.among(space.mappings().iter().map(|mapping| &*mapping.path));
    if frameworks.is_empty() {
        return Some(ReadAllocators::None);
    }
    // Other frameworks have allocators that only probes show.
    if frameworks.iter().any(|framework| *framework != Framework::PyTorch) {
        return None;
    }
    let mut reader = StateReader::open(tgid).ok()??;
    let until = Instant::now() + PATIENCE;
    loop {
        match reader.read() {
            Ok(state) if state.devices.is_empty() => return None,
            Ok(state) => return Some(ReadAllocators::Whole(Box::new(state))),
            Err(StateReadError::Refused(refusal)) if refusal.is_passing() => {}
            Err(_) => return None,
        }
        if Instant::now() >= until {
            let numbers = reader.read_numbers().ok().filter(|numbers| !numbers.devices.is_empty());
            return numbers.map(|numbers| ReadAllocators::Counters(Box::new(numbers)));
        }
        sleep(BETWEEN_TRIES);
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::{DeviceFacts, NvmlState, ProcessUse, Sensors};
    use memwatch_core::words::GpuUuid;

    use super::*;

    #[test]
    fn processes_that_nvml_lists_on_any_gpu_are_users() {
        let device = |nvml_index, tgids: Option<&[u32]>| DeviceFacts {
            uuid: GpuUuid::from_bytes([0xaa; 16]),
            nvml_index,
            name: String::new(),
            pci_bus_id: None,
            mig: None,
            total_bytes: None,
            used_bytes: None,
            processes: tgids.map(|tgids| {
                let entry = |tgid: &u32| ProcessUse { tgid: Tgid(*tgid), used_bytes: None, mps_client: false };
                tgids.iter().map(entry).collect()
            }),
            cores: None,
            sensors: Sensors::default(),
        };
        let devices = vec![device(0, Some(&[7, 8])), device(1, None), device(2, Some(&[8, 9]))];
        let reading = DeviceReading { begin_ns: 1, end_ns: 2, state: NvmlState::Ok, devices };
        assert_eq!(users(&reading), BTreeSet::from([7, 8, 9]));
    }
}
