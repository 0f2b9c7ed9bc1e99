//! Follows an allocator without a trace, from its reports, the return of blocks to pools, and
//! driver calls.

use super::PoolSize;
use super::device::{Base, DeviceAllocator, signed};
use super::driver::{DriverChange, Mapped};
use super::memory::AllocatorSegment;
use super::statistics::{StatFamily, StatScope};
use super::trust::Doubt;
use crate::allocators::ReportedTotals;
use crate::decode::StackRef;

impl DeviceAllocator {
    /// Returns whether it reports, but neither a trace nor block frees have been seen. Before
    /// PyTorch 2.4 it traces only while the program records its history.
    pub(super) fn lacks_trace(&self) -> bool {
        self.sight.reports && !self.sight.trace && !self.sight.block_frees
    }

    /// Returns whether it traces what it reports: always since PyTorch 2.4, before that while the
    /// program records its history.
    pub(super) const fn has_trace(&self) -> bool {
        self.reported.is_some() && self.sight.trace
    }

    /// Applies the return of a block to its pool. The report of the free may follow.
    pub(super) fn pooled(&mut self, address: u64) {
        self.sight.block_frees = true;
        if self.sight.trace {
            return;
        }
        let is_given_back = self.give_back(address);
        if self.complete(address) && is_given_back {
            self.early = Some(address);
        }
    }

    /// Infers new or freed segments from a change of the reserved bytes. Returns whether there is a
    /// new segment.
    pub(super) fn settle_segments(
        &mut self,
        now: &ReportedTotals,
        address: u64,
        bytes: u64,
        mapped: &mut Mapped,
    ) -> bool {
        let reserved = self.statistics.get(StatFamily::ReservedBytes, StatScope::All).current;
        let known = u64::try_from(reserved).unwrap_or(0);
        if self.base == Base::None && self.reported.is_none() {
            return false;
        }
        if now.reserved_bytes < known {
            self.part_unused(known - now.reserved_bytes);
            return false;
        }
        let more = now.reserved_bytes - known;
        if more == 0 || bytes == 0 {
            return false;
        }
        let pool = PoolSize::of_request(bytes);
        let stack = StackRef::NotAsked;
        let segment =
            AllocatorSegment { bytes: more, pool, is_expandable: false, stream: 0, private_pool: (0, 0), stack };
        match mapped.take(address + bytes - 1) {
            Some((begin, mapped_bytes)) => {
                self.take(begin, AllocatorSegment { bytes: mapped_bytes, is_expandable: true, ..segment });
                self.doubt(Doubt::CallsUnseen);
            }
            None => self.take(address, segment),
        }
        true
    }

    /// Removes unused segments of this size, which were freed unseen. Segments in use cannot be.
    fn part_unused(&mut self, bytes: u64) {
        let unused: Vec<_> = self.memory.unused_segments().collect();
        let all: u64 = unused.iter().map(|(_, segment)| segment.bytes).sum();
        let mut alike = unused.iter().filter(|(_, segment)| segment.bytes == bytes);
        let gone = match (alike.next(), alike.next()) {
            (Some(only), None) => vec![*only],
            _ if all == bytes => unused,
            _ => Vec::new(),
        };
        if gone.is_empty() {
            self.doubt(Doubt::SegmentsUnseen);
            self.statistics.get_mut(StatFamily::ReservedBytes, StatScope::All).change(-signed(bytes));
        }
        for (address, segment) in gone {
            self.memory.remove_segment(address, segment.bytes);
            self.part(address, segment);
        }
    }

    /// Applies a driver call that the allocator would trace and may have made.
    pub(super) fn driver(&mut self, change: DriverChange) {
        if self.sight.trace {
            return;
        }
        match change {
            DriverChange::Mapped { .. } => {}
            DriverChange::Unmapped { address, bytes } => {
                let is_known = self.memory.segment_of(address).is_some();
                if let Some(segment) = self.memory.unmap(address, bytes).filter(|_| is_known) {
                    self.part(address, AllocatorSegment { bytes, ..segment });
                    self.doubt(Doubt::CallsUnseen);
                }
            }
            DriverChange::Freed { address } => {
                if let Some(segment) = self.memory.segments().get(&address).copied() {
                    self.memory.remove_segment(address, segment.bytes);
                    self.part(address, segment);
                }
            }
        }
    }
}
