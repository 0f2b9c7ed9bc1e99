//! Counts tensor events of one process with the cheapest possible probe, which keeps only a
//! counter.

use std::num::NonZeroU32;
use std::path::Path;

use aya::programs::uprobe::UProbeScope;

use super::{TensorProbes, attach_program, chain, hash, in_table};
use crate::frameworks::points::TensorPoint;
use crate::sources::kernel::load::{KernelHalf, LoadError, Mechanism};

pub(super) const COUNTS: &str = "TENSOR_COUNTS";

/// Name of the BPF program that only counts.
pub(super) const fn program_of(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::UprobeMulti => "mw_tensor_count",
        Mechanism::Classic => "mw_tensor_count_classic",
    }
}

/// Starts to count how often a process reaches this point.
///
/// # Errors
/// A message that explains why nothing is counted.
pub(crate) fn begin_count(
    kernel: &mut KernelHalf,
    path: &Path,
    tgid: NonZeroU32,
    point: &TensorPoint,
) -> Result<TensorProbes, String> {
    let program = program_of(kernel.mechanism);
    let one_process = kernel.mechanism.attaches_to_processes();
    // Other processes that map the file are not counted: they are not in the map.
    let scope = if one_process { UProbeScope::OneProcess(tgid) } else { UProbeScope::AllProcesses };
    set(kernel, tgid.get()).map_err(|error| chain(&error))?;
    let link = attach_program(kernel, program, (path, scope), &[point])?;
    Ok(TensorProbes(vec![(program, link)]))
}

/// Attaches counting probes at these points of one process, only for the time each probe costs.
///
/// # Errors
/// A message that explains why nothing is attached.
pub(crate) fn begin_load(
    kernel: &mut KernelHalf,
    path: &Path,
    tgid: NonZeroU32,
    points: &[TensorPoint],
) -> Result<TensorProbes, String> {
    if !kernel.mechanism.attaches_to_processes() {
        return Err("this kernel cannot restrict uprobes to one process".to_owned());
    }
    let program = program_of(kernel.mechanism);
    let points: Vec<&TensorPoint> = points.iter().collect();
    let link = attach_program(kernel, program, (path, UProbeScope::OneProcess(tgid)), &points)?;
    Ok(TensorProbes(vec![(program, link)]))
}

/// Returns the count so far; `None` if the process has exited.
///
/// # Errors
/// A map is missing: the loaded kernel half is of another build.
pub(crate) fn counted(kernel: &mut KernelHalf, tgid: u32) -> Result<Option<u64>, LoadError> {
    Ok(hash::<u32, u64>(kernel, COUNTS)?.get(&tgid, 0).ok())
}

/// Removes the counter of a process.
///
/// # Errors
/// A map is missing: the loaded kernel half is of another build.
pub(crate) fn forget_count(kernel: &mut KernelHalf, tgid: u32) -> Result<(), LoadError> {
    // A missing entry is not an error.
    let _ = hash::<u32, u64>(kernel, COUNTS)?.remove(&tgid);
    Ok(())
}

fn set(kernel: &mut KernelHalf, tgid: u32) -> Result<(), LoadError> {
    hash::<u32, u64>(kernel, COUNTS)?.insert(&tgid, &0, 0).map_err(in_table(COUNTS))
}
