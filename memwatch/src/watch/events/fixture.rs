//! Invented events for tests.

use std::collections::BTreeSet;

use memwatch_core::features::forecast::view::{ForecastChangeView, GpuForecastView, OutlookView, ProcessForecastView};
use memwatch_core::features::left_behind::view::{LeftBehindChangeView, LeftOnPlace};
use memwatch_core::features::oom::view::OomView;
use memwatch_core::words::Tgid;

use super::{ForecastEvent, MachineEvent};
use crate::render::fixture::{at, owned_node};

/// User of the first and the last process of the node.
pub(crate) const TRAINER: u32 = 1000;
/// User of the second process of the node.
pub(crate) const SERVER: u32 = 1001;

/// Returns a failure of the first process of a node with three processes of two users.
pub(crate) fn failure() -> OomView {
    let snapshot = owned_node();
    OomView {
        time_ns: at(14, 3, 21),
        tgid: snapshot.processes[0].tgid,
        level: "driver".into(),
        device: None,
        uuid: snapshot.gpus.first().map(|gpu| gpu.uuid.clone()),
        framework: None,
        symbol: Some("cuMemAlloc_v2".into()),
        wanted_bytes: 2 << 30,
        whose: None,
        cache: None,
        more: 0,
        ended_ns: None,
        is_survived: true,
        exited_ns: None,
        refused: Vec::new(),
        names: Vec::new(),
        snapshot: Box::new(snapshot),
    }
}

/// Returns the failure as an event.
pub(crate) fn out_of_memory() -> MachineEvent {
    MachineEvent::OutOfMemory(Box::new(failure()))
}

/// Returns a forecast for the first GPU, on which the second and the first process grow.
pub(crate) fn forecast() -> MachineEvent {
    let snapshot = owned_node();
    let outlook = OutlookView { level: "critical".into(), needed_bytes: 70 << 30, ..OutlookView::default() };
    let uuid = snapshot.gpus[0].uuid.clone();
    let growing = |process: usize| {
        let process = &snapshot.processes[process];
        ProcessForecastView {
            tgid: process.tgid,
            comm: process.comm.clone(),
            command: process.command.clone(),
            observed_since_ns: process.observed_since_ns,
            uuid: uuid.clone(),
            outlook: outlook.clone(),
            cache: None,
            growing: Vec::new(),
        }
    };
    let processes = vec![growing(1), growing(0)];
    let gpu = GpuForecastView {
        uuid: uuid.clone(),
        number: "0".to_owned(),
        total_bytes: Some(80 << 30),
        used_bytes: Some(72 << 30),
        outlook: outlook.clone(),
    };
    let change = ForecastChangeView {
        time_ns: at(14, 3, 0),
        before: Some("low".into()),
        threshold_percent: None,
        gpu,
        processes,
    };
    let subjects = [1, 0].map(|process: usize| snapshot.processes[process].identity()).to_vec();
    MachineEvent::Forecast(Box::new(ForecastEvent { change, subjects }))
}

/// Returns memory of the first process that stays charged after its end, or that no longer is.
pub(crate) fn left_behind(is_gone: bool) -> MachineEvent {
    let snapshot = owned_node();
    let gpu = LeftOnPlace { uuid: snapshot.gpus[0].uuid.clone(), number: "0".to_owned(), used_bytes: 646 << 20 };
    MachineEvent::LeftBehind(Box::new(LeftBehindChangeView {
        time_ns: if is_gone { at(14, 5, 0) } else { at(14, 4, 0) },
        process: Box::new(snapshot.processes[0].identity()),
        is_gone,
        ended_ns: at(14, 3, 55),
        is_exit_seen: true,
        since_ns: at(14, 4, 0),
        gpus: vec![gpu],
        forked: vec![Tgid(453), Tgid(454)],
        foreign: BTreeSet::from([Tgid(454)]),
    }))
}
