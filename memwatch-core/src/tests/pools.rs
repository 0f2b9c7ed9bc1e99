//! Pools and streams of the simulated program, and the memory that the driver keeps for a pool.

use super::{DEVICES, Deed, HoldState, SimulatedWorld, ThingKind};
use crate::ledger::totals::AllocationKind;
use crate::test_calls::*;

/// Values of `CUmemPool_attribute`.
const RELEASE_THRESHOLD: u64 = 4;
const HELD_BYTES: u64 = 5;
/// Values of `CUmemAllocationType`.
const PINNED: u32 = 1;
const MANAGED: u32 = 2;

/// Size of the pieces in which the driver allocates memory for a pool.
const PIECE: u64 = 0x4000;

/// True state of a device's pools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolTruth {
    /// Bytes that are certainly in use.
    pub(crate) used_bytes: u64,
    /// Bytes that the pools hold, only while no call is running.
    pub(crate) held_bytes: Option<u64>,
    /// Whether the program has queried each pool's bytes and nothing has happened since, or the
    /// pool is empty.
    pub(crate) is_asked: bool,
}

pub(super) struct ProgramPool {
    pub(super) handle: u64,
    /// `None` if the pool is another process's.
    pub(super) kind: Option<AllocationKind>,
    pub(super) device: Option<u32>,
    alive: bool,
    /// Whether the program knows the handle.
    known: bool,
    held_bytes: u64,
    pub(super) asked: bool,
}

pub(super) struct SimulatedStream {
    pub(super) handle: u64,
    /// Context that owns the allocations on the stream.
    pub(super) context: u64,
    /// Context with which the stream is destroyed.
    pub(super) made_in: u64,
    pub(super) device: u32,
    pub(super) alive: bool,
}

impl ProgramPool {
    pub(super) fn default_of(device: u32) -> Self {
        Self { known: false, ..Self::made(0x80 + u64::from(device), Some(AllocationKind::Pool), Some(device)) }
    }

    fn made(handle: u64, kind: Option<AllocationKind>, device: Option<u32>) -> Self {
        Self { handle, kind, device, alive: true, known: true, held_bytes: 0, asked: false }
    }
}

impl SimulatedWorld {
    /// Returns the pool of calls on this stream that take no pool, or `None` without a context.
    pub(super) fn pool_of_stream(&self, stream: u64, current_device: Option<u32>) -> Option<usize> {
        let own = self.streams.iter().find(|own| own.handle == stream && own.alive);
        let device = own.map(|own| own.device).or(current_device)?;
        Some(self.current_pools[usize::try_from(device).expect("a device")])
    }

    fn used_bytes(&self, pool: usize, counts: &dyn Fn(HoldState) -> bool) -> u64 {
        let of_pool = (0..self.things.len()).filter(|thing| self.things[*thing].pool == Some(pool));
        of_pool.filter(|thing| self.is_held(*thing, counts)).map(|thing| self.things[thing].bytes).sum()
    }

    /// Grows the pool after an allocation.
    pub(super) fn grow_pool(&mut self, pool: usize) {
        let in_driver = self.holds.iter().filter(|hold| hold.in_driver).map(|hold| &self.things[hold.thing]);
        let used_bytes: u64 = in_driver.filter(|thing| thing.pool == Some(pool)).map(|thing| thing.bytes).sum();
        let pool = &mut self.pools[pool];
        pool.held_bytes = pool.held_bytes.max(used_bytes.next_multiple_of(PIECE));
    }

    pub(super) fn pool_truth(&self, device: u32) -> PoolTruth {
        let on_it = |pool: &usize| {
            self.pools[*pool].kind == Some(AllocationKind::Pool) && self.pools[*pool].device == Some(device)
        };
        let pools: Vec<usize> = (0..self.pools.len()).filter(on_it).collect();
        let used = |pool| self.used_bytes(pool, &HoldState::is_held);
        // A destroyed pool holds only what is still allocated from it.
        let held = |pool: usize| if self.pools[pool].alive { self.pools[pool].held_bytes } else { used(pool) };
        let sure = |pool: &ProgramPool, used| pool.asked || pool.held_bytes == 0 || (!pool.alive && used == 0);
        PoolTruth {
            used_bytes: pools.iter().map(|pool| used(*pool)).sum(),
            held_bytes: self.is_quiet().then(|| pools.iter().map(|pool| held(*pool)).sum()),
            is_asked: pools.iter().all(|pool| sure(&self.pools[*pool], used(*pool))),
        }
    }

    /// Returns the pools whose handle the program may use, its own or those imported from another
    /// process.
    fn usable_pools(&self, imported: bool) -> Vec<usize> {
        let usable = |pool: &ProgramPool| pool.alive && pool.known && pool.kind.is_none() == imported;
        (0..self.pools.len()).filter(|pool| usable(&self.pools[*pool])).collect()
    }

    /// Returns a stream that is not capturing: a created one, the legacy one or the thread's own.
    pub(super) fn idle_stream(&self, thread: usize, pick: usize) -> Option<u64> {
        let created = self.streams.iter().filter(|stream| stream.alive).map(|stream| stream.handle);
        let streams: Vec<u64> = created.chain([0, 2]).filter(|stream| !self.is_capturing(*stream, thread)).collect();
        streams.get(pick % streams.len().max(1)).copied()
    }

    /// Allocates stream-ordered memory from any pool.
    pub(super) fn allocate_stream_ordered(&self, thread: usize, pick: usize) -> Option<Deed> {
        let stream = if self.habits.stateful { self.idle_stream(thread, pick / 2)? } else { 0 };
        let pools = self.usable_pools(false);
        let explicit = self.habits.stateful && pick.is_multiple_of(2);
        let pool = pools.get(pick / 8 % pools.len().max(1)).copied().filter(|_| explicit);
        Some(Deed::Make(ThingKind::Pooled { pool, stream }, 0))
    }

    pub(super) fn import_pointer(&self, pick: usize) -> Option<Deed> {
        let pools = self.usable_pools(true);
        let pool = *pools.get(pick % pools.len().max(1))?;
        (!self.habits.teardown).then_some(Deed::Make(ThingKind::ImportedPointer { pool }, 0))
    }

    /// Creates a stream in the thread's context or destroys one. No record reports the latter.
    pub(super) fn change_streams(&mut self, thread: usize, pick: usize) {
        if pick.is_multiple_of(4) {
            let idle = |handle: u64| self.is_quiet() && !self.is_capturing(handle, thread);
            let ending = (0..self.streams.len()).find(|stream| self.streams[*stream].alive);
            if let Some(stream) = ending.filter(|stream| idle(self.streams[*stream].handle)) {
                self.streams[stream].alive = false;
            }
            return;
        }
        let taken = |handle: u64| self.streams.iter().any(|stream| stream.handle == handle && stream.alive);
        let Some(handle) = (0x51..=0x53).find(|handle| !taken(*handle)) else { return };
        let Some(context) = self.current_context(thread) else { return };
        let (context, made_in, device) = (context.owner, context.handle, context.device);
        self.streams.push(SimulatedStream { handle, context, made_in, device, alive: true });
        self.instant(thread, stream_create(handle));
    }

    /// Creates a pool or imports one of another process.
    fn create_pool(&mut self, thread: usize, pick: usize) {
        let taken = |handle: u64| self.pools.iter().any(|pool| pool.handle == handle && pool.alive);
        let Some(handle) = (0x91..=0x95).find(|handle| !taken(*handle)) else { return };
        let device = u32::from(pick % 2 == 1);
        let (kind, on, call) = match pick / 2 % 5 {
            0 | 1 => (Some(AllocationKind::Pool), Some(device), mem_pool_create(handle, PINNED, (ON_DEVICE, device))),
            2 => (Some(AllocationKind::HostPhysical), None, mem_pool_create(handle, PINNED, (ON_HOST, 0))),
            3 => (Some(AllocationKind::Managed), Some(device), mem_pool_create(handle, MANAGED, (ON_DEVICE, device))),
            _ => (None, None, mem_pool_import(handle)),
        };
        self.pools.push(ProgramPool::made(handle, kind, on));
        self.instant(thread, call);
    }

    /// Changes or queries pools while no other call is running.
    pub(super) fn change_pools(&mut self, thread: usize, pick: usize, bytes: u64) {
        if !self.is_quiet() {
            return;
        }
        let device = pick / 8 % DEVICES as usize;
        let on = u32::from(device == 1);
        match pick % 8 {
            0 | 1 => self.create_pool(thread, pick / 8),
            2 => {
                self.pools[device].known = true;
                self.instant(thread, device_get_default_mem_pool(on, self.pools[device].handle));
            }
            3 => {
                let pool = self.current_pools[device];
                self.pools[pool].known = true;
                self.instant(thread, device_get_mem_pool(on, self.pools[pool].handle));
            }
            4 => {
                let fits = |pool: &usize| {
                    self.pools[*pool].kind == Some(AllocationKind::Pool) && self.pools[*pool].device == Some(on)
                };
                let pools: Vec<usize> = self.usable_pools(false).into_iter().filter(fits).collect();
                let Some(&pool) = pools.get(pick / 16 % pools.len().max(1)) else { return };
                self.current_pools[device] = pool;
                self.instant(thread, device_set_mem_pool(on, self.pools[pool].handle));
            }
            5 => self.destroy_pool(thread, pick / 8),
            _ => self.tune_pool(thread, pick / 8, bytes),
        }
    }

    fn destroy_pool(&mut self, thread: usize, pick: usize) {
        let mut pools = self.usable_pools(pick.is_multiple_of(4));
        pools.retain(|pool| *pool >= DEVICES as usize);
        let Some(&pool) = pools.get(pick % pools.len().max(1)) else { return };
        self.pools[pool].alive = false;
        self.pools[pool].asked = false;
        for (device, current) in self.current_pools.iter_mut().enumerate() {
            if *current == pool {
                *current = device;
            }
        }
        self.instant(thread, mem_pool_destroy(self.pools[pool].handle));
    }

    fn tune_pool(&mut self, thread: usize, pick: usize, bytes: u64) {
        let pools = self.usable_pools(false);
        let Some(&pool) = pools.get(pick / 4 % pools.len().max(1)) else { return };
        let used_bytes = self.used_bytes(pool, &HoldState::is_held);
        let ProgramPool { handle, held_bytes, .. } = self.pools[pool];
        let call = match pick % 4 {
            0 => {
                let keep_bytes = if bytes.is_multiple_of(2) { 0 } else { bytes };
                self.pools[pool].held_bytes = held_bytes.min(keep_bytes).max(used_bytes);
                self.pools[pool].asked = false;
                mem_pool_trim_to(handle, keep_bytes)
            }
            1 => mem_pool_set_attribute(
                handle,
                RELEASE_THRESHOLD,
                if bytes.is_multiple_of(2) { u64::MAX } else { bytes },
            ),
            _ => {
                // A synchronisation that was not recorded may have released unused memory of the
                // pool.
                let kept_bytes = if bytes.is_multiple_of(3) { used_bytes } else { held_bytes };
                self.pools[pool].held_bytes = kept_bytes;
                self.pools[pool].asked = true;
                mem_pool_get_attribute(handle, HELD_BYTES, kept_bytes)
            }
        };
        self.instant(thread, call);
    }
}
