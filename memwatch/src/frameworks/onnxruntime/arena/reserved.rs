//! Memory that an arena reserves outside its regions, for example for initializers: the probe
//! points where it is counted as allocated and as freed, and the offset of its map.
//!
//! Each reservation is a node `{next, address, size}` of the map. A register holds the node at the
//! instruction after the last counter update of `Reserve`, and at the first counter update of
//! `Free` itself. The lock is held at both.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use memwatch_common::tensor::{BlockPlan, CounterPlan, HoldingRegister, TensorMeaning};

use super::{DecodedFunction, held, is_at, load};
use crate::frameworks::bfc::layout::{ChunkLayout, CounterLayout};
use crate::frameworks::points::TensorPoint;

/// Offsets of a node's address and size in bytes.
const ADDRESS_BYTES: u64 = 8;
const SIZE_BYTES: u64 = 16;
/// Maximum distance, in instructions, between the copy of a node's address and the stores to its
/// words.
const NEAR: usize = 6;

/// Probe points and map offset of a build.
pub(super) struct Reserved {
    /// Probe points of the allocation and the free.
    pub(super) points: [TensorPoint; 2],
    /// Offset of the map in the arena.
    pub(super) map: u32,
}

impl Reserved {
    /// Decodes `Reserve` and `Free`.
    pub(super) fn of(reserve: &DecodedFunction, free: &DecodedFunction, counters: CounterLayout) -> Option<Self> {
        let (first, given_back) = given_back(free, counters)?;
        let map = map(&free.instructions[..first], given_back.node)?;
        let uses_map = reserve.instructions.iter().any(|one| leads_to(one) == Some(map));
        let granted = granted(reserve, counters).filter(|_| uses_map)?;
        let points = [
            granted.point(TensorMeaning::ArenaChunk, reserve, counters.plan(), true)?,
            given_back.point(TensorMeaning::ArenaChunkFreed, free, counters.plan(), false)?,
        ];
        Some(Self { points, map: u32::try_from(map).ok()? })
    }
}

/// An instruction at which a register holds a node.
struct NodeInRegister {
    address: u64,
    arena: HoldingRegister,
    node: Register,
}

impl NodeInRegister {
    fn point(
        &self,
        meaning: TensorMeaning,
        function: &DecodedFunction,
        counters: CounterPlan,
        is_grant: bool,
    ) -> Option<TensorPoint> {
        let block = BlockPlan::Reserved { allocator: self.arena, node: held(self.node)?, counters, is_grant };
        let location = &function.location;
        TensorPoint::with_block(meaning, location.file_offset + (self.address - location.address), block)
    }
}

/// Returns the instruction after the last counter update of `Reserve`. All updates must be in
/// straight-line code.
fn granted(reserve: &DecodedFunction, counters: CounterLayout) -> Option<NodeInRegister> {
    let instructions = &reserve.instructions;
    let begin = u64::from(counters.offset_bytes);
    let end = counters.words.into_iter().map(|word| begin + 8 * u64::from(word) + 8).max()?;
    let is_counter = |one: &&Instruction| is_store(one) && (begin..end).contains(&one.memory_displacement64());
    let stores: Vec<&Instruction> = instructions.iter().filter(is_counter).collect();
    let object = stores.first()?.memory_base();
    let is_changed = |word: u8| {
        let at = begin + 8 * u64::from(word);
        stores.iter().any(|one| (one.memory_displacement64()..=at).contains(&at) && at < end_of(one))
    };
    let [count, in_use, peak, _] = counters.words;
    if stores.iter().any(|one| one.memory_base() != object) || ![count, in_use, peak].into_iter().all(is_changed) {
        return None;
    }
    let at = |one: &Instruction| instructions.iter().position(|other| other.ip() == one.ip());
    let (first, last) = (at(stores.first()?)?, at(stores.last()?)?);
    let is_straight = instructions[first..=last].iter().all(|one| one.flow_control() == FlowControl::Next);
    let (made, node) = node(&instructions[..first])?;
    let is_kept = instructions[made + 1..].iter().all(|one| !writes(one, node) || one.mnemonic() == Mnemonic::Pop);
    let address = instructions.get(last + 1)?.ip();
    (is_straight && is_kept).then_some(NodeInRegister { address, arena: held(object)?, node })
}

/// Finds where a new node's address is copied to a register, and which register. The node's words
/// are stored close to the copy.
fn node(instructions: &[Instruction]) -> Option<(usize, Register)> {
    let is_copy = |one: &Instruction| {
        one.mnemonic() == Mnemonic::Mov && one.op0_kind() == OpKind::Register && one.op1_register() == Register::RAX
    };
    let fills = |near: &[Instruction], offset| {
        near.iter().any(|one| {
            is_store(one)
                && one.memory_base() == Register::RAX
                && one.memory_displacement64() == offset
                && one.op1_kind() == OpKind::Register
        })
    };
    let made = (0..instructions.len()).rfind(|&at| {
        let near = &instructions[at.saturating_sub(NEAR)..instructions.len().min(at + NEAR)];
        is_copy(&instructions[at]) && fills(near, ADDRESS_BYTES) && fills(near, SIZE_BYTES)
    })?;
    Some((made, instructions[made].op0_register()))
}

/// Finds where `Free` itself subtracts a node's size from the bytes in use, and that instruction's
/// index.
fn given_back(free: &DecodedFunction, counters: CounterLayout) -> Option<(usize, NodeInRegister)> {
    let takes = |one: &Instruction| {
        one.mnemonic() == Mnemonic::Sub && is_at(one, counters.in_use()) && one.op1_kind() == OpKind::Register
    };
    let mut all = free.instructions.iter().enumerate().filter(|(_, one)| takes(one));
    let (at, takes) = all.next().filter(|_| all.next().is_none())?;
    let mut straight = free.instructions[..at].iter().rev().take_while(|one| one.flow_control() == FlowControl::Next);
    let size = straight.find(|one| writes(one, takes.op1_register()))?;
    let (node, offset) = load(size)?;
    let place = NodeInRegister { address: takes.ip(), arena: held(takes.memory_base())?, node };
    (offset == SIZE_BYTES).then_some((at, place))
}

/// Returns the offset of the map in which the node was found: argument 0 of the look-up.
fn map(before: &[Instruction], node: Register) -> Option<u64> {
    let copied = (0..before.len()).rfind(|at| writes(&before[*at], node))?;
    let (call, way) = before[..copied].split_last()?;
    let is_found = call.mnemonic() == Mnemonic::Call && before[copied].op1_register() == Register::RAX;
    let straight = way.iter().rev().take_while(|one| one.flow_control() == FlowControl::Next);
    let mut writers = straight.filter(|one| writes(one, Register::RDI));
    writers.next().and_then(leads_to).filter(|_| is_found)
}

/// Returns the offset of `lea OFFSET(%object),%rdi`.
fn leads_to(one: &Instruction) -> Option<u64> {
    let is_lea = one.mnemonic() == Mnemonic::Lea
        && one.op0_register() == Register::RDI
        && one.memory_index() == Register::None
        && held(one.memory_base()).is_some();
    let offset = one.memory_displacement64();
    (is_lea && ChunkLayout::has_room_for(offset, 0x40)).then_some(offset)
}

fn is_store(one: &Instruction) -> bool {
    let compares = matches!(one.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
    one.op0_kind() == OpKind::Memory && one.memory_index() == Register::None && !compares
}

/// Returns the end of the stored range in the object.
fn end_of(store: &Instruction) -> u64 {
    store.memory_displacement64() + store.memory_size().size() as u64
}

fn writes(one: &Instruction, register: Register) -> bool {
    let compares = matches!(one.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
    one.op_count() > 0
        && one.op0_kind() == OpKind::Register
        && one.op0_register().full_register() == register
        && !compares
}
