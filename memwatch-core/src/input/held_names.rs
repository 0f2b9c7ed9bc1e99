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
    /// Free memory of its large segments; `None` if it was working during the reading.
    pub pieces: Option<HeldPieces>,
}

/// Free memory in large segments outside of private pools, beside blocks in use: it cannot be released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPieces {
    /// Bytes of all pieces.
    pub bytes: u64,
    /// Bytes of the largest one.
    pub largest_bytes: u64,
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

/// What leads from a traceback to the variables of one of its frames in a path.
const THROUGH_FRAME: &str = "tb_frame → ";

impl HeldFinding {
    fn is_of_exception(&self) -> bool {
        self.kind == CauseKind::ExceptionKept
    }
}

impl HeldNames {
    /// Returns the bytes of all groups.
    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.bytes).fold(0, u64::saturating_add)
    }

    /// Names what the traceback of a failure leads to as if its frames were still running, and drops the
    /// finding that an exception keeps memory, unless a reading before the failure had it, too.
    pub fn look_through_traceback(&mut self, before: Option<&Self>) {
        let had_exception = before.is_some_and(|before| before.findings.iter().any(HeldFinding::is_of_exception));
        self.findings.retain(|finding| had_exception || !finding.is_of_exception());
        let paths = self.groups.iter_mut().flat_map(|group| [&mut group.name, &mut group.kept_by]);
        for path in paths.flatten() {
            if let Some((_, inside)) = path.rsplit_once(THROUGH_FRAME) {
                *path = inside.to_owned();
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(name: &str, kinds: &[CauseKind]) -> HeldNames {
        let group = HeldGroup {
            ordinal: Ordinal(0),
            class: HoldingClass::Tensor,
            is_kv_cache: false,
            name: Some(name.to_owned()),
            kept_by: None,
            dtype: None,
            bytes: 8,
            blocks: 1,
        };
        let finding = |kind: &CauseKind| HeldFinding { kind: *kind, bytes: 8, count: 1, subject: None };
        HeldNames { groups: vec![group], findings: kinds.iter().map(finding).collect(), ..HeldNames::default() }
    }

    #[test]
    fn traceback_of_a_failure_is_no_cause_of_it_and_its_frames_keep_their_names() {
        let both = [CauseKind::ExceptionKept, CauseKind::StateCopies];
        let kinds = |read: &HeldNames| read.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>();
        let mut after = reading("e.__traceback__.tb_next.tb_frame → train.py:main: kept[*]", &both);
        after.look_through_traceback(Some(&reading("kept[*]", &[])));
        assert_eq!(after.groups[0].name.as_deref(), Some("train.py:main: kept[*]"));
        assert_eq!(kinds(&after), [CauseKind::StateCopies]);
        let mut kept = reading("kept[*]", &both);
        kept.look_through_traceback(Some(&reading("kept[*]", &both)));
        assert_eq!((kept.groups[0].name.as_deref(), kinds(&kept)), (Some("kept[*]"), both.to_vec()));
    }
}
