//! What the kernel half reports of the simulated program, and the memory that is truly held.

use memwatch_common::probes::PROBES;

use super::effects::NO_CONTEXT;
use super::{
    DEVICES, Deed, HeldSums, HistoryMoment, HoldState, RunningCall, SimulatedCounts, SimulatedWorld, Space, ThingKind,
};
use crate::input::LiveAddress;
use crate::ledger::totals::AllocationKind;
use crate::test_calls::*;

impl SimulatedWorld {
    pub(super) fn leave(&mut self, thread: usize, running: &RunningCall) {
        let (status, made) = running.effect.unwrap_or_default();
        let key = made.map_or(0, |made| self.holds[made].key);
        let call = self.call(running, key);
        let asked = match running.deed {
            Deed::Make(ThingKind::Own(kind), _) => kind != AllocationKind::Registered,
            Deed::Make(ThingKind::Pooled { .. }, _) => true,
            _ => false,
        };
        self.history.refused += u64::from(asked && status != 0 && status != NO_CONTEXT);
        if let Some(made) = made {
            self.holds[made].state = HoldState::Idle;
            self.things[self.holds[made].thing].since.get_or_insert(self.history.moments.len());
        }
        for hold in running.deed.needs() {
            self.holds[hold].state = HoldState::Idle;
        }
        let ended = if status == 0 { HoldState::Ended } else { HoldState::Idle };
        for hold in running.deed.ends() {
            self.holds[hold].state = ended;
        }
        let touched = made.into_iter().chain(running.deed.ends()).collect::<Vec<usize>>();
        for pool in touched.iter().filter_map(|hold| self.things[self.holds[*hold].thing].pool) {
            self.pools[pool].asked = false;
        }
        let losable = !touched.is_empty() && touched.iter().all(|hold| self.is_in_the_ledger(*hold));
        let call = if status == 0 { call } else { call.failing(status) };
        self.report(thread, call, running.entered_ns, losable);
    }

    /// Returns whether address, size and function are all that the ledger has to know of an
    /// allocation.
    fn is_in_the_ledger(&self, hold: usize) -> bool {
        let kind = self.things[self.holds[hold].thing].kind;
        let pooled = self.things[self.holds[hold].thing].pool.is_some();
        self.holds[hold].space == Space::Address && kind.is_some() && (kind == Some(AllocationKind::Pool)) == pooled
    }

    fn call(&self, running: &RunningCall, key: u64) -> TestCall {
        let bytes = running.bytes;
        match &running.deed {
            Deed::Make(what, device) => self.call_that_makes(*what, *device, key, bytes),
            Deed::Map { source, address, length } => mem_map(*address, *length, 0, self.holds[*source].key),
            Deed::Retain { source } => mem_retain(key, self.holds[*source].key + self.holds[*source].length - 1),
            Deed::Reopen { .. } => ipc_open(key),
            Deed::Bind { source, object, offset, named } => {
                let (object, source) = (&self.holds[*object], &self.holds[*source]);
                let device = self.things[source.thing].device.filter(|_| *named);
                multicast_bind(object.key, device, *offset, source.key, super::GRANULE)
            }
            Deed::Unbind { bound, object } => {
                let (object, bound) = (&self.holds[*object], &self.holds[*bound]);
                let device = self.things[bound.thing].device.expect("only memory of a device is bound");
                multicast_unbind(object.key, device, bound.key, bound.length)
            }
            Deed::End(holds) => self.call_that_ends(holds, bytes),
        }
    }

    fn call_that_makes(&self, what: ThingKind, device: u32, key: u64, bytes: u64) -> TestCall {
        match what {
            ThingKind::ImportedHandle => mem_import(key),
            ThingKind::ImportedPointer { pool } => mem_pool_import_pointer(key, self.pools[pool].handle),
            ThingKind::ExternalBuffer => external_memory_get_mapped_buffer(key),
            ThingKind::OpenedByIpc => ipc_open(key),
            ThingKind::Multicast => multicast_create(key),
            ThingKind::Reservation => mem_address_reserve(key, bytes),
            ThingKind::Library => library_load_data(key),
            ThingKind::Pooled { pool: None, stream } => mem_alloc_async_on(key, bytes, stream),
            ThingKind::Pooled { pool: Some(pool), stream } => {
                mem_alloc_from_pool_async_on(key, bytes, self.pools[pool].handle, stream)
            }
            ThingKind::Own(kind) => match kind {
                AllocationKind::Device => mem_alloc(key, bytes),
                AllocationKind::Managed => mem_alloc_managed(key, bytes),
                AllocationKind::PinnedHost => mem_host_alloc(key, bytes),
                AllocationKind::Array => array_create(key, bytes),
                AllocationKind::Registered => mem_host_register(key, bytes),
                AllocationKind::Physical => mem_create(key, bytes, (ON_DEVICE, device)),
                AllocationKind::HostPhysical => mem_create(key, bytes, (ON_HOST, 0)),
                AllocationKind::Graph | AllocationKind::Pool => panic!("no call of its own makes {kind:?}"),
            },
        }
    }

    fn call_that_ends(&self, holds: &[usize], bytes: u64) -> TestCall {
        let (first, last) = (&self.holds[holds[0]], &self.holds[holds[holds.len() - 1]]);
        let thing = &self.things[first.thing];
        let is_stream_ordered = matches!(thing.what, ThingKind::Pooled { .. } | ThingKind::ImportedPointer { .. });
        match (first.space, thing.what) {
            (Space::Address, ThingKind::Own(AllocationKind::PinnedHost)) => mem_free_host(first.key),
            (Space::Address, _) if is_stream_ordered && bytes.is_multiple_of(2) => mem_free_async(first.key),
            (Space::Address, _) => mem_free(first.key),
            (Space::Ipc, _) => ipc_close(first.key),
            (Space::Array, _) => array_destroy(first.key),
            (Space::Registered, _) => mem_host_unregister(first.key),
            (Space::Handle, _) => mem_release(first.key),
            (Space::Range, _) => mem_unmap(first.key, last.key + last.length - first.key),
            (Space::Reservation, _) => mem_address_free(first.key, thing.bytes),
            (Space::Library, _) => library_unload(first.key),
            (Space::Bound, _) => panic!("what is bound is unbound"),
        }
    }

    /// Makes a call that overlaps no call that it affects.
    pub(super) fn instant(&mut self, thread: usize, call: TestCall) {
        let entered_ns = self.now_ns;
        self.report(thread, call, entered_ns, false);
    }

    fn report(&mut self, thread: usize, call: TestCall, entered_ns: u64, losable: bool) {
        self.now_ns += 1;
        let tid = TID + u32::try_from(thread).expect("few threads");
        let record = call.thread(tid).at(entered_ns, self.now_ns).0;
        let moment = HistoryMoment {
            record,
            at_least: self.sums(HoldState::is_held),
            at_most: self.sums(HoldState::is_held_or_ending),
            pools: (0..DEVICES).map(|device| self.pool_truth(device)).collect(),
            counts: self.is_quiet().then(|| self.counts()),
            allocation_map: self.allocation_map(),
            losable,
        };
        self.history.moments.push(moment);
    }

    /// Returns whether a counted reference to the thing remains.
    pub(super) fn is_held(&self, thing: usize, counts: &dyn Fn(HoldState) -> bool) -> bool {
        let holds = |thing| self.holds.iter().filter(move |hold| hold.thing == thing && counts(hold.state));
        holds(thing).any(|hold| hold.object.is_none_or(|object| holds(object).next().is_some()))
    }

    fn sums(&self, counts: impl Fn(HoldState) -> bool) -> HeldSums {
        let mut sums = HeldSums::new();
        for (index, thing) in self.things.iter().enumerate() {
            if let (Some(kind), true) = (thing.kind, self.is_held(index, &counts)) {
                *sums.entry((thing.device, kind)).or_insert(0) += thing.bytes;
            }
        }
        for (device, bytes) in self.bytes_of_graphs() {
            *sums.entry((Some(device), AllocationKind::Graph)).or_insert(0) += bytes;
        }
        sums
    }

    fn counts(&self) -> SimulatedCounts {
        let held = || (0..self.things.len()).filter(|thing| self.is_held(*thing, &HoldState::is_held));
        let held = || held().map(|thing| &self.things[thing]);
        let is_alias = |what: ThingKind| {
            let by_address =
                matches!(what, ThingKind::ImportedPointer { .. } | ThingKind::ExternalBuffer | ThingKind::OpenedByIpc);
            by_address || what == ThingKind::ImportedHandle
        };
        SimulatedCounts {
            aliases: held().filter(|thing| is_alias(thing.what)).count(),
            reservation_bytes: held()
                .filter(|thing| thing.what == ThingKind::Reservation)
                .map(|thing| thing.bytes)
                .sum(),
            modules: held().filter(|thing| thing.what == ThingKind::Library).count(),
            graph_node_bytes: self.bytes_of_nodes(),
            has_graph_memory: self.has_graph_memory(),
        }
    }

    /// Returns the kernel half's allocation map: an entry is added when an address is granted, and
    /// removed when it is freed.
    fn allocation_map(&self) -> Vec<LiveAddress> {
        let probe = |symbol: &str| PROBES.iter().find(|probe| probe.symbol == symbol).expect("a row").id;
        let in_allocation_map = self.holds.iter().filter(|hold| hold.space == Space::Address && hold.state.is_held());
        let held = in_allocation_map.filter_map(|hold| {
            let thing = &self.things[hold.thing];
            let symbol = match thing.what {
                ThingKind::Own(AllocationKind::Device) => "cuMemAlloc_v2",
                ThingKind::Own(AllocationKind::Managed) => "cuMemAllocManaged",
                ThingKind::Own(AllocationKind::PinnedHost) => "cuMemHostAlloc",
                ThingKind::Pooled { pool: None, .. } => "cuMemAllocAsync",
                ThingKind::Pooled { .. } => "cuMemAllocFromPoolAsync",
                _ => return None,
            };
            Some(LiveAddress { address: hold.key, bytes: thing.bytes, probe: probe(symbol) })
        });
        let probe_id = probe("cuMemAllocAsync");
        let captured = self.captured_nodes().map(|(address, bytes)| LiveAddress { address, bytes, probe: probe_id });
        held.chain(captured).collect()
    }
}
