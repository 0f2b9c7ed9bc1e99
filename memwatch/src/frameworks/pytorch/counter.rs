//! Where a function that counts in a variable of its thread asks for that variable, and where in it the count is.
//!
//! A compiler makes of `return count++` with `thread_local uint64_t count`, in a library (x86-64 psABI, general and local dynamic models):
//! ```text
//! sub $8,%rsp;  lea INDEX(%rip),%rdi;  call __tls_get_addr@plt;  mov OFFSET(%rax),%rdx;  lea 1(%rdx),%rcx;  mov %rcx,OFFSET(%rax);  …  ret
//! ```
//! The kernel emulates the call, so a probe on it costs a tenth of one at the entry and the return, where it steps through.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Longer functions do more than to count.
const INSTRUCTIONS: usize = 16;
/// Offsets that a plan has room for.
const OFFSETS: u64 = 1024;

/// Where a function counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    /// The call that asks for the variable, in bytes from the function's entry; there the first argument is its `tls_index`.
    pub(crate) offset_in_function: u64,
    /// The count, in bytes from the beginning of what the `tls_index` names.
    pub(crate) offset_in_variable: u16,
}

/// Where the function with this code counts; `None` where it does anything that is not expected.
pub(crate) fn counter(code: &[u8]) -> Option<Counter> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut found: Option<Counter> = None;
    let mut before = Instruction::default();
    for _ in 0..INSTRUCTIONS {
        let start = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        match instruction.flow_control() {
            // Prefixed calls are stepped through.
            FlowControl::Call if found.is_none() && code.get(start) == Some(&0xE8) && names_variable(&before) => {
                let offset_in_variable = loaded(&decoder.decode())?;
                found = Some(Counter { offset_in_function: start as u64, offset_in_variable });
            }
            FlowControl::Next => {}
            FlowControl::Return => return found,
            _ => return None,
        }
        before = instruction;
    }
    None
}

/// `lea INDEX(%rip),%rdi`.
fn names_variable(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Lea
        && instruction.op0_register() == Register::RDI
        && instruction.is_ip_rel_memory_operand()
}

/// The offset in `mov OFFSET(%rax),%reg`.
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
    use super::{Counter, counter};

    /// `at::sequence_number::get_and_increment()` as it is in PyTorch 2.8.
    const COUNTS: [u8; 42] = [
        0x48, 0x83, 0xec, 0x08, 0x48, 0x8d, 0x3d, 0xed, 0x4f, 0x7c, 0x12, 0xe8, 0x70, 0x2b, 0x81, 0xff, 0x48, 0x8b,
        0x90, 0x30, 0x01, 0x00, 0x00, 0x48, 0x8d, 0x4a, 0x01, 0x48, 0x89, 0x88, 0x30, 0x01, 0x00, 0x00, 0x48, 0x89,
        0xd0, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];

    #[test]
    fn a_function_that_counts_in_a_variable_of_its_thread_is_known() {
        assert_eq!(counter(&COUNTS), Some(Counter { offset_in_function: 11, offset_in_variable: 0x130 }));
    }

    #[test]
    fn any_other_code_is_not() {
        for (index, other) in [
            (11, 0xe9), // It jumps where it should call.
            (6, 0x35),  // It names something else than the first argument.
            (5, 0x8b),  // It loads what it should name.
            (18, 0x93), // It loads from elsewhere.
            (20, 0x10), // The count is further away than a plan can say.
            (24, 0xe8), // It calls once more.
        ] {
            let mut code = COUNTS;
            code[index] = other;
            assert_eq!(counter(&code), None, "{index}");
        }
        assert_eq!(counter(&COUNTS[..30]), None, "it is cut off");
        assert_eq!(counter(&[]), None);
    }
}
