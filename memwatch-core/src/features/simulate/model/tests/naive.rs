//! The simplest model of PyTorch's allocator with fixed segments: lists without an index.

use crate::features::simulate::model::SimulatedRequest;

const MIB: u64 = 1 << 20;

/// A segment and the blocks that tile it.
#[derive(Debug)]
struct NaivePolicySegment {
    address: u64,
    bytes: u64,
    stream: u64,
    private_pool: (u64, u64),
    is_small: bool,
    /// Size and owner of each block.
    blocks: Vec<(u64, Option<usize>)>,
}

/// Naive model of the allocator.
#[derive(Debug, Default)]
pub(super) struct NaivePolicy {
    segments: Vec<NaivePolicySegment>,
    returned: Vec<(u64, u64)>,
    end: u64,
    max_split_bytes: Option<u64>,
    pub(super) peak_bytes: u64,
    available_bytes: u64,
    pub(super) hits: u64,
}

impl NaivePolicy {
    pub(super) fn new(max_split_bytes: Option<u64>, available_bytes: u64) -> Self {
        Self { max_split_bytes, available_bytes, ..Self::default() }
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|(_, owner)| owner.is_some()).map(|(bytes, _)| bytes).sum()
    }

    /// Allocates a block for an owner. Returns `false` if there is not enough memory.
    pub(super) fn allocate(&mut self, owner: usize, request: &SimulatedRequest) -> bool {
        let bytes = request.bytes.max(1).next_multiple_of(512);
        let mut best = self.best(request, bytes);
        self.hits += u64::from(best.is_some());
        if best.is_none() {
            if !self.extend(request, bytes) {
                if request.private_pool != (0, 0) {
                    return false;
                }
                self.empty_cache();
                if !self.extend(request, bytes) {
                    return false;
                }
            }
            best = Some((self.segments.len() - 1, 0));
        }
        let (segment, place) = best.expect("found or made");
        let segment = &mut self.segments[segment];
        let rest = segment.blocks[place].0 - bytes;
        let is_split = if segment.is_small {
            rest >= 512
        } else {
            rest > MIB && self.max_split_bytes.is_none_or(|limit| bytes < limit)
        };
        if is_split {
            segment.blocks[place] = (bytes, Some(owner));
            segment.blocks.insert(place + 1, (rest, None));
        } else {
            segment.blocks[place].1 = Some(owner);
        }
        true
    }

    fn best(&self, request: &SimulatedRequest, bytes: u64) -> Option<(usize, usize)> {
        let mut best: Option<((u64, u64), (usize, usize))> = None;
        for (index, segment) in self.segments.iter().enumerate() {
            if (segment.stream, segment.private_pool, segment.is_small)
                != (request.stream, request.private_pool, bytes <= MIB)
            {
                continue;
            }
            let mut address = segment.address;
            for (place, (size, owner)) in segment.blocks.iter().enumerate() {
                let key = (*size, address);
                if owner.is_none() && *size >= bytes && best.is_none_or(|(other, _)| key < other) {
                    best = Some((key, (index, place)));
                }
                address += size;
            }
        }
        let ((size, _), place) = best?;
        let limit = self.max_split_bytes.unwrap_or(u64::MAX);
        let is_refused = (bytes < limit && size >= limit) || (bytes >= limit && size >= bytes + 20 * MIB);
        (!is_refused).then_some(place)
    }

    fn extend(&mut self, request: &SimulatedRequest, wanted: u64) -> bool {
        let bytes = match wanted {
            0..=MIB => 2 * MIB,
            _ if wanted < 10 * MIB => 20 * MIB,
            _ => wanted.next_multiple_of(2 * MIB),
        };
        if self.reserved_bytes() + bytes > self.available_bytes {
            return false;
        }
        let again = self.returned.iter().rposition(|(size, _)| *size == bytes);
        let address = again.map_or(self.end, |place| self.returned.remove(place).1);
        self.end += if address == self.end { bytes } else { 0 };
        let SimulatedRequest { stream, private_pool, .. } = *request;
        let (is_small, blocks) = (wanted <= MIB, vec![(bytes, None)]);
        self.segments.push(NaivePolicySegment { address, bytes, stream, private_pool, is_small, blocks });
        self.peak_bytes = self.peak_bytes.max(self.reserved_bytes());
        true
    }

    pub(super) fn free(&mut self, owner: usize) {
        for segment in &mut self.segments {
            for block in &mut segment.blocks {
                if block.1 == Some(owner) {
                    block.1 = None;
                }
            }
            let mut joined: Vec<(u64, Option<usize>)> = Vec::new();
            for block in segment.blocks.drain(..) {
                match joined.last_mut() {
                    Some(last) if last.1.is_none() && block.1.is_none() => last.0 += block.0,
                    _ => joined.push(block),
                }
            }
            segment.blocks = joined;
        }
    }

    pub(super) fn empty_cache(&mut self) {
        let is_kept = |segment: &NaivePolicySegment| {
            segment.private_pool != (0, 0) || segment.blocks.iter().any(|(_, owner)| owner.is_some())
        };
        // Large before small, by stream, size and address: freed addresses are reused, the last one
        // first.
        let mut gone: Vec<_> = self.segments.iter().filter(|segment| !is_kept(segment)).collect();
        gone.sort_by_key(|segment| (segment.is_small, segment.stream, segment.bytes, segment.address));
        self.returned.extend(gone.into_iter().map(|segment| (segment.bytes, segment.address)));
        self.segments.retain(is_kept);
    }
}
