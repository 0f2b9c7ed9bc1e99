//! What can be said of how free memory lies.

use memwatch_core::snapshot::{FragmentsView, KindView, ProcessView, ShapeView, SimulationView, Snapshot};

use super::format::{bytes, plural, ratio};
use super::simulations;

/// One allocator, and what was replayed of it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// How its memory lies.
    pub(crate) view: FragmentsView,
    /// What other settings would have taken; `None` where nothing was replayed.
    pub(crate) simulation: Option<SimulationView>,
}

impl Told {
    /// Its process.
    pub(crate) fn process<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a ProcessView> {
        let key = (self.view.tgid, self.view.observed_since_ns);
        snapshot.processes.iter().find(|process| (process.tgid, process.observed_since_ns) == key)
    }

    /// Small and large segments together.
    pub(crate) fn all(&self) -> ShapeView {
        self.view.small.and(self.view.large)
    }

    /// What the allocator has of the driver that was there before the watch: nothing is known of how that lies.
    pub(crate) fn unseen_bytes(&self) -> u64 {
        let reported = self.view.reported_reserved_bytes.unwrap_or(0);
        reported.saturating_sub(self.all().reserved_bytes)
    }

    /// Pools of the driver (`cudaMallocAsync`) on the same GPU: what they have beyond what is in use; `None` where there are none.
    pub(crate) fn driver_pool<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a KindView> {
        let gpus = &self.process(snapshot)?.gpus;
        let gpu = gpus.iter().find(|gpu| gpu.uuid.is_some() && gpu.uuid == self.view.uuid)?;
        gpu.kinds.get("pool").filter(|pool| pool.backed_bytes.is_some())
    }
}

/// What of the driver's memory is not in tensors.
pub(crate) fn unused_part(shape: &ShapeView) -> f64 {
    ratio(shape.reserved_bytes.saturating_sub(shape.allocated_bytes), shape.reserved_bytes)
}

/// What of the free memory no single request could have: 0 where it is one block.
pub(crate) fn scattered_part(shape: &ShapeView) -> f64 {
    if shape.free_bytes == 0 { 0.0 } else { 1.0 - ratio(shape.largest_free_bytes, shape.free_bytes) }
}

/// Sentences on what the numbers say.
pub(crate) fn remarks(told: &Told) -> Vec<String> {
    let mut remarks = Vec::new();
    let all = told.all();
    if let Some(fit) = &told.view.request {
        remarks.push(fate(fit));
    }
    if all.unused_segment_bytes > 0 {
        remarks.push(format!("torch.cuda.empty_cache() would give {} back", bytes(all.unused_segment_bytes)));
    }
    let unseen = told.unseen_bytes();
    if unseen > 0 {
        remarks.push(format!("how {} lie that the allocator had before the watch is not known", bytes(unseen)));
    }
    if !told.view.traced {
        remarks.push("this PyTorch does not say what its allocator does: its segments are not known".to_owned());
    }
    if let Some(simulation) = &told.simulation {
        remarks.extend(simulations::advice(simulation).into_iter().next());
    }
    remarks
}

fn fate(fit: &memwatch_core::snapshot::FitView) -> String {
    let wanted = bytes(fit.wanted_bytes);
    if fit.cached {
        return format!("a request of {wanted} fits into a free block");
    }
    let needed = bytes(fit.driver_bytes);
    let Some(free) = fit.driver_free_bytes else {
        return format!("a request of {wanted} fits into no free block: the driver would have to give {needed}");
    };
    let verdict = if free >= fit.driver_bytes {
        "which it has"
    } else if free.saturating_add(fit.releasable_bytes) >= fit.driver_bytes {
        "which it has once PyTorch has given back its unused segments"
    } else {
        "which it has not: the request would fail"
    };
    format!(
        "a request of {wanted} fits into no free block: the driver, with {} free, would have to give {needed}, {verdict}",
        bytes(free)
    )
}

/// `3 blocks`.
pub(crate) fn blocks(number: u64) -> String {
    plural(number, "block", "blocks")
}
