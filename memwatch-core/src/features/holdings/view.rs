//! Report on the live objects of a process.

use std::sync::Arc;

use serde::Serialize;

use crate::input::holdings::{Cut, HoldingClass, MemoryAdvice};
use crate::words::{Ordinal, Tgid};

/// Property that rows are grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldingGrouping {
    /// Names, without their indices.
    #[default]
    Name,
    /// Classes, such as parameters and gradients.
    Class,
    /// Element types.
    Dtype,
    /// Modules of the model.
    Module,
    /// Retainers: a variable with everything that its autograd graph has saved, or a model with its
    /// gradients and its optimizer state.
    Retainer,
}

/// Live objects of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HoldingsView {
    /// The process.
    #[serde(rename = "pid")]
    pub tgid: Tgid,
    /// Property that the groups share.
    pub by: HoldingGrouping,
    /// Time of the reading: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(skip)]
    pub read_ns: u64,
    /// Devices of the process.
    pub devices: Vec<DeviceHoldingsView>,
    /// Bytes of all allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes of the blocks of a known class.
    pub named_bytes: u64,
    /// Reason why no block has a name; `null` if one has.
    pub without_names: Option<String>,
    /// Number of names left out because the path to them changed during the reading.
    pub dropped_names: u64,
    /// Objects may be missing: the process changed them during the reading, has more than are
    /// examined, or the time ran out.
    pub is_partial: bool,
    /// Reason why the reading ended early; `null` if it did not.
    pub cut_by: Option<Cut>,
    /// Number of Python objects examined.
    pub objects: u64,
    /// Number of Python objects that are tensors in one of the blocks.
    pub tensors: u64,
    /// Bytes read from the process to find names.
    pub read_bytes: u64,
    /// Sums by class, in the order of the classes.
    pub classes: Vec<ClassSumView>,
    /// Groups by the requested property, the largest first.
    pub groups: Vec<HoldingGroupView>,
    /// Number of groups left out.
    pub more_groups: u64,
    /// Advice on how to save memory, most bytes first.
    pub advice: Vec<MemoryAdvice>,
}

/// Live memory on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceHoldingsView {
    /// The process's own number of the device.
    pub ordinal: Ordinal,
    /// Bytes of the allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes that PyTorch reserves from the driver.
    pub reserved_bytes: u64,
    /// Bytes of blocks that changed during the reading and are in no row; `null` if all blocks are
    /// in a row.
    pub changing_bytes: Option<u64>,
    /// Bytes allocated after the reading; `null` if no such bytes are known.
    pub later_bytes: Option<u64>,
}

/// Sum over a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassSumView {
    /// The class.
    pub class: HoldingClass,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub count: u64,
}

/// A group of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HoldingGroupView {
    /// Value of the shared property: a name with `*` for indices, a class, a type or a module;
    /// `null` if it is unknown.
    pub name: Option<Arc<str>>,
    /// Class of the blocks, if it is the same for all.
    pub class: Option<HoldingClass>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes of the storages in the blocks, as far as they are known.
    pub storage_bytes: u64,
    /// Number of blocks.
    pub count: u64,
    /// Shape of the tensors, if it is the same for all.
    pub shape: Option<Vec<u64>>,
    /// Element type, if it is the same for all.
    pub dtype: Option<Arc<str>>,
    /// Python class of the tensors, if it is the same for all.
    pub tensor_type: Option<Arc<str>>,
    /// Retainer of memory saved for backward, if it is the same for all.
    pub kept_by: Option<Arc<str>>,
    /// Name of the largest block.
    pub example: Option<Arc<str>>,
    /// Number of models in the group that no variable leads to.
    pub lost_models: u64,
    /// Age of the names at this reading, in nanoseconds, if this reading did not find them; of
    /// several names the oldest. `null` if this reading found them.
    pub name_age_ns: Option<u64>,
    /// Number of further names of the blocks, from tied weights and from tensors that share a
    /// storage.
    pub other_names: u64,
}
