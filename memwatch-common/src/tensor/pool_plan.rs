//! What is copied of an event of a pool: of RAPIDS' memory manager, or of CuPy.

/// Which words of a pool's event are copied: arguments 0, 1 and 2 become the pool, the bytes of the block and where it begins, and the peeks what the pool
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolPlan {
    /// Where they are.
    pub shape: PoolShape,
    /// Where in a pool the word is that is copied as the first peek, in bytes, a multiple of 8 below 4096; 0 where that is not known. With
    /// [`PoolShape::ChunkGranted`] and [`PoolShape::ChunkFreed`] the word behind it is the second.
    pub counter_bytes: u16,
}

/// Where a pool's function has what is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PoolShape {
    /// `pool_memory_resource_impl::allocate_from_block(&result, this, block &, bytes)`, where a block begins with its address.
    #[default]
    FromBlock = 0,
    /// `pool_memory_resource_impl::free_block(&result, this, address, bytes)`.
    IntoBlock = 1,
    /// `fixed_size_memory_resource_impl::allocate_from_block(this, block &, bytes)`.
    FromFixed = 2,
    /// `fixed_size_memory_resource_impl::free_block(this, address, bytes)`.
    IntoFixed = 3,
    /// `arena_memory_resource_impl::allocate(this, stream, bytes, …)` is entered: there is no address yet.
    Wanted = 4,
    /// It returns one in `rax`, which becomes argument 2.
    Answered = 5,
    /// `arena_memory_resource_impl::deallocate(this, stream, address, bytes, …)`.
    IntoArena = 6,
    /// `PooledMemory._init(self, chunk, weak reference to the pool)` of CuPy: argument 3 becomes the device.
    ChunkGranted = 7,
    /// `SingleDeviceMemoryPool.free(self, chunk)` of CuPy: likewise.
    ChunkFreed = 8,
}

impl PoolPlan {
    /// Plans of a shape whose pool shows nothing.
    pub const fn of(shape: PoolShape) -> Self {
        Self { shape, counter_bytes: 0 }
    }

    /// Four bits, and the offset in words.
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

/// Where CuPy's `_Chunk` has its memory, its offset in that, and its size: three words from here on (cupy/cuda/memory.pyx, 14).
pub const CHUNK_MEMORY_BYTES: u64 = 0x18;
/// Where a memory of CuPy's has its address, its size, and its device, a half word: three words from here on (the same).
pub const MEMORY_ADDRESS_BYTES: u64 = 0x10;
/// Where a weak reference has its object: `PyWeakReference` of CPython 3.9 to 3.14, in builds with a global lock.
pub const WEAK_OBJECT_BYTES: u64 = 0x10;
