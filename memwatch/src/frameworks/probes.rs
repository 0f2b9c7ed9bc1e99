//! PyTorch's allocator in one process: its probes, where things lie in its interpreter, and what else passes between it and the kernel half.

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
use memwatch_common::shares::Table;
use memwatch_common::tensor::ONLY_LISTED;

use crate::frameworks::pytorch::TensorPoint;
use crate::sources::clock;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::load::{Kernel, LoadError, Mechanism, loaded_uprobe, uprobe};
use crate::sources::kernel::shares::GiveBack;

pub(crate) use count::{begin_count, begin_load, counted, forget_count};
pub(crate) use trap::measure as measure_trap;

/// A device of a process, by the process's own number of it.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeviceOfProcess {
    ordinal: u32,
    tgid: u32,
}

/// What user space reports the kernel half, as its maps hold it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Layout(PythonLayout);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Walks(WalkState);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Copies(CopyState);

/// A code object's address, and the process.
#[derive(Clone, Copy)]
#[repr(C)]
struct OfProcess {
    word: u64,
    tgid: u64,
}

// SAFETY: integers without padding (memwatch-common asserts the sizes); every bit pattern is valid.
unsafe impl Pod for Layout {}
// SAFETY: as above.
unsafe impl Pod for Walks {}
// SAFETY: two words.
unsafe impl Pod for Copies {}
// SAFETY: two words.
unsafe impl Pod for OfProcess {}
// SAFETY: two words of 32 bits.
unsafe impl Pod for DeviceOfProcess {}

/// Probes of PyTorch's allocator in one process, until they are taken out.
#[derive(Debug)]
pub(crate) struct TensorProbes(Vec<(&'static str, UProbeLinkId)>);

/// The program that names operators.
const fn operator_program(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::UprobeMulti => "mw_operator_enter",
        Mechanism::Classic => "mw_operator_enter_classic",
    }
}

/// The program of blocks that come and go, which nearly all events are.
const fn block_program(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::UprobeMulti => "mw_block_enter",
        Mechanism::Classic => "mw_block_enter_classic",
    }
}

/// The programs of an entry and of a return.
const fn programs(mechanism: Mechanism) -> (&'static str, &'static str) {
    match mechanism {
        Mechanism::UprobeMulti => ("mw_tensor_enter", "mw_tensor_return"),
        Mechanism::Classic => ("mw_tensor_enter_classic", "mw_tensor_return_classic"),
    }
}

/// Loads what is behind entries, so that the first process that needs it does not wait: the kernel takes some hundred milliseconds to prove it safe.
pub(crate) fn prepare(kernel: &mut Kernel) {
    let (entry, _) = programs(kernel.mechanism);
    for program in [entry, block_program(kernel.mechanism)] {
        // Who cannot have it is informed when a process needs it.
        if let Err(error) = loaded_uprobe(&mut kernel.ebpf, program) {
            log::info!("{}", chain(&error));
        }
    }
}

/// Loads every program that a framework's allocator is followed with.
///
/// # Errors
/// The kernel refuses one.
pub(crate) fn load_all(kernel: &mut Kernel) -> Result<(), LoadError> {
    let (entry, leave) = programs(kernel.mechanism);
    let (block, operator) = (block_program(kernel.mechanism), operator_program(kernel.mechanism));
    [entry, leave, block, operator].into_iter().try_for_each(|name| loaded_uprobe(&mut kernel.ebpf, name).map(|_| ()))
}

/// Puts rows of one file into one process, all of its threads. The programs are loaded with the first.
///
/// # Errors
/// A sentence that says why nothing is attached.
pub(crate) fn attach(
    kernel: &mut Kernel,
    path: &Path,
    tgid: NonZeroU32,
    points: &[TensorPoint],
) -> Result<TensorProbes, String> {
    let one_process = kernel.mechanism.attaches_to_processes();
    attach_to(kernel, path, (tgid, one_process), points)
}

/// Where the kernel cannot put probes into one process, all that have the file get them, and only the events of those listed are sent.
fn attach_to(
    kernel: &mut Kernel,
    path: &Path,
    (tgid, one_process): (NonZeroU32, bool),
    points: &[TensorPoint],
) -> Result<TensorProbes, String> {
    list(kernel, tgid.get()).map_err(|error| chain(&error))?;
    let scope = if one_process { UProbeScope::OneProcess(tgid) } else { UProbeScope::AllProcesses };
    let (entry, leave) = programs(kernel.mechanism);
    // Of two programs at one place the kernel runs that first which came last (`consumer_add` of kernel/events/uprobes.c, Linux 6.18): a chunk has its name
    // before it is reported.
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
            // Chunks are followed all the same.
            Err(error) if program == operator => log::warn!("process {tgid}: operators have no names: {error}"),
            Err(error) => {
                let _ = detach(kernel, probes);
                return Err(error);
            }
        }
    }
    Ok(probes)
}

fn attach_program(
    kernel: &mut Kernel,
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

/// Takes the probes out.
///
/// # Errors
/// A sentence that says why a probe may still be there.
pub(crate) fn detach(kernel: &mut Kernel, probes: TensorProbes) -> Result<(), String> {
    let detach = |(program, link)| {
        let loaded = uprobe(&mut kernel.ebpf, program).map_err(|error| chain(&error))?;
        loaded.detach(link).map_err(|error| chain(&error))
    };
    // All of them, also after one that fails.
    probes.0.into_iter().map(detach).fold(Ok(()), Result::and)
}

/// Takes probes out in a thread of its own: the kernel removes the breakpoints of a link, and then waits until no processor is within one, which takes
/// up to 200 ms (`bpf_uprobe_unregister` of kernel/trace/bpf_trace.c, Linux 6.18).
///
/// # Errors
/// The system has no thread to give; the probes are still in place then.
pub(crate) fn detach_beside(kernel: &mut Kernel, probes: Vec<TensorProbes>) -> std::io::Result<JoinHandle<()>> {
    let mut links = Vec::new();
    for (program, link) in probes.into_iter().flat_map(|probes| probes.0) {
        match uprobe(&mut kernel.ebpf, program).map(|loaded| loaded.take_link(link)) {
            Ok(Ok(link)) => links.push(link),
            Ok(Err(error)) => log::warn!("a probe stays in place: {}", chain(&error)),
            Err(error) => log::warn!("a probe stays in place: {}", chain(&error)),
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

/// The kernel half forgets all it knows of the process at its exec or exit, which it looks at for processes that it knows.
fn list(kernel: &mut Kernel, tgid: u32) -> Result<(), LoadError> {
    const TABLE: &str = "TENSOR_TARGETS";
    kernel.make_known(tgid)?;
    hash::<u32, u8>(kernel, TABLE)?.insert(&tgid, &1, 0).map_err(in_table(TABLE))
}

/// From now on stacks are walked in this process, with things lying where this says; the last word counts.
///
/// # Errors
/// The table is full.
pub(crate) fn set_layout(kernel: &mut Kernel, tgid: u32, layout: &PythonLayout) -> Result<(), LoadError> {
    list(kernel, tgid)?;
    let mut walks = hash::<u32, Walks>(kernel, "WALKS")?;
    if walks.get(&tgid, 0).is_err() {
        // Ids of an earlier process of this number must not come again.
        let state = WalkState { epoch: clock::boottime_ns() | 1, ..WalkState::default() };
        walks.insert(&tgid, &Walks(state), 0).map_err(in_table("WALKS"))?;
    }
    hash::<u32, Layout>(kernel, "PYTHON")?.insert(&tgid, &Layout(*layout), 0).map_err(in_table("PYTHON"))?;
    want_stacks(kernel)
}

/// Whoever has tensors is looked up from now on in what is known of its stacks.
fn want_stacks(kernel: &mut Kernel) -> Result<(), LoadError> {
    array(kernel, "STACKS_WANTED")?.set(0, &1, 0).map_err(in_table("STACKS_WANTED"))
}

/// From now on stacks are copied in this process, for their native frames; those of allocations of `large_bytes` and above whenever there is room.
/// Where it has Python, its layout is set first.
///
/// # Errors
/// The table is full.
pub(crate) fn want_copies(kernel: &mut Kernel, tgid: u32, large_bytes: u64) -> Result<(), LoadError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(());
    }
    list(kernel, tgid)?;
    array(kernel, "LARGE_BYTES")?.set(0, &large_bytes, 0).map_err(in_table("LARGE_BYTES"))?;
    hash::<u32, Copies>(kernel, "COPIES")?
        .insert(&tgid, &Copies(CopyState::default()), 0)
        .map_err(in_table("COPIES"))?;
    want_stacks(kernel)
}

/// What the kernel half keeps of the walks in a process: how many stacks were left out, among others. `None` where none are walked.
#[cfg(test)]
pub(crate) fn walk_state(kernel: &mut Kernel, tgid: u32) -> Option<WalkState> {
    hash::<u32, Walks>(kernel, "WALKS").ok()?.get(&tgid, 0).ok().map(|walks| walks.0)
}

/// Sets how many frames may be walked in each process within [`memwatch_common::python::WINDOW_NS`]; until then it is
/// [`memwatch_common::python::DEFAULT_WINDOW_FRAMES`].
///
/// # Errors
/// The kernel half is not the one that belongs here.
#[cfg(test)]
pub(crate) fn set_window_frames(kernel: &mut Kernel, frames: NonZeroU32) -> Result<(), LoadError> {
    array(kernel, "WINDOW_FRAMES")?.set(0, &u64::from(frames.get()), 0).map_err(in_table("WINDOW_FRAMES"))
}

/// From now on no stacks are copied in this process.
///
/// # Errors
/// The kernel half is not the one that belongs here.
pub(crate) fn forget_copies(kernel: &mut Kernel, tgid: u32) -> Result<(), LoadError> {
    // Absent is as good as removed.
    let _ = hash::<u32, Copies>(kernel, "COPIES")?.remove(&tgid);
    Ok(())
}

/// From now on no stacks are walked or copied in this process; its events come without them.
///
/// # Errors
/// The kernel half is not the one that belongs here.
pub(crate) fn forget_stacks(kernel: &mut Kernel, tgid: u32) -> Result<(), LoadError> {
    // Absent is as good as removed.
    let _ = hash::<u32, Layout>(kernel, "PYTHON")?.remove(&tgid);
    let _ = hash::<u32, Walks>(kernel, "WALKS")?.remove(&tgid);
    forget_copies(kernel, tgid)?;
    let give_back = GiveBack::open(&kernel.ebpf)?;
    let mut codes = hash::<OfProcess, u32>(kernel, "KNOWN_CODE")?;
    let own: Vec<(OfProcess, u32)> = codes.iter().flatten().filter(|(code, _)| code.tgid == u64::from(tgid)).collect();
    let removed = own.into_iter().filter(|(code, _)| codes.remove(code).is_ok());
    give_back.give_all(Table::Codes, removed.map(|(_, owner)| owner));
    Ok(())
}

/// Asks for the statistics of each allocator of a process, once: they come with the first event of each from now on, also of one that only comes
/// into use later. Asked again, they come again.
///
/// # Errors
/// The table is full.
pub(crate) fn want_statistics(kernel: &mut Kernel, tgid: u32) -> Result<(), LoadError> {
    let request = clock::boottime_ns();
    hash::<u32, u64>(kernel, "STATISTICS_WANTED")?.insert(&tgid, &request, 0).map_err(in_table("STATISTICS_WANTED"))?;
    array(kernel, "STATISTICS_REQUEST")?.set(0, &request, 0).map_err(in_table("STATISTICS_REQUEST"))
}

/// Where the allocators of a process are, by device: what they have counted comes with a failure and with the end of the process.
///
/// # Errors
/// The table is full.
pub(crate) fn set_allocators(kernel: &mut Kernel, tgid: u32, allocators: &[(u32, u64)]) -> Result<(), LoadError> {
    const TABLE: &str = "ALLOCATORS";
    // The kernel half looks at the end of processes that it knows.
    kernel.make_known(tgid)?;
    let mut table = hash::<DeviceOfProcess, u64>(kernel, TABLE)?;
    for (ordinal, allocator) in allocators {
        table.insert(&DeviceOfProcess { ordinal: *ordinal, tgid }, allocator, 0).map_err(in_table(TABLE))?;
    }
    Ok(())
}

/// The kernel half forgets a process: its probes are out, or it has ended.
///
/// # Errors
/// The kernel half is not the one that belongs here.
pub(crate) fn forget(kernel: &mut Kernel, tgid: u32) -> Result<(), LoadError> {
    // Absent is as good as removed.
    let _ = hash::<u32, u8>(kernel, "TENSOR_TARGETS")?.remove(&tgid);
    let mut wanted = hash::<u32, u64>(kernel, "STATISTICS_WANTED")?;
    let _ = wanted.remove(&tgid);
    if wanted.keys().next().is_none() {
        array(kernel, "STATISTICS_REQUEST")?.set(0, &0, 0).map_err(in_table("STATISTICS_REQUEST"))?;
    }
    forget_stacks(kernel, tgid)
}

fn hash<'a, K: Pod, V: Pod>(
    kernel: &'a mut Kernel,
    table: &'static str,
) -> Result<HashMap<&'a mut MapData, K, V>, LoadError> {
    let map = kernel.ebpf.map_mut(table).ok_or(LoadError::Missing(table))?;
    HashMap::try_from(map).map_err(in_table(table))
}

fn array<'a>(kernel: &'a mut Kernel, table: &'static str) -> Result<Array<&'a mut MapData, u64>, LoadError> {
    let map = kernel.ebpf.map_mut(table).ok_or(LoadError::Missing(table))?;
    Array::try_from(map).map_err(in_table(table))
}

fn in_table(table: &'static str) -> impl Fn(MapError) -> LoadError {
    move |cause| LoadError::Table { table, cause }
}

#[cfg(test)]
mod tests;
