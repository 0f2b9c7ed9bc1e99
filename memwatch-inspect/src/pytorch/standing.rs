//! Finds the blocks that persist while their allocators are running, by comparing several readings.
//!
//! A table that is modified during a reading moves its entries, so that the reading may miss an
//! existing one.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use memwatch_core::input::allocator_state::{MovingAllocatorState, MovingDevice, StateBlock};
use memwatch_core::words::Ordinal;

/// Number of readings that may miss a persistent block.
const MISSED: usize = 1;

/// Returns the blocks that are equal in all readings except at most one, and present in one of the
/// last two. The totals are those of the last reading; `None` if there are no readings.
pub fn standing(readings: &[MovingAllocatorState]) -> Option<MovingAllocatorState> {
    let (first, last) = (readings.first()?, readings.last()?);
    let mut ordinals: Vec<Ordinal> = readings
        .iter()
        .flat_map(|allocator_state| allocator_state.devices.iter().map(|device| device.ordinal))
        .collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    let devices = ordinals.into_iter().filter_map(|ordinal| device(readings, ordinal)).collect();
    Some(MovingAllocatorState { tgid: last.tgid, began_ns: first.began_ns, time_ns: last.time_ns, devices })
}

/// Observations of a block: its state, the number of readings that contain it, the last of them,
/// and whether it was equal in all.
struct SeenBlock<'b> {
    block: &'b StateBlock,
    times: usize,
    last: usize,
    is_same: bool,
}

/// Returns the persistent blocks of a device. Readings without the device's allocator are ignored.
fn device(readings: &[MovingAllocatorState], ordinal: Ordinal) -> Option<MovingDevice> {
    let found: Vec<&MovingDevice> = readings
        .iter()
        .filter_map(|allocator_state| allocator_state.devices.iter().find(|device| device.ordinal == ordinal))
        .collect();
    let newest = found.last()?;
    let mut seen = HashMap::<u64, SeenBlock<'_>, FixedState>::default();
    for (reading, device) in found.iter().enumerate() {
        for block in &device.blocks {
            let known =
                seen.entry(block.address).or_insert(SeenBlock { block, times: 0, last: reading, is_same: true });
            known.is_same &= known.block == block;
            known.times += 1;
            known.last = reading;
        }
    }
    let stands = |known: &SeenBlock<'_>| {
        known.is_same && known.times + MISSED >= found.len().max(MISSED + 1) && known.last + 1 + MISSED >= found.len()
    };
    let mut blocks: Vec<StateBlock> = seen.values().filter(|known| stands(known)).map(|known| *known.block).collect();
    blocks.sort_unstable_by_key(|block| block.address);
    Some(MovingDevice { blocks, ..(*newest).clone() })
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::allocator_state::StateBlockUse;

    use super::*;

    fn block(address: u64, bytes: u64) -> StateBlock {
        StateBlock { address, bytes, requested_bytes: bytes, state: StateBlockUse::ActiveAllocated }
    }

    fn reading(blocks: &[StateBlock]) -> MovingAllocatorState {
        let bytes = blocks.iter().map(|block| block.bytes).sum();
        let device = MovingDevice {
            ordinal: Ordinal(0),
            allocated_bytes: bytes,
            reserved_bytes: bytes,
            blocks: blocks.to_vec(),
        };
        MovingAllocatorState { devices: vec![device], ..MovingAllocatorState::default() }
    }

    fn addresses(readings: &[MovingAllocatorState]) -> Vec<u64> {
        let allocator_state = standing(readings).expect("there are readings");
        allocator_state.devices.iter().flat_map(|device| device.blocks.iter().map(|block| block.address)).collect()
    }

    #[test]
    fn standing_blocks_tolerate_one_reading_that_missed_them() {
        let (kept, other) = (block(512, 512), block(2048, 1024));
        for missed in 0..5 {
            let readings: Vec<_> = (0..5)
                .map(|number| if number == missed { reading(&[other]) } else { reading(&[other, kept]) })
                .collect();
            assert_eq!(addresses(&readings), [512, 2048], "missed in reading {missed}");
        }
    }

    #[test]
    fn standing_blocks_exclude_those_allocated_or_freed_meanwhile() {
        let (old, new) = (block(512, 512), block(2048, 1024));
        let with = |blocks: &[&[StateBlock]]| -> Vec<_> { blocks.iter().map(|blocks| reading(blocks)).collect() };
        assert_eq!(addresses(&with(&[&[old], &[old], &[old], &[], &[]])), [0_u64; 0]);
        assert_eq!(addresses(&with(&[&[], &[], &[old, new], &[old, new], &[old, new]])), [0_u64; 0]);
        assert_eq!(addresses(&with(&[&[old], &[], &[old], &[], &[old]])), [0_u64; 0]);
    }

    #[test]
    fn a_block_of_another_size_at_the_same_address_is_not_the_same() {
        let (before, after) = (block(512, 512), block(512, 1024));
        assert_eq!(addresses(&[reading(&[before]), reading(&[before]), reading(&[after])]), [0_u64; 0]);
    }

    #[test]
    fn standing_blocks_ignore_readings_without_the_device() {
        let kept = block(512, 512);
        let nothing = MovingAllocatorState::default();
        assert_eq!(addresses(&[nothing.clone(), reading(&[kept]), nothing.clone(), reading(&[kept]), nothing]), [512]);
        assert_eq!(standing(&[]), None);
    }

    #[test]
    fn totals_are_those_of_the_last_reading() {
        let allocator_state =
            standing(&[reading(&[block(512, 512)]), reading(&[block(512, 512), block(1024, 512)])]).unwrap();
        assert_eq!(allocator_state.devices[0].allocated_bytes, 1024);
    }
}
