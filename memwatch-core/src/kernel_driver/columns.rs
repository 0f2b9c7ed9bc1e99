//! Splits a memory object of the kernel driver into requested, free and rounding bytes.
//!
//! UVM mappings give the addresses of a memory object, libcuda calls the requests at those
//! addresses.

use memwatch_common::meaning::{Meaning, MemoryCall, VirtualCall};
use memwatch_common::probes::by_id;

use super::decode::Lies;
use super::objects::DriverMemory;

/// Use of a memory object: the three fields add up to its granted size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Columns {
    /// Live requests in the object, bytes.
    pub requested_bytes: u64,
    /// Granted but not requested, bytes: free in a pool or slab.
    pub slack_bytes: u64,
    /// Granted beyond the size requested from the kernel driver, bytes.
    pub rounding_bytes: u64,
}

/// Live requests of a process, by address.
#[derive(Clone, Debug, Default)]
pub struct LiveRequests(Vec<(u64, u64)>);

impl LiveRequests {
    /// Creates the list from pairs of address and bytes, in address order; no request lies within
    /// another.
    pub const fn new(sorted: Vec<(u64, u64)>) -> Self {
        Self(sorted)
    }

    /// Returns how many bytes of a range are requested.
    fn within(&self, base: u64, bytes: u64) -> u64 {
        let end = base.saturating_add(bytes);
        let first = self.0.partition_point(|(address, _)| *address <= base).saturating_sub(1);
        let touching = self.0[first..].iter().take_while(|(address, _)| *address < end);
        let inside = touching.map(|(address, bytes)| {
            let until = address.saturating_add(*bytes).min(end);
            until.saturating_sub((*address).max(base))
        });
        inside.fold(0, u64::saturating_add)
    }
}

impl Columns {
    /// Splits one object; `None` if it is the driver's own or its address is unknown.
    pub fn of(memory: &DriverMemory, requests: &LiveRequests) -> Option<Self> {
        let granted_bytes = memory.granted_bytes;
        let meaning = memory.inside.and_then(|inside| by_id(inside.probe)).map(|row| row.meaning);
        let requested_bytes = match meaning {
            _ if memory.lies != Lies::Video => return None,
            Some(Meaning::Virtual(VirtualCall::CreatePhysical)) => memory.asked_bytes?,
            Some(Meaning::Memory(MemoryCall::CreateArray(_))) => return None,
            _ if memory.ranges.is_empty() => return None,
            _ => {
                let ranges = memory.ranges.iter();
                let found = ranges.map(|(base, bytes)| requests.within(*base, *bytes)).fold(0, u64::saturating_add);
                if found == 0 && !memory.named.label.is_requested() {
                    return None;
                }
                found
            }
        };
        let requested_bytes = requested_bytes.min(granted_bytes);
        let rounded = granted_bytes.saturating_sub(memory.asked_bytes.unwrap_or(granted_bytes));
        let rounding_bytes = rounded.min(granted_bytes - requested_bytes);
        Some(Self { requested_bytes, slack_bytes: granted_bytes - requested_bytes - rounding_bytes, rounding_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_requests_count_only_bytes_within_the_range() {
        let requests = LiveRequests::new(vec![(10, 10), (30, 10), (50, 100)]);
        assert_eq!(requests.within(0, 10), 0);
        assert_eq!(requests.within(15, 20), 10);
        assert_eq!(requests.within(0, 1000), 120);
        assert_eq!(requests.within(60, 10), 10, "one that is larger than the range");
        assert_eq!(requests.within(u64::MAX - 1, 5), 0);
        assert_eq!(LiveRequests::default().within(0, u64::MAX), 0);
    }
}
