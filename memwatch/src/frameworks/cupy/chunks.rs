//! Checks that a build's CuPy chunks have the layout that the kernel half reads, by the code of
//! `PooledMemory._init`, which copies all fields.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use memwatch_common::tensor::{CHUNK_MEMORY_BYTES, MEMORY_ADDRESS_BYTES};

const WORD_BYTES: u64 = 8;

/// Whether a chunk has its memory, its offset in that and its size in three consecutive words, and
/// the memory has its address, its size and its device.
pub(super) fn are_as_expected(code: &[u8]) -> bool {
    let all: Vec<Instruction> = Decoder::new(64, code, DecoderOptions::NONE).into_iter().collect();
    let ends = |one: &&Instruction| !matches!(one.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
    let straight: Vec<&Instruction> = all.iter().take_while(|one| !ends(one)).collect();
    let is_read = |mnemonic: Mnemonic, (base, offset): MemoryOperand, bytes: usize| {
        straight.iter().any(|one| read(one, mnemonic, bytes) == Some((base, offset)))
    };
    let memories = straight.iter().filter_map(|one| {
        let (chunk, offset) = read(one, Mnemonic::Mov, 8)?;
        (offset == CHUNK_MEMORY_BYTES).then_some((chunk, one.op0_register()))
    });
    memories.into_iter().any(|(chunk, memory)| {
        let (offset, size) = ((chunk, CHUNK_MEMORY_BYTES + WORD_BYTES), (chunk, CHUNK_MEMORY_BYTES + 2 * WORD_BYTES));
        let (address, device) = ((memory, MEMORY_ADDRESS_BYTES), (memory, MEMORY_ADDRESS_BYTES + 2 * WORD_BYTES));
        let is_sum = |one, other| is_read(Mnemonic::Mov, one, 8) && is_read(Mnemonic::Add, other, 8);
        (is_sum(address, offset) || is_sum(offset, address))
            && is_read(Mnemonic::Mov, size, 8)
            && is_read(Mnemonic::Mov, device, 4)
    })
}

/// A base register and an offset.
type MemoryOperand = (Register, u64);

/// Returns where an instruction reads `bytes` bytes into a register.
fn read(one: &Instruction, mnemonic: Mnemonic, bytes: usize) -> Option<MemoryOperand> {
    let is_read = one.mnemonic() == mnemonic
        && one.op0_kind() == OpKind::Register
        && one.op0_register().size() == bytes
        && one.op1_kind() == OpKind::Memory
        && one.memory_index() == Register::None;
    is_read.then(|| (one.memory_base(), one.memory_displacement64()))
}

#[cfg(test)]
mod tests {
    use super::are_as_expected;

    /// `PooledMemory._init` of CuPy 14.2.0 for Python 3.11: `push %r12; mov %rdx,%r12; push %rbp;
    /// mov %rsi,%rbp; push %rbx; mov %rdi,%rbx; mov 0x40(%rdi),%rdi; addq $1,(%rsi); subq
    /// $1,(%rdi); je`, and then the chunk in `%rbp` and its memory in `%r8`.
    const INIT: &[u8] = &[
        0x41, 0x54, 0x49, 0x89, 0xd4, 0x55, 0x48, 0x89, 0xf5, 0x53, 0x48, 0x89, 0xfb, 0x48, 0x8b, 0x7f, 0x40, 0x48,
        0x83, 0x06, 0x01, 0x48, 0x83, 0x2f, 0x01, 0x0f, 0x84, 0x31, 0x03, 0, 0, 0x4c, 0x8b, 0x45, 0x18, 0x48, 0x8b,
        0x7b, 0x30, 0x48, 0x89, 0x6b, 0x40, 0x49, 0x8b, 0x40, 0x10, 0x48, 0x03, 0x45, 0x20, 0x48, 0x89, 0x43, 0x10,
        0x48, 0x8b, 0x45, 0x28, 0x48, 0x89, 0x43, 0x18, 0x41, 0x8b, 0x40, 0x20, 0x89, 0x43, 0x20,
    ];

    #[test]
    fn the_code_that_copies_a_chunk_says_where_its_parts_are() {
        assert!(are_as_expected(INIT));
        for (at, what) in
            [(34, "the memory"), (46, "the address"), (50, "the offset"), (58, "the size"), (66, "the device")]
        {
            let mut other = INIT.to_vec();
            other[at] += 8;
            assert!(!are_as_expected(&other), "{what} lies elsewhere");
        }
        for length in 0..INIT.len() - 3 {
            assert!(!are_as_expected(&INIT[..length]), "{length}");
        }
    }
}
