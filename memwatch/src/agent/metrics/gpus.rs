//! The GPUs that NVML has listed: one that it does not list any more, or of which it says nothing, must not look idle.

use std::collections::BTreeMap;

use memwatch_core::input::{NvmlState, place};
use memwatch_core::snapshot::{GpuView, Snapshot};

use super::label::label_value;

/// How long a GPU is down that NVML, while it answers, does not list any more: nanoseconds. Then it was taken away, or divided again.
const GONE_KEPT_NS: u64 = 300_000_000_000;

/// All GPUs that were listed lately.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    /// By UUID.
    known: BTreeMap<String, Gpu>,
}

#[derive(Debug)]
struct Gpu {
    place: String,
    listed_ns: u64,
    /// As listed now.
    view: Option<GpuView>,
}

impl Gpus {
    /// Takes a snapshot in.
    pub(super) fn update(&mut self, snapshot: &Snapshot) {
        let now_ns = snapshot.time_ns;
        self.known.values_mut().for_each(|gpu| gpu.view = None);
        for view in &snapshot.gpus {
            let place = place(view.nvml_index, view.mig.as_ref());
            let gpu = Gpu { place, listed_ns: now_ns, view: Some(view.clone()) };
            self.known.insert(label_value(view.uuid.as_str()), gpu);
        }
        if snapshot.nvml == NvmlState::Ok {
            self.known.retain(|_, gpu| now_ns.saturating_sub(gpu.listed_ns) < GONE_KEPT_NS);
        }
    }

    /// Whether it was listed lately.
    pub(super) fn knows(&self, uuid: &str) -> bool {
        self.known.contains_key(uuid)
    }

    /// What people call a GPU, `1` or `1:0`; empty where NVML has not listed it.
    pub(super) fn place(&self, uuid: &str) -> &str {
        self.known.get(uuid).map_or("", |gpu| &gpu.place)
    }

    /// Each with place and UUID, and whether it is listed now.
    pub(super) fn states(&self) -> impl Iterator<Item = ([&str; 2], bool)> {
        self.known.iter().map(|(uuid, gpu)| ([gpu.place.as_str(), uuid.as_str()], gpu.view.is_some()))
    }

    /// The ones that are listed now, with place and UUID.
    pub(super) fn listed(&self) -> impl Iterator<Item = ([&str; 2], &GpuView)> {
        self.known.iter().filter_map(|(uuid, gpu)| Some(([gpu.place.as_str(), uuid.as_str()], gpu.view.as_ref()?)))
    }
}
