//! The sums by owner in JSON.

use memwatch_core::owner::Owner;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::snapshot::groups::{By, Group, GroupGpu, groups};
use serde::Serialize;

use crate::render::owners;
use crate::render::text::groups as table;

/// What stands beside the processes where sums are asked for.
#[derive(Serialize)]
pub(crate) struct GroupsJson<'a> {
    by: &'static str,
    groups: Vec<GroupJson<'a>>,
    rest: Vec<RestJson>,
}

#[derive(Serialize)]
struct GroupJson<'a> {
    /// `null` for all processes without such an owner.
    id: Option<String>,
    name: String,
    /// Of one of its processes.
    owner: Option<&'a Owner>,
    processes: u64,
    exact: bool,
    gpus: Vec<GroupGpuJson>,
}

#[derive(Serialize)]
struct GroupGpuJson {
    uuid: Option<String>,
    processes: u64,
    used_bytes: Option<u64>,
    #[serde(rename = "driver_allocated_bytes")]
    live_bytes: u64,
    charged_bytes: u64,
    at_most_peak_bytes: u64,
    preexisting_bytes: Option<u64>,
    preexisting_includes_context: bool,
    failed_allocations: u64,
}

#[derive(Serialize)]
struct RestJson {
    uuid: String,
    bytes: Option<i64>,
}

/// The sums of a snapshot.
pub(crate) fn of(snapshot: &Snapshot, by: By) -> GroupsJson<'_> {
    let (groups, rest) = groups(snapshot, by);
    GroupsJson {
        by: owners::by_name(by),
        groups: groups.iter().map(|group| group_json(by, group)).collect(),
        rest: rest.into_iter().map(|rest| RestJson { uuid: rest.uuid.to_string(), bytes: rest.bytes }).collect(),
    }
}

fn group_json<'a>(by: By, group: &Group<'a>) -> GroupJson<'a> {
    GroupJson {
        id: group.id.clone(),
        name: table::name(by, group),
        owner: group.owner.filter(|_| !matches!(by, By::User | By::Gpu)).map(|process| &process.owner),
        processes: group.processes,
        exact: group.exact,
        gpus: group.gpus.iter().map(gpu_json).collect(),
    }
}

fn gpu_json(gpu: &GroupGpu) -> GroupGpuJson {
    GroupGpuJson {
        uuid: gpu.uuid.as_ref().map(ToString::to_string),
        processes: gpu.processes,
        used_bytes: gpu.used_bytes,
        live_bytes: gpu.live_bytes,
        charged_bytes: gpu.charged_bytes,
        at_most_peak_bytes: gpu.at_most_peak_bytes,
        preexisting_bytes: gpu.preexisting_bytes,
        preexisting_includes_context: gpu.preexisting_includes_context,
        failed_allocations: gpu.failed_allocations,
    }
}
