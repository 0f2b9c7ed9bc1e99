//! Sums by owner in JSON.

use memwatch_core::owner::Owner;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::snapshot::groups::{By, Group, Rest, groups};
use serde::Serialize;

use crate::render::owners;
use crate::render::text::groups as table;

/// Sums by owner, in addition to the list of processes.
#[derive(Serialize)]
pub(crate) struct Groups<'a> {
    by: &'static str,
    groups: Vec<Named<'a>>,
    rest: Vec<Rest>,
}

#[derive(Serialize)]
struct Named<'a> {
    #[serde(flatten)]
    group: Group<'a>,
    name: String,
    /// Owner of one of the group's processes; `null` for the processes without such an owner.
    owner: Option<&'a Owner>,
}

/// Computes the sums of a snapshot.
pub(crate) fn of(snapshot: &Snapshot, by: By) -> Groups<'_> {
    let (groups, rest) = groups(snapshot, by);
    Groups { by: owners::by_name(by), groups: groups.into_iter().map(|group| named(by, group)).collect(), rest }
}

fn named(by: By, group: Group<'_>) -> Named<'_> {
    let owner = group.owner.filter(|_| !matches!(by, By::User | By::Gpu)).map(|process| &process.owner);
    Named { name: table::name(by, &group), owner, group }
}
