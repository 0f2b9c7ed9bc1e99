//! How much the kernel goes through to prove the largest program safe.

use crate::frameworks::probes::{operator_program, prepare, programs};
use crate::sources::kernel::load::{Kernel, LoadOptions, loaded_uprobe, may_probe, uprobe};

/// The kernel gives up at a million instructions (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h), and other kernels go through more of them for the
/// same program. 791,986 on Linux 6.18.
const MOST_INSTRUCTIONS: u32 = 900_000;

/// One way more through what comes before the walk of a stack can multiply it: that shows as a program that takes 20 seconds to load, or none.
#[test]
fn the_kernel_proves_the_program_for_tensors_well_before_it_gives_up() {
    if !may_probe() {
        return;
    }
    for classic_uprobes in [false, true] {
        let options = LoadOptions { all_processes: true, ring_bytes: 1 << 20, classic_uprobes, diagnostics: false };
        let mut kernel = Kernel::load(options).expect("the kernel half is loaded");
        prepare(&mut kernel);
        let (entry, _) = programs(kernel.mechanism);
        let program = uprobe(&mut kernel.ebpf, entry).expect("there is one");
        let info = program.info().expect("it is loaded");
        // Linux counts them since 5.16.
        let Some(instructions) = info.verified_instruction_count() else { return };
        eprintln!("{entry}: {instructions} instructions");
        assert!(instructions < MOST_INSTRUCTIONS, "{entry}: {instructions} instructions");
    }
}

#[test]
fn the_kernel_proves_the_program_that_names_operators() {
    if !may_probe() {
        return;
    }
    for classic_uprobes in [false, true] {
        let options = LoadOptions { all_processes: true, ring_bytes: 1 << 20, classic_uprobes, diagnostics: false };
        let mut kernel = Kernel::load(options).expect("the kernel half is loaded");
        let program = operator_program(kernel.mechanism);
        let info = loaded_uprobe(&mut kernel.ebpf, program).expect("it is proved safe").info().expect("it is loaded");
        eprintln!("{program}: {:?} instructions", info.verified_instruction_count());
    }
}
