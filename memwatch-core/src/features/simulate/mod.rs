//! Simulations of PyTorch's allocators with other settings: replayed with each event; names are
//! resolved when a report is requested.

pub mod model;
pub mod view;

use memwatch_common::loss::Loss;

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
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::Ordinal;

impl Detector for Simulations {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        match event {
            Event::Tensor(event) => self.replay(event, state),
            Event::AllocatorState(allocator_state) => self.begin(allocator_state, state),
            Event::Reading => self.update_capacities(state),
            _ => {}
        }
    }
}

impl Simulations {
    /// Returns the results by process and device.
    pub fn report(&self, state: &State) -> Vec<SimulationView> {
        let view = |(whose, run): (&SimulatedAllocatorKey, &DeviceRun)| {
            let process = process_of(state, whose)?;
            Some(simulation(state, process, whose.2, (self.plans(), run)))
        };
        self.runs().iter().filter_map(view).collect()
    }

    fn replay(&mut self, event: &TensorEvent, state: &State) {
        let Some(process) = state.processes.get(&event.tgid) else { return };
        let capacity_bytes = self.capacity_bytes();
        self.observe(process.observed_since_ns, event, |ordinal| {
            capacity(process, ordinal, &state.reading.devices, &state.reconciliation, capacity_bytes)
        });
    }

    /// Begins the replays with the allocator state that was read from the process.
    fn begin(&mut self, allocator_state: &AllocatorState, state: &State) {
        let Some(process) = state.processes.get(&allocator_state.tgid) else { return };
        let capacity_bytes = self.capacity_bytes();
        for device in &allocator_state.devices {
            let whose = (allocator_state.tgid, process.observed_since_ns, device.ordinal);
            self.begin_with(whose, device, allocator_state.time_ns, |ordinal| {
                capacity(process, ordinal, &state.reading.devices, &state.reconciliation, capacity_bytes)
            });
        }
    }

    /// Updates capacities after an NVML reading: the use of other processes may have changed.
    fn update_capacities(&mut self, state: &State) {
        let capacity_bytes = self.capacity_bytes();
        let all: Vec<SimulatedAllocatorKey> = self.runs().keys().copied().collect();
        for whose in all {
            if let Some(process) = process_of(state, &whose).filter(|process| process.ended.is_none()) {
                let capacity =
                    capacity(process, whose.2, &state.reading.devices, &state.reconciliation, capacity_bytes);
                self.set_capacity(whose, capacity);
            }
        }
    }
}

fn process_of<'a>(state: &'a State, (tgid, since_ns, _): &SimulatedAllocatorKey) -> Option<&'a Process> {
    let mut all = state.processes.values().chain(state.ended.iter());
    all.find(|process| (process.tgid, process.observed_since_ns) == (*tgid, *since_ns))
}

fn simulation(
    state: &State,
    process: &Process,
    ordinal: Ordinal,
    (plans, run): (&[PolicyPlan], &DeviceRun),
) -> SimulationView {
    let allocator = process.tensors.as_ref().and_then(|tensors| tensors.allocators().get(&ordinal));
    let max_split_size = allocator.and_then(DeviceAllocator::max_split_size);
    let losses = process.tensors.as_ref().map(|tensors| tensors.losses());
    let policies = plans.iter().zip(run.replays());
    let available_bytes = run.capacity().available_bytes;
    let uuid = resolve(process, DeviceRef::Ordinal(ordinal), &state.reading.devices);
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
        context_bytes: uuid.as_ref().and_then(|uuid| state.reconciliation.context_bytes(uuid)),
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
