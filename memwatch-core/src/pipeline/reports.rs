//! Turns detectors on, and asks those that are on for their reports. A report of a detector that is
//! turned off is empty.

use crate::features::causes::{self, Cause};
use crate::features::churn::model::Churn;
use crate::features::churn::view::ChurnView;
use crate::features::forecast::view::{ForecastChangeView, ForecastsView};
use crate::features::fragments::view::{DriverFragmentsView, FragmentsView};
use crate::features::leak::view::LeaksView;
use crate::features::left_behind::view::LeftBehindChangeView;
use crate::features::oom::view::{OomView, SurvivedView};
use crate::features::profile::MemoryProfile;
use crate::features::profile::view::ProfileView;
use crate::features::simulate::model::{PolicyPlan, Simulations};
use crate::features::simulate::view::SimulationView;
use crate::features::timeline::view::TimelineView;
use crate::pipeline::Pipeline;

impl Pipeline {
    /// Turns leak detection on.
    pub fn watch_leaks(&mut self) {
        self.detectors.leaks.get_or_insert_default();
    }

    /// Returns the verdict on each growth source of each process. `threshold_bytes_per_minute`
    /// separates a leak from slow growth.
    pub fn leaks(&self, threshold_bytes_per_minute: f64) -> Vec<LeaksView> {
        let leaks = self.detectors.leaks.as_deref();
        leaks.map_or_else(Vec::new, |leaks| leaks.report(&self.state, threshold_bytes_per_minute))
    }

    /// Turns forecasts on, and leak detection, which names what grows. Changes are also reported
    /// when the need passes one of these thresholds, in percent of a GPU's memory.
    pub fn watch_forecasts(&mut self, thresholds: &[f64]) {
        self.detectors.forecast.get_or_insert_default().warn_at(thresholds);
        self.watch_leaks();
    }

    /// Returns the current forecasts.
    pub fn forecasts(&self) -> ForecastsView {
        let leaks = self.detectors.leaks.as_deref();
        let none = || ForecastsView { time_ns: self.state.now_ns(), ..ForecastsView::default() };
        self.detectors.forecast.as_ref().map_or_else(none, |forecast| forecast.report(&self.state, leaks))
    }

    /// Takes the changes of forecasts since the last call, oldest first; at most the last 64.
    pub fn take_forecast_changes(&mut self) -> Vec<ForecastChangeView> {
        let changes = self.detectors.forecast.as_mut().map(|forecast| forecast.take_changes());
        changes.into_iter().flatten().collect()
    }

    /// Turns reports of memory that stays charged to exited processes on.
    pub fn watch_left_behind(&mut self) {
        self.detectors.left_behind.get_or_insert_default();
    }

    /// Takes what began to stay charged to exited processes and what no longer does since the last
    /// call, oldest first; at most the last 64.
    pub fn take_left_behind_changes(&mut self) -> Vec<LeftBehindChangeView> {
        let changes = self.detectors.left_behind.as_mut().map(|log| log.take_changes());
        changes.into_iter().flatten().collect()
    }

    /// Turns growth rates in snapshots on.
    pub fn watch_growth(&mut self) {
        self.detectors.growth.get_or_insert_default();
    }

    /// Turns recording of failed allocations on.
    pub fn watch_ooms(&mut self) {
        self.detectors.ooms.get_or_insert_default();
    }

    /// Returns the last failures, oldest first, and the number of older ones that were dropped.
    pub fn ooms(&self) -> (impl Iterator<Item = &OomView>, u64) {
        let log = self.detectors.ooms.as_deref();
        (log.into_iter().flat_map(|log| log.failures().0), log.map_or(0, |log| log.failures().1))
    }

    /// Returns the last requests that the kernel driver refused without a resulting failure, oldest
    /// first, and the number of older ones that were dropped.
    pub fn survived(&self) -> (impl Iterator<Item = SurvivedView>, u64) {
        let log = self.detectors.ooms.as_deref();
        (log.into_iter().flat_map(|log| log.survived().0), log.map_or(0, |log| log.survived().1))
    }

    /// Returns the causes of each process's last failure, else of its growth. A detector that is
    /// turned off provides no evidence.
    pub fn causes(&self) -> Vec<Cause> {
        causes::report(&self.state, self.detectors.leaks.as_deref(), self.detectors.ooms.as_deref())
    }

    /// Turns simulation of these plans on; on a card with `capacity_bytes` bytes, if given.
    pub fn simulate(&mut self, plans: Vec<PolicyPlan>, capacity_bytes: Option<u64>) {
        self.detectors.simulations = Some(Box::new(Simulations::new(plans, capacity_bytes)));
    }

    /// Returns the results of the simulations by process and device.
    pub fn simulations(&self) -> Vec<SimulationView> {
        let simulations = self.detectors.simulations.as_ref();
        simulations.map_or_else(Vec::new, |simulations| simulations.report(&self.state))
    }

    /// Turns sampling of the memory of GPUs and processes on, at this interval in nanoseconds.
    pub fn watch_samples(&mut self, interval_ns: u64) {
        self.detectors.profile.get_or_insert_with(|| Box::new(MemoryProfile::new(interval_ns)));
    }

    /// Turns recording of events on, with allocations of at least `large_bytes`, and samples memory
    /// at this interval in nanoseconds.
    pub fn watch_timeline(&mut self, interval_ns: u64, large_bytes: u64) {
        let profile = self.detectors.profile.get_or_insert_with(|| Box::new(MemoryProfile::new(interval_ns)));
        profile.record_events(large_bytes);
    }

    /// Returns the memory over time.
    pub fn profile(&self) -> Option<ProfileView> {
        self.detectors.profile.as_ref().map(|profile| profile.report(&self.state))
    }

    /// Returns the timeline, without events before [`Pipeline::watch_timeline`].
    pub fn timeline(&self) -> Option<TimelineView> {
        self.detectors.profile.as_ref().map(|profile| profile.timeline(&self.state))
    }

    /// Turns fragmentation tracking on.
    pub fn watch_fragments(&mut self) {
        self.detectors.fragments.get_or_insert_default();
    }

    /// Returns the fragmentation by process and device. Shows the most fragmented moment for a
    /// process that has ended, and for all processes with `at_worst`; else the current state. With
    /// `wanted_bytes` also reports whether a request of that size would fit.
    pub fn fragments(&self, wanted_bytes: Option<u64>, at_worst: bool) -> Vec<FragmentsView> {
        let fragments = self.detectors.fragments.as_ref();
        fragments.map_or_else(Vec::new, |fragments| fragments.report(&self.state, wanted_bytes, at_worst))
    }

    /// Returns the fragmentation of memory that processes allocate from the driver directly, for
    /// processes that have or had any, and whether a request of this size would fit.
    pub fn driver_fragments(&self, wanted_bytes: Option<u64>, at_worst: bool) -> Vec<DriverFragmentsView> {
        let fragments = self.detectors.fragments.as_ref();
        fragments.map_or_else(Vec::new, |fragments| fragments.driver_report(&self.state, wanted_bytes, at_worst))
    }

    /// Turns counting of churn on. A block is temporary if it is freed before `temporary_within`
    /// further allocations.
    pub fn watch_churn(&mut self, temporary_within: u64) {
        self.detectors.churn.get_or_insert_with(|| Box::new(Churn::new(temporary_within)));
    }

    /// Returns the churn.
    pub fn churn(&self) -> Option<ChurnView> {
        self.detectors.churn.as_ref().map(|churn| churn.report(&self.state))
    }
}
