//! Finds the call instructions in PyTorch's allocator that report, trace and complete a block. One
//! probe on such a call shows everything about a block.
//!
//! Where `alloc_found_block` and `free` call `reportMemoryUsageToProfiler`, their state is in
//! registers: the compiler has loaded the arguments from the block and from the allocator's
//! counters, which shows where both are. The trace's actions are constants. The code has this shape
//! in 2.6, 2.8 to 2.11 and 2.15. Any doubt yields `None`, and the functions themselves are probed
//! instead.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use memwatch_common::tensor::{
    ALLOCATION_TO_BYTES_WORDS, BLOCK_OFFSETS, BlockPlan, FrameworkLibrary, HoldingRegister, TENSOR_PROBES,
    TensorMeaning, TensorPlan, TensorProbe,
};

use crate::frameworks::points;
use crate::frameworks::points::TensorPoint;
use crate::frameworks::symbols::{SymbolName, Symbols, functions, symbols};
use crate::sources::kernel::resolve::{FunctionLocation, InstructionSet, ResolveError, SymbolLayout};
use crate::sources::kernel::site::KernelVersion;
use crate::sources::kernel::stub;
use crate::stranger_file::ElfReader;

/// Keys of the functions of `DeviceCachingAllocator` that every block passes through.
const RECORD_TRACE: u16 = 0;
const FREE_BLOCK: u16 = 1;
const ALLOC_FOUND_BLOCK: u16 = 2;
const FREE: u16 = 3;
/// `free` forwards to this function from 2.15 on.
const FREE_LOCKED: u16 = 4;

macro_rules! named {
    ($key:ident, $rest:literal) => {
        SymbolName {
            key: $key,
            beginning: concat!("_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator", $rest),
            ending: "",
        }
    };
}

/// The functions that call each other or contain the calls.
const NAMES: [SymbolName; 5] = [
    named!(RECORD_TRACE, "12record_traceE"),
    named!(FREE_BLOCK, "10free_blockE"),
    named!(ALLOC_FOUND_BLOCK, "17alloc_found_blockE"),
    named!(FREE, "4freeE"),
    named!(FREE_LOCKED, "11free_lockedE"),
];
/// The function that reports blocks, in another library.
const REPORT: &str = "_ZN3c1027reportMemoryUsageToProfilerE";

/// Values of `TraceEntry::Action` that the other calls already show.
const ALLOC: u64 = 0;
const FREE_REQUESTED: u64 = 1;
const FREE_COMPLETED: u64 = 2;

/// Maximum size of a decoded function. PyTorch's longest here has 10 KiB.
const CODE_BYTES: u64 = 1 << 20;
/// Maximum decoded bytes and functions in all. PyTorch's library has 0.5 MiB and 3,000.
const ALL_CODE_BYTES: u64 = 32 << 20;
const MOST_FUNCTIONS: usize = 1 << 18;
/// Number of instructions examined before a call.
const LOOKED_AT: usize = 32;
/// Distance from a block's size to its address in bytes: `size`, `requested_size` and `pool` come
/// between.
const SIZE_TO_ADDRESS: u64 = 24;
/// Distance from the counter of allocated bytes to that of reserved bytes: three `Stat` of four
/// words.
const ALLOCATED_TO_RESERVED: u64 = 96;
/// Offsets from here on do not fit into a plan.
const OFFSETS: u64 = 4096;

/// An instruction that calls or jumps to one of the target functions.
struct AllocatorCall {
    file_offset: u64,
    target: CallTarget,
    is_jump: bool,
    /// Key of the function that contains the instruction, if it is one of [`NAMES`].
    inside: Option<u16>,
    /// Preceding instructions up to the previous jump or call, last one first.
    before: Vec<Instruction>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallTarget {
    Report,
    RecordTrace,
    FreeBlock,
}

/// Finds the probe points of the allocators' library: functions by symbol name, and the calls.
///
/// # Errors
/// The file cannot be read or parsed.
pub(crate) fn allocator_points(
    file: &File,
    library: FrameworkLibrary,
    kernel: KernelVersion,
) -> Result<Vec<TensorPoint>, ResolveError> {
    let mut points = points::points(file, library, kernel)?;
    let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
    let cache = ElfReader::new(clone);
    let layout = SymbolLayout::parse(&cache)?;
    let (found, all) = (symbols(file, &layout, &NAMES)?, functions(file, &layout, MOST_FUNCTIONS)?);
    match calls(file, &layout, &all, &found) {
        Some(calls) => points.extend(calls),
        None => log::info!("PyTorch's allocator in this build needs several probes per block"),
    }
    Ok(points)
}

/// Returns all probe points on calls; `None` if this build's code is not as expected.
fn calls(
    file: &File,
    layout: &SymbolLayout<'_>,
    all: &[FunctionLocation],
    found: &Symbols,
) -> Option<Vec<TensorPoint>> {
    let code_bytes = all.iter().map(|function| function.size_bytes).fold(0, u64::saturating_add);
    if layout.machine() != InstructionSet::X86_64 || code_bytes > ALL_CODE_BYTES || all.len() > MOST_FUNCTIONS {
        return None;
    }
    let stubs = stub::find(file, REPORT).ok()?;
    let mut targets: Vec<(u64, CallTarget)> =
        stubs.iter().map(|stub| Some((layout.address_of(*stub)?, CallTarget::Report))).collect::<Option<_>>()?;
    targets.push((found.functions.get(&RECORD_TRACE)?.address, CallTarget::RecordTrace));
    targets.push((found.functions.get(&FREE_BLOCK)?.address, CallTarget::FreeBlock));
    let mut calls = Vec::new();
    for function in all {
        let inside = found.functions.iter().find(|(_, named)| named.address == function.address).map(|(key, _)| *key);
        find_calls(file, (function, inside), &targets, &mut calls)?;
    }
    points_of(&calls)
}

/// Adds the calls in a function. Returns `None` if a target is reached by an instruction that
/// cannot be probed.
fn find_calls(
    file: &File,
    (function, inside): (&FunctionLocation, Option<u16>),
    targets: &[(u64, CallTarget)],
    calls: &mut Vec<AllocatorCall>,
) -> Option<()> {
    if function.size_bytes > CODE_BYTES {
        return None;
    }
    let mut code = vec![0; usize::try_from(function.size_bytes).ok()?];
    file.read_exact_at(&mut code, function.file_offset).ok()?;
    let mut decoder = Decoder::with_ip(64, &code, function.address, DecoderOptions::NONE);
    let mut before: Vec<Instruction> = Vec::new();
    for instruction in &mut decoder {
        let target = targets.iter().find(|(address, _)| instruction.near_branch_target() == *address);
        if let Some((_, target)) = target.filter(|_| instruction.op0_kind() == OpKind::NearBranch64) {
            let offset = instruction.ip() - function.address;
            let opcode = code.get(usize::try_from(offset).ok()?);
            let is_jump = match opcode {
                Some(0xe8) => false,
                Some(0xe9) => true,
                // A prefixed or conditional branch, which the kernel would single-step.
                _ => return None,
            };
            let last_first = before.iter().rev().take(LOOKED_AT).copied().collect();
            let file_offset = function.file_offset + offset;
            calls.push(AllocatorCall { file_offset, target: *target, is_jump, inside, before: last_first });
        }
        if instruction.flow_control() == FlowControl::Next {
            before.push(instruction);
        } else {
            before.clear();
        }
    }
    Some(())
}

fn points_of(calls: &[AllocatorCall]) -> Option<Vec<TensorPoint>> {
    let mut points = Vec::new();
    let (mut actions, mut block_offset, mut is_given_back) = (Vec::new(), None, false);
    for call in calls {
        let is_in_free = matches!(call.inside, Some(FREE | FREE_LOCKED));
        match call.target {
            CallTarget::Report if call.inside == Some(ALLOC_FOUND_BLOCK) => {
                let plan = granted(call)?;
                let BlockPlan::Granted { offset_bytes, .. } = plan else { return None };
                if block_offset.replace(offset_bytes).is_some_and(|before| before != offset_bytes) {
                    return None;
                }
                points.push(point(call, TensorMeaning::Granted, plan)?);
            }
            CallTarget::Report if is_in_free => {
                points.push(point(call, TensorMeaning::GivenBack, given_back(call)?)?);
                is_given_back = true;
            }
            CallTarget::Report => return None,
            CallTarget::RecordTrace => {
                let action = constant(call, Register::RSI).filter(|_| !call.is_jump)?;
                let is_expected = match action {
                    ALLOC => call.inside == Some(ALLOC_FOUND_BLOCK),
                    FREE_REQUESTED => is_in_free,
                    FREE_COMPLETED => call.inside == Some(FREE_BLOCK),
                    _ => {
                        points.push(point(call, TensorMeaning::TracedRarely, BlockPlan::None)?);
                        true
                    }
                };
                actions.push(action);
                if !is_expected {
                    return None;
                }
            }
            CallTarget::FreeBlock => {}
        }
    }
    let offset_bytes = block_offset.filter(|_| is_given_back)?;
    let is_traced = [ALLOC, FREE_REQUESTED, FREE_COMPLETED].iter().all(|action| actions.contains(action));
    for call in calls.iter().filter(|call| call.target == CallTarget::FreeBlock) {
        if !matches!(call.inside, Some(FREE | FREE_LOCKED)) {
            points.push(point(call, TensorMeaning::Completed, BlockPlan::Completed { offset_bytes })?);
        }
    }
    is_traced.then_some(points)
}

fn point(call: &AllocatorCall, meaning: TensorMeaning, block: BlockPlan) -> Option<TensorPoint> {
    let row: &'static TensorProbe = TENSOR_PROBES.iter().find(|row| row.meaning == meaning)?;
    let plan: TensorPlan = row.plan.at_call(block);
    Some(TensorPoint { plan, ..TensorPoint::new(row, call.file_offset) })
}

/// Returns where the block and the allocator are when a block is reported as allocated.
fn granted(call: &AllocatorCall) -> Option<BlockPlan> {
    let (block, address) = loaded(call, Register::RDI)?;
    let (of_size, size) = loaded(call, Register::RSI)?;
    if of_size != block || size.checked_add(SIZE_TO_ADDRESS) != Some(address) {
        return None;
    }
    let (allocator, _) = counters(call)?;
    Some(BlockPlan::Granted {
        allocator: held(allocator)?,
        block: held(block)?,
        offset_bytes: u16::try_from(size).ok().filter(|offset| BLOCK_OFFSETS.contains(offset))?,
    })
}

/// Returns where the allocator is when a block is reported as freed.
fn given_back(call: &AllocatorCall) -> Option<BlockPlan> {
    let (allocator, allocated) = counters(call)?;
    let has_counts = allocated >= ALLOCATION_TO_BYTES_WORDS as u64 * 8;
    let offset_bytes = u16::try_from(allocated).ok().filter(|_| has_counts)?;
    Some(BlockPlan::GivenBack { allocator: held(allocator)?, offset_bytes })
}

/// Returns the register that holds the allocator and the offset of its counter of allocated bytes.
/// The counters are the third and fourth argument.
fn counters(call: &AllocatorCall) -> Option<(Register, u64)> {
    let (allocator, reserved) = loaded(call, Register::RCX)?;
    let (of_allocated, allocated) = loaded(call, Register::RDX)?;
    let is_as_expected = of_allocated == allocator && allocated.checked_add(ALLOCATED_TO_RESERVED) == Some(reserved);
    is_as_expected.then_some((allocator, allocated))
}

/// Returns the last instruction that wrote a register before the call, and the instructions between
/// the two.
fn writer(call: &AllocatorCall, register: Register) -> Option<(&Instruction, &[Instruction])> {
    let at = call.before.iter().position(|before| writes(before, register))?;
    Some((&call.before[at], &call.before[..at]))
}

/// Whether an instruction may write a register, judged by its first operand.
fn writes(instruction: &Instruction, register: Register) -> bool {
    instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == register
}

/// Returns the register and the offset of `mov OFFSET(%register),%argument` if that register is
/// unchanged until the call.
fn loaded(call: &AllocatorCall, argument: Register) -> Option<(Register, u64)> {
    let (instruction, after) = writer(call, argument)?;
    let base = instruction.memory_base();
    let is_load = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register() == argument
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None;
    let offset = instruction.memory_displacement64();
    let is_kept = base != argument && !after.iter().any(|after| writes(after, base));
    (is_load && is_kept && offset < OFFSETS && offset.is_multiple_of(8)).then_some((base, offset))
}

/// Returns the constant of `mov $CONSTANT,%register`, or 0 for `xor %register,%register`.
fn constant(call: &AllocatorCall, register: Register) -> Option<u64> {
    let (instruction, _) = writer(call, register)?;
    let is_same =
        instruction.op1_kind() == OpKind::Register && instruction.op0_register() == instruction.op1_register();
    match (instruction.mnemonic(), instruction.op1_kind()) {
        (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate32to64) => Some(instruction.immediate(1)),
        (Mnemonic::Xor, OpKind::Register) if is_same => Some(0),
        _ => None,
    }
}

const fn held(register: Register) -> Option<HoldingRegister> {
    Some(match register {
        Register::RAX => HoldingRegister::Rax,
        Register::RBX => HoldingRegister::Rbx,
        Register::RBP => HoldingRegister::Rbp,
        Register::R12 => HoldingRegister::R12,
        Register::R13 => HoldingRegister::R13,
        Register::R14 => HoldingRegister::R14,
        Register::R15 => HoldingRegister::R15,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
