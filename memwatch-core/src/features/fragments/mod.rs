//! Fragmentation of free memory: updated on every tick; names are resolved when a report is
//! requested.

pub mod driver;
pub mod model;
pub mod pins;
mod pools;
pub mod view;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::Pipeline;
use crate::allocators::pytorch::{AllocatorMemory, BlockState, DeviceAllocator, PoolSize};
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::decode::{TensorChange, TensorEvent};
use crate::features::fragments::driver::{DriverShape, OnDevice};
use crate::features::fragments::model::{FragmentationMoment, Fragments, Moments, pinned, shapes};
use crate::features::fragments::pins::{Pinned, PinnedByOwner, PinnedMemory};
use crate::features::fragments::view::{
    DriverFitView, DriverFragmentsView, DriverGpuView, DriverPoolView, FragmentsView, LinearView, MomentView,
    PhysicalView, PinView, SegmentBlockState, SegmentBlockView, SegmentView,
};
use crate::ledger::layout::{GRANULE_BYTES, Linear};
use crate::ledger::totals::DeviceRef;
use crate::snapshot::PlaceNameView;
use crate::snapshot::build::places::{module_name, site_text};
use crate::words::{GpuUuid, Name, Ordinal, Tgid};

/// Maximum length of a list of call sites or modules.
const PINS: usize = 256;

impl Pipeline {
    /// Turns fragmentation tracking on.
    pub fn watch_fragments(&mut self) {
        self.detectors.fragments.get_or_insert_default();
    }

    /// Returns the fragmentation by process and device; nothing before
    /// [`Pipeline::watch_fragments`]. Shows the most fragmented moment for a process that has
    /// ended, and for all processes with `at_worst`; else the current state. With `wanted_bytes`
    /// also reports whether a request of that size would fit.
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

    /// Examines the layout at a failed request and at a request to the driver, when fragmentation
    /// matters most.
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

    /// Adds a moment after the process's allocator state was read.
    pub(crate) fn observe_fragments_at(&mut self, tgid: Tgid, time_ns: u64) {
        let Self { detectors, processes, .. } = self;
        if let Some((fragments, process)) = detectors.fragments.as_mut().zip(processes.get(&tgid)) {
            fragments.observe(process, time_ns);
        }
    }

    pub(crate) fn observe_fragments(&mut self) {
        let Self { detectors, processes, now_ns, .. } = self;
        let Some(fragments) = &mut detectors.fragments else { return };
        for process in processes.values() {
            fragments.observe(process, *now_ns);
            fragments.drivers.observe(process, *now_ns);
        }
    }

    /// Adds a last moment before the process exits or executes another image, and its driver memory
    /// goes away.
    pub(crate) fn observe_last_fragments(&mut self, tgid: Tgid, time_ns: u64) {
        let Self { detectors, processes, .. } = self;
        let Some(fragments) = &mut detectors.fragments else { return };
        if let Some(process) = processes.get(&tgid) {
            fragments.drivers.observe(process, time_ns);
        }
    }

    /// Returns the fragmentation of memory that processes allocate from the driver directly, for
    /// processes that have or had any, and whether a request of this size would fit.
    pub fn driver_fragments(&self, wanted_bytes: Option<u64>, at_worst: bool) -> Vec<DriverFragmentsView> {
        let Some(fragments) = &self.detectors.fragments else { return Vec::new() };
        let all = self.ended.iter().chain(self.processes.values());
        let view = |process: &Process| {
            let worst = fragments.drivers.worst(process.tgid, process.observed_since_ns);
            let shown = worst.filter(|_| at_worst || process.ended.is_some());
            let now = shown.is_none().then(|| DriverShape::of(process));
            let shape = now.as_ref().or(shown.map(|(_, shape)| shape))?;
            let mut gpus: BTreeMap<Option<GpuUuid>, OnDevice> = BTreeMap::new();
            for (device, own) in &shape.devices {
                let uuid = resolve(process, *device, &self.reading.devices);
                gpus.entry(uuid).and_modify(|sum| *sum = sum.and(*own)).or_insert(*own);
            }
            let on_gpu = |(uuid, own)| self.on_gpu(uuid, &own, wanted_bytes, shown.is_none());
            Some(DriverFragmentsView {
                tgid: process.tgid,
                observed_since_ns: process.observed_since_ns,
                at_worst_ns: shown.map(|(time_ns, _)| *time_ns),
                addresses: shape.holes,
                gpus: gpus.into_iter().map(on_gpu).collect(),
            })
        };
        all.filter_map(view).filter(|view| !view.gpus.is_empty()).collect()
    }

    fn on_gpu(&self, uuid: Option<GpuUuid>, own: &OnDevice, wanted_bytes: Option<u64>, is_now: bool) -> DriverGpuView {
        let driver_free_bytes = self.driver_free_bytes(uuid.as_ref()).filter(|_| is_now);
        let Linear { allocations, bytes, small_allocations, small_bytes, granule_bytes } = own.linear;
        DriverGpuView {
            uuid,
            device: LinearView {
                live_bytes: bytes,
                allocations,
                small_bytes,
                small_allocations,
                backed_bytes: granule_bytes,
                granule_bytes: GRANULE_BYTES,
                unused_bytes: own.linear.wasted_bytes(),
                estimated: true,
            },
            physical: PhysicalView { live_bytes: own.physical_bytes, idle_bytes: own.idle_physical_bytes },
            pool: DriverPoolView::new(
                own.pool_bytes,
                own.pool_backed.map(|backed| backed.bytes),
                own.pool_backed.is_some_and(|backed| backed.estimated),
            ),
            wasted_bytes: own.wasted_bytes(),
            request: wanted_bytes.map(|wanted_bytes| DriverFitView {
                wanted_bytes,
                driver_bytes: wanted_bytes.next_multiple_of(GRANULE_BYTES),
                driver_free_bytes,
            }),
        }
    }

    /// Returns the driver's free bytes on a GPU in NVML's last reading.
    fn driver_free_bytes(&self, uuid: Option<&GpuUuid>) -> Option<u64> {
        let device = self.reading.devices.iter().find(|device| Some(&device.uuid) == uuid)?;
        device.total_bytes.zip(device.used_bytes).map(|(total, used)| total.saturating_sub(used))
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
        let driver_free_bytes = self.driver_free_bytes(uuid.as_ref());
        let worst = moments.and_then(Moments::worst);
        let shown = worst.filter(|_| at_worst || process.ended.is_some());
        let memory = shown.map_or(allocator.memory(), |worst| &worst.memory);
        let [small, large] = shapes(memory);
        let (sites, modules) = pin_views(process, ordinal, allocator, shown.map(|worst| &worst.pins));
        let reported = allocator.reported().filter(|_| shown.is_none());
        FragmentsView {
            tgid: process.tgid,
            observed_since_ns: process.observed_since_ns,
            device: ordinal.0,
            uuid,
            at_worst_ns: shown.map(|worst| worst.moment.time_ns),
            traced: allocator.knows_segments(),
            reported_reserved_bytes: reported.map(|reported| reported.reserved_bytes),
            reported_allocated_bytes: reported.map(|reported| reported.allocated_bytes),
            small,
            large,
            moments: moments.iter().flat_map(|moments| moments.kept()).map(moment_view).collect(),
            worst: worst.map(|worst| moment_view(&worst.moment)),
            request: wanted_bytes
                .map(|wanted| pools::fit(memory, wanted, driver_free_bytes.filter(|_| shown.is_none()))),
            pools: pools::pools(process.tensors.as_deref(), ordinal, memory),
            segments: segments(memory),
            sites,
            modules,
        }
    }
}

/// Returns the memory pinned by call sites and by modules, if segments and stacks are traced.
fn pin_views(
    process: &Process,
    ordinal: Ordinal,
    allocator: &DeviceAllocator,
    shown: Option<&PinnedMemory>,
) -> (Vec<PinView>, Vec<PinView>) {
    let Some(tensors) = process.tensors.as_ref().filter(|_| allocator.knows_segments()) else {
        return (Vec::new(), Vec::new());
    };
    let now = shown.is_none().then(|| pinned(tensors, ordinal, allocator.memory()));
    let Some(pins) = now.as_ref().or(shown) else { return (Vec::new(), Vec::new()) };
    let names = tensors.names();
    let sites = pin_list(&pins.sites, |key| site_text(names, key));
    (sites, pin_list(&pins.modules, |key| module_name(names, key)))
}

/// Returns the list by share, largest first; entries beyond the bound are summed up in one row.
fn pin_list<K: Copy>(pins: &PinnedByOwner<K>, name: impl Fn(K) -> PlaceNameView) -> Vec<PinView> {
    let of_kind = |kind| PlaceNameView { kind: Name::Borrowed(kind), name: None };
    let view = |(owner, pinned): (&Option<K>, &Pinned)| PinView {
        place: owner.map_or_else(|| of_kind("pending"), &name),
        held_bytes: pinned.held_bytes,
        share_bytes: pinned.share_bytes,
        alone_bytes: Some(pinned.alone_bytes),
    };
    let mut all: Vec<PinView> = pins.iter().map(view).collect();
    all.sort_by_key(|pin| (Reverse(pin.share_bytes), Reverse(pin.alone_bytes)));
    let beyond = all.split_off(all.len().min(PINS));
    if !beyond.is_empty() {
        let sum = |of: fn(&PinView) -> u64| beyond.iter().map(of).sum();
        let (held_bytes, share_bytes) = (sum(|pin| pin.held_bytes), sum(|pin| pin.share_bytes));
        all.push(PinView { place: of_kind("rest"), held_bytes, share_bytes, alone_bytes: None });
    }
    all
}

fn segments(memory: &AllocatorMemory) -> Vec<SegmentView> {
    let block = |(_, cell): (&u64, &crate::allocators::pytorch::SegmentCell)| SegmentBlockView {
        bytes: cell.bytes,
        state: match cell.state {
            BlockState::Allocated => SegmentBlockState::Allocated,
            BlockState::Pending => SegmentBlockState::Pending,
            BlockState::Inactive => SegmentBlockState::Free,
        },
    };
    let view = |(begin, segment): (&u64, &crate::allocators::pytorch::AllocatorSegment)| SegmentView {
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

const fn moment_view(moment: &FragmentationMoment) -> MomentView {
    MomentView {
        time_ns: moment.time_ns,
        reserved_bytes: moment.shape.reserved_bytes,
        allocated_bytes: moment.shape.allocated_bytes,
        free_bytes: moment.shape.free_bytes,
        split_bytes: moment.shape.split_bytes,
        largest_free_bytes: moment.shape.largest_free_bytes,
    }
}
