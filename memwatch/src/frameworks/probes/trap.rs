//! Measures the cost of one probe on this machine: attaches a probe to a function of memwatch and
//! calls that function.

use std::arch::naked_asm;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::Path;
use std::time::Instant;

use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};

use super::count::{COUNTS, program_of};
use super::{TensorProbes, chain, detach, hash, in_table};
use crate::sources::address_space::AddressSpace;
use crate::sources::kernel::load::{KernelHalf, LoadError, loaded_uprobe};

/// Number of measured rounds, of which the fastest counts. All rounds take 3 ms if a probe costs
/// 1.5 µs.
const ROUNDS: usize = 4;
const CALLS: u32 = 500;

/// The probed function. Begins as the driver's and PyTorch's functions do, with an instruction that
/// the kernel emulates instead of single-stepping it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn probed() {
    naked_asm!("push rbp", "pop rbp", "ret")
}

/// The probed function; the kernel emulates its `nop`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn probed() {
    naked_asm!("nop", "ret")
}

/// Measures the cost of a counting probe, in nanoseconds per call.
///
/// # Errors
/// A message that explains why the cost could not be measured.
pub(crate) fn measure(kernel: &mut KernelHalf) -> Result<NonZeroU64, String> {
    let own = std::process::id();
    let space = AddressSpace::open(own).map_err(|error| error.to_string())?;
    // Hides the function pointer from the optimiser, which could otherwise drop calls of a function
    // that does nothing.
    let function = std::hint::black_box(probed as extern "C" fn());
    let address = function as usize as u64;
    let mapping = space.mappings().iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
    let mapping = mapping.ok_or("cannot find the mapping of memwatch's own code")?;
    let file_offset = address - mapping.start + mapping.offset;
    let without_ns = fastest_ns(function);
    let probes = attach(kernel, own, file_offset)?;
    let counted = begin_count(kernel, own).map_err(|error| chain(&error));
    let with_ns = fastest_ns(function);
    let calls = counted.and_then(|()| end_count(kernel, own).map_err(|error| chain(&error)));
    detach(kernel, probes)?;
    let expected = u64::from(CALLS) * ROUNDS as u64;
    if calls? != expected {
        return Err("the probe was not reached by every call".to_owned());
    }
    let trap_ns = with_ns.saturating_sub(without_ns) / u64::from(CALLS);
    Ok(NonZeroU64::new(trap_ns).unwrap_or(NonZeroU64::MIN))
}

fn attach(kernel: &mut KernelHalf, own: u32, file_offset: u64) -> Result<TensorProbes, String> {
    let program = program_of(kernel.mechanism);
    let scope = match NonZeroU32::new(own) {
        Some(own) if kernel.mechanism.attaches_to_processes() => UProbeScope::OneProcess(own),
        _ => UProbeScope::AllProcesses,
    };
    let point = UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(file_offset), cookie: None };
    let loaded = loaded_uprobe(&mut kernel.ebpf, program).map_err(|error| chain(&error))?;
    let link = loaded.attach([point], Path::new("/proc/self/exe"), scope).map_err(|error| chain(&error))?;
    Ok(TensorProbes(vec![(program, link)]))
}

fn begin_count(kernel: &mut KernelHalf, own: u32) -> Result<(), LoadError> {
    hash::<u32, u64>(kernel, COUNTS)?.insert(&own, &0, 0).map_err(in_table(COUNTS))
}

/// Removes the counter and returns its value.
fn end_count(kernel: &mut KernelHalf, own: u32) -> Result<u64, LoadError> {
    let mut counts = hash::<u32, u64>(kernel, COUNTS)?;
    let count = counts.get(&own, 0).map_err(in_table(COUNTS))?;
    counts.remove(&own).map_err(in_table(COUNTS))?;
    Ok(count)
}

/// Time of [`CALLS`] calls in the fastest round.
fn fastest_ns(function: extern "C" fn()) -> u64 {
    let round = |_| {
        let begun = Instant::now();
        (0..CALLS).for_each(|_| function());
        u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    };
    (0..ROUNDS).map(round).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::kernel::load::LoadOptions;

    #[test]
    fn a_probe_on_an_own_function_is_counted_has_a_price_and_leaves_nothing() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: programs are loaded by root");
            return;
        }
        for classic_uprobes in [false, true] {
            let options =
                LoadOptions { all_processes: false, ring_bytes: 1 << 16, classic_uprobes, diagnostics: false };
            let mut kernel = KernelHalf::load(options).expect("it is loaded");
            for _ in 0..2 {
                measure(&mut kernel).expect("every call comes by it");
            }
            let counts = hash::<u32, u64>(&mut kernel, COUNTS).expect("the map is there");
            assert_eq!(counts.keys().count(), 0);
        }
    }
}
