//! Fragmentation of free memory: updated on every tick; names are resolved when a report is
//! requested.

pub mod driver;
pub mod model;
pub mod pins;
mod pools;
pub mod view;

use std::cmp::Reverse;
use std::collections::BTreeMap;

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
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::{GpuUuid, Name, Ordinal};

/// Maximum length of a list of call sites or modules.
const PINS: usize = 256;

impl Detector for Fragments {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        match event {
            Event::Tensor(event) => self.look_at(event, state),
            Event::AllocatorState(allocator_state) => {
                if let Some(process) = state.processes.get(&allocator_state.tgid) {
                    self.observe(process, allocator_state.time_ns);
                }
            }
            // Its driver memory goes away.
            Event::Ends { tgid, time_ns } => {
                if let Some(process) = state.processes.get(tgid) {
                    self.drivers.observe(process, *time_ns);
                }
            }
            Event::Tick => {
                for process in state.processes.values() {
                    self.observe(process, state.now_ns);
                    self.drivers.observe(process, state.now_ns);
                }
            }
            _ => {}
        }
    }
}

impl Fragments {
    /// Examines the layout at a failed request and at a request to the driver, when fragmentation
    /// matters most.
    fn look_at(&mut self, event: &TensorEvent, state: &State) {
        let Some(process) = state.processes.get(&event.tgid) else { return };
        match event.what {
            TensorChange::OutOfMemory { .. } => self.observe(process, event.time_ns),
            TensorChange::SegmentWanted { .. } | TensorChange::Synchronized { .. } => {
                self.look(process, event.time_ns);
            }
            _ => {}
        }
    }

    /// Returns the fragmentation by process and device. Shows the most fragmented moment for a
    /// process that has ended, and for all processes with `at_worst`; else the current state. With
    /// `wanted_bytes` also reports whether a request of that size would fit.
    pub fn report(&self, state: &State, wanted_bytes: Option<u64>, at_worst: bool) -> Vec<FragmentsView> {
        let all = state.ended.iter().chain(state.processes.values());
        let of_process = |process: &'_ Process| {
            let allocators = process.tensors.iter().flat_map(|tensors| tensors.allocators());
            let view = |(ordinal, allocator): (&Ordinal, &DeviceAllocator)| {
                fragment(state, process, (*ordinal, allocator), self, (wanted_bytes, at_worst))
            };
            allocators.map(view).collect::<Vec<_>>()
        };
        all.flat_map(of_process).collect()
    }

    /// Returns the fragmentation of memory that processes allocate from the driver directly, for
    /// processes that have or had any, and whether a request of this size would fit.
    pub fn driver_report(&self, state: &State, wanted_bytes: Option<u64>, at_worst: bool) -> Vec<DriverFragmentsView> {
        let all = state.ended.iter().chain(state.processes.values());
        let view = |process: &Process| {
            let worst = self.drivers.worst(process.tgid, process.observed_since_ns);
            let shown = worst.filter(|_| at_worst || process.ended.is_some());
            let now = shown.is_none().then(|| DriverShape::of(process));
            let shape = now.as_ref().or(shown.map(|(_, shape)| shape))?;
            let mut gpus: BTreeMap<Option<GpuUuid>, OnDevice> = BTreeMap::new();
            for (device, own) in &shape.devices {
                let uuid = resolve(process, *device, &state.reading.devices);
                gpus.entry(uuid).and_modify(|sum| *sum = sum.and(*own)).or_insert(*own);
            }
            let on_gpu = |(uuid, own)| on_gpu(state, uuid, &own, wanted_bytes, shown.is_none());
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
}

fn on_gpu(
    state: &State,
    uuid: Option<GpuUuid>,
    own: &OnDevice,
    wanted_bytes: Option<u64>,
    is_now: bool,
) -> DriverGpuView {
    let driver_free_bytes = driver_free_bytes(state, uuid.as_ref()).filter(|_| is_now);
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
fn driver_free_bytes(state: &State, uuid: Option<&GpuUuid>) -> Option<u64> {
    let device = state.reading.devices.iter().find(|device| Some(&device.uuid) == uuid)?;
    device.total_bytes.zip(device.used_bytes).map(|(total, used)| total.saturating_sub(used))
}

fn fragment(
    state: &State,
    process: &Process,
    (ordinal, allocator): (Ordinal, &DeviceAllocator),
    fragments: &Fragments,
    (wanted_bytes, at_worst): (Option<u64>, bool),
) -> FragmentsView {
    let moments = fragments.moments(&(process.tgid, process.observed_since_ns, ordinal));
    let uuid = resolve(process, DeviceRef::Ordinal(ordinal), &state.reading.devices);
    let driver_free_bytes = driver_free_bytes(state, uuid.as_ref());
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
        request: wanted_bytes.map(|wanted| pools::fit(memory, wanted, driver_free_bytes.filter(|_| shown.is_none()))),
        pools: pools::pools(process.tensors.as_deref(), ordinal, memory),
        segments: segments(memory),
        sites,
        modules,
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
