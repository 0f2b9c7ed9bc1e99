//! Capture plan of an event of an RMM or CuPy pool.

/// What to copy of a pool event. Arguments 0, 1 and 2 become the pool, the bytes of the block and
/// its address; the peeks become the pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolPlan {
    /// Location of the copied words.
    pub shape: PoolShape,
    /// Offset in the pool of the word that is copied as the first peek, in bytes: a multiple of 8
    /// below 4096, or 0 if unknown. With [`PoolShape::ChunkGranted`] and [`PoolShape::ChunkFreed`],
    /// the following word is the second peek.
    pub counter_bytes: u16,
}

/// Function of a pool, which determines the location of the copied words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PoolShape {
    /// `pool_memory_resource_impl::allocate_from_block(&result, this, block &, bytes)`, where a
    /// block begins with its address.
    #[default]
    FromBlock = 0,
    /// `pool_memory_resource_impl::free_block(&result, this, address, bytes)`.
    IntoBlock = 1,
    /// `fixed_size_memory_resource_impl::allocate_from_block(this, block &, bytes)`.
    FromFixed = 2,
    /// `fixed_size_memory_resource_impl::free_block(this, address, bytes)`.
    IntoFixed = 3,
    /// Entry of `arena_memory_resource_impl::allocate(this, stream, bytes, …)`, which has no
    /// address yet.
    Wanted = 4,
    /// Return of `arena_memory_resource_impl::allocate`: the address in `rax` becomes argument 2.
    Answered = 5,
    /// `arena_memory_resource_impl::deallocate(this, stream, address, bytes, …)`.
    IntoArena = 6,
    /// `PooledMemory._init(self, chunk, weak reference to the pool)` of CuPy: argument 3 becomes
    /// the device.
    ChunkGranted = 7,
    /// `SingleDeviceMemoryPool.free(self, chunk)` of CuPy: argument 3 becomes the device.
    ChunkFreed = 8,
}

impl PoolPlan {
    /// Returns the plan of a shape without a counter.
    pub const fn of(shape: PoolShape) -> Self {
        Self { shape, counter_bytes: 0 }
    }

    /// Returns the shape in four bits, and the counter's offset in bytes.
    pub(super) const fn bits(self) -> (u64, u16) {
        (self.shape as u64, self.counter_bytes)
    }

    #[inline(always)]
    pub(super) const fn of_bits(shape: u64, counter_bytes: u16) -> Self {
        let shape = match shape & 0xF {
            1 => PoolShape::IntoBlock,
            2 => PoolShape::FromFixed,
            3 => PoolShape::IntoFixed,
            4 => PoolShape::Wanted,
            5 => PoolShape::Answered,
            6 => PoolShape::IntoArena,
            7 => PoolShape::ChunkGranted,
            8 => PoolShape::ChunkFreed,
            _ => PoolShape::FromBlock,
        };
        Self { shape, counter_bytes }
    }
}

/// Offset of the memory in CuPy's `_Chunk`, in bytes. The offset into the memory and the size are
/// the next two words (cupy/cuda/memory.pyx, 14).
pub const CHUNK_MEMORY_BYTES: u64 = 0x18;
/// Offset of the address in CuPy's memory object, in bytes. The size and the device, a half word,
/// are the next two words (cupy/cuda/memory.pyx, 14).
pub const MEMORY_ADDRESS_BYTES: u64 = 0x10;
/// Offset of the object in a weak reference, in bytes: `PyWeakReference` of CPython 3.9 to 3.14, in
/// builds with a global lock.
pub const WEAK_OBJECT_BYTES: u64 = 0x10;
