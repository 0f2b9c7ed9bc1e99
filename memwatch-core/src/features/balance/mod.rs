//! Balance sheet of a process on a GPU: what its memory is for, role by role, adding up to what the
//! driver charges.
//!
//! Three sources add up: the blocks of the framework's allocator by the names of their tensors, what
//! the allocator reserves, and the driver's charge. Parts of the kernel driver's ledger take the
//! place of the remainder where that ledger is trusted.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::input::held_names::HeldGroup;
use crate::input::holdings::HoldingClass;
use crate::kernel_driver::labels::MemoryPurpose;
use crate::snapshot::ExplainedUse;
use crate::words::{Framework, GpuUuid, Tgid};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Keys and values of a language model's attention, by the name of the tensor.
    KvCache,
    /// Parameters of modules.
    Weights,
    /// Buffers of modules.
    Buffers,
    /// Gradients.
    Gradients,
    /// State of optimizers.
    OptimizerState,
    /// Tensors saved for a backward pass.
    Activations,
    /// Tensors that a variable leads to.
    OtherTensors,
    /// Tensors that no variable leads to.
    Unreachable,
    /// Tensors that only C++ refers to.
    CppOnly,
    /// Workspaces of cuBLAS in the framework's allocator.
    Workspaces,
    /// Blocks without a Python object.
    NoPythonObject,
    /// Blocks that were not read, or changed during the reading.
    NotRead,
    /// Reserved by the framework's allocator and in no block.
    Cached,
    /// A part of the kernel driver's ledger outside of the framework's allocator.
    Part,
    /// Older than the attach.
    PreExisting,
    /// Allocated by driver calls of anything but the framework's allocator.
    DriverCalls,
    /// What the driver takes beyond all calls: contexts, code, rounding.
    ContextAndCode,
    /// Everything outside of the framework's allocator, together.
    ContextAndLibraries,
    /// Everything of which no part is known.
    NotAttributed,
    /// Difference between readings of different moments; may be negative.
    Changed,
}

impl Role {
    /// Returns the name in tables.
    pub const fn label(self) -> &'static str {
        match self {
            Self::KvCache => "KV cache",
            Self::Weights => "weights",
            Self::Buffers => "buffers",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activations => "activations",
            Self::OtherTensors => "other tensors",
            Self::Unreachable => "unreachable tensors",
            Self::CppOnly => "tensors of C++",
            Self::Workspaces => "cuBLAS workspaces",
            Self::NoPythonObject => "blocks without a name",
            Self::NotRead => "blocks not read",
            Self::Cached => "cached, free",
            Self::Part => "part",
            Self::PreExisting => "pre-existing",
            Self::DriverCalls => "other driver calls",
            Self::ContextAndCode => "context, code",
            Self::ContextAndLibraries => "context, code, libraries",
            Self::NotAttributed => "not attributed",
            Self::Changed => "changed between readings",
        }
    }

    /// Returns the position in a sheet: blocks, the cache, parts, remainders.
    const fn place(self) -> u8 {
        match self {
            Self::Cached => 1,
            Self::Part | Self::DriverCalls => 2,
            Self::PreExisting | Self::ContextAndCode | Self::ContextAndLibraries | Self::NotAttributed => 3,
            Self::Changed => 4,
            _ => 0,
        }
    }
}

/// A row of a balance sheet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleView {
    /// What the memory is for.
    pub role: Role,
    /// Purpose of a part of the kernel driver's ledger.
    pub part: Option<MemoryPurpose>,
    /// Library or program that requested such a part.
    pub owner: Option<String>,
    /// Bytes; negative only for [`Role::Changed`].
    pub bytes: i64,
    /// Number of blocks; `None` outside of the framework's allocator.
    pub count: Option<u64>,
    /// Element type, if all blocks have the same.
    pub dtype: Option<String>,
    /// Name of the largest group of blocks, with `*` for indices.
    pub largest: Option<String>,
}

/// Balance sheet of a process on one GPU. The rows add up to `used_bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BalanceView {
    /// The process.
    #[serde(skip)]
    pub tgid: Tgid,
    /// The GPU; `None` if unknown.
    pub uuid: Option<GpuUuid>,
    /// Bytes that the driver charges to the process; `None` if it does not say.
    pub used_bytes: Option<u64>,
    /// Whether the allocators' counters are as new as these bytes.
    #[serde(skip)]
    pub is_one_moment: bool,
    /// Rows: blocks by size, the allocator's cache, the rest.
    pub roles: Vec<RoleView>,
}

/// Counters of the framework's allocators on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorSum {
    /// Bytes in blocks.
    pub allocated_bytes: u64,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
}

/// What is known of a process on one GPU.
#[derive(Clone, Copy, Debug)]
pub struct BalanceInput<'a> {
    /// The process.
    pub tgid: Tgid,
    /// The GPU; `None` if unknown.
    pub uuid: Option<&'a GpuUuid>,
    /// Bytes that the driver charges.
    pub used_bytes: Option<u64>,
    /// Counters of the framework's allocators; `None` if it has none that can be read.
    pub allocator: Option<AllocatorSum>,
    /// Whether these counters are as new as the charge.
    pub is_one_moment: bool,
    /// Live bytes of all driver calls, the allocator's included, if every call since the start was
    /// seen and the counters are as new.
    pub called_bytes: Option<u64>,
    /// Blocks in use, as last read, by name; empty if they were not read.
    pub groups: &'a [HeldGroup],
    /// The kernel driver's ledger, if it is trusted.
    pub explained: Option<&'a ExplainedUse>,
}

/// Returns the balance sheet.
pub fn balance(input: &BalanceInput<'_>) -> BalanceView {
    let used_bytes = input.explained.and_then(|explained| explained.used_bytes).or(input.used_bytes);
    let mut rows = input.allocator.map(|sum| allocator_rows(sum, input.groups)).unwrap_or_default();
    let reserved = input.allocator.map(|sum| i128::from(sum.reserved_bytes));
    match (input.explained, used_bytes) {
        (Some(explained), Some(used)) => rows.extend(ledger_rows(explained, reserved, used)),
        // What the allocator has reserved since its counters were read cannot be told from the rest.
        (_, Some(used)) if reserved.is_some() && !input.is_one_moment => {
            rows.push(RoleView::of(Role::NotAttributed, i128::from(used) - reserved.unwrap_or(0)));
        }
        (_, Some(used)) => rows.extend(remainder(i128::from(used), reserved, input.called_bytes)),
        (_, None) => {}
    }
    let changed: i128 = rows.iter().filter(|row| row.role == Role::Changed).map(|row| i128::from(row.bytes)).sum();
    rows.retain(|row| row.role != Role::Changed && row.bytes != 0);
    if changed != 0 {
        rows.push(RoleView::of(Role::Changed, changed));
    }
    rows.sort_by_key(|row| (row.role.place(), std::cmp::Reverse(row.bytes)));
    let BalanceInput { tgid, is_one_moment, .. } = *input;
    BalanceView { tgid, uuid: input.uuid.cloned(), used_bytes, is_one_moment, roles: rows }
}

/// Returns the rows of the framework's allocator, which add up to its reserved bytes.
fn allocator_rows(sum: AllocatorSum, groups: &[HeldGroup]) -> Vec<RoleView> {
    let mut by_role = BTreeMap::<Role, Vec<&HeldGroup>>::new();
    for group in groups {
        by_role.entry(role(group)).or_default().push(group);
    }
    let mut rows: Vec<_> = by_role.into_iter().map(|(role, groups)| row_of(role, &groups)).collect();
    let read: i128 = rows.iter().map(|row| i128::from(row.bytes)).sum();
    let allocated = i128::from(sum.allocated_bytes);
    // Without any name the blocks are one row that says so.
    let unread = if groups.is_empty() { Role::NotRead } else { Role::Changed };
    rows.push(RoleView::of(unread, allocated - read));
    rows.push(RoleView::of(Role::Cached, i128::from(sum.reserved_bytes) - allocated));
    rows
}

/// Returns the parts of the kernel driver's ledger beside those of the framework's allocator; with
/// `reserved` bytes they add up to `used`.
fn ledger_rows(explained: &ExplainedUse, reserved: Option<i128>, used: u64) -> Vec<RoleView> {
    let own = Framework::PyTorch.title();
    let (mut rows, mut rest) = (Vec::new(), i128::from(used) - reserved.unwrap_or(0));
    let is_own =
        |label, owner: Option<&str>| reserved.is_some() && label == MemoryPurpose::Requested && owner == Some(own);
    for summand in explained.summands() {
        if is_own(summand.label, summand.owner) {
            continue;
        }
        rest -= i128::from(summand.bytes);
        let owner = summand.owner.map(str::to_owned);
        rows.push(RoleView { part: Some(summand.label), owner, ..RoleView::of(Role::Part, summand.bytes.into()) });
    }
    let older = i128::from(explained.older_bytes.unwrap_or(0));
    rows.push(RoleView::of(Role::PreExisting, older));
    rows.push(RoleView::of(Role::Changed, rest - older));
    rows
}

/// Returns what the driver charges beyond the framework's allocator: the other calls and the rest if
/// the calls are known, otherwise one row.
fn remainder(used: i128, reserved: Option<i128>, called_bytes: Option<u64>) -> Vec<RoleView> {
    let rest = used - reserved.unwrap_or(0);
    let others = called_bytes.map(|called| i128::from(called) - reserved.unwrap_or(0));
    if let Some(others) = others.filter(|others| (0..=rest).contains(others)) {
        return vec![RoleView::of(Role::DriverCalls, others), RoleView::of(Role::ContextAndCode, rest - others)];
    }
    let role = match reserved {
        None => Role::NotAttributed,
        Some(_) if rest < 0 => Role::Changed,
        Some(_) => Role::ContextAndLibraries,
    };
    vec![RoleView::of(role, rest)]
}

impl RoleView {
    fn of(role: Role, bytes: i128) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX });
        Self { role, part: None, owner: None, bytes, count: None, dtype: None, largest: None }
    }
}

fn row_of(role: Role, groups: &[&HeldGroup]) -> RoleView {
    let bytes = groups.iter().map(|group| i128::from(group.bytes)).sum();
    let dtype = groups.first().and_then(|group| group.dtype.clone());
    let is_of_all = groups.iter().all(|group| group.dtype == dtype);
    let mut names = BTreeMap::<&str, u64>::new();
    for (name, group) in groups.iter().filter_map(|group| Some((group.name.as_deref()?, group))) {
        let sum = names.entry(name).or_default();
        *sum = sum.saturating_add(group.bytes);
    }
    let largest = names.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(name, _)| name.to_owned());
    let count = Some(groups.iter().map(|group| group.blocks).fold(0, u64::saturating_add));
    RoleView { count, dtype: dtype.filter(|_| is_of_all), largest, ..RoleView::of(role, bytes) }
}

fn role(group: &HeldGroup) -> Role {
    match group.class {
        _ if group.is_kv_cache => Role::KvCache,
        HoldingClass::Parameter => Role::Weights,
        HoldingClass::Buffer => Role::Buffers,
        HoldingClass::Gradient => Role::Gradients,
        HoldingClass::OptimizerState => Role::OptimizerState,
        HoldingClass::Tensor => Role::OtherTensors,
        HoldingClass::SavedForBackward => Role::Activations,
        HoldingClass::Unreachable => Role::Unreachable,
        HoldingClass::CppOnly => Role::CppOnly,
        HoldingClass::CublasWorkspace => Role::Workspaces,
        HoldingClass::NoPythonObject => Role::NoPythonObject,
        HoldingClass::Changed | HoldingClass::NotRead => Role::NotRead,
    }
}

#[cfg(test)]
mod tests;
