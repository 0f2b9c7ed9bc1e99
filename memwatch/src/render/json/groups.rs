//! Sums by owner in JSON.

use memwatch_core::owner::Owner;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::snapshot::groups::{OwnerGroup, OwnerGrouping, UngroupedBytes, groups};
use serde::Serialize;

use crate::render::owners;
use crate::render::text::groups as table;

/// Sums by owner, in addition to the list of processes.
#[derive(Serialize)]
pub(crate) struct OwnerSums<'a> {
    by: &'static str,
    groups: Vec<OwnerGroupJson<'a>>,
    rest: Vec<UngroupedBytes>,
}

#[derive(Serialize)]
struct OwnerGroupJson<'a> {
    #[serde(flatten)]
    group: OwnerGroup<'a>,
    name: String,
    /// Owner of one of the group's processes; `null` for the processes without such an owner.
    owner: Option<&'a Owner>,
}

/// Computes the sums of a snapshot.
pub(crate) fn of(snapshot: &Snapshot, by: OwnerGrouping) -> OwnerSums<'_> {
    let (groups, rest) = groups(snapshot, by);
    OwnerSums { by: owners::by_name(by), groups: groups.into_iter().map(|group| named(by, group)).collect(), rest }
}

fn named(by: OwnerGrouping, group: OwnerGroup<'_>) -> OwnerGroupJson<'_> {
    let owner =
        group.owner.filter(|_| !matches!(by, OwnerGrouping::User | OwnerGrouping::Gpu)).map(|process| &process.owner);
    OwnerGroupJson { name: table::name(by, &group), owner, group }
}
