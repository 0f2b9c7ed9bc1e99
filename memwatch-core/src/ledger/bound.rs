//! How much a ledger may list. A program makes as many allocations as it has time for, real or not, and a watch has memory for so many.
//!
//! To count what is listed takes a look at every table, so it is counted only after as many calls as there was room for.

use serde::{Deserialize, Serialize};

use super::ProcessLedger;
use crate::decode::Action;

/// What any process may list, whatever others do.
pub(crate) const LEAST: usize = 64;

/// What a ledger may list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bound {
    /// Entries in all tables together.
    most: usize,
    /// So many more entries cannot make it more than that.
    left: usize,
}

impl Default for Bound {
    fn default() -> Self {
        Self { most: LEAST, left: LEAST }
    }
}

impl ProcessLedger {
    /// Whether the tables have to be counted before this call is applied, since it may add to them.
    #[inline]
    pub fn is_to_be_counted(&self, action: &Action) -> bool {
        self.bound.left < action.listed()
    }

    /// What it may list: entries in all tables together.
    pub const fn most_listed(&self) -> usize {
        self.bound.most
    }

    /// From now on it may list so much. Says for how many more there is room.
    pub fn bound(&mut self, most: usize) -> usize {
        let left = most.saturating_sub(self.listed());
        self.bound = Bound { most, left };
        left
    }

    /// A call that may add to the tables is applied.
    #[inline]
    pub(super) fn spend_room(&mut self, action: &Action) {
        self.bound.left = self.bound.left.saturating_sub(action.listed());
    }

    /// The entries in all tables together.
    pub fn listed(&self) -> usize {
        let tables = self.addresses.listed() + self.arrays.listed() + self.registered.listed();
        let handles = self.reservations.listed() + self.modules.listed() + self.physical.listed() + self.aliases.len();
        tables + handles + self.pools.listed() + self.graphs.listed() + self.contexts.listed() + self.totals.listed()
    }
}

impl Action {
    /// How many entries there may be more for it. An unmap may leave two parts of a mapping.
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
            // Under its handle, and on its own.
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
            // With its device, its name, and its place on a thread.
            Self::RetainPrimary { .. }
            | Self::CreateContext { .. }
            | Self::CreateGreen { .. }
            | Self::ContextOfGreen { .. } => 4,
            _ => 1,
        }
    }

    /// Whether it takes away, though something may be listed for it: it is applied where there is no room, too.
    pub const fn takes_away(&self) -> bool {
        matches!(self, Self::Unmap { .. })
    }
}
