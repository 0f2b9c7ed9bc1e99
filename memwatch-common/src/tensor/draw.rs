//! Sampling of small blocks if stacks are taken by bytes. As in the heap profilers of Go
//! (`runtime/mprof.go`) and tcmalloc, one byte in [`MEAN_BYTES`] is sampled, and a block with a
//! sampled byte gets a stack.

/// Mean distance between two sampled bytes. Blocks of this size and above are all sampled.
pub const MEAN_BYTES: u64 = 1 << 20;

/// Blocks of PyTorch's caching allocator are multiples of this (`kMinBlockSize` in
/// c10/core/AllocatorConfig.h, 2.15).
const UNIT_BYTES: u64 = 512;
const UNITS: usize = (MEAN_BYTES / UNIT_BYTES) as usize;

/// Probability that a small block is sampled, indexed by its size in units, in parts of 2^32: 1 -
/// exp(-bytes / MEAN_BYTES).
static CHANCES: [u32; UNITS] = chances();

#[expect(clippy::cast_possible_truncation, reason = "the upper half of a word")]
const fn chances() -> [u32; UNITS] {
    /// exp(-1 / 2048), in parts of 2^64.
    const EACH: u128 = 18_437_739_073_120_195_921;
    let mut chances = [0; UNITS];
    let (mut missed, mut units) = (1 << 64, 0);
    while units < UNITS {
        chances[units] = (((1 << 64) - missed) >> 32) as u32;
        missed = (missed * EACH) >> 64;
        units += 1;
    }
    chances
}

/// Probability that a block of this size is sampled, in parts of 2^32; `None` if it is always
/// sampled.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is beyond the list has no row in it")]
pub fn chance(block_bytes: u64) -> Option<u32> {
    let units = block_bytes.div_ceil(UNIT_BYTES).min(UNITS as u64);
    CHANCES.get(units as usize).copied().filter(|chance| *chance != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_chance_of_a_block_is_exponential_in_its_bytes() {
        for (bytes, percent) in [(512, 0.0488), (4 << 10, 0.3899), (64 << 10, 6.0587), (512 << 10, 39.3469)] {
            let chance = f64::from(chance(bytes).expect("it is small")) / f64::from(u32::MAX) * 100.0;
            assert!((chance - percent).abs() < 0.0001, "{bytes}: {chance} and {percent}");
        }
        assert_eq!(chance(MEAN_BYTES - 512).map(|chance| chance >> 24), Some(0xA1), "63 %");
    }

    #[test]
    fn sampling_always_takes_large_and_empty_blocks() {
        assert_eq!([chance(MEAN_BYTES), chance(MEAN_BYTES - 1), chance(u64::MAX), chance(0)], [None; 4]);
        assert_eq!(chance(1), chance(512));
    }
}
