//! What a process holds, as it is read: sums of it, by what it is.

use std::sync::Arc;

use serde::Serialize;

use crate::input::holdings::{Advice, Cut, HoldingClass};
use crate::words::{Ordinal, Tgid};

/// What a row is a sum over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Names that differ only in their indices.
    #[default]
    Name,
    /// Parameters, gradients and other classes.
    Class,
    /// Types of elements.
    Dtype,
    /// Modules of the model.
    Module,
    /// What keeps the memory: a variable with all that its autograd graph has saved, a model with its gradients and the state of its optimizer.
    Keeper,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HoldingsView {
    /// The process.
    #[serde(rename = "pid")]
    pub tgid: Tgid,
    /// What a group is a sum over.
    pub by: By,
    /// When its blocks were read: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(skip)]
    pub read_ns: u64,
    /// Its devices.
    pub devices: Vec<DeviceHoldingsView>,
    /// Bytes of all blocks that the program has.
    pub allocated_bytes: u64,
    /// Bytes of the blocks of which it is known what they are.
    pub named_bytes: u64,
    /// Why nothing has a name; `null` where something has.
    pub without_names: Option<String>,
    /// Names that were left out, because what leads to them changed meanwhile.
    pub dropped_names: u64,
    /// Objects may be missing: the process changed them meanwhile, has more than are looked at, or the time was over.
    pub is_partial: bool,
    /// Why the reading ended before it was through; `null` where it was.
    pub cut_by: Option<Cut>,
    /// Python objects that were looked at.
    pub objects: u64,
    /// Python objects that are tensors in one of the blocks.
    pub tensors: u64,
    /// Bytes of the process that were read for the names.
    pub read_bytes: u64,
    /// Sums by class, in the order of the classes.
    pub classes: Vec<ClassSumView>,
    /// Sums as asked for, the largest first.
    pub groups: Vec<HoldingGroupView>,
    /// Groups that were left out.
    pub more_groups: u64,
    /// What could be held with less, the most bytes first.
    pub advice: Vec<Advice>,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceHoldingsView {
    /// Its number in the process.
    pub ordinal: Ordinal,
    /// Bytes of the blocks that the program has there.
    pub allocated_bytes: u64,
    /// Bytes that PyTorch has of the driver.
    pub reserved_bytes: u64,
    /// What of the program's memory came and went while it was read, so that it is in no row, in bytes; `null` where everything is in one.
    pub changing_bytes: Option<u64>,
    /// What of it came after the reading, in bytes; `null` where nothing is known to have come.
    pub later_bytes: Option<u64>,
}

/// What a class has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassSumView {
    /// The class.
    pub class: HoldingClass,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many blocks.
    pub count: u64,
}

/// A group of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HoldingGroupView {
    /// What they have in common: a name with `*` for indices, a class, a type or a module; `null` where that is not known.
    pub name: Option<Arc<str>>,
    /// Their class, where it is one.
    pub class: Option<HoldingClass>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes of the storages in them, as far as they are known.
    pub storage_bytes: u64,
    /// How many blocks.
    pub count: u64,
    /// The shape of their tensors, where it is one.
    pub shape: Option<Vec<u64>>,
    /// The type of their elements, where it is one.
    pub dtype: Option<Arc<str>>,
    /// The class of their tensors in Python, where it is one.
    pub tensor_type: Option<Arc<str>>,
    /// What keeps them, for what is saved for backward, where it is one.
    pub kept_by: Option<Arc<str>>,
    /// The name of the largest of them.
    pub example: Option<Arc<str>>,
    /// How many models that no variable leads to; 0 where it is something else.
    pub lost_models: u64,
    /// How long before this reading the name was read, in nanoseconds, where it did not find it: of several the longest. `null` where it did.
    pub name_age_ns: Option<u64>,
    /// How many further names the blocks have: of tied weights, and of tensors that share a storage.
    pub other_names: u64,
}
