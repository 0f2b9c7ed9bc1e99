//! A framework library in a process and the probes on its functions.

use std::num::NonZeroU32;

use memwatch_common::tensor::Purpose;
use memwatch_core::input::TensorLevel;

use super::request::{BlockProbing, TensorRequest};
use crate::frameworks::FRAMEWORKS;
use crate::frameworks::points::TensorPoint;
use crate::frameworks::probes as tensor_probes;
use crate::frameworks::probes::TensorProbes;
use crate::sources::kernel::load::KernelHalf;
use crate::sources::library::LibraryFile;

/// A library of a process and its probes.
pub(super) struct ProbedLibrary {
    pub(super) file: LibraryFile,
    /// All probe points in the library's file.
    pub(super) points: Vec<TensorPoint>,
    /// Ids of the points that the trace level wants.
    pub(super) wanted: Vec<u16>,
    /// Ids of the wanted points that are rarely reached, with their probes. They stay attached
    /// while levels change, so that none of their events is missed.
    rare: (Vec<u16>, Option<TensorProbes>),
    /// Points that are attached on demand.
    pub(super) on_demand: Vec<TensorPoint>,
    /// Points that are attached until the allocator's trace is seen, with their probes.
    pub(super) until_trace: Option<(Vec<TensorPoint>, TensorProbes)>,
    pub(super) probes: Vec<TensorProbes>,
}

impl ProbedLibrary {
    pub(super) fn new(file: LibraryFile, points: Vec<TensorPoint>) -> Self {
        let (wanted, rare, on_demand) = (Vec::new(), (Vec::new(), None), Vec::new());
        Self { file, points, wanted, rare, on_demand, until_trace: None, probes: Vec::new() }
    }

    /// Returns the ids of the points that a request wants.
    pub(super) fn rows(&self, request: TensorRequest, sight: BlockProbing) -> Vec<u16> {
        self.points.iter().map(|point| point.row).filter(|row| request.wants(row, sight)).map(|row| row.id).collect()
    }

    /// Attaches the wanted probes. None of them may be attached already.
    pub(super) fn put_in(
        &mut self,
        kernel: &mut KernelHalf,
        tgid: u32,
        (request, sight): (TensorRequest, BlockProbing),
    ) {
        self.wanted = self.rows(request, sight);
        let (wanted, others): (Vec<TensorPoint>, Vec<TensorPoint>) =
            self.points.iter().copied().partition(|point| request.wants(point.row, sight));
        let (rare, wanted): (Vec<TensorPoint>, Vec<TensorPoint>) =
            wanted.into_iter().partition(|point| point.row.is_rare());
        self.follow_rare(kernel, tgid, &rare);
        let has_blocks = request.level >= TensorLevel::Blocks && !request.reports_only && sight != BlockProbing::Calls;
        let is_on_demand = |point: &TensorPoint| point.row.purpose == Purpose::AllocatorWithoutTrace && has_blocks;
        self.on_demand = others.into_iter().filter(is_on_demand).collect();
        let (until_trace, always): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|point| point.row.purpose == Purpose::AllocatorUntilTrace);
        self.probes = attach(kernel, tgid, &self.file, &always).into_iter().collect();
        self.until_trace = attach(kernel, tgid, &self.file, &until_trace).map(|probes| (until_trace, probes));
    }

    /// Returns the extra load per event of [`Self::begin_load`], in hundredths of a probe.
    pub(super) fn load_percent(&self) -> u64 {
        self.points.iter().filter_map(|point| FRAMEWORKS.load_percent(point.row.id)).sum()
    }

    /// Attaches counting probes to the functions that every event passes.
    pub(super) fn begin_load(&self, kernel: &mut KernelHalf, tgid: u32) -> Option<TensorProbes> {
        let points: Vec<TensorPoint> =
            self.points.iter().copied().filter(|point| FRAMEWORKS.load_percent(point.row.id).is_some()).collect();
        let tgid = NonZeroU32::new(tgid).filter(|_| !points.is_empty())?;
        let begun = tensor_probes::begin_load(kernel, &self.file.path(), tgid, &points);
        begun
            .inspect_err(|error| {
                log::warn!("process {tgid}: {}: cannot attach load probes: {error}", self.file.display);
            })
            .ok()
    }

    /// Sets the rarely reached points that are probed.
    pub(super) fn follow_rare(&mut self, kernel: &mut KernelHalf, tgid: u32, points: &[TensorPoint]) {
        let rows: Vec<u16> = points.iter().map(|point| point.row.id).collect();
        if self.rare.0 != rows {
            if let Some(probes) = self.rare.1.take() {
                take_out(kernel, tgid, probes);
            }
            self.rare = (rows, attach(kernel, tgid, &self.file, points));
        }
    }

    /// Detaches the probes that depend on the trace level.
    pub(super) fn take_out(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        self.clear().into_iter().for_each(|probes| take_out(kernel, tgid, probes));
    }

    /// Clears the library's state and hands over its attached probes.
    pub(super) fn clear(&mut self) -> Vec<TensorProbes> {
        let until_trace = self.until_trace.take().map(|(_, probes)| probes);
        self.on_demand.clear();
        self.wanted.clear();
        self.probes.drain(..).chain(until_trace).collect()
    }
}

pub(super) fn attach(
    kernel: &mut KernelHalf,
    tgid: u32,
    file: &LibraryFile,
    points: &[TensorPoint],
) -> Option<TensorProbes> {
    let scope = NonZeroU32::new(tgid).filter(|_| !points.is_empty())?;
    match tensor_probes::attach(kernel, &file.path(), scope, points) {
        Ok(probes) => {
            log::info!("process {tgid}: {}: {} tensor probes attached", file.display, points.len());
            Some(probes)
        }
        Err(error) => {
            log::warn!("process {tgid}: {}: tensors are not traced: {error}", file.display);
            None
        }
    }
}

pub(super) fn take_out(kernel: &mut KernelHalf, tgid: u32, probes: TensorProbes) {
    if let Err(error) = tensor_probes::detach(kernel, probes) {
        log::warn!("process {tgid}: cannot detach probes: {error}");
    }
}
