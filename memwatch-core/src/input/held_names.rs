//! Live objects of a PyTorch process summed by name: what a reading of all of them says in a few
//! kilobytes, so that it can be kept for as long as a history reaches.

use serde::{Deserialize, Serialize};

use super::holdings::HoldingClass;
use crate::words::{CauseKind, Ordinal, Tgid};

/// A reading of a process's live objects, summed by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldNames {
    /// The process.
    pub tgid: Tgid,
    /// Time at which the reading began: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Totals of the allocators, one entry per device.
    pub totals: Vec<HeldTotals>,
    /// Groups of blocks. Of each device and class the largest have their names, and the others are
    /// one group without a name, so that all groups add up to the bytes that were read.
    pub groups: Vec<HeldGroup>,
    /// What the reading shows about how memory could be saved.
    pub findings: Vec<HeldFinding>,
    /// Whether objects or tensors may be missing.
    pub is_partial: bool,
    /// Reason why no names are available.
    pub without_names: Option<String>,
}

/// Counters of a device's caching allocator at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTotals {
    /// The device.
    pub ordinal: Ordinal,
    /// Bytes in blocks. The groups have fewer bytes if blocks changed during the reading.
    pub allocated_bytes: u64,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
}

/// Blocks with one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldGroup {
    /// Device of the blocks.
    pub ordinal: Ordinal,
    /// Class of the contents.
    pub class: HoldingClass,
    /// Whether the blocks are keys and values of a language model's attention.
    pub is_kv_cache: bool,
    /// Name with `*` for indices, as [`super::holdings::Holding::pattern`] returns it; `None` without
    /// a name, and for the rest of a class.
    pub name: Option<String>,
    /// Retainer of tensors saved for backward, with `*` for indices.
    pub kept_by: Option<String>,
    /// Element type, if all blocks have the same.
    pub dtype: Option<String>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Something that a reading of live objects shows: memory that a program may hold without need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFinding {
    /// Kind of the cause that it is.
    pub kind: CauseKind,
    /// Bytes concerned.
    pub bytes: u64,
    /// Number of graphs, copies, instances or blocks, by the kind.
    pub count: u64,
    /// The retainer, or the memory itself, as an expression of the program.
    pub subject: Option<String>,
}

impl HeldNames {
    /// Returns the bytes of all groups.
    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of all groups of a class.
    pub fn bytes_of(&self, class: HoldingClass) -> u64 {
        let own = self.groups.iter().filter(|group| group.class == class);
        own.map(|group| group.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the number of blocks of a class.
    pub fn blocks_of(&self, class: HoldingClass) -> u64 {
        let own = self.groups.iter().filter(|group| group.class == class);
        own.map(|group| group.blocks).fold(0, u64::saturating_add)
    }
}
