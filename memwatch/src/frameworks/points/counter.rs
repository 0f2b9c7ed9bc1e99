//! Finds, in a function that increments a thread-local counter, the call that gets the variable's
//! address and the counter's offset in the variable.
//!
//! For `return count++` with `thread_local uint64_t count` in a library, compilers emit (x86-64
//! psABI, general and local dynamic models):
//! ```text
//! sub $8,%rsp;  lea INDEX(%rip),%rdi;  call __tls_get_addr@plt;
//! mov OFFSET(%rax),%rdx;  lea 1(%rdx),%rcx;  mov %rcx,OFFSET(%rax);  …  ret
//! ```
//! The kernel emulates the call, so a probe on the call costs a tenth of probes on entry and
//! return, which it single-steps.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Maximum instructions of the function. Longer ones do more than count.
const INSTRUCTIONS: usize = 16;
/// Limit of the offsets that fit into a plan.
const OFFSETS: u64 = 1024;

/// Location of a function's thread-local counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadLocalCounter {
    /// Offset of the call to `__tls_get_addr` from the function's entry in bytes. At the call the
    /// first argument is the `tls_index`.
    pub(crate) offset_in_function: u64,
    /// Offset of the counter in the variable of the `tls_index`, in bytes.
    pub(crate) offset_in_variable: u16,
}

/// Returns the location of a function's counter; `None` if the code does anything unexpected.
pub(crate) fn counter(code: &[u8]) -> Option<ThreadLocalCounter> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut found: Option<ThreadLocalCounter> = None;
    let mut before = Instruction::default();
    for _ in 0..INSTRUCTIONS {
        let start = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        match instruction.flow_control() {
            // The kernel single-steps prefixed calls, so they are not accepted.
            FlowControl::Call if found.is_none() && code.get(start) == Some(&0xE8) && names_variable(&before) => {
                let offset_in_variable = loaded(&decoder.decode())?;
                found = Some(ThreadLocalCounter { offset_in_function: start as u64, offset_in_variable });
            }
            FlowControl::Next => {}
            FlowControl::Return => return found,
            _ => return None,
        }
        before = instruction;
    }
    None
}

/// Whether the instruction is `lea INDEX(%rip),%rdi`.
fn names_variable(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Lea
        && instruction.op0_register() == Register::RDI
        && instruction.is_ip_rel_memory_operand()
}

/// Returns the offset of `mov OFFSET(%rax),%reg`.
fn loaded(instruction: &Instruction) -> Option<u16> {
    let is_load = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().is_gpr64()
        && instruction.op1_kind() == OpKind::Memory
        && (instruction.memory_base(), instruction.memory_index()) == (Register::RAX, Register::None);
    let offset = instruction.memory_displacement64();
    u16::try_from(offset).ok().filter(|_| is_load && offset < OFFSETS)
}

#[cfg(test)]
mod tests {
    use super::{ThreadLocalCounter, counter};

    /// `at::sequence_number::get_and_increment()` of PyTorch 2.8.
    const COUNTS: [u8; 42] = [
        0x48, 0x83, 0xec, 0x08, 0x48, 0x8d, 0x3d, 0xed, 0x4f, 0x7c, 0x12, 0xe8, 0x70, 0x2b, 0x81, 0xff, 0x48, 0x8b,
        0x90, 0x30, 0x01, 0x00, 0x00, 0x48, 0x8d, 0x4a, 0x01, 0x48, 0x89, 0x88, 0x30, 0x01, 0x00, 0x00, 0x48, 0x89,
        0xd0, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];

    #[test]
    fn a_function_that_counts_in_a_variable_of_its_thread_is_known() {
        assert_eq!(counter(&COUNTS), Some(ThreadLocalCounter { offset_in_function: 11, offset_in_variable: 0x130 }));
    }

    #[test]
    fn counter_code_that_differs_is_refused() {
        for (index, other) in [
            (11, 0xe9), // A jump instead of a call.
            (6, 0x35),  // Loads another register than the first argument.
            (5, 0x8b),  // A load instead of `lea`.
            (18, 0x93), // Loads from another register.
            (20, 0x10), // The offset does not fit into a plan.
            (24, 0xe8), // A second call.
        ] {
            let mut code = COUNTS;
            code[index] = other;
            assert_eq!(counter(&code), None, "{index}");
        }
        assert_eq!(counter(&COUNTS[..30]), None, "it is cut off");
        assert_eq!(counter(&[]), None);
    }
}
