//! Adopts the segments and blocks that a program's own allocator held before the session, with
//! their layout, into a policy of the same kind.

use std::collections::BTreeMap;

use super::BlockHandle;
use super::arena::{SimulatedBlock, SimulatedBlockState};
use super::caching::Caching;
use crate::allocators::pytorch::PoolSize;
use crate::input::allocator_state::{StateBlock, StateBlockUse, StateSegment};

/// A block of a chain: address, size in bytes, state.
type AdoptedBlock = (u64, u64, SimulatedBlockState);

impl Caching {
    /// Adopts these segments if the policy creates segments of that kind. Returns the handles of
    /// the program's blocks by address, else `None`.
    pub(super) fn take_over(&mut self, segments: &[StateSegment]) -> Option<Vec<(u64, BlockHandle)>> {
        let is_expandable = self.settings.expandable_segments;
        if segments.iter().any(|segment| segment.is_expandable != is_expandable) {
            return None;
        }
        let mut chains = BTreeMap::<(usize, u64, u64), Vec<&StateSegment>>::new();
        for segment in segments {
            let size = if segment.is_small { PoolSize::Small } else { PoolSize::Large };
            let pool = self.arena.pool(segment.private_pool, size);
            // The mapped pieces of one expandable segment are several segments here.
            let own = if is_expandable { 0 } else { segment.address };
            chains.entry((pool, segment.stream, own)).or_default().push(segment);
        }
        let mut held = Vec::new();
        for ((pool, stream, _), mut parts) in chains {
            parts.sort_unstable_by_key(|segment| segment.address);
            let Some(first) = parts.first().map(|segment| segment.address) else { continue };
            let segment = is_expandable.then(|| (first, self.reserved_bytes(pool)));
            if !is_expandable {
                self.arena.addresses.hold(first);
            }
            let pieces = pieces(&parts, segment);
            let (before, after, born) = (None, None, 0);
            let block = SimulatedBlock {
                address: first,
                bytes: 0,
                stream,
                pool,
                state: SimulatedBlockState::Free,
                before,
                after,
                segment,
                born,
            };
            self.lay(&pieces, block, &mut held);
        }
        let bytes = segments.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        self.meter.reserved_bytes = self.meter.reserved_bytes.saturating_add(bytes);
        Some(held)
    }

    /// Creates a chain of neighbouring blocks from the pieces; other fields are copied from `like`.
    fn lay(&mut self, pieces: &[AdoptedBlock], like: SimulatedBlock, held: &mut Vec<(u64, BlockHandle)>) {
        let mut before = None;
        for (address, bytes, state) in pieces.iter().copied() {
            let handle = self.arena.add(SimulatedBlock { address, bytes, state, before, ..like });
            if let Some(before) = before {
                self.arena.get_mut(before).after = Some(handle);
            }
            before = Some(handle);
            match state {
                SimulatedBlockState::Free | SimulatedBlockState::Unmapped => self.arena.shelve(handle),
                SimulatedBlockState::Used | SimulatedBlockState::Pending => {
                    held.push((address, handle));
                    if state == SimulatedBlockState::Used {
                        self.meter.allocated_bytes = self.meter.allocated_bytes.saturating_add(bytes);
                    } else {
                        self.pend(handle);
                    }
                }
            }
        }
    }
}

/// Returns the blocks of a chain; unmapped ranges of an expandable segment are blocks, too.
fn pieces(parts: &[&StateSegment], segment: Option<(u64, u64)>) -> Vec<AdoptedBlock> {
    let mut pieces = Vec::new();
    let mut end = None;
    for part in parts {
        let gap = end.and_then(|end| part.address.checked_sub(end)).filter(|gap| *gap > 0);
        pieces.extend(end.zip(gap).map(|(end, gap)| (end, gap, SimulatedBlockState::Unmapped)));
        pieces.extend(part.blocks.iter().map(|block| (block.address, block.bytes, state_of(block))));
        end = Some(part.address.saturating_add(part.bytes));
    }
    if let (Some(end), Some((begin, all))) = (end, segment) {
        let rest = begin.saturating_add(all).saturating_sub(end);
        pieces.extend((rest > 0).then_some((end, rest, SimulatedBlockState::Unmapped)));
    }
    pieces
}

const fn state_of(block: &StateBlock) -> SimulatedBlockState {
    match block.state {
        StateBlockUse::ActiveAllocated => SimulatedBlockState::Used,
        StateBlockUse::ActivePendingFree => SimulatedBlockState::Pending,
        StateBlockUse::Inactive => SimulatedBlockState::Free,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::features::simulate::model::{AllocationPolicy, Settings, SimulatedRequest};

    /// Returns the state of a policy as an allocator state.
    fn allocator_state(policy: &Caching) -> Vec<StateSegment> {
        let is_expandable = policy.settings.expandable_segments;
        let mut segments: Vec<StateSegment> = Vec::new();
        for block in policy.arena.in_use() {
            let state = match block.state {
                SimulatedBlockState::Unmapped => continue,
                SimulatedBlockState::Free => StateBlockUse::Inactive,
                SimulatedBlockState::Used => StateBlockUse::ActiveAllocated,
                SimulatedBlockState::Pending => StateBlockUse::ActivePendingFree,
            };
            let (address, bytes) = (block.address, block.bytes);
            let own = StateBlock { address, bytes, requested_bytes: bytes, state };
            let follows = segments.last().filter(|last| last.address + last.bytes == address);
            let is_next =
                block.before.is_some_and(|before| policy.arena.get(before).state != SimulatedBlockState::Unmapped);
            if let (Some(_), true, Some(last)) = (follows, is_next, segments.len().checked_sub(1)) {
                segments[last].bytes += bytes;
                segments[last].blocks.push(own);
                continue;
            }
            segments.push(StateSegment {
                address,
                bytes,
                stream: block.stream,
                is_small: policy.pool_size(block.pool) == PoolSize::Small,
                is_expandable,
                private_pool: (0, 0),
                is_pool_idle: false,
                blocks: vec![own],
            });
        }
        segments
    }

    /// Applies one request, or the free of an earlier block, to both policies and compares the
    /// results.
    fn step(
        (one, other): (&mut Caching, &mut Caching),
        held: &mut Vec<(BlockHandle, BlockHandle)>,
        (kind, bytes, which): (u8, u64, prop::sample::Index),
    ) -> Result<(), TestCaseError> {
        if kind < 3 || held.is_empty() {
            let request = SimulatedRequest { bytes, stream: u64::from(kind % 2), private_pool: (0, 0) };
            let (first, second) = (one.allocate(&request), other.allocate(&request));
            prop_assert_eq!(first.map(|own| own.is_hit), second.map(|own| own.is_hit));
            held.extend(first.zip(second).map(|(first, second)| (first.handle, second.handle)));
        } else if kind == 6 {
            one.empty_cache();
            other.empty_cache();
        } else {
            let (first, second) = held.swap_remove(which.index(held.len()));
            for (policy, handle) in [(&mut *one, first), (&mut *other, second)] {
                policy.give_back(handle);
                policy.complete(handle);
            }
        }
        prop_assert_eq!(one.meter().reserved_bytes, other.meter().reserved_bytes);
        prop_assert_eq!(one.meter().allocated_bytes, other.meter().allocated_bytes);
        prop_assert_eq!(one.free_bytes(), other.free_bytes());
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn simulated_policy_built_from_allocator_state_behaves_as_the_original(
            steps in prop::collection::vec((0..7u8, 1..(30u64 << 20), any::<prop::sample::Index>()), 1..120),
            at in any::<prop::sample::Index>(),
            is_expandable in any::<bool>(),
        ) {
            let settings = Settings { expandable_segments: is_expandable, ..Settings::default() };
            let mut first = Caching::new(settings.clone());
            let at = at.index(steps.len());
            let mut held: Vec<BlockHandle> = Vec::new();
            for (kind, bytes, which) in &steps[..at] {
                if *kind < 3 || held.is_empty() {
                    let request = SimulatedRequest { bytes: *bytes, stream: u64::from(kind % 2), private_pool: (0, 0) };
                    held.extend(first.allocate(&request).map(|own| own.handle));
                } else {
                    let handle = held.swap_remove(which.index(held.len()));
                    first.give_back(handle);
                    first.complete(handle);
                }
            }
            let mut second = Caching::new(settings);
            let known: BTreeMap<u64, BlockHandle> = second.take_over(&allocator_state(&first)).expect("it is of its kind").into_iter().collect();
            let mut held: Vec<_> = held.iter().map(|own| (*own, known[&first.arena.get(*own).address])).collect();
            for one in &steps[at..] {
                step((&mut first, &mut second), &mut held, *one)?;
            }
        }
    }

    #[test]
    fn segments_of_another_kind_are_not_taken_over() {
        let mut policy = Caching::new(Settings { expandable_segments: true, ..Settings::default() });
        let mut fixed = Caching::new(Settings::default());
        fixed.allocate(&SimulatedRequest { bytes: 5, stream: 0, private_pool: (0, 0) });
        assert_eq!(policy.take_over(&allocator_state(&fixed)), None);
        assert_eq!(policy.take_over(&[]), Some(Vec::new()));
    }
}
