//! What an allocator does that traces nothing: what it reports, how blocks go back into their pools, and the driver's calls have to do.

use super::PoolSize;
use super::device::{Base, DeviceAllocator, signed};
use super::driver::{DriverChange, Mapped};
use super::memory::Segment;
use super::statistics::{Family, Scope};
use super::trust::Doubt;
use crate::allocators::Reported;
use crate::decode::StackRef;

impl DeviceAllocator {
    /// Whether it reports without a trace of its own: before PyTorch 2.4 it does so only while it is recorded.
    pub(super) fn lacks_trace(&self) -> bool {
        self.sight.reports && !self.sight.trace && !self.sight.block_frees
    }

    /// Whether it traces what it reports: since PyTorch 2.4 always, before while the program records it.
    pub(super) const fn has_trace(&self) -> bool {
        self.reported.is_some() && self.sight.trace
    }

    /// A block goes back into its pool; the report may come after it.
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

    /// Without a trace, what is reserved more or less says that there is a segment more or less. Says whether there is more.
    pub(super) fn settle_segments(&mut self, now: &Reported, address: u64, bytes: u64, mapped: &mut Mapped) -> bool {
        let reserved = self.statistics.get(Family::ReservedBytes, Scope::All).current;
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
        let segment = Segment { bytes: more, pool, is_expandable: false, stream: 0, private_pool: (0, 0), stack };
        match mapped.take(address + bytes - 1) {
            Some((begin, mapped_bytes)) => {
                self.take(begin, Segment { bytes: mapped_bytes, is_expandable: true, ..segment });
                self.doubt(Doubt::CallsUnseen);
            }
            None => self.take(address, segment),
        }
        true
    }

    /// So many bytes went back to the driver, unseen: of unused segments, since no others can.
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
            self.statistics.get_mut(Family::ReservedBytes, Scope::All).change(-signed(bytes));
        }
        for (address, segment) in gone {
            self.memory.remove_segment(address, segment.bytes);
            self.part(address, segment);
        }
    }

    /// The driver did something that the allocator would trace: it may be its own doing.
    pub(super) fn driver(&mut self, change: DriverChange) {
        if self.sight.trace {
            return;
        }
        match change {
            DriverChange::Mapped { .. } => {}
            DriverChange::Unmapped { address, bytes } => {
                let is_known = self.memory.segment_of(address).is_some();
                if let Some(segment) = self.memory.unmap(address, bytes).filter(|_| is_known) {
                    self.part(address, Segment { bytes, ..segment });
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
