//! The live blocks of the program, and the large ones among them.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::allocators::threads::Attribution;
use crate::words::{Ordinal, Tid};

/// Maximum number of large blocks listed individually.
const LISTED: usize = 1 << 14;
/// Default minimum size of listed blocks, bytes.
const LARGE_BYTES: u64 = 100 << 20;

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveBlock {
    /// Device of the block.
    pub ordinal: Ordinal,
    /// Address of the block.
    pub address: u64,
    /// Size in bytes, as rounded by the allocator.
    pub bytes: u64,
    /// Time of the allocation: `CLOCK_BOOTTIME`, nanoseconds.
    pub granted_ns: u64,
    /// Allocating thread.
    pub tid: Tid,
    /// Attribution of the block.
    pub whose: Attribution,
    /// The stack of the block was sampled.
    pub is_sampled: bool,
}

/// All live blocks of a process.
#[derive(Clone, Debug)]
pub(super) struct LiveBlocks {
    blocks: HashMap<(Ordinal, u64), LiveBlock, RandomState>,
    large: BTreeMap<(Ordinal, u64), LiveBlock>,
    least_bytes: u64,
}

/// Serialises the blocks only. Which ones are listed is up to the reader.
impl Serialize for LiveBlocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.blocks.values())
    }
}

impl<'de> Deserialize<'de> for LiveBlocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut live = Self::default();
        for block in Vec::<LiveBlock>::deserialize(deserializer)? {
            live.insert(block);
        }
        live.list_from(LARGE_BYTES);
        Ok(live)
    }
}

impl Default for LiveBlocks {
    fn default() -> Self {
        Self { blocks: HashMap::default(), large: BTreeMap::new(), least_bytes: LARGE_BYTES }
    }
}

impl LiveBlocks {
    /// Adds a block and returns the previous one at its address.
    pub(super) fn insert(&mut self, block: LiveBlock) -> Option<LiveBlock> {
        let key = (block.ordinal, block.address);
        let before = self.blocks.insert(key, block);
        if before.is_some() {
            self.large.remove(&key);
        }
        if block.bytes >= self.least_bytes && self.large.len() < LISTED {
            self.large.insert(key, block);
        }
        before
    }

    /// Returns all blocks, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &LiveBlock> {
        self.blocks.values()
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, ordinal: Ordinal, address: u64) -> Option<LiveBlock> {
        let block = self.blocks.remove(&(ordinal, address))?;
        if block.bytes >= self.least_bytes {
            self.large.remove(&(ordinal, address));
        }
        Some(block)
    }

    /// Returns the block at an address.
    pub(super) fn get(&self, ordinal: Ordinal, address: u64) -> Option<&LiveBlock> {
        self.blocks.get(&(ordinal, address))
    }

    /// Lists the blocks of this size and above.
    pub(super) fn list_from(&mut self, least_bytes: u64) {
        self.least_bytes = least_bytes;
        let large = self.blocks.iter().filter(|(_, block)| block.bytes >= least_bytes);
        self.large = large.map(|(key, block)| (*key, *block)).collect();
        while self.large.len() > LISTED {
            self.large.pop_last();
        }
    }

    /// Returns the large blocks, by device and address.
    pub(super) fn large(&self) -> impl Iterator<Item = &LiveBlock> {
        self.large.values()
    }
}
