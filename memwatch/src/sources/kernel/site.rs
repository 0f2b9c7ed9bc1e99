//! Chooses the instruction of a function on which the probes are placed.
//!
//! A uprobe on an instruction that the kernel cannot emulate is single-stepped, which costs several
//! times more per call. [`select`] walks the entry block and takes the first emulated instruction
//! that every call reaches exactly once with the arguments and the return address still in place.
//! In case of doubt it keeps the entry, which is always correct.
//!
//! Known limit: only direct branches within the function itself are seen. No compiler generates a
//! jump table or a call from another function that leads into the middle of an entry block.

mod emulation;
mod scan;

use std::fmt;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfo, InstructionInfoFactory, OpAccess, OpKind,
    Register, UsedMemory, UsedRegister,
};

use super::resolve::InstructionSet;

/// Maximum number of instructions skipped in the entry block. A compiler's prologue is decided
/// within a few instructions, and arguments rarely survive longer.
const MAX_SKIPPED: usize = 16;

/// Registers whose values a record contains (System V x86-64 calling convention).
const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// The part of a kernel release that determines which instructions are emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KernelVersion {
    /// First number of the release.
    pub(crate) major: u32,
    /// Second number of the release.
    pub(crate) minor: u32,
}

impl KernelVersion {
    /// Parses a release string as in `/proc/sys/kernel/osrelease`: `6.18.44-generic` is 6.18.
    pub(crate) fn from_release(release: &str) -> Option<Self> {
        let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
        Some(Self { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
    }
}

/// Why the probes of a function are placed where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SiteReason {
    /// The first instruction is emulated, so moving would gain nothing.
    EntryEmulated,
    /// The probes moved past this many instructions that would have been single-stepped.
    MovedPast {
        /// Number of instructions between the entry and the probes; at least 1.
        instructions: usize,
    },
    /// The entry stays: the entry block has no instruction that this kernel emulates.
    NoEmulatedInstruction,
    /// The entry stays: the stack pointer, or memory reached through it, is written first.
    StackWritten,
    /// The entry stays: an argument register is written first.
    ArgumentWritten,
    /// The entry stays: memory that an argument may point to is written first.
    MemoryWritten,
    /// The entry stays: the function branches back into the instructions before the probes.
    BranchIntoPrologue {
        /// Offset of the branch from the function's entry, in bytes.
        from: u64,
    },
    /// The entry stays: the code at this offset cannot be decoded or is cut off.
    Undecodable {
        /// Offset from the function's entry, in bytes.
        at: u64,
    },
    /// The entry stays: the file has no code for the function, or more code than is analysed.
    CodeUnknown,
    /// The entry stays: it is not known which instructions are emulated on this architecture.
    UnsupportedMachine,
}

impl fmt::Display for SiteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EntryEmulated => f.write_str("the first instruction is emulated"),
            Self::MovedPast { instructions: 1 } => f.write_str("moved past 1 instruction"),
            Self::MovedPast { instructions } => write!(f, "moved past {instructions} instructions"),
            Self::NoEmulatedInstruction => f.write_str("no emulated instruction in the entry block"),
            Self::StackWritten => f.write_str("the stack is written first"),
            Self::ArgumentWritten => f.write_str("an argument register is written first"),
            Self::MemoryWritten => f.write_str("memory is written first"),
            Self::BranchIntoPrologue { from } => {
                write!(f, "the branch at +{from:#x} returns into the entry block")
            }
            Self::Undecodable { at } => write!(f, "the code at +{at:#x} cannot be decoded"),
            Self::CodeUnknown => f.write_str("the length of the function is unknown or too large"),
            Self::UnsupportedMachine => f.write_str("sites are chosen on x86-64 only"),
        }
    }
}

/// Attach offset of the entry and the return probe of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachOffset {
    /// Bytes from the function's entry to the probed instruction.
    pub(crate) offset_in_function: u64,
    /// Why this instruction was chosen.
    pub(crate) reason: SiteReason,
    /// The instruction, by mnemonic: `je`, `push rbp`; empty if it cannot be decoded.
    pub(crate) instruction: String,
    /// Whether the kernel emulates the instruction; otherwise every call is single-stepped.
    pub(crate) emulated: bool,
}

impl AttachOffset {
    fn entry(code: &[u8], reason: SiteReason) -> Self {
        let first = Decoder::new(64, code, DecoderOptions::NONE).decode();
        let decoded = reason != SiteReason::UnsupportedMachine && !first.is_invalid();
        Self {
            offset_in_function: 0,
            reason,
            instruction: if decoded { text(&first) } else { String::new() },
            emulated: reason == SiteReason::EntryEmulated,
        }
    }
}

/// Chooses the attach offset of the function whose complete machine code is `code`.
///
/// `address` is the function's virtual address in its file. Never fails: where the code cannot be
/// analysed, the entry is kept, and [`AttachOffset::reason`] has the reason.
pub(crate) fn select(code: &[u8], address: u64, machine: InstructionSet, kernel: KernelVersion) -> AttachOffset {
    choose(code, address, machine, kernel, &ARGUMENTS)
}

/// Does the same for a function whose arguments are not needed.
pub(crate) fn select_without_arguments(
    code: &[u8],
    address: u64,
    machine: InstructionSet,
    kernel: KernelVersion,
) -> AttachOffset {
    choose(code, address, machine, kernel, &[])
}

fn choose(
    code: &[u8],
    address: u64,
    machine: InstructionSet,
    kernel: KernelVersion,
    wanted: &[Register],
) -> AttachOffset {
    if machine != InstructionSet::X86_64 {
        return AttachOffset::entry(code, SiteReason::UnsupportedMachine);
    }
    if code.is_empty() {
        return AttachOffset::entry(code, SiteReason::CodeUnknown);
    }
    let chosen = first_emulated(code, address, kernel, wanted)
        .and_then(|site| scan::reached_once(code, address, site.offset_in_function).map(|()| site));
    chosen.unwrap_or_else(|reason| AttachOffset::entry(code, reason))
}

/// Walks the entry block to its first emulated instruction.
fn first_emulated(
    code: &[u8],
    address: u64,
    kernel: KernelVersion,
    wanted: &[Register],
) -> Result<AttachOffset, SiteReason> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut effects = InstructionInfoFactory::new();
    for instructions in 0..=MAX_SKIPPED {
        let start = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(SiteReason::Undecodable { at: start as u64 });
        }
        if emulation::is_emulated(&code[start..start + instruction.len()], kernel) {
            return Ok(AttachOffset {
                offset_in_function: start as u64,
                reason: match instructions {
                    0 => SiteReason::EntryEmulated,
                    _ => SiteReason::MovedPast { instructions },
                },
                instruction: text(&instruction),
                emulated: true,
            });
        }
        if instruction.flow_control() != FlowControl::Next {
            return Err(SiteReason::NoEmulatedInstruction);
        }
        if let Some(reason) = spoils(effects.info(&instruction), wanted) {
            return Err(reason);
        }
    }
    Err(SiteReason::NoEmulatedInstruction)
}

/// Returns which part of the caller's state an instruction destroys. Returns `None` if a probe
/// after the instruction sees the same wanted arguments, stack and pointed-to memory as one before
/// it.
fn spoils(effects: &InstructionInfo, wanted: &[Register]) -> Option<SiteReason> {
    let written = |register: &&UsedRegister| writes(register.access());
    if let Some(register) = effects.used_registers().iter().filter(written).find_map(|used| {
        let register = used.register().full_register();
        (register == Register::RSP || wanted.contains(&register)).then_some(register)
    }) {
        return Some(match register {
            Register::RSP => SiteReason::StackWritten,
            _ => SiteReason::ArgumentWritten,
        });
    }
    let stored = |memory: &&UsedMemory| writes(memory.access());
    effects.used_memory().iter().filter(stored).find_map(|memory| {
        let through = [memory.base().full_register(), memory.index().full_register()];
        if through.contains(&Register::RSP) {
            return Some(SiteReason::StackWritten);
        }
        // An operand without registers is a fixed address: the library's own data.
        (through != [Register::None; 2]).then_some(SiteReason::MemoryWritten)
    })
}

fn writes(access: OpAccess) -> bool {
    !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
}

/// Returns the mnemonic in lower case, with the register for instructions with a single one.
fn text(instruction: &Instruction) -> String {
    let mnemonic = format!("{:?}", instruction.mnemonic()).to_lowercase();
    if instruction.op_count() == 1 && instruction.op0_kind() == OpKind::Register {
        return format!("{mnemonic} {:?}", instruction.op0_register()).to_lowercase();
    }
    mnemonic
}

#[cfg(test)]
mod tests;
