//! Limits the table entries of a ledger. A program can make any number of allocations, real or not;
//! the recorder's memory is limited.
//!
//! Counting the entries reads every table. They are therefore counted only after as many new
//! entries as the last count left headroom for.

use serde::{Deserialize, Serialize};

use super::ProcessLedger;
use crate::decode::Action;

/// Entries that every process may have, regardless of other processes.
pub(crate) const LEAST: usize = 64;

/// Limit of a ledger's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bound {
    /// Limit of entries in all tables together.
    most: usize,
    /// Number of entries that can be added without exceeding the limit.
    left: usize,
}

impl Default for Bound {
    fn default() -> Self {
        Self { most: LEAST, left: LEAST }
    }
}

impl ProcessLedger {
    /// Returns whether the tables have to be counted before this call is applied, because it may
    /// add entries.
    #[inline]
    pub fn is_to_be_counted(&self, action: &Action) -> bool {
        self.bound.left < action.listed()
    }

    /// Limit of entries in all tables together.
    pub const fn most_listed(&self) -> usize {
        self.bound.most
    }

    /// Sets the limit of entries. Returns the headroom left.
    pub fn bound(&mut self, most: usize) -> usize {
        let left = most.saturating_sub(self.listed());
        self.bound = Bound { most, left };
        left
    }

    /// Accounts for the entries that a call may add.
    #[inline]
    pub(super) fn spend_room(&mut self, action: &Action) {
        self.bound.left = self.bound.left.saturating_sub(action.listed());
    }

    /// Number of entries in all tables together.
    pub fn listed(&self) -> usize {
        let tables = self.addresses.listed() + self.arrays.listed() + self.registered.listed();
        let handles = self.reservations.listed() + self.modules.listed() + self.physical.listed() + self.aliases.len();
        tables + handles + self.pools.listed() + self.graphs.listed() + self.contexts.listed() + self.totals.listed()
    }
}

impl Action {
    /// Returns how many entries the action may add. An unmap adds none: it ends mappings as a whole.
    const fn listed(&self) -> usize {
        match self {
            Self::Initialise
            | Self::Free { .. }
            | Self::FreeHost { .. }
            | Self::UnregisterHost { .. }
            | Self::FreeAsync { .. }
            | Self::DestroyPool { .. }
            | Self::TrimPool { .. }
            | Self::FreeAddresses { .. }
            | Self::ReleasePhysical { .. }
            | Self::Unmap { .. }
            | Self::UnbindMulticast { .. }
            | Self::ExportAddress { .. }
            | Self::CloseAlias { .. }
            | Self::ExportPhysical { .. }
            | Self::ImportExternal { .. }
            | Self::DestroyExternal { .. }
            | Self::DestroyArray { .. }
            | Self::AddFreeNode { .. }
            | Self::AddOtherNode
            | Self::DestroyGraph { .. }
            | Self::DestroyExecutable { .. }
            | Self::LaunchGraph { .. }
            | Self::TrimGraphs { .. }
            | Self::ReleasePrimary { .. }
            | Self::ResetPrimary { .. }
            | Self::DestroyContext { .. }
            | Self::PopContext
            | Self::DestroyGreen { .. }
            | Self::UnloadModule { .. }
            | Self::Checkpoint { .. }
            | Self::Restore { .. } => 0,
            // One entry for the handle and one for the object.
            Self::CreatePhysical { .. }
            | Self::ImportPhysical { .. }
            | Self::CreateMulticast { .. }
            | Self::AddAllocationNode { .. }
            | Self::CreatePool { .. }
            | Self::ImportPool { .. }
            | Self::LearnPool { .. }
            | Self::ImportAddress { .. }
            | Self::EndCapture { .. }
            | Self::InstantiateGraph { .. } => 2,
            // Entries for the device, the name, and the position on a thread's stack.
            Self::RetainPrimary { .. }
            | Self::CreateContext { .. }
            | Self::CreateGreen { .. }
            | Self::ContextOfGreen { .. } => 4,
            _ => 1,
        }
    }
}
