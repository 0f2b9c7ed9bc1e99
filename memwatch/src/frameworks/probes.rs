//! Uprobes on a framework's allocator in one process, and the maps shared with the kernel half:
//! Python layout, stack walks, stack copies and statistics requests.

mod count;
mod trap;

use std::num::NonZeroU32;
use std::path::Path;
use std::thread::JoinHandle;

use aya::Pod;
use aya::maps::{Array, HashMap, MapData, MapError};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};
use memwatch_common::native::CopyState;
use memwatch_common::python::{PythonLayout, WalkState};
use memwatch_common::shares::SharedTable;
use memwatch_common::tensor::ONLY_LISTED;

use crate::frameworks::points::TensorPoint;
use crate::sources::clock;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::load::{KernelHalf, LoadError, Mechanism, loaded_uprobe, uprobe};
use crate::sources::kernel::shares::GiveBack;

pub(crate) use count::{begin_count, begin_load, counted, forget_count};
pub(crate) use trap::measure as measure_trap;

/// Key of the `ALLOCATORS` map: a device, by the ordinal the process uses, and the process.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeviceOfProcess {
    ordinal: u32,
    tgid: u32,
}

/// Value of the `PYTHON` map.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct PythonLayoutValue(PythonLayout);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Walks(WalkState);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct CopyStateValue(CopyState);

/// Key of the `KNOWN_CODE` map: a Python code object's address and its process.
#[derive(Clone, Copy)]
#[repr(C)]
struct CodeOfProcess {
    word: u64,
    tgid: u64,
}

// SAFETY: integers without padding (memwatch-common asserts the sizes); every bit pattern is valid.
unsafe impl Pod for PythonLayoutValue {}
// SAFETY: integers without padding, as for `PythonLayoutValue`.
unsafe impl Pod for Walks {}
// SAFETY: two words.
unsafe impl Pod for CopyStateValue {}
// SAFETY: two words.
unsafe impl Pod for CodeOfProcess {}
// SAFETY: two words of 32 bits.
unsafe impl Pod for DeviceOfProcess {}

/// Attached probes of a framework's allocator in one process: program name and link of each.
#[derive(Debug, Default)]
pub(crate) struct TensorProbes(Vec<(&'static str, UProbeLinkId)>);

/// Name of the BPF program that records operator names.
const fn operator_program(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::UprobeMulti => "mw_operator_enter",
        Mechanism::Classic => "mw_operator_enter_classic",
    }
}

/// Name of the BPF program for block allocations and frees, which are nearly all events.
const fn block_program(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::UprobeMulti => "mw_block_enter",
        Mechanism::Classic => "mw_block_enter_classic",
    }
}

/// Names of the BPF programs for function entries and returns.
const fn programs(mechanism: Mechanism) -> (&'static str, &'static str) {
    match mechanism {
        Mechanism::UprobeMulti => ("mw_tensor_enter", "mw_tensor_return"),
        Mechanism::Classic => ("mw_tensor_enter_classic", "mw_tensor_return_classic"),
    }
}

/// Loads the entry programs in advance, so that the first traced process does not wait: the
/// kernel's verifier takes some hundred milliseconds.
pub(crate) fn prepare(kernel: &mut KernelHalf) {
    let (entry, _) = programs(kernel.mechanism);
    for program in [entry, block_program(kernel.mechanism)] {
        // The failure is reported again when a process needs the program.
        if let Err(error) = loaded_uprobe(&mut kernel.ebpf, program) {
            log::info!("{}", chain(&error));
        }
    }
}

/// Loads every BPF program that traces a framework's allocator.
///
/// # Errors
/// The kernel refuses one of the programs.
pub(crate) fn load_all(kernel: &mut KernelHalf) -> Result<(), LoadError> {
    let (entry, leave) = programs(kernel.mechanism);
    let (block, operator) = (block_program(kernel.mechanism), operator_program(kernel.mechanism));
    [entry, leave, block, operator].into_iter().try_for_each(|name| loaded_uprobe(&mut kernel.ebpf, name).map(|_| ()))
}

/// Attaches probes at points of one file to all threads of one process. Loads the programs on first
/// use.
///
/// # Errors
/// A message that explains why nothing is attached.
pub(crate) fn attach(
    kernel: &mut KernelHalf,
    path: &Path,
    tgid: NonZeroU32,
    points: &[TensorPoint],
) -> Result<TensorProbes, String> {
    let one_process = kernel.mechanism.attaches_to_processes();
    attach_to(kernel, path, (tgid, one_process), points)
}

/// Attaches the probes. If the kernel cannot restrict uprobes to one process, every process that
/// maps the file gets them, and the kernel half reports only listed processes.
fn attach_to(
    kernel: &mut KernelHalf,
    path: &Path,
    (tgid, one_process): (NonZeroU32, bool),
    points: &[TensorPoint],
) -> Result<TensorProbes, String> {
    list(kernel, tgid.get()).map_err(|error| chain(&error))?;
    let scope = if one_process { UProbeScope::OneProcess(tgid) } else { UProbeScope::AllProcesses };
    let (entry, leave) = programs(kernel.mechanism);
    // If two programs share an attach point, the kernel runs the one attached last first
    // (`consumer_add` of kernel/events/uprobes.c, Linux 6.18). The operator program is attached
    // last, so that the operator is known before its chunk is reported.
    let (block, operator) = (block_program(kernel.mechanism), operator_program(kernel.mechanism));
    let programs = [entry, leave, block, operator];
    let served_by = |point: &TensorPoint| match (point.operator, point.is_return()) {
        (Some(_), _) => operator,
        (None, true) => leave,
        (None, false) if point.plan.is_of_events() => block,
        (None, false) => entry,
    };
    let mut probes = TensorProbes(Vec::new());
    for program in programs {
        let points: Vec<&TensorPoint> = points.iter().filter(|point| served_by(point) == program).collect();
        if points.is_empty() {
            continue;
        }
        match attach_program(kernel, program, (path, scope), &points) {
            Ok(link) => probes.0.push((program, link)),
            // Chunks are still traced without operator names.
            Err(error) if program == operator => log::warn!("process {tgid}: operator names are not recorded: {error}"),
            Err(error) => {
                let _ = detach(kernel, probes);
                return Err(error);
            }
        }
    }
    Ok(probes)
}

fn attach_program(
    kernel: &mut KernelHalf,
    program: &'static str,
    (path, scope): (&Path, UProbeScope),
    points: &[&TensorPoint],
) -> Result<UProbeLinkId, String> {
    let listed = if matches!(scope, UProbeScope::AllProcesses) { ONLY_LISTED } else { 0 };
    let loaded = loaded_uprobe(&mut kernel.ebpf, program).map_err(|error| chain(&error))?;
    let points = points.iter().map(|point| UProbeAttachPoint {
        location: UProbeAttachLocation::AbsoluteOffset(point.file_offset),
        cookie: Some(point.cookie() | listed),
    });
    loaded.attach(points, path, scope).map_err(|error| chain(&error))
}

/// Detaches the probes.
///
/// # Errors
/// A message that explains why a probe may still be attached.
pub(crate) fn detach(kernel: &mut KernelHalf, probes: TensorProbes) -> Result<(), String> {
    let detach = |(program, link)| {
        let loaded = uprobe(&mut kernel.ebpf, program).map_err(|error| chain(&error))?;
        loaded.detach(link).map_err(|error| chain(&error))
    };
    // Detaches all probes even if one fails.
    probes.0.into_iter().map(detach).fold(Ok(()), Result::and)
}

/// Detaches probes on a separate thread. The kernel removes the breakpoints of a link and then
/// waits until no CPU executes one, which takes up to 200 ms (`bpf_uprobe_unregister` of
/// kernel/trace/bpf_trace.c, Linux 6.18).
///
/// # Errors
/// The thread cannot be spawned. Dropping the links then detaches the probes on this thread.
pub(crate) fn detach_beside(kernel: &mut KernelHalf, probes: Vec<TensorProbes>) -> std::io::Result<JoinHandle<()>> {
    let mut links = Vec::new();
    for (program, link) in probes.into_iter().flat_map(|probes| probes.0) {
        match uprobe(&mut kernel.ebpf, program).map(|loaded| loaded.take_link(link)) {
            Ok(Ok(link)) => links.push(link),
            Ok(Err(error)) => log::warn!("cannot detach a probe: {}", chain(&error)),
            Err(error) => log::warn!("cannot detach a probe: {}", chain(&error)),
        }
    }
    std::thread::Builder::new().name("detach".to_owned()).spawn(move || {
        std::thread::scope(|scope| {
            for link in links {
                scope.spawn(move || drop(link));
            }
        });
    })
}

/// Lists the process in `TENSOR_TARGETS`. Also marks the process as known, since the kernel half
/// cleans up at exec and exit of known processes only.
fn list(kernel: &mut KernelHalf, tgid: u32) -> Result<(), LoadError> {
    const TABLE: &str = "TENSOR_TARGETS";
    kernel.make_known(tgid)?;
    hash::<u32, u8>(kernel, TABLE)?.insert(&tgid, &1, 0).map_err(in_table(TABLE))
}

/// Enables Python stack walks in a process with this interpreter layout. A later call replaces the
/// layout.
///
/// # Errors
/// A map is full.
pub(crate) fn set_layout(kernel: &mut KernelHalf, tgid: u32, layout: &PythonLayout) -> Result<(), LoadError> {
    list(kernel, tgid)?;
    let mut walks = hash::<u32, Walks>(kernel, "WALKS")?;
    if walks.get(&tgid, 0).is_err() {
        // The epoch keeps stack ids distinct from those of an earlier process with the same pid.
        let state = WalkState { epoch: clock::boottime_ns() | 1, ..WalkState::default() };
        walks.insert(&tgid, &Walks(state), 0).map_err(in_table("WALKS"))?;
    }
    hash::<u32, PythonLayoutValue>(kernel, "PYTHON")?
        .insert(&tgid, &PythonLayoutValue(*layout), 0)
        .map_err(in_table("PYTHON"))?;
    want_stacks(kernel)
}

/// Makes the kernel half look up stack state for processes with tensor events.
fn want_stacks(kernel: &mut KernelHalf) -> Result<(), LoadError> {
    array(kernel, "STACKS_WANTED")?.set(0, &1, 0).map_err(in_table("STACKS_WANTED"))
}

/// Enables stack copies in a process, for native frames. Stacks of allocations of at least
/// `large_bytes` are copied whenever the buffer has space. If the process runs Python, call
/// [`set_layout`] first.
///
/// # Errors
/// A map is full.
pub(crate) fn want_copies(kernel: &mut KernelHalf, tgid: u32, large_bytes: u64) -> Result<(), LoadError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(());
    }
    list(kernel, tgid)?;
    array(kernel, "LARGE_BYTES")?.set(0, &large_bytes, 0).map_err(in_table("LARGE_BYTES"))?;
    hash::<u32, CopyStateValue>(kernel, "COPIES")?
        .insert(&tgid, &CopyStateValue(CopyState::default()), 0)
        .map_err(in_table("COPIES"))?;
    want_stacks(kernel)
}

/// Returns the kernel half's walk state of a process, including the number of skipped stacks;
/// `None` if stack walks are not enabled.
#[cfg(test)]
pub(crate) fn walk_state(kernel: &mut KernelHalf, tgid: u32) -> Option<WalkState> {
    hash::<u32, Walks>(kernel, "WALKS").ok()?.get(&tgid, 0).ok().map(|walks| walks.0)
}

/// Limits the frames walked per process within [`memwatch_common::python::WINDOW_NS`]. The default
/// is [`memwatch_common::python::DEFAULT_WINDOW_FRAMES`].
///
/// # Errors
/// A map is missing: the loaded kernel half is of another build.
#[cfg(test)]
pub(crate) fn set_window_frames(kernel: &mut KernelHalf, frames: NonZeroU32) -> Result<(), LoadError> {
    array(kernel, "WINDOW_FRAMES")?.set(0, &u64::from(frames.get()), 0).map_err(in_table("WINDOW_FRAMES"))
}

/// Disables stack copies in a process.
///
/// # Errors
/// A map is missing: the loaded kernel half is of another build.
pub(crate) fn forget_copies(kernel: &mut KernelHalf, tgid: u32) -> Result<(), LoadError> {
    // A missing entry is not an error.
    let _ = hash::<u32, CopyStateValue>(kernel, "COPIES")?.remove(&tgid);
    Ok(())
}

/// Disables stack walks and copies in a process; later events carry no stacks.
///
/// # Errors
/// A map is missing: the loaded kernel half is of another build.
pub(crate) fn forget_stacks(kernel: &mut KernelHalf, tgid: u32) -> Result<(), LoadError> {
    // A missing entry is not an error.
    let _ = hash::<u32, PythonLayoutValue>(kernel, "PYTHON")?.remove(&tgid);
    let _ = hash::<u32, Walks>(kernel, "WALKS")?.remove(&tgid);
    forget_copies(kernel, tgid)?;
    let give_back = GiveBack::open(&kernel.ebpf)?;
    let mut codes = hash::<CodeOfProcess, u32>(kernel, "KNOWN_CODE")?;
    let own: Vec<(CodeOfProcess, u32)> =
        codes.iter().flatten().filter(|(code, _)| code.tgid == u64::from(tgid)).collect();
    let removed = own.into_iter().filter(|(code, _)| codes.remove(code).is_ok());
    give_back.give_all(SharedTable::Codes, removed.map(|(_, owner)| owner));
    Ok(())
}

/// Requests the statistics of each allocator of a process once. The next event of each allocator
/// carries them, also for an allocator that is first used later. Every call makes a new request.
///
/// # Errors
/// A map is full.
pub(crate) fn want_statistics(kernel: &mut KernelHalf, tgid: u32) -> Result<(), LoadError> {
    let request = clock::boottime_ns();
    hash::<u32, u64>(kernel, "STATISTICS_WANTED")?.insert(&tgid, &request, 0).map_err(in_table("STATISTICS_WANTED"))?;
    array(kernel, "STATISTICS_REQUEST")?.set(0, &request, 0).map_err(in_table("STATISTICS_REQUEST"))
}

/// Sets the addresses of a process's allocators by device. The kernel half reads their statistics
/// at an allocation failure and at process exit.
///
/// # Errors
/// A map is full.
pub(crate) fn set_allocators(kernel: &mut KernelHalf, tgid: u32, allocators: &[(u32, u64)]) -> Result<(), LoadError> {
    const TABLE: &str = "ALLOCATORS";
    // The kernel half handles the exit of known processes only.
    kernel.make_known(tgid)?;
    let mut table = hash::<DeviceOfProcess, u64>(kernel, TABLE)?;
    for (ordinal, allocator) in allocators {
        table.insert(&DeviceOfProcess { ordinal: *ordinal, tgid }, allocator, 0).map_err(in_table(TABLE))?;
    }
    Ok(())
}

/// Removes a process from the kernel half, after its probes are detached or it has exited.
///
/// # Errors
/// A map is missing: the loaded kernel half is of another build.
pub(crate) fn forget(kernel: &mut KernelHalf, tgid: u32) -> Result<(), LoadError> {
    // A missing entry is not an error.
    let _ = hash::<u32, u8>(kernel, "TENSOR_TARGETS")?.remove(&tgid);
    let mut wanted = hash::<u32, u64>(kernel, "STATISTICS_WANTED")?;
    let _ = wanted.remove(&tgid);
    if wanted.keys().next().is_none() {
        array(kernel, "STATISTICS_REQUEST")?.set(0, &0, 0).map_err(in_table("STATISTICS_REQUEST"))?;
    }
    forget_stacks(kernel, tgid)
}

fn hash<'a, K: Pod, V: Pod>(
    kernel: &'a mut KernelHalf,
    table: &'static str,
) -> Result<HashMap<&'a mut MapData, K, V>, LoadError> {
    let map = kernel.ebpf.map_mut(table).ok_or(LoadError::Missing(table))?;
    HashMap::try_from(map).map_err(in_table(table))
}

fn array<'a>(kernel: &'a mut KernelHalf, table: &'static str) -> Result<Array<&'a mut MapData, u64>, LoadError> {
    let map = kernel.ebpf.map_mut(table).ok_or(LoadError::Missing(table))?;
    Array::try_from(map).map_err(in_table(table))
}

fn in_table(table: &'static str) -> impl Fn(MapError) -> LoadError {
    move |cause| LoadError::Table { table, cause }
}

#[cfg(test)]
mod tests;
