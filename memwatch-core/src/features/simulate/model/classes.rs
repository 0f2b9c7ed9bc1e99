//! Model of a size class allocator: slabs of equal blocks below 1 MiB, direct driver allocations
//! above.

use std::collections::BTreeMap;

use super::caching::SMALL_BYTES;
use super::meter::{Capacity, Meter};
use super::settings::{LEAST_BYTES, SMALL_SEGMENT_BYTES};
use super::{AllocationPolicy, BlockHandle, GrantedBlock, SimulatedRequest};

/// Number of size classes per power of two.
const STEPS: u64 = 4;

/// Class of a slab: block size, stream and private pool.
type SlabClass = (u64, u64, (u64, u64));

/// Location of a block.
#[derive(Clone, Copy, Debug)]
enum BlockLocation {
    InSlab(usize),
    OfDriver(u64),
}

/// A slab: 2 MiB of blocks of one class.
#[derive(Clone, Copy, Debug)]
struct Slab {
    class: SlabClass,
    free: u64,
    used: u64,
    is_had: bool,
}

/// Size class allocator of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct SizeClasses {
    meter: Meter,
    blocks: Vec<Option<BlockLocation>>,
    vacant: Vec<BlockHandle>,
    slabs: Vec<Slab>,
    /// Slabs with free blocks, by class.
    open: BTreeMap<SlabClass, Vec<usize>>,
    /// Freed blocks that a stream may still use; they count as used.
    pending: Vec<BlockHandle>,
}

/// Returns the block size for a request below 1 MiB, in bytes.
fn class_bytes(bytes: u64) -> u64 {
    let bytes = bytes.max(LEAST_BYTES).next_multiple_of(LEAST_BYTES);
    let step = ((1 << bytes.ilog2()) / STEPS).max(LEAST_BYTES);
    bytes.next_multiple_of(step)
}

impl SizeClasses {
    fn name(&mut self, block: BlockLocation) -> BlockHandle {
        if let Some(handle) = self.vacant.pop() {
            self.blocks[handle.0 as usize] = Some(block);
            return handle;
        }
        self.blocks.push(Some(block));
        BlockHandle(u32::try_from(self.blocks.len() - 1).unwrap_or(u32::MAX))
    }

    fn take(&mut self, bytes: u64) -> bool {
        if self.meter.take(bytes) {
            return true;
        }
        self.empty_cache();
        self.meter.retries += 1;
        self.meter.take(bytes)
    }

    fn slab_for(&mut self, class: SlabClass) -> Option<(usize, bool)> {
        if let Some(index) = self.open.get(&class).and_then(|open| open.last().copied()) {
            return Some((index, true));
        }
        if !self.take(SMALL_SEGMENT_BYTES) {
            return None;
        }
        let slab = Slab { class, free: SMALL_SEGMENT_BYTES / class.0, used: 0, is_had: true };
        let index = self.slabs.iter().position(|slab| !slab.is_had).unwrap_or(self.slabs.len());
        if index == self.slabs.len() {
            self.slabs.push(slab);
        } else {
            self.slabs[index] = slab;
        }
        self.open.entry(class).or_default().push(index);
        Some((index, false))
    }

    fn bytes_of(&self, block: BlockLocation) -> u64 {
        match block {
            BlockLocation::InSlab(index) => self.slabs[index].class.0,
            BlockLocation::OfDriver(bytes) => bytes,
        }
    }

    /// Releases unused slabs.
    fn release(&mut self, is_meant: impl Fn(&Slab) -> bool) {
        for index in 0..self.slabs.len() {
            let slab = self.slabs[index];
            if slab.is_had && slab.used == 0 && is_meant(&slab) {
                self.slabs[index].is_had = false;
                if let Some(open) = self.open.get_mut(&slab.class) {
                    open.retain(|other| *other != index);
                }
                self.meter.part(SMALL_SEGMENT_BYTES);
            }
        }
    }
}

impl AllocationPolicy for SizeClasses {
    fn allocate(&mut self, request: &SimulatedRequest) -> Option<GrantedBlock> {
        if request.bytes >= SMALL_BYTES {
            let bytes = request.bytes.next_multiple_of(SMALL_SEGMENT_BYTES);
            if !self.take(bytes) {
                return None;
            }
            self.meter.grant(bytes);
            return Some(GrantedBlock { handle: self.name(BlockLocation::OfDriver(bytes)), is_hit: false });
        }
        let class = (class_bytes(request.bytes), request.stream, request.private_pool);
        let (index, is_hit) = self.slab_for(class)?;
        let slab = &mut self.slabs[index];
        (slab.free, slab.used) = (slab.free - 1, slab.used + 1);
        if slab.free == 0
            && let Some(open) = self.open.get_mut(&class)
        {
            open.retain(|other| *other != index);
        }
        self.meter.grant(class.0);
        Some(GrantedBlock { handle: self.name(BlockLocation::InSlab(index)), is_hit })
    }

    fn give_back(&mut self, handle: BlockHandle) {
        if let Some(block) = self.blocks[handle.0 as usize] {
            let bytes = self.bytes_of(block);
            self.meter.give_back(bytes);
            self.pending.push(handle);
        }
    }

    fn complete(&mut self, handle: BlockHandle) {
        let Some(place) = self.pending.iter().position(|pending| *pending == handle) else { return };
        self.pending.swap_remove(place);
        match self.blocks[handle.0 as usize].take() {
            Some(BlockLocation::OfDriver(bytes)) => self.meter.part(bytes),
            Some(BlockLocation::InSlab(index)) => {
                let slab = &mut self.slabs[index];
                (slab.free, slab.used) = (slab.free + 1, slab.used - 1);
                let (class, is_first) = (slab.class, slab.free == 1);
                if is_first {
                    self.open.entry(class).or_default().push(index);
                }
            }
            None => return,
        }
        self.vacant.push(handle);
    }

    fn empty_cache(&mut self) {
        while let Some(handle) = self.pending.last().copied() {
            self.complete(handle);
        }
        self.release(|slab| slab.class.2 == (0, 0));
    }

    fn release_pool(&mut self, private_pool: (u64, u64)) {
        self.release(|slab| slab.class.2 == private_pool);
    }

    fn set_capacity(&mut self, capacity: Capacity) {
        self.meter.capacity = capacity;
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn free_bytes(&self) -> (u64, u64) {
        let had = self.slabs.iter().filter(|slab| slab.is_had);
        had.fold((0, 0), |(largest, sum), slab| {
            let own = if slab.free > 0 { slab.class.0 } else { 0 };
            (own.max(largest), sum + slab.free * slab.class.0)
        })
    }

    fn begin(&mut self) {
        self.meter.begin();
    }

    fn copied(&self) -> Box<dyn AllocationPolicy> {
        Box::new(self.clone())
    }
}
