//! Finds where ONNX Runtime's `BFCArena` allocates and frees chunks, in files without any symbol of
//! the class.
//!
//! The class's type name leads to its vtable, the vtable to its functions, and their calls and
//! loads to the rest. The chunk of a request is the return value of `FindChunkPtr`: at the branch
//! after each such call the chunk has been counted and the lock is held. An exception on its way
//! out passes no probe. Any doubt yields `None`: the arena is not traced then, and its memory
//! appears as the driver's.

mod reserved;

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use memwatch_common::tensor::{BlockPlan, HoldingRegister, IN_USE_WORD, TensorMeaning};

use self::reserved::Reserved;
use crate::frameworks::bfc::layout::{ArenaLayout, ChunkLayout, CounterLayout};
use crate::frameworks::points::TensorPoint;
use crate::sources::classes::{ClassPointers, ClassTable};
use crate::sources::kernel::resolve::{FunctionLocation, InstructionSet};
use crate::sources::kernel::site::{KernelVersion, select};
use crate::sources::native::CodeImage;

/// Type names of the class, and of the class for requests with a stream in 1.31 and in 1.20 to
/// 1.23.
const ARENA: &str = "N11onnxruntime8BFCArenaE";
const OF_STREAMS: [&str; 2] = ["N11onnxruntime19StreamAwareBFCArenaE", "N11onnxruntime16StreamAwareArenaE"];
/// Vtable indices of `Alloc`, `IsStreamAware`, `AllocOnStream`, `Free`, `Reserve` and `GetStats`,
/// the same in 1.23 to 1.31.
const ALLOC: usize = 2;
const IS_STREAM_AWARE: usize = 3;
const ALLOC_ON_STREAM: usize = 4;
const FREE: usize = 5;
const RESERVE: usize = 6;
const GET_STATS: usize = 7;

/// Maximum size of a decoded function; the longest of these has 3.5 KB.
const CODE_BYTES: u64 = 64 << 10;
/// Bytes read of a function that only forwards a call.
const FRONT_BYTES: usize = 32;
/// Offset of an allocator's name: a `std::string` in the `OrtMemoryInfo` after the object's first
/// word.
const NAME_BYTES: u32 = 8;
/// Offset of an allocator's `OrtDevice`, after the name and two words of enums.
const DEVICE_BYTES: u16 = 0x30;
/// Offset of a chunk's number, which is all ones while the chunk is free.
const NUMBER_BYTES: u64 = 0x10;
/// Numbers of words of `AllocatorStats` that `GetStats` copies, each with the index of the peak.
/// 1.23 has one word less.
const WORDS: [(u64, u8); 2] = [(10, 7), (9, 6)];

/// Probe points and layout of a build.
#[derive(Debug)]
pub(crate) struct OnnxRuntimeBuild {
    /// Probe points.
    pub(crate) points: Vec<TensorPoint>,
    /// Field offsets of its arenas.
    pub(crate) layout: ArenaLayout,
}

/// A file and its code.
struct CodeFile<'a> {
    file: &'a File,
    image: CodeImage,
}

/// A function with its decoded instructions.
struct DecodedFunction {
    location: FunctionLocation,
    code: Vec<u8>,
    instructions: Vec<Instruction>,
}

impl OnnxRuntimeBuild {
    /// Finds the arena class in a file.
    pub(crate) fn of(file: &File, kernel: KernelVersion) -> Option<Self> {
        let binary = CodeFile { file, image: CodeImage::read(file.try_clone().ok()?)? };
        let classes = ClassPointers::of(file)?;
        let arena = classes.table(file, ARENA)?;
        let of_streams = OF_STREAMS.iter().find_map(|name| classes.table(file, name))?;
        let core = binary.function(binary.core(&arena, &of_streams)?)?;
        let counters = counters(&binary.function(*arena.functions.get(GET_STATS)?)?)?;
        let find = binary.called(&core, |callee| callee.writes_to(counters.in_use()))?;
        let free = binary.function(*arena.functions.get(FREE)?)?;
        let release = binary.called(&free, |callee| callee.takes_from(counters.in_use()) && callee.marks_as_free())?;
        let mut points = grants(&core, find.location.address, counters)?;
        let site = select(&release.code, release.location.address, InstructionSet::X86_64, kernel);
        let block = BlockPlan::ChunkFreed { counters: counters.plan() };
        let offset = release.location.file_offset + site.offset_in_function;
        points.push(TensorPoint::with_block(TensorMeaning::ArenaChunkFreed, offset, block)?);
        let reserve = binary.function(*arena.functions.get(RESERVE)?);
        let reserved = reserve.and_then(|reserve| Reserved::of(&reserve, &free, counters));
        let chunks = regions(&release).zip(find.vector());
        let layout = ArenaLayout {
            counters: Some(counters),
            name: Some(NAME_BYTES),
            device: Some(DEVICE_BYTES),
            chunks: chunks.map(|(regions, (chunks, stride))| ChunkLayout { regions, chunks, stride }),
            reserved: reserved.as_ref().map(|reserved| reserved.map),
            tables: [Some(arena.address), Some(of_streams.address)],
            is_inlined: false,
        };
        points.extend(reserved.into_iter().flat_map(|reserved| reserved.points));
        Some(Self { points, layout })
    }
}

impl CodeFile<'_> {
    /// Returns the function that begins at an address.
    fn function(&self, address: u64) -> Option<DecodedFunction> {
        let location = self.image.function(address).filter(|one| one.address == address)?;
        if location.size_bytes > CODE_BYTES {
            return None;
        }
        let mut code = vec![0; usize::try_from(location.size_bytes).ok()?];
        self.file.read_exact_at(&mut code, location.file_offset).ok()?;
        let instructions = Decoder::with_ip(64, &code, address, DecoderOptions::NONE).into_iter().collect();
        Some(DecodedFunction { location, code, instructions })
    }

    /// Returns the function to which both `Alloc` and `AllocOnStream` jump, if the vtables have the
    /// known order.
    fn core(&self, arena: &ClassTable, of_streams: &ClassTable) -> Option<u64> {
        let says_no = self.front(*arena.functions.get(IS_STREAM_AWARE)?)?;
        let is_known = matches!(&says_no[..], [zero, back, ..]
            if is_zero_of(zero, Register::EAX) && back.mnemonic() == Mnemonic::Ret);
        let [without, with] = [(arena, ALLOC), (of_streams, ALLOC_ON_STREAM)].map(|(class, slot)| {
            let front = self.front(*class.functions.get(slot)?)?;
            let jump = front.iter().find(|one| one.flow_control() != FlowControl::Next)?;
            (jump.mnemonic() == Mnemonic::Jmp && jump.op0_kind() == OpKind::NearBranch64)
                .then(|| jump.near_branch_target())
        });
        without.filter(|core| is_known && Some(*core) == with)
    }

    /// Decodes the first instructions of a function, without `endbr64`.
    fn front(&self, address: u64) -> Option<Vec<Instruction>> {
        let location = self.image.function(address)?;
        let mut code = [0; FRONT_BYTES];
        self.file.read_exact_at(&mut code, location.file_offset + (address - location.address)).ok()?;
        let decoder = Decoder::with_ip(64, &code, address, DecoderOptions::NONE).into_iter();
        Some(decoder.filter(|one| one.mnemonic() != Mnemonic::Endbr64).collect())
    }

    /// Returns the only matching function that `caller` calls; `None` if there is none or more than
    /// one.
    fn called(&self, caller: &DecodedFunction, is_meant: impl Fn(&DecodedFunction) -> bool) -> Option<DecodedFunction> {
        let mut targets: Vec<u64> = caller.calls().map(|(_, target)| target).collect();
        targets.sort_unstable();
        targets.dedup();
        let mut found = targets.into_iter().filter_map(|target| self.function(target)).filter(is_meant);
        found.next().filter(|_| found.next().is_none())
    }
}

impl DecodedFunction {
    /// Returns the direct calls: index of the instruction and target address.
    fn calls(&self) -> impl Iterator<Item = (usize, u64)> {
        let calls = self.instructions.iter().enumerate();
        calls.filter(|(_, one)| is_call(one)).map(|(at, one)| (at, one.near_branch_target()))
    }

    /// Whether the function stores a register at an offset of an object.
    fn writes_to(&self, offset: u64) -> bool {
        let stores = |one: &Instruction| {
            one.mnemonic() == Mnemonic::Mov && is_at(one, offset) && one.op1_kind() == OpKind::Register
        };
        self.instructions.iter().any(stores)
    }

    /// Whether the function subtracts a register at an offset of an object.
    fn takes_from(&self, offset: u64) -> bool {
        let takes = |one: &Instruction| {
            one.mnemonic() == Mnemonic::Sub && is_at(one, offset) && one.op1_kind() == OpKind::Register
        };
        self.instructions.iter().any(takes)
    }

    /// Whether the function marks a chunk as free.
    fn marks_as_free(&self) -> bool {
        let marks = |one: &Instruction| {
            let is_all_ones = one.op1_kind() == OpKind::Immediate32to64 && one.immediate(1) == u64::MAX;
            one.mnemonic() == Mnemonic::Mov && is_at(one, NUMBER_BYTES) && is_all_ones
        };
        self.instructions.iter().any(marks)
    }

    /// Finds a vector of the object and returns its offset and the size of an element. The code
    /// loads the beginning and the end, subtracts one from the other and divides the difference by
    /// the size: a shift and a multiplication by the inverse of the odd factor.
    fn vector(&self) -> Option<(u32, u32)> {
        (0..self.instructions.len()).find_map(|at| self.vector_at(at))
    }

    /// Decodes the vector if the instruction at `at` subtracts the beginning from the end.
    fn vector_at(&self, at: usize) -> Option<(u32, u32)> {
        let (before, after) = self.instructions.split_at(at);
        let [difference, shift, product, ..] = after else { return None };
        let is_its =
            |one: &Instruction, mnemonic| one.mnemonic() == mnemonic && one.op0_register() == difference.op0_register();
        let is_difference = difference.mnemonic() == Mnemonic::Sub && difference.op1_kind() == OpKind::Register;
        if !is_difference || !is_its(shift, Mnemonic::Sar) || !is_its(product, Mnemonic::Imul) {
            return None;
        }
        let writer =
            |register: Register| before.iter().rev().find(|one| one.op_count() > 0 && one.op0_register() == register);
        let end = writer(difference.op0_register()).and_then(load)?;
        let begin = writer(difference.op1_register()).and_then(load)?;
        let inverse = writer(product.op1_register()).filter(|one| one.op1_kind() == OpKind::Immediate64)?.immediate(1);
        let factor = inverse_of(inverse)?.checked_shl(u32::try_from(shift.immediate(1)).ok()?)?;
        let stride = u32::try_from(factor).ok()?;
        let is_vector = begin.0 == end.0 && begin.1 + 8 == end.1 && ChunkLayout::has_room_for(begin.1, stride);
        is_vector.then_some((u32::try_from(begin.1).ok()?, stride))
    }
}

/// Returns the points after each call of `FindChunkPtr`; `None` if there is no call or one is not
/// as expected.
fn grants(core: &DecodedFunction, find: u64, counters: CounterLayout) -> Option<Vec<TensorPoint>> {
    let calls = core.calls().filter(|(_, target)| *target == find);
    let points = calls.map(|(at, _)| {
        let branch = branch_behind(&core.instructions[at + 1..])?;
        let allocator = held(arena_of(&core.instructions[..at])?)?;
        let block = BlockPlan::ChunkGranted { allocator, counters: counters.plan() };
        let offset = core.location.file_offset + (branch.ip() - core.location.address);
        TensorPoint::with_block(TensorMeaning::ArenaChunk, offset, block)
    });
    points.collect::<Option<Vec<_>>>().filter(|points| !points.is_empty())
}

/// Returns the branch on whether `rax` is 0. Before it `rax` may only be stored.
fn branch_behind(after: &[Instruction]) -> Option<&Instruction> {
    let stores = |one: &&Instruction| {
        one.mnemonic() == Mnemonic::Mov && one.op0_kind() == OpKind::Memory && one.op1_register() == Register::RAX
    };
    let test = after.iter().position(|one| !stores(&one))?;
    let (test, branch) = (&after[test], after.get(test + 1)?);
    let is_test = test.mnemonic() == Mnemonic::Test
        && test.op0_register() == Register::RAX
        && test.op1_register() == Register::RAX;
    (is_test && matches!(branch.mnemonic(), Mnemonic::Je | Mnemonic::Jne)).then_some(branch)
}

/// Returns the register from which argument 0 of a call is copied, in the straight-line code before
/// it.
fn arena_of(before: &[Instruction]) -> Option<Register> {
    let straight = before.iter().rev().take_while(|one| one.flow_control() == FlowControl::Next);
    let mut writers = straight.filter(|one| one.op_count() > 0 && one.op0_register().full_register() == Register::RDI);
    let writer = writers.next()?;
    (writer.mnemonic() == Mnemonic::Mov && writer.op1_kind() == OpKind::Register).then(|| writer.op1_register())
}

/// Returns the location of the counters that `GetStats` copies.
fn counters(get_stats: &DecodedFunction) -> Option<CounterLayout> {
    let wide = |one: &&Instruction| matches!(one.mnemonic(), Mnemonic::Movdqu | Mnemonic::Movups | Mnemonic::Vmovdqu);
    let loads = get_stats.instructions.iter().filter(wide).filter(|one| one.op1_kind() == OpKind::Memory);
    let offsets: Vec<(Register, u64)> = loads.map(|one| (one.memory_base(), one.memory_displacement64())).collect();
    let (object, begin) = *offsets.first()?;
    let is_row = offsets.iter().zip((begin..).step_by(16)).all(|(load, expected)| *load == (object, expected));
    let end = begin + 16 * offsets.len() as u64;
    let has_last = get_stats.instructions.iter().filter_map(load).any(|last| last == (object, end));
    let words = 2 * offsets.len() as u64 + u64::from(has_last);
    let (_, peak_word) = WORDS.into_iter().find(|(all, _)| *all == words && is_row)?;
    CounterLayout::new(u16::try_from(begin).ok()?, [0, IN_USE_WORD, peak_word, peak_word + 1])
}

/// Returns the offset of the regions, which the release function passes to its first call.
fn regions(release: &DecodedFunction) -> Option<u32> {
    let (call, _) = release.calls().next()?;
    let before = release.instructions[..call].iter();
    let writer = before.rev().find(|one| one.op_count() > 0 && one.op0_register() == Register::RDI)?;
    let offset = match writer.mnemonic() {
        Mnemonic::Add if writer.op1_kind() != OpKind::Register => writer.immediate(1),
        Mnemonic::Lea => writer.memory_displacement64(),
        _ => return None,
    };
    u32::try_from(offset).ok().filter(|_| ChunkLayout::has_room_for(offset, 0x40))
}

/// Returns the register and the offset of `mov OFFSET(%register), %register`.
fn load(one: &Instruction) -> Option<(Register, u64)> {
    let is_load = one.mnemonic() == Mnemonic::Mov
        && one.op0_kind() == OpKind::Register
        && one.op1_kind() == OpKind::Memory
        && one.memory_index() == Register::None;
    is_load.then(|| (one.memory_base(), one.memory_displacement64()))
}

fn is_call(one: &Instruction) -> bool {
    one.mnemonic() == Mnemonic::Call && one.op0_kind() == OpKind::NearBranch64
}

/// Whether the first operand is memory at this offset from a register.
fn is_at(one: &Instruction, offset: u64) -> bool {
    one.op0_kind() == OpKind::Memory
        && one.memory_index() == Register::None
        && !matches!(one.memory_base(), Register::None | Register::RIP | Register::RSP)
        && one.memory_displacement64() == offset
}

fn is_zero_of(one: &Instruction, register: Register) -> bool {
    one.mnemonic() == Mnemonic::Xor && one.op0_register() == register && one.op1_register() == register
}

/// Returns the inverse of an odd number modulo 2^64 by Newton's iteration, each step of which
/// doubles the correct bits.
fn inverse_of(odd: u64) -> Option<u64> {
    if odd.is_multiple_of(2) {
        return None;
    }
    let step = |inverse: u64, _| inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
    Some((0..6).fold(odd, step))
}

const fn held(register: Register) -> Option<HoldingRegister> {
    Some(match register {
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
