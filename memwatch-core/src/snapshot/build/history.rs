//! Builds an allocator history that can be replayed backwards from the current state.
//!
//! A viewer starts from the current segments and blocks and undoes one line after another.
//! Pre-existing memory therefore gets segments where blocks were observed in it, and lines that
//! cannot be undone are left out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::native::history_frame;
use super::places::phase_name;
use crate::allocators::TensorLedger;
use crate::allocators::pytorch::{
    AllocatorMemory, BlockState, DeviceAllocator, HistoryEntry, LineAction, PoolSize, SegmentCell,
};
use crate::allocators::threads::Phase;
use crate::decode::StackRef;
use crate::input::holdings::Holding;
use crate::snapshot::{
    DeviceHistory, HistoryBlock, HistoryFrame, HistoryLine, HistoryMark, HistorySegment, MemoryHistory,
};
use crate::stack::native::{MergedFrame, NativeStack, merge};
use crate::stack::{PythonFrame, PythonStack};
use crate::words::Ordinal;

pub(crate) fn history(ledger: &TensorLedger, with_native: bool) -> MemoryHistory {
    let mut stacks = HistoryStacks::new(ledger, with_native);
    let devices = ledger.allocators().iter().map(|(ordinal, device)| {
        stacks.ordinal = *ordinal;
        let replay = HistoryReplay::of(device);
        let mut segments = known_segments(device.memory(), &mut stacks);
        segments.extend(older_segments(device.memory(), &replay.older, &mut stacks));
        segments.sort_by_key(|segment| segment.address);
        let cut = device.history().cut() + replay.left_out;
        let lines = replay.lines.iter().map(|line| line_view(line, &mut stacks)).collect();
        DeviceHistory { device: ordinal.0, segments, lines, cut, max_split_size: device.max_split_size() }
    });
    let devices = devices.collect();
    let mark = |mark: &crate::allocators::RangeMark| HistoryMark {
        name: Arc::clone(&mark.name),
        begins: mark.begins,
        time_ns: mark.time_ns,
    };
    MemoryHistory { devices, stacks: stacks.all, marks: ledger.marks().map(mark).collect() }
}

/// Lines that can be undone, and the memory required for that.
struct HistoryReplay {
    lines: Vec<HistoryEntry>,
    left_out: u64,
    /// Ranges of pre-existing memory that contained blocks.
    older: BTreeMap<u64, u64>,
}

impl HistoryReplay {
    fn of(device: &DeviceAllocator) -> Self {
        let memory = device.memory();
        let mut covered: BTreeMap<u64, u64> =
            memory.segments().iter().map(|(begin, segment)| (*begin, begin + segment.bytes)).collect();
        let (now, mut older) = (covered.clone(), BTreeMap::new());
        let mut blocks: BTreeSet<u64> = BTreeSet::new();
        for (address, cell) in memory.cells().iter().filter(|(_, cell)| cell.state != BlockState::Inactive) {
            blocks.insert(*address);
            if memory.segment_of(*address).is_none() {
                join(&mut older, *address, address + cell.bytes);
            }
        }
        let mut lines = Vec::new();
        let mut left_out = 0;
        for line in device.history().lines().collect::<Vec<_>>().into_iter().rev() {
            let end =
                line.address.saturating_add(if line.action.is_of_block() { line.block_bytes } else { line.bytes });
            let fits = match line.action {
                LineAction::OutOfMemory => true,
                LineAction::SegmentAlloc | LineAction::SegmentMap => cut_out(&mut covered, line.address, end),
                LineAction::SegmentFree | LineAction::SegmentUnmap => {
                    let is_new = !overlaps(&covered, line.address, end);
                    if is_new {
                        join(&mut covered, line.address, end);
                    }
                    is_new
                }
                LineAction::Alloc | LineAction::FreeRequested | LineAction::FreeCompleted => {
                    let is_there = is_within(&covered, line.address, end)
                        || is_within(&older, line.address, end)
                        || !overlaps(&now, line.address, end) && {
                            join(&mut older, line.address, end);
                            true
                        };
                    is_there && undo(&mut blocks, line)
                }
            };
            if fits {
                lines.push(*line);
            } else {
                left_out += 1;
            }
        }
        lines.reverse();
        Self { lines, left_out, older }
    }
}

/// Undoes the change of a block; returns false if there is nothing to undo.
fn undo(blocks: &mut BTreeSet<u64>, line: &HistoryEntry) -> bool {
    match line.action {
        LineAction::Alloc => blocks.remove(&line.address),
        LineAction::FreeCompleted => blocks.insert(line.address),
        _ => blocks.contains(&line.address),
    }
}

/// Ranges that do not touch, as begin and end.
type AddressRanges = BTreeMap<u64, u64>;

fn is_within(ranges: &AddressRanges, begin: u64, end: u64) -> bool {
    ranges.range(..=begin).next_back().is_some_and(|(_, last)| end <= *last)
}

fn overlaps(ranges: &AddressRanges, begin: u64, end: u64) -> bool {
    ranges.range(..end).next_back().is_some_and(|(_, last)| *last > begin)
}

/// Adds a range, merged with the ranges that it touches.
fn join(ranges: &mut AddressRanges, mut begin: u64, mut end: u64) {
    while let Some((&first, &last)) = ranges.range(..=end).next_back().filter(|(_, last)| **last >= begin) {
        ranges.remove(&first);
        (begin, end) = (begin.min(first), end.max(last));
    }
    ranges.insert(begin, end);
}

/// Removes a range from the range that contains it; returns false if there is none.
fn cut_out(ranges: &mut AddressRanges, begin: u64, end: u64) -> bool {
    let Some((&first, &last)) = ranges.range(..=begin).next_back().filter(|(_, last)| end <= **last) else {
        return false;
    };
    ranges.remove(&first);
    for (from, to) in [(first, begin), (end, last)] {
        if from < to {
            ranges.insert(from, to);
        }
    }
    true
}

fn known_segments(memory: &AllocatorMemory, stacks: &mut HistoryStacks) -> Vec<HistorySegment> {
    let segments = memory.segments().iter();
    segments
        .map(|(address, segment)| {
            let cells = memory.cells().range(*address..address + segment.bytes);
            HistorySegment {
                address: *address,
                stream: segment.stream,
                is_small: segment.pool == PoolSize::Small,
                private_pool: segment.private_pool,
                is_expandable: segment.is_expandable,
                stack: stacks.place(segment.stack),
                blocks: cells.map(|(address, cell)| block(*address, cell, stacks)).collect(),
            }
        })
        .collect()
}

/// Returns segments around blocks in pre-existing memory.
fn older_segments(memory: &AllocatorMemory, older: &AddressRanges, stacks: &mut HistoryStacks) -> Vec<HistorySegment> {
    let stack = stacks.place(StackRef::NotAsked);
    let gap = |address, end: u64| HistoryBlock {
        address,
        bytes: end - address,
        requested_bytes: 0,
        state: "inactive",
        stack,
    };
    let segment = |(begin, end): (&u64, &u64)| {
        let (mut blocks, mut at) = (Vec::new(), *begin);
        for (address, cell) in memory.cells().range(begin..end) {
            if at < *address {
                blocks.push(gap(at, *address));
            }
            blocks.push(block(*address, cell, stacks));
            at = address + cell.bytes;
        }
        if at < *end {
            blocks.push(gap(at, *end));
        }
        let is_small = blocks.iter().all(|block| PoolSize::of_request(block.bytes) == PoolSize::Small);
        let address = *begin;
        HistorySegment { address, stream: 0, is_small, private_pool: (0, 0), is_expandable: false, stack, blocks }
    };
    older.iter().map(segment).collect()
}

fn block(address: u64, cell: &SegmentCell, stacks: &mut HistoryStacks) -> HistoryBlock {
    let state = match cell.state {
        BlockState::Allocated => "active_allocated",
        BlockState::Pending => "active_pending_free",
        BlockState::Inactive => "inactive",
    };
    let requested_bytes = cell.requested_bytes.unwrap_or(cell.bytes);
    let stack = stacks.held(address).unwrap_or_else(|| stacks.place(cell.stack));
    HistoryBlock { address, bytes: cell.bytes, requested_bytes, state, stack }
}

fn line_view(line: &HistoryEntry, stacks: &mut HistoryStacks) -> HistoryLine {
    let is_reported = |phase: &Phase| !matches!(phase, Phase::NotKnown | Phase::BeforeAttach | Phase::Untraced);
    HistoryLine {
        action: line.action,
        address: line.address,
        bytes: line.bytes,
        stream: line.stream,
        private_pool: line.private_pool,
        time_ns: line.time_ns,
        stack: stacks.place(line.stack),
        phase: line.phase.filter(is_reported).map(phase_name),
    }
}

/// Stacks by their index in the list.
struct HistoryStacks<'a> {
    ledger: &'a TensorLedger,
    with_native: bool,
    /// Pre-existing blocks with a name.
    older: HashMap<(Ordinal, u64), &'a Holding>,
    /// The current device.
    ordinal: Ordinal,
    places: HashMap<StackRef, usize>,
    named: HashMap<String, usize>,
    all: Vec<Vec<HistoryFrame>>,
}

impl<'a> HistoryStacks<'a> {
    fn new(ledger: &'a TensorLedger, with_native: bool) -> Self {
        let is_older = |row: &&Holding| {
            let block = ledger.attribution().live(row.ordinal, row.address);
            row.class.is_named() && block.is_some_and(|block| block.granted_ns == 0)
        };
        let older = ledger.still_held().filter(is_older).map(|row| ((row.ordinal, row.address), row)).collect();
        let (places, named, all) = (HashMap::new(), HashMap::new(), Vec::new());
        Self { ledger, with_native, older, ordinal: Ordinal(0), places, named, all }
    }

    /// For a pre-existing block with a name, returns the index of a stack with the name as its only
    /// frame.
    fn held(&mut self, address: u64) -> Option<usize> {
        let row = self.older.get(&(self.ordinal, address))?;
        let name = row.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let text = format!("memwatch: before attach, {}{name}", row.class.label());
        let Self { named, all, .. } = self;
        Some(*named.entry(text).or_insert_with_key(|text| {
            all.push(vec![remark(text)]);
            all.len() - 1
        }))
    }

    fn place(&mut self, stack: StackRef) -> usize {
        if let Some(place) = self.places.get(&stack) {
            return *place;
        }
        let frames = self.frames(stack);
        self.all.push(frames);
        self.places.insert(stack, self.all.len() - 1);
        self.all.len() - 1
    }

    fn frames(&self, stack: StackRef) -> Vec<HistoryFrame> {
        let stacks = self.ledger.stacks();
        let (python, native) = match stack {
            StackRef::Known(id) => (stacks.get(id), stacks.native(id)),
            StackRef::Native(id) => (None, stacks.native(id)),
            _ => (None, None),
        };
        let is_known = python.is_some() || matches!(stack, StackRef::Native(_));
        if let Some(native) = native.filter(|_| self.with_native && is_known) {
            return merged(python, native);
        }
        let Some(python) = python else {
            return vec![remark(match stack {
                StackRef::NotAsked => "memwatch: before attach",
                StackRef::NoPython | StackRef::Native(_) => "memwatch: thread without Python",
                StackRef::OverBudget => "memwatch: no stack (over the stack budget)",
                StackRef::NotDrawn => "memwatch: small block, not sampled",
                StackRef::Unreadable => "memwatch: unreadable stack",
                StackRef::Known(_) => "memwatch: stack lost",
            })];
        };
        let code = python.frames.iter().map(python_frame);
        code.chain(python.truncated.then(|| remark("memwatch: outer frames are missing"))).collect()
    }
}

fn python_frame(frame: &PythonFrame) -> HistoryFrame {
    match &frame.code {
        Some(code) => HistoryFrame {
            name: Arc::clone(&code.function),
            file: Arc::clone(&code.file),
            line: code.line.unwrap_or(0),
        },
        None => remark("memwatch: unreadable frame"),
    }
}

/// Merges Python and native frames, with a remark where native frames are missing.
fn merged(python: Option<&Arc<PythonStack>>, native: &NativeStack) -> Vec<HistoryFrame> {
    let nothing = PythonStack::default();
    let merged = merge(python.map_or(&nothing, |python| python), native);
    let mut frames: Vec<HistoryFrame> = merged
        .frames
        .iter()
        .map(|frame| match frame {
            MergedFrame::Python(frame) => python_frame(frame),
            MergedFrame::Native(frame) => history_frame(frame),
        })
        .collect();
    if let Some(cut) = merged.cut {
        frames.insert(cut, remark("memwatch: further native frames are missing"));
    }
    frames.extend(python.is_some_and(|python| python.truncated).then(|| remark("memwatch: outer frames are missing")));
    frames
}

/// Returns a frame with a remark of memwatch, which a viewer shows like a frame of the program.
fn remark(text: &str) -> HistoryFrame {
    HistoryFrame { name: text.into(), file: "memwatch".into(), line: 0 }
}

#[cfg(test)]
#[path = "tests/history.rs"]
mod tests;
