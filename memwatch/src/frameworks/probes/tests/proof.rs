//! Number of instructions that the kernel verifies for each program.

use crate::sources::kernel::load::{KernelHalf, LoadOptions, Mechanism, chain, may_probe};

use aya::programs::Program;

/// The kernel gives up at a million instructions (`BPF_COMPLEXITY_LIMIT_INSNS`,
/// include/linux/bpf.h). Kernels before 6.2 verify several times as many for the same program;
/// `cargo xtask kernels` runs this test on them. The largest program, `mw_tensor_enter`, takes
/// 53,247 on Linux 6.18.
const MOST_INSTRUCTIONS: u32 = 200_000;

/// One more path before a long part can multiply the number. The program then takes 20 seconds to
/// load, or does not load.
#[test]
fn the_kernel_proves_every_program_well_before_it_gives_up() {
    if !may_probe() {
        return;
    }
    let mut wrong = Vec::new();
    for classic_uprobes in [false, true] {
        let options = LoadOptions { all_processes: true, ring_bytes: 1 << 20, classic_uprobes, diagnostics: false };
        let mut kernel = KernelHalf::load(options).expect("the kernel half is loaded");
        let is_classic = kernel.mechanism == Mechanism::Classic;
        for (name, program) in kernel.ebpf.programs_mut() {
            let Program::UProbe(program) = program else { continue };
            if name.ends_with("_classic") != is_classic {
                continue;
            }
            let loaded = if program.fd().is_ok() { Ok(()) } else { program.load() };
            let instructions = loaded.and_then(|()| Ok(program.info()?.verified_instruction_count()));
            match instructions {
                // Linux reports the count since 5.16.
                Ok(None) => eprintln!("{name}: proved"),
                Ok(Some(instructions)) => {
                    eprintln!("{name}: {instructions} instructions");
                    if instructions > MOST_INSTRUCTIONS {
                        wrong.push(name.to_owned());
                    }
                }
                Err(error) => {
                    let text = chain(&error);
                    eprintln!(
                        "{name}: {} ... {}",
                        &text[..text.len().min(200)],
                        &text[text.len().saturating_sub(2000)..]
                    );
                    wrong.push(name.to_owned());
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
