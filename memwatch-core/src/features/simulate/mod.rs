//! Simulations of PyTorch's allocators with other settings: replayed with each event; names are
//! resolved when a report is requested.

pub mod model;
pub mod view;

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;

use crate::Pipeline;
use crate::allocators::pytorch::DeviceAllocator;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::attribution::reconcile::Reconciliation;
use crate::decode::TensorEvent;
use crate::features::simulate::model::{
    Capacity, DeviceRun, PolicyPlan, PolicyReplay, PredictedFailure, Settings, SimulatedAllocatorKey, Simulations,
};
use crate::features::simulate::view::{MeasuredView, PolicyView, PredictedFailureView, SimulationView};
use crate::input::DeviceFacts;
use crate::input::allocator_state::AllocatorState;
use crate::ledger::totals::DeviceRef;
use crate::words::{GpuUuid, Ordinal};

impl Pipeline {
    /// Turns simulation of these plans on; on a card with `capacity_bytes` bytes, if given.
    pub fn simulate(&mut self, plans: Vec<PolicyPlan>, capacity_bytes: Option<u64>) {
        self.detectors.simulations = Some(Box::new(Simulations::new(plans, capacity_bytes)));
    }

    /// Returns the results by process and device; nothing before [`Pipeline::simulate`].
    pub fn simulations(&self) -> Vec<SimulationView> {
        let Some(simulations) = &self.detectors.simulations else { return Vec::new() };
        let view = |(whose, run): (&SimulatedAllocatorKey, &DeviceRun)| {
            let process = self.process_of(whose)?;
            Some(self.simulation(process, whose.2, (simulations.plans(), run)))
        };
        simulations.runs().iter().filter_map(view).collect()
    }

    /// Returns the observed size of a CUDA context by GPU, in bytes.
    pub const fn contexts(&self) -> &BTreeMap<GpuUuid, u64> {
        self.reconciliation.contexts()
    }

    /// Sets known sizes of CUDA contexts. Otherwise the size is unknown until NVML's first reading
    /// after a program's first allocations.
    pub fn know_contexts(&mut self, contexts: BTreeMap<GpuUuid, u64>) {
        self.reconciliation.know_contexts(contexts);
    }

    pub(crate) fn observe_simulations(&mut self, event: &TensorEvent) {
        let Self { detectors, processes, reading, reconciliation, .. } = self;
        let Some(simulations) = &mut detectors.simulations else { return };
        let Some(process) = processes.get(&event.tgid) else { return };
        let capacity_bytes = simulations.capacity_bytes();
        simulations.observe(process.observed_since_ns, event, |ordinal| {
            capacity(process, ordinal, &reading.devices, reconciliation, capacity_bytes)
        });
    }

    /// Begins the replays with the allocator state that was read from the process.
    pub(crate) fn begin_simulations(&mut self, allocator_state: &AllocatorState) {
        let Self { detectors, processes, reading, reconciliation, .. } = self;
        let Some(simulations) = &mut detectors.simulations else { return };
        let Some(process) = processes.get(&allocator_state.tgid) else { return };
        let capacity_bytes = simulations.capacity_bytes();
        for device in &allocator_state.devices {
            let whose = (allocator_state.tgid, process.observed_since_ns, device.ordinal);
            simulations.begin_with(whose, device, allocator_state.time_ns, |ordinal| {
                capacity(process, ordinal, &reading.devices, reconciliation, capacity_bytes)
            });
        }
    }

    /// Updates capacities after an NVML reading: the use of other processes may have changed.
    pub(crate) fn update_rooms(&mut self) {
        let Some(mut simulations) = self.detectors.simulations.take() else { return };
        let capacity_bytes = simulations.capacity_bytes();
        let all: Vec<SimulatedAllocatorKey> = simulations.runs().keys().copied().collect();
        for whose in all {
            if let Some(process) = self.process_of(&whose).filter(|process| process.ended.is_none()) {
                let capacity = capacity(process, whose.2, &self.reading.devices, &self.reconciliation, capacity_bytes);
                simulations.set_capacity(whose, capacity);
            }
        }
        self.detectors.simulations = Some(simulations);
    }

    fn process_of(&self, (tgid, since_ns, _): &SimulatedAllocatorKey) -> Option<&Process> {
        let mut all = self.processes.values().chain(self.ended.iter());
        all.find(|process| (process.tgid, process.observed_since_ns) == (*tgid, *since_ns))
    }

    fn simulation(
        &self,
        process: &Process,
        ordinal: Ordinal,
        (plans, run): (&[PolicyPlan], &DeviceRun),
    ) -> SimulationView {
        let allocator = process.tensors.as_ref().and_then(|tensors| tensors.allocators().get(&ordinal));
        let max_split_size = allocator.and_then(DeviceAllocator::max_split_size);
        let losses = process.tensors.as_ref().map(|tensors| tensors.losses());
        let policies = plans.iter().zip(run.replays());
        let available_bytes = run.capacity().available_bytes;
        let uuid = resolve(process, DeviceRef::Ordinal(ordinal), &self.reading.devices);
        SimulationView {
            tgid: process.tgid,
            observed_since_ns: process.observed_since_ns,
            device: ordinal.0,
            // The replay is complete for a program that has requested nothing since its state was
            // read.
            traced: run.is_traced() || (run.operations() == 0 && run.begun_with().is_some()),
            lost: losses.and_then(|losses| losses.get(&Loss::TensorEventLost).copied()).unwrap_or(0),
            operations: run.operations(),
            older_allocated_bytes: run.older().map(|older| older.allocated_bytes),
            older_reserved_bytes: run.older().map(|older| older.reserved_bytes),
            begun_with_bytes: run.begun_with().map(|begun_with| begun_with.reserved_bytes),
            available_bytes: (available_bytes < u64::MAX).then_some(available_bytes),
            context_bytes: uuid.as_ref().and_then(|uuid| self.reconciliation.context_bytes(uuid)),
            uuid,
            measured: measured(run),
            policies: policies
                .map(|(plan, replay)| {
                    let as_it_ran = is_as_it_ran(plan, run.measured().is_expandable, max_split_size);
                    PolicyView { as_it_ran, ..policy(plan, replay) }
                })
                .collect(),
        }
    }
}

/// Returns the memory of a device that is available to the process's allocators: without other
/// processes and its own context.
fn capacity(
    process: &Process,
    ordinal: Ordinal,
    devices: &[DeviceFacts],
    reconciliation: &Reconciliation,
    capacity_bytes: Option<u64>,
) -> Capacity {
    let uuid = resolve(process, DeviceRef::Ordinal(ordinal), devices);
    let device = uuid.as_ref().and_then(|uuid| devices.iter().find(|device| device.uuid == *uuid));
    let context_bytes = uuid.and_then(|uuid| reconciliation.context_bytes(&uuid)).unwrap_or(0);
    let others = device.into_iter().flat_map(|device| device.processes.iter().flatten());
    let others = others.filter(|other| other.tgid != process.tgid).filter_map(|other| other.used_bytes);
    let taken_bytes = match capacity_bytes {
        Some(_) => context_bytes,
        None => others.sum::<u64>().saturating_add(context_bytes),
    };
    let total_bytes = capacity_bytes.or_else(|| device.and_then(|device| device.total_bytes));
    total_bytes.map_or_else(Capacity::default, |total_bytes| Capacity {
        total_bytes,
        available_bytes: total_bytes.saturating_sub(taken_bytes),
    })
}

/// Returns whether the plan matches the program's own settings, as far as its allocator shows them.
fn is_as_it_ran(plan: &PolicyPlan, is_expandable: bool, max_split_size: Option<i64>) -> bool {
    let PolicyPlan::PyTorch(settings) = plan else { return false };
    let max_split_bytes = max_split_size.and_then(|size| u64::try_from(size).ok());
    let seen = Settings { expandable_segments: is_expandable, max_split_bytes, ..Settings::default() };
    *settings == seen
}

fn measured(run: &DeviceRun) -> MeasuredView {
    let own = run.measured();
    MeasuredView {
        peak_reserved_bytes: own.peak_reserved_bytes,
        allocated_at_peak_bytes: own.allocated_at_peak_bytes,
        peak_allocated_bytes: own.peak_allocated_bytes,
        reserved_bytes: own.reserved_bytes,
        allocated_bytes: own.allocated_bytes,
        hits: own.hits,
        misses: own.misses,
        driver_allocations: own.driver_allocations,
        driver_frees: own.driver_frees,
        retries: own.retries,
        refused: own.refused,
        expandable: own.is_expandable,
    }
}

fn policy(plan: &PolicyPlan, replay: &PolicyReplay) -> PolicyView {
    let outcome = replay.outcome();
    let (word, setting) = match plan {
        PolicyPlan::PyTorch(settings) => ("pytorch", Some(settings.to_string())),
        PolicyPlan::SizeClasses => ("size_classes", None),
    };
    let failure = |failure: PredictedFailure| PredictedFailureView {
        time_ns: failure.time_ns,
        wanted_bytes: failure.bytes,
        reserved_bytes: failure.reserved_bytes,
        allocated_bytes: failure.allocated_bytes,
    };
    PolicyView {
        policy: word.into(),
        setting,
        as_it_ran: false,
        begins_otherwise: replay.begins_otherwise(),
        peak_reserved_bytes: outcome.meter.peak_reserved_bytes,
        allocated_at_peak_bytes: outcome.meter.allocated_at_peak_bytes,
        peak_allocated_bytes: outcome.meter.peak_allocated_bytes,
        reserved_bytes: outcome.meter.reserved_bytes,
        allocated_bytes: outcome.meter.allocated_bytes,
        free_bytes: outcome.free_bytes,
        largest_free_bytes: outcome.largest_free_bytes,
        hits: outcome.hits,
        misses: outcome.misses,
        driver_allocations: outcome.meter.driver_allocations,
        driver_frees: outcome.meter.driver_frees,
        retries: outcome.meter.retries,
        refused: outcome.refused,
        granted_refused: outcome.granted_refused,
        failure: outcome.failure.map(failure),
    }
}
