//! Sentences on fragmentation.

use memwatch_core::features::fragments::view::{
    DriverFragmentsView, DriverGpuView, DriverPoolView, FragmentsView, ShapeView, StreamPoolView,
};
use memwatch_core::features::simulate::view::SimulationView;
use memwatch_core::snapshot::{ProcessView, Snapshot};

use crate::commands::simulate::words as simulations;
use crate::render::format::{bytes, count, plural, ratio};
use crate::render::sentences;

/// Denominator of the minimum share of reserved memory that gets a sentence.
const WORTH: u64 = 8;

/// Fragmentation of all processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct FragmentFindings {
    /// PyTorch's allocators.
    pub(crate) allocators: Vec<FragmentReport>,
    /// Driver allocations.
    pub(crate) drivers: Vec<DriverFragmentsView>,
}

/// Unused driver memory of a process on a GPU, for one kind of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverRow<'a> {
    /// Process and time.
    pub(crate) driver: &'a DriverFragmentsView,
    /// The GPU.
    pub(crate) gpu: &'a DriverGpuView,
    /// `device`, `physical` or `pool`.
    pub(crate) kind: &'static str,
    /// Requested bytes that are live.
    pub(crate) live_bytes: u64,
    /// Bytes that the driver needs to back them; `None` if unknown.
    pub(crate) backed_bytes: Option<u64>,
    /// Whether `backed_bytes` is derived from addresses or known behaviour, rather than reported by
    /// the driver.
    pub(crate) is_estimated: bool,
    /// Unused bytes.
    pub(crate) unused_bytes: Option<u64>,
    /// Why they are unused.
    pub(crate) why: String,
}

impl FragmentFindings {
    /// Returns the rows, most unused bytes first. For a process with PyTorch's allocator, leaves
    /// out rows without waste, since that allocator divides the rest itself.
    pub(crate) fn driver_rows(&self) -> Vec<DriverRow<'_>> {
        let mut rows: Vec<DriverRow<'_>> = Vec::new();
        for driver in &self.drivers {
            let key = (driver.tgid, driver.observed_since_ns);
            let is_divided = self.allocators.iter().any(|one| (one.view.tgid, one.view.observed_since_ns) == key);
            let all = driver.gpus.iter().flat_map(|gpu| rows_of(driver, gpu));
            rows.extend(all.filter(|row| !is_divided || row.unused_bytes != Some(0)));
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.unused_bytes));
        rows
    }

    /// Returns sentences on requests and on NVML's numbers.
    pub(crate) fn driver_remarks(&self, snapshot: &Snapshot) -> Vec<String> {
        let (mut remarks, rows) = (Vec::new(), self.driver_rows());
        for driver in &self.drivers {
            let is_shown = |row: &DriverRow<'_>| row.driver.tgid == driver.tgid;
            if !rows.iter().any(is_shown) {
                continue;
            }
            let holes = driver.addresses;
            if holes.hole_bytes > 0 {
                remarks.push(format!(
                    "PID {}: of {} of addresses that are set apart {} have no memory, in {}, the longest {}: that takes none",
                    driver.tgid.0,
                    bytes(holes.reserved_bytes),
                    bytes(holes.hole_bytes),
                    plural(holes.holes, "piece", "pieces"),
                    bytes(holes.largest_hole_bytes)
                ));
            }
            let now = driver.gpus.iter().filter(|_| driver.at_worst_ns.is_none());
            remarks.extend(now.filter_map(|gpu| against_nvml(driver, gpu, snapshot)));
        }
        let gpus = self.drivers.iter().flat_map(|driver| &driver.gpus);
        let mut rooms: Vec<_> = gpus.filter_map(|gpu| Some((gpu.uuid.as_ref()?, gpu.request?))).collect();
        rooms.retain(|(_, request)| request.driver_free_bytes.is_some());
        rooms.sort_by_key(|(uuid, request)| (*uuid, request.driver_free_bytes));
        rooms.dedup();
        remarks.extend(rooms.into_iter().filter(|_| self.allocators.is_empty()).filter_map(|(uuid, request)| {
            let free = request.driver_free_bytes?;
            let verdict = if free >= request.driver_bytes { "has room for" } else { "would refuse" };
            let (gpu, wanted) = (sentences::gpu_number(snapshot, Some(uuid)), bytes(request.wanted_bytes));
            Some(format!("the driver, with {} free on GPU {gpu}, {verdict} a request of {wanted}", bytes(free)))
        }));
        remarks
    }
}

fn rows_of<'a>(driver: &'a DriverFragmentsView, gpu: &'a DriverGpuView) -> Vec<DriverRow<'a>> {
    let row = |kind, live_bytes, backed_bytes: Option<u64>, unused_bytes, why: String| DriverRow {
        driver,
        gpu,
        kind,
        live_bytes,
        backed_bytes,
        is_estimated: false,
        unused_bytes,
        why,
    };
    let DriverGpuView { device, physical, pool, .. } = gpu;
    let why = format!(
        "{} in granules of 2 MiB, {} of them up to 1 MiB",
        plural(device.allocations, "request", "requests"),
        count(device.small_allocations)
    );
    let device = row("device", device.live_bytes, Some(device.backed_bytes), Some(device.unused_bytes), why);
    let why = "neither mapped nor bound".to_owned();
    let physical = row("physical", physical.live_bytes, Some(physical.live_bytes), Some(physical.idle_bytes), why);
    let pools =
        row("pool", pool.used_bytes, pool.backed_bytes, pool.unused_bytes, "kept for later requests".to_owned());
    let rows = [
        DriverRow { is_estimated: true, ..device },
        physical,
        DriverRow { is_estimated: pool.backed_estimated, ..pools },
    ];
    rows.into_iter().filter(|row| row.live_bytes > 0 || row.backed_bytes != Some(0)).collect()
}

/// Compares with NVML: the memory that no call requested, and how much of it the addresses explain.
fn against_nvml(driver: &DriverFragmentsView, gpu: &DriverGpuView, snapshot: &Snapshot) -> Option<String> {
    let uuid = gpu.uuid.as_ref()?;
    let process =
        snapshot.processes.iter().find(|process| process.tgid == driver.tgid && process.ended_ns.is_none())?;
    let own = process.gpus.iter().find(|own| own.uuid.as_ref() == Some(uuid))?;
    let unattributed = u64::try_from(own.unattributed_bytes?).ok()?;
    let device = snapshot.gpus.iter().find(|device| device.uuid == *uuid);
    let context = device.and_then(|device| device.context_bytes);
    let context = context.map_or_else(String::new, |context| format!(", of which a context takes {}", bytes(context)));
    Some(format!(
        "PID {} on GPU {}: by NVML {} are used that no call has asked for{context}; the rows above explain {}",
        driver.tgid.0,
        sentences::gpu_number(snapshot, Some(uuid)),
        bytes(unattributed),
        bytes(gpu.wasted_bytes.saturating_sub(gpu.physical.idle_bytes))
    ))
}

/// Fragmentation of an allocator, with its simulation.
#[derive(Clone, Debug)]
pub(crate) struct FragmentReport {
    /// Fragmentation.
    pub(crate) view: FragmentsView,
    /// Simulation of other settings; `None` if the trace was not replayed.
    pub(crate) simulation: Option<SimulationView>,
}

impl FragmentReport {
    /// Returns the allocator's process.
    pub(crate) fn process<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a ProcessView> {
        snapshot.process(self.view.tgid, self.view.observed_since_ns)
    }

    /// Returns small and large segments together.
    pub(crate) fn all(&self) -> ShapeView {
        self.view.small.and(self.view.large)
    }

    /// Returns the bytes that the allocator reserves, by its own counter if that is known.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.view.reported_reserved_bytes.unwrap_or_else(|| self.all().reserved_bytes)
    }

    /// Returns the bytes that the allocator reserves in segments of unknown layout.
    pub(crate) fn unseen_bytes(&self) -> u64 {
        self.reserved_bytes().saturating_sub(self.all().reserved_bytes)
    }

    /// Returns the driver's pools (`cudaMallocAsync`) on the same GPU; `None` if there are none.
    pub(crate) fn driver_pool(&self, snapshot: &Snapshot) -> Option<DriverPoolView> {
        let gpus = &self.process(snapshot)?.gpus;
        let gpu = gpus.iter().find(|gpu| gpu.uuid.is_some() && gpu.uuid == self.view.uuid)?;
        let pool = gpu.kinds.get("pool").filter(|pool| pool.backed_bytes.is_some())?;
        Some(DriverPoolView::new(pool.live_bytes, pool.backed_bytes, pool.backed_estimated))
    }
}

/// Returns the share of the reserved memory that is not in tensors.
pub(crate) fn unused_part(shape: &ShapeView) -> f64 {
    ratio(shape.reserved_bytes.saturating_sub(shape.allocated_bytes), shape.reserved_bytes)
}

/// Returns the share of the free memory that a single request cannot get; 0 if it is one block.
pub(crate) fn scattered_part(shape: &ShapeView) -> f64 {
    if shape.free_bytes == 0 { 0.0 } else { 1.0 - ratio(shape.largest_free_bytes, shape.free_bytes) }
}

/// Returns a sentence if no segment is known: a table of zeros would suggest that there is no
/// memory.
pub(crate) fn nothing_known(reported: &FragmentReport) -> Option<String> {
    let unseen = reported.unseen_bytes();
    if reported.all().segments > 0 || unseen == 0 {
        return None;
    }
    Some(format!(
        "The layout of {} reserved before attach is not known: the allocator is read between two of its operations, and there was no such moment. Try again, or trace the program from its first segment: memwatch run -- CMD.",
        bytes(unseen)
    ))
}

/// Returns sentences on the numbers.
pub(crate) fn remarks(reported: &FragmentReport) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(fit) = &reported.view.request {
        remarks.push(fate(fit));
    }
    remarks.extend(parts(reported));
    let unseen = reported.unseen_bytes();
    if unseen > 0 {
        let (unseen, reserved) = (bytes(unseen), bytes(reported.reserved_bytes()));
        remarks.push(format!("the table lacks {unseen} of the {reserved} reserved: their layout is not known"));
    }
    if !reported.view.traced {
        remarks.push("this PyTorch version has no allocator trace: its segments are not known".to_owned());
    }
    // Simulating a part of the program does not compare with the whole of it.
    if let Some(simulation) = reported.simulation.as_ref().filter(|_| unseen == 0) {
        remarks.extend(simulations::advice(simulation).into_iter().next());
    }
    remarks
}

/// Returns sentences on the free memory that `empty_cache` releases, and on what pins the rest.
fn parts(reported: &FragmentReport) -> Vec<String> {
    let all = reported.all();
    let mut remarks = Vec::new();
    if all.unused_segment_bytes > 0 {
        remarks.push(format!("torch.cuda.empty_cache() would release {}", bytes(all.unused_segment_bytes)));
    }
    let stranded: Vec<&StreamPoolView> =
        reported.view.pools.iter().filter(|pool| pool.shape.stranded_bytes > 0).collect();
    if !stranded.is_empty() {
        let pools = plural(stranded.len() as u64, "private pool", "private pools");
        remarks.push(format!(
            "{} are free in {pools}: empty_cache() releases them only once the CUDA graph or MemPool is gone, and no other request gets them",
            bytes(all.stranded_bytes)
        ));
    }
    remarks.extend(of_other_streams(reported));
    remarks
}

/// Returns a sentence on free memory of streams other than the main one, if it is a large share.
fn of_other_streams(reported: &FragmentReport) -> Option<String> {
    let streams = || reported.view.pools.iter().filter(|pool| &*pool.owner == "stream");
    let main = streams().max_by_key(|pool| pool.shape.allocated_bytes)?;
    let others = || streams().filter(|pool| pool.stream != main.stream && pool.shape.free_bytes > 0);
    let free_bytes: u64 = others().map(|pool| pool.shape.free_bytes).sum();
    (free_bytes > reported.all().reserved_bytes / WORTH).then(|| {
        let name = stream_name(main.stream);
        let others = plural(others().count() as u64, "other stream", "other streams");
        format!(
            "{} are free on {others}: a request on the {name}, or on a new one, gets nothing of it",
            bytes(free_bytes)
        )
    })
}

/// Formats the owner of a row: `default stream`, `stream 0x7f21…`, `CUDA graph 3`.
pub(crate) fn pool_name(pool: &StreamPoolView) -> String {
    let (first, second) = pool.private_pool;
    let name = match &*pool.owner {
        "graph" => format!("CUDA graph {first}"),
        "graphs" => format!("CUDA graphs of pool {second}"),
        "mem_pool" => format!("MemPool {second}"),
        "private" => format!("MemPool or graphs' pool {second}"),
        _ => return stream_name(pool.stream),
    };
    if pool.in_use { name } else { format!("{name} (gone)") }
}

fn stream_name(stream: u64) -> String {
    if stream == 0 { "default stream".to_owned() } else { format!("stream {stream:#x}") }
}

fn fate(fit: &memwatch_core::features::fragments::view::FitView) -> String {
    let wanted = bytes(fit.wanted_bytes);
    if fit.cached {
        return format!("a request of {wanted} on the {} fits into a free block", stream_name(fit.stream));
    }
    let elsewhere = match &fit.other_streams[..] {
        [] => "fits into no free block".to_owned(),
        [one] => {
            format!("on the {} has no free block, though one on {} has", stream_name(fit.stream), stream_name(*one))
        }
        several => format!(
            "on the {} has no free block, though one on {} other streams has",
            stream_name(fit.stream),
            count(several.len() as u64)
        ),
    };
    let needed = bytes(fit.driver_bytes);
    let Some(free) = fit.driver_free_bytes else {
        return format!("a request of {wanted} {elsewhere}: the driver would have to give {needed}");
    };
    let verdict = if free >= fit.driver_bytes {
        "which it has"
    } else if free.saturating_add(fit.releasable_bytes) >= fit.driver_bytes {
        "which it has once PyTorch has given back its unused segments"
    } else {
        "which it has not: the request would fail"
    };
    format!(
        "a request of {wanted} {elsewhere}: the driver, with {} free, would have to give {needed}, {verdict}",
        bytes(free)
    )
}

/// Formats `3 blocks`.
pub(crate) fn blocks(number: u64) -> String {
    plural(number, "block", "blocks")
}
