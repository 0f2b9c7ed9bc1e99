//! Tensor events of one process, counted by the cheapest probe there is: nothing of them is kept but their number.

use std::num::NonZeroU32;
use std::path::Path;

use aya::programs::uprobe::UProbeScope;

use super::{TensorProbes, attach_program, chain, hash, in_table};
use crate::frameworks::pytorch::TensorPoint;
use crate::sources::kernel::load::{Kernel, LoadError, Mechanism};

pub(super) const COUNTS: &str = "TENSOR_COUNTS";

/// The program that does nothing but count.
pub(super) const fn program_of(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::UprobeMulti => "mw_tensor_count",
        Mechanism::Classic => "mw_tensor_count_classic",
    }
}

/// Counts how often a process comes to this point from now on.
///
/// # Errors
/// A sentence that says why nothing is counted.
pub(crate) fn begin_count(
    kernel: &mut Kernel,
    path: &Path,
    tgid: NonZeroU32,
    point: &TensorPoint,
) -> Result<TensorProbes, String> {
    let program = program_of(kernel.mechanism);
    let one_process = kernel.mechanism.attaches_to_processes();
    // Of others that have the file nothing is counted: they are not in the table.
    let scope = if one_process { UProbeScope::OneProcess(tgid) } else { UProbeScope::AllProcesses };
    set(kernel, tgid.get()).map_err(|error| chain(&error))?;
    let link = attach_program(kernel, program, (path, scope), &[point])?;
    Ok(TensorProbes(vec![(program, link)]))
}

/// Puts a probe at these points of one process that does nothing but what each does: it takes its time.
///
/// # Errors
/// A sentence that says why it is not there.
pub(crate) fn begin_load(
    kernel: &mut Kernel,
    path: &Path,
    tgid: NonZeroU32,
    points: &[TensorPoint],
) -> Result<TensorProbes, String> {
    if !kernel.mechanism.attaches_to_processes() {
        return Err("this kernel puts no probes into one process".to_owned());
    }
    let program = program_of(kernel.mechanism);
    let points: Vec<&TensorPoint> = points.iter().collect();
    let link = attach_program(kernel, program, (path, UProbeScope::OneProcess(tgid)), &points)?;
    Ok(TensorProbes(vec![(program, link)]))
}

/// How often it came there so far; `None` where it has ended meanwhile.
///
/// # Errors
/// The kernel half is not the one that belongs here.
pub(crate) fn counted(kernel: &mut Kernel, tgid: u32) -> Result<Option<u64>, LoadError> {
    Ok(hash::<u32, u64>(kernel, COUNTS)?.get(&tgid, 0).ok())
}

/// The count is of no use any more.
///
/// # Errors
/// The kernel half is not the one that belongs here.
pub(crate) fn forget_count(kernel: &mut Kernel, tgid: u32) -> Result<(), LoadError> {
    // Absent is as good as removed.
    let _ = hash::<u32, u64>(kernel, COUNTS)?.remove(&tgid);
    Ok(())
}

fn set(kernel: &mut Kernel, tgid: u32) -> Result<(), LoadError> {
    hash::<u32, u64>(kernel, COUNTS)?.insert(&tgid, &0, 0).map_err(in_table(COUNTS))
}
