//! Recently listed GPUs. A GPU that NVML no longer lists, or of which it reports nothing, must not
//! appear idle.

use std::collections::BTreeMap;

use memwatch_core::input::{NvmlState, place};
use memwatch_core::snapshot::{GpuView, Snapshot};

use super::label::label_value;

/// Time in nanoseconds for which a GPU is reported as down after NVML, while answering, stopped
/// listing it. Afterwards it counts as removed or repartitioned.
const GONE_KEPT_NS: u64 = 300_000_000_000;

/// All recently listed GPUs.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    /// GPUs by UUID.
    known: BTreeMap<String, ListedGpu>,
}

#[derive(Debug)]
struct ListedGpu {
    place: String,
    listed_ns: u64,
    /// View of the GPU; `None` if it is not listed at present.
    view: Option<GpuView>,
}

impl Gpus {
    /// Updates the list from a snapshot.
    pub(super) fn update(&mut self, snapshot: &Snapshot) {
        let now_ns = snapshot.time_ns;
        self.known.values_mut().for_each(|gpu| gpu.view = None);
        for view in &snapshot.gpus {
            let place = place(view.nvml_index, view.mig.as_ref());
            let gpu = ListedGpu { place, listed_ns: now_ns, view: Some(view.clone()) };
            self.known.insert(label_value(view.uuid.as_str()), gpu);
        }
        if snapshot.nvml == NvmlState::Ok {
            self.known.retain(|_, gpu| now_ns.saturating_sub(gpu.listed_ns) < GONE_KEPT_NS);
        }
    }

    /// Returns whether the GPU was listed recently.
    pub(super) fn knows(&self, uuid: &str) -> bool {
        self.known.contains_key(uuid)
    }

    /// Returns the displayed number of a GPU, `1` or `1:0`; empty if NVML has not listed it.
    pub(super) fn place(&self, uuid: &str) -> &str {
        self.known.get(uuid).map_or("", |gpu| &gpu.place)
    }

    /// Returns number, UUID and present listing of each GPU.
    pub(super) fn states(&self) -> impl Iterator<Item = ([&str; 2], bool)> {
        self.known.iter().map(|(uuid, gpu)| ([gpu.place.as_str(), uuid.as_str()], gpu.view.is_some()))
    }

    /// Returns the GPUs that are listed at present, with number and UUID.
    pub(super) fn listed(&self) -> impl Iterator<Item = ([&str; 2], &GpuView)> {
        self.known.iter().filter_map(|(uuid, gpu)| Some(([gpu.place.as_str(), uuid.as_str()], gpu.view.as_ref()?)))
    }
}
