//! `snapshot.pickle`, the format of PyTorch's `torch.cuda.memory._dump_snapshot`, for
//! pytorch.org/memory_viz and torch/cuda/_memory_viz.py.

mod writer;

use std::collections::HashMap;
use std::io;

use memwatch_core::allocators::pytorch::LineAction;
use memwatch_core::snapshot::{
    DeviceHistory, HistoryBlock, HistoryFrame, HistoryLine, HistoryMark, HistorySegment, MemoryHistory,
};

use self::writer::{BATCH, Memo, PickleWriter};
use crate::render::wall_clock::WallClock;

/// Category of events without a phase. The viewer fails if events have categories and none of them
/// is `unknown`.
const NO_PHASE: &str = "unknown";

/// Writes the history of one process. `time_ns` is the time of the snapshot, as `CLOCK_BOOTTIME`.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write(
    out: &mut impl io::Write,
    history: &MemoryHistory,
    time_ns: u64,
    clock: &WallClock,
) -> io::Result<()> {
    let writer = PickleWriter::new(io::BufWriter::new(out))?;
    let mut document = SnapshotPickle { writer, history, clock, stacks: HashMap::new(), frames: HashMap::new() };
    document.all(time_ns)?;
    document.writer.finish()
}

/// State of the writer.
struct SnapshotPickle<'a, W> {
    writer: PickleWriter<W>,
    history: &'a MemoryHistory,
    clock: &'a WallClock,
    stacks: HashMap<usize, Memo>,
    frames: HashMap<&'a HistoryFrame, Memo>,
}

impl<'a, W: io::Write> SnapshotPickle<'a, W> {
    fn all(&mut self, time_ns: u64) -> io::Result<()> {
        let history = self.history;
        let segments = history.devices.iter().flat_map(|device| device.segments.iter().map(|one| (device.device, one)));
        let last = history.devices.iter().map(|device| device.device).max().unwrap_or(-1);
        self.nested(|document| {
            document.key("segments")?;
            document.list(segments, |document, (device, segment)| document.segment(device, segment))?;
            document.key("device_traces")?;
            document.list(0..=last, |document, number| {
                let device = history.devices.iter().find(|device| device.device == number);
                document.lines(device, time_ns)
            })?;
            document.key("allocator_settings")?;
            document.settings()?;
            document.key("external_annotations")?;
            document.list(&history.marks, Self::mark)
        })
    }

    fn segment(&mut self, device: i32, segment: &HistorySegment) -> io::Result<()> {
        let sum = |of: &dyn Fn(&HistoryBlock) -> u64, states: &[&str]| -> u64 {
            let counted = segment.blocks.iter().filter(|block| states.is_empty() || states.contains(&block.state));
            counted.map(of).sum()
        };
        let active = ["active_allocated", "active_pending_free"];
        self.nested(|document| {
            document.key("device")?.integer(i64::from(device))?;
            document.key("address")?.number(segment.address)?;
            document.key("total_size")?.number(sum(&|block| block.bytes, &[]))?;
            document.key("allocated_size")?.number(sum(&|block| block.bytes, &active[..1]))?;
            document.key("active_size")?.number(sum(&|block| block.bytes, &active))?;
            document.key("requested_size")?.number(sum(&|block| block.requested_bytes, &active))?;
            document.key("stream")?.number(segment.stream)?;
            document.key("segment_type")?.text(if segment.is_small { "small" } else { "large" })?;
            document.key("segment_pool_id")?.pair(segment.private_pool)?;
            document.key("is_expandable")?.truth(segment.is_expandable)?;
            document.stack(segment.stack)?;
            document.key("blocks")?;
            document.list(&segment.blocks, Self::block)
        })
    }

    fn block(&mut self, block: &HistoryBlock) -> io::Result<()> {
        self.nested(|document| {
            document.key("address")?.number(block.address)?;
            document.key("size")?.number(block.bytes)?;
            document.key("requested_size")?.number(block.requested_bytes)?;
            document.key("state")?.text(block.state)?;
            document.stack(block.stack)
        })
    }

    /// Writes the events of a device, followed by the event of the snapshot itself.
    fn lines(&mut self, device: Option<&DeviceHistory>, time_ns: u64) -> io::Result<()> {
        let lines = device.into_iter().flat_map(|device| &device.lines).map(Some).chain([None]);
        self.list(lines, |document, line| match line {
            Some(line) => document.line(line),
            None => document.taken(time_ns),
        })
    }

    fn line(&mut self, line: &HistoryLine) -> io::Result<()> {
        let is_failure = line.action == LineAction::OutOfMemory;
        self.nested(|document| {
            document.key("action")?.text(action(line.action))?;
            document.key(if is_failure { "device_free" } else { "addr" })?.number(line.address)?;
            document.key("size")?.number(line.bytes)?;
            document.key("stream")?.number(line.stream)?;
            document.time(line.time_ns)?;
            document.key("compile_context")?.text("N/A")?;
            document.key("user_metadata")?.text("")?;
            document.key("pool_id")?.pair(line.private_pool)?;
            document.key("category")?.text(line.phase.as_deref().unwrap_or(NO_PHASE))?;
            document.stack(line.stack)
        })
    }

    fn taken(&mut self, time_ns: u64) -> io::Result<()> {
        self.nested(|document| {
            document.key("action")?.text("snapshot")?;
            for key in ["addr", "size", "stream"] {
                document.key(key)?.number(0)?;
            }
            document.time(time_ns)?;
            document.key("category")?.text(NO_PHASE)?;
            document.key("frames")?;
            document.list([(); 0], |_, ()| Ok(()))
        })
    }

    /// Writes the known allocator settings.
    fn settings(&mut self) -> io::Result<()> {
        let limit = self.history.devices.iter().find_map(|device| device.max_split_size);
        self.nested(|document| match limit {
            Some(limit) => document.key("max_split_size")?.integer(limit),
            None => Ok(()),
        })
    }

    fn mark(&mut self, mark: &HistoryMark) -> io::Result<()> {
        // A range belongs to a thread, but PyTorch's annotations require a device.
        let device = self.history.devices.first().map_or(0, |device| device.device);
        self.nested(|document| {
            document.key("stage")?.text(if mark.begins { "START" } else { "END" })?;
            document.key("name")?.text(&mark.name)?;
            document.key("device")?.integer(i64::from(device))?;
            document.time(mark.time_ns)
        })
    }

    /// Writes the frames of a stack. Repeated stacks refer to the first occurrence.
    fn stack(&mut self, stack: usize) -> io::Result<()> {
        self.key("frames")?;
        if let Some(memo) = self.stacks.get(&stack) {
            return self.writer.again(*memo);
        }
        self.writer.empty_list()?;
        let memo = self.writer.keep()?;
        self.stacks.insert(stack, memo);
        let history = self.history;
        self.items(history.stacks.get(stack).into_iter().flatten(), Self::frame)
    }

    fn frame(&mut self, frame: &'a HistoryFrame) -> io::Result<()> {
        if let Some(memo) = self.frames.get(frame) {
            return self.writer.again(*memo);
        }
        self.nested(|document| {
            document.key("name")?.text(&frame.name)?;
            document.key("filename")?.text(&frame.file)?;
            document.key("line")?.number(u64::from(frame.line))
        })?;
        let memo = self.writer.keep()?;
        self.frames.insert(frame, memo);
        Ok(())
    }

    fn time(&mut self, time_ns: u64) -> io::Result<()> {
        let unix_us = self.clock.unix_us(time_ns);
        self.key("time_us")?.integer(unix_us)
    }

    fn key(&mut self, key: &str) -> io::Result<&mut PickleWriter<W>> {
        self.writer.key(key)
    }

    fn nested(&mut self, fill: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.writer.begin_dict()?;
        fill(self)?;
        self.writer.end_dict()
    }

    fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.writer.empty_list()?;
        self.items(items, write)
    }

    /// Appends items to the list that was begun last.
    fn items<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            self.writer.begin_items()?;
            for item in items.by_ref().take(BATCH) {
                write(self, item)?;
            }
            self.writer.end_items()?;
        }
        Ok(())
    }
}

/// Returns PyTorch's name of an action.
const fn action(action: LineAction) -> &'static str {
    match action {
        LineAction::Alloc => "alloc",
        LineAction::FreeRequested => "free_requested",
        LineAction::FreeCompleted => "free_completed",
        LineAction::SegmentAlloc => "segment_alloc",
        LineAction::SegmentFree => "segment_free",
        LineAction::SegmentMap => "segment_map",
        LineAction::SegmentUnmap => "segment_unmap",
        LineAction::OutOfMemory => "oom",
    }
}

#[cfg(test)]
mod tests;
