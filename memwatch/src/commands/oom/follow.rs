//! Live output of `memwatch oom`: each failure, and each change of a forecast.

use std::collections::BTreeSet;
use std::io;

use memwatch_core::features::forecast::view::ForecastChangeView;
use memwatch_core::features::oom::view::OomView;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;

use super::{forecast_json, forecast_text, json, text};
use crate::exit::ExitFailure;
use crate::options::CommonArgs;
use crate::render::output::{style, unless_closed};
use crate::watch::alert::Alerts;
use crate::watch::session::Session;
use crate::watch::taken_at::TakenAt;

/// Receivers of failures and forecast changes.
pub(super) struct Receivers<'a> {
    /// Whether to print them.
    pub(super) follow: bool,
    /// Commands and webhooks.
    pub(super) alerts: Alerts,
    pub(super) common: &'a CommonArgs,
    /// Failures that were reported, by process and time.
    reported: BTreeSet<(Tgid, u64)>,
}

impl<'a> Receivers<'a> {
    /// Makes receivers to which nothing was reported yet.
    pub(super) fn new(follow: bool, alerts: Alerts, common: &'a CommonArgs) -> Self {
        Self { follow, alerts, common, reported: BTreeSet::new() }
    }

    /// Reports the failures and changes since the last call, and returns the changes.
    ///
    /// # Errors
    /// The report cannot be written.
    pub(super) fn take(&mut self, session: &mut Session) -> Result<Vec<ForecastChangeView>, ExitFailure> {
        let changes = session.pipeline_mut().take_forecast_changes();
        if !(self.follow || self.alerts.is_wanted()) {
            return Ok(changes);
        }
        let failures = self.new_failures(session);
        if changes.is_empty() && failures.is_empty() {
            return Ok(changes);
        }
        let (snapshot, taken_at) = (session.snapshot(), TakenAt::here());
        for change in &changes {
            self.report_change(change, &snapshot, &taken_at)?;
        }
        for failure in &failures {
            self.report_failure(failure, &snapshot, &taken_at)?;
        }
        Ok(changes)
    }

    fn new_failures(&mut self, session: &Session) -> Vec<OomView> {
        let all = session.pipeline().ooms().0;
        all.filter(|oom| self.reported.insert((oom.tgid, oom.time_ns))).cloned().collect()
    }

    fn report_change(
        &mut self,
        change: &ForecastChangeView,
        snapshot: &Snapshot,
        taken_at: &TakenAt,
    ) -> Result<(), ExitFailure> {
        if self.follow {
            show(change, snapshot, taken_at, self.common)?;
        }
        if self.alerts.is_wanted() {
            let mut line = Vec::new();
            forecast_json::write(&mut line, change, snapshot, taken_at.origin()).map_err(anyhow::Error::from)?;
            self.alerts.raise(&line);
        }
        Ok(())
    }

    fn report_failure(
        &mut self,
        failure: &OomView,
        snapshot: &Snapshot,
        taken_at: &TakenAt,
    ) -> Result<(), ExitFailure> {
        let mut line = Vec::new();
        json::write_failure(&mut line, failure, snapshot, taken_at.origin()).map_err(anyhow::Error::from)?;
        if self.follow {
            let mut out = io::stdout().lock();
            unless_closed(if self.common.json {
                io::Write::write_all(&mut out, &line)
            } else {
                text::write_failure(&mut out, failure, &taken_at.clock, &style(self.common, true))
            })?;
        }
        if self.alerts.is_wanted() {
            self.alerts.raise(&line);
        }
        Ok(())
    }
}

/// Prints a change.
///
/// # Errors
/// It cannot be written.
pub(super) fn show(
    change: &ForecastChangeView,
    snapshot: &Snapshot,
    taken_at: &TakenAt,
    common: &CommonArgs,
) -> Result<(), ExitFailure> {
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        forecast_json::write(&mut out, change, snapshot, taken_at.origin())
    } else {
        forecast_text::write_change(&mut out, change, &taken_at.clock, &style(common, true))
    })
}
