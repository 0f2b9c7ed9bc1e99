//! Converts the targets of the command line to options of a session and to a filter of snapshots.

use std::path::PathBuf;

use crate::backends::readings::DeviceLibrary;
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::{CommonArgs, DEFAULT_SOCKET, Selected, TargetArgs};
use crate::watch::filter::GpuFilter;
use crate::watch::selection::Selection;
use crate::watch::session::SessionOptions;
use memwatch_core::snapshot::Snapshot;

const DEFAULT_RING_BYTES: u32 = 16 << 20;

/// Size of the agent's ring. The kernel maps a ring twice in a row, and both mappings count as
/// resident memory: 16 MB, of which half is real. The ring holds 55,000 records, enough for 2.7
/// million a second. The agent makes snapshots only on request, so it reads the ring with shorter
/// interruptions than a screen.
const AGENT_RING_BYTES: u32 = 8 << 20;

/// Returns the options of a machine-wide session that runs for a long time.
pub(crate) fn everybody(common: &CommonArgs) -> SessionOptions {
    let ring_bytes = common.ring_bytes.unwrap_or(AGENT_RING_BYTES);
    SessionOptions { ring_bytes, ..session_options(&TargetArgs::default(), TensorRequest::default(), common) }
}

/// Returns the options of a session for these targets, of which there may be none yet.
pub(crate) fn session_options(targets: &TargetArgs, tensors: TensorRequest, common: &CommonArgs) -> SessionOptions {
    SessionOptions {
        targets: targets.selected.tgids.iter().map(|tgid| tgid.0).collect(),
        expects_command: false,
        agent_socket: Some(common.agent.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET))),
        libraries: common.libcuda.clone(),
        device_library: common.nvml_lib.clone().map_or(DeviceLibrary::System, DeviceLibrary::File),
        sockets: common.sockets.places(),
        ring_bytes: common.ring_bytes.unwrap_or(DEFAULT_RING_BYTES),
        classic_uprobes: common.classic_uprobes,
        rests_without_processes: false,
        polls_libraries: common.poll_libraries,
        diagnostics: common.verbose > 1,
        tensors,
        named: selection_of(&targets.selected),
        is_screen: false,
        holdings_every: None,
        counters_every: None,
        logs_tensors: false,
        recorder: None,
        survival: None,
    }
}

/// Returns the selection of processes that are not selected by number.
fn selection_of(selected: &Selected) -> Option<Selection> {
    let is_by_number = selected.choice.is_empty() || !selected.tgids.is_empty();
    (!is_by_number).then(|| Selection::new(&selected.choice, &[]))
}

/// Filter of the snapshots to show.
pub(crate) struct Filter {
    gpus: GpuFilter,
    selection: Selection,
}

impl Filter {
    /// Creates a filter. It needs the process numbers only to exclude children, since the source
    /// shows exactly the processes with these numbers and their children.
    pub(crate) fn new(targets: &TargetArgs) -> Self {
        let named: &[_] = if targets.selected.choice.no_children { &targets.selected.tgids } else { &[] };
        Self { gpus: GpuFilter::new(&targets.gpus), selection: Selection::new(&targets.selected.choice, named) }
    }
}

/// Reduces a snapshot to what the filter shows.
///
/// # Errors
/// A named GPU does not exist.
pub(crate) fn filtered(mut snapshot: Snapshot, filter: &Filter) -> Result<Snapshot, ExitFailure> {
    filter.gpus.apply(&mut snapshot).map_err(|error| ExitFailure::new(Exit::NoTarget, error))?;
    filter.selection.apply(&mut snapshot);
    Ok(snapshot)
}

/// # Errors
/// Processes were selected and none is in the snapshot.
pub(crate) fn found_any(snapshot: &Snapshot, filter: &Filter) -> Result<Exit, ExitFailure> {
    if !snapshot.processes.is_empty() || filter.selection.is_everybody() {
        return Ok(Exit::Ok);
    }
    let wanted = filter.selection.describe();
    Err(ExitFailure::new(Exit::NoTarget, format_args!("no process with GPU memory matches {wanted}")))
}
