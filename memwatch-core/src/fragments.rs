//! The line's look at how free memory lies: taken in with each tick, told with names when it is asked for.

use crate::Pipeline;
use crate::analysis::fragments::{Fragments, Moment, Moments, shapes};
use crate::analysis::simulation::{LARGE_SEGMENT_BYTES, OWN_SEGMENT_BYTES, SMALL_SEGMENT_BYTES};
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::decode::{TensorChange, TensorEvent};
use crate::ledger::totals::DeviceRef;
use crate::snapshot::{FitView, FragmentsView, MomentView, SegmentBlockState, SegmentBlockView, SegmentView};
use crate::tensors::allocator::{BlockState, DeviceAllocator, Memory, PoolSize};
use crate::words::Ordinal;

impl Pipeline {
    /// From now on how free memory lies is kept with each tick.
    pub fn watch_fragments(&mut self) {
        self.detectors.fragments.get_or_insert_default();
    }

    /// How free memory lies and has lain, by process and device; nothing before [`Pipeline::watch_fragments`]. Of a process that has ended, and
    /// with `at_worst` of all, it is shown as it lay at its worst; else as it lies now. With a request of so many bytes, what would become of that.
    pub fn fragments(&self, wanted_bytes: Option<u64>, at_worst: bool) -> Vec<FragmentsView> {
        let Some(fragments) = &self.detectors.fragments else { return Vec::new() };
        let all = self.ended.iter().chain(self.processes.values());
        let of_process = |process: &'_ Process| {
            let allocators = process.tensors.iter().flat_map(|tensors| tensors.allocators());
            let view = |(ordinal, allocator): (&Ordinal, &DeviceAllocator)| {
                self.fragment(process, (*ordinal, allocator), fragments, (wanted_bytes, at_worst))
            };
            allocators.map(view).collect::<Vec<_>>()
        };
        all.flat_map(of_process).collect()
    }

    /// A request has failed, or the driver is asked: how it lies then matters most.
    pub(crate) fn observe_fragments_of(&mut self, event: &TensorEvent) {
        let Self { detectors, processes, .. } = self;
        let Some(fragments) = &mut detectors.fragments else { return };
        let Some(process) = processes.get(&event.tgid) else { return };
        match event.what {
            TensorChange::OutOfMemory { .. } => fragments.observe(process, event.time_ns),
            TensorChange::SegmentWanted { .. } | TensorChange::Synchronized { .. } => {
                fragments.look(process, event.time_ns);
            }
            _ => {}
        }
    }

    pub(crate) fn observe_fragments(&mut self) {
        let Self { detectors, processes, now_ns, .. } = self;
        let Some(fragments) = &mut detectors.fragments else { return };
        for process in processes.values() {
            fragments.observe(process, *now_ns);
        }
    }

    fn fragment(
        &self,
        process: &Process,
        (ordinal, allocator): (Ordinal, &DeviceAllocator),
        fragments: &Fragments,
        (wanted_bytes, at_worst): (Option<u64>, bool),
    ) -> FragmentsView {
        let moments = fragments.moments(&(process.tgid, process.observed_since_ns, ordinal));
        let uuid = resolve(process, DeviceRef::Ordinal(ordinal), &self.reading.devices);
        let device = self.reading.devices.iter().find(|device| Some(&device.uuid) == uuid.as_ref());
        let driver_free_bytes = device
            .and_then(|device| device.total_bytes.zip(device.used_bytes))
            .map(|(total, used)| total.saturating_sub(used));
        let worst = moments.and_then(Moments::worst);
        let shown = worst.filter(|_| at_worst || process.ended.is_some());
        let memory = shown.map_or(allocator.memory(), |(_, memory)| memory);
        let [small, large] = shapes(memory);
        let reported = allocator.reported().filter(|_| shown.is_none());
        FragmentsView {
            tgid: process.tgid,
            observed_since_ns: process.observed_since_ns,
            device: ordinal.0,
            uuid,
            at_worst_ns: shown.map(|(moment, _)| moment.time_ns),
            traced: allocator.seen_by() != "reports",
            reported_reserved_bytes: reported.map(|reported| reported.reserved_bytes),
            reported_allocated_bytes: reported.map(|reported| reported.allocated_bytes),
            small,
            large,
            moments: moments.iter().flat_map(|moments| moments.kept()).map(moment_view).collect(),
            worst: worst.map(|(moment, _)| moment_view(moment)),
            request: wanted_bytes.map(|wanted| fit(memory, wanted, driver_free_bytes.filter(|_| shown.is_none()))),
            segments: segments(memory),
        }
    }
}

/// What would become of a request in the usual pools.
fn fit(memory: &Memory, wanted_bytes: u64, driver_free_bytes: Option<u64>) -> FitView {
    let bytes = wanted_bytes.max(1).next_multiple_of(512);
    let pool = PoolSize::of_request(bytes);
    let usual = memory.segments().iter().filter(|(_, segment)| segment.private_pool == (0, 0));
    let mut free = usual.filter(|(_, segment)| segment.pool == pool).flat_map(|(begin, segment)| {
        let cells = memory.cells().range(*begin..begin.saturating_add(segment.bytes));
        cells.filter(|(_, cell)| cell.state == BlockState::Inactive).map(|(_, cell)| cell.bytes)
    });
    let driver_bytes = match pool {
        PoolSize::Small => SMALL_SEGMENT_BYTES,
        PoolSize::Large if bytes < OWN_SEGMENT_BYTES => LARGE_SEGMENT_BYTES,
        PoolSize::Large => bytes.next_multiple_of(SMALL_SEGMENT_BYTES),
    };
    let releasable_bytes = memory.unused_segments().map(|(_, segment)| segment.bytes).sum();
    let cached = free.any(|own| own >= bytes);
    FitView { wanted_bytes, cached, driver_bytes, driver_free_bytes, releasable_bytes }
}

fn segments(memory: &Memory) -> Vec<SegmentView> {
    let block = |(_, cell): (&u64, &crate::tensors::allocator::Cell)| SegmentBlockView {
        bytes: cell.bytes,
        state: match cell.state {
            BlockState::Allocated => SegmentBlockState::Allocated,
            BlockState::Pending => SegmentBlockState::Pending,
            BlockState::Inactive => SegmentBlockState::Free,
        },
    };
    let view = |(begin, segment): (&u64, &crate::tensors::allocator::Segment)| SegmentView {
        address: *begin,
        bytes: segment.bytes,
        small: segment.pool == PoolSize::Small,
        expandable: segment.is_expandable,
        stream: segment.stream,
        private_pool: segment.private_pool,
        blocks: memory.cells().range(*begin..begin.saturating_add(segment.bytes)).map(block).collect(),
    };
    memory.segments().iter().map(view).collect()
}

const fn moment_view(moment: &Moment) -> MomentView {
    MomentView {
        time_ns: moment.time_ns,
        reserved_bytes: moment.shape.reserved_bytes,
        allocated_bytes: moment.shape.allocated_bytes,
        free_bytes: moment.shape.free_bytes,
        split_bytes: moment.shape.split_bytes,
        largest_free_bytes: moment.shape.largest_free_bytes,
    }
}
