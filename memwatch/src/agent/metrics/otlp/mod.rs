//! Metrics as OpenTelemetry data: gauges and cumulative sums. Performs no I/O.
//!
//! Names are those of the families. A Prometheus that receives them over OTLP derives the scraped
//! names from name and unit
//! (<https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>). As in
//! that specification, empty labels are omitted.

pub(crate) mod messages;
pub(crate) mod requests;

use std::collections::HashMap;

use self::messages::{CumulativeSum, DataPointValue, Gauge, KeyValue, Metric, NumberDataPoint, Points, Temporality};
use super::MetricsInput;
use super::families::{
    AGENT_CONTRADICTIONS, AGENT_EVENTS_LEFT_OUT, AGENT_HISTORY_FAILURES, AGENT_PUSH_FAILURES, MetricFamily, MetricKind,
    OWN_CPU,
};
use super::samples::{MetricSink, Number};

/// Counters that start with the agent's process. All others start with its session, which may be
/// older.
const OF_THE_PROCESS: [&MetricFamily; 5] =
    [&OWN_CPU, &AGENT_HISTORY_FAILURES, &AGENT_EVENTS_LEFT_OUT, &AGENT_PUSH_FAILURES, &AGENT_CONTRADICTIONS];

/// State of the counters between collections.
#[derive(Debug, Default)]
pub(crate) struct CounterStates {
    counters: HashMap<String, CounterState>,
    /// Time of the last collection.
    collected_ns: Option<u64>,
}

/// State of one counter series. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct CounterState {
    start_ns: u64,
    value: f64,
    collected_ns: u64,
}

impl CounterStates {
    /// Returns the start time of a counter's value. A new or restarted counter starts at the last
    /// collection.
    fn start(&mut self, key: String, value: f64, begin_ns: u64, now_ns: u64) -> u64 {
        let since_last = self.collected_ns.unwrap_or(begin_ns).max(begin_ns).min(now_ns);
        let counter =
            self.counters.entry(key).or_insert(CounterState { start_ns: since_last, value, collected_ns: now_ns });
        if value < counter.value {
            counter.start_ns = since_last;
        }
        (counter.value, counter.collected_ns) = (value, now_ns);
        counter.start_ns
    }

    fn end(&mut self, now_ns: u64) {
        self.counters.retain(|_, counter| counter.collected_ns == now_ns);
        self.collected_ns = Some(now_ns);
    }
}

/// Metrics of one snapshot during collection.
pub(super) struct Collection<'a> {
    series: &'a mut CounterStates,
    now_ns: u64,
    watch_ns: u64,
    process_ns: u64,
    metrics: Vec<Metric>,
}

impl<'a> Collection<'a> {
    /// Begins a collection.
    pub(super) fn begin(series: &'a mut CounterStates, facts: &MetricsInput<'_>) -> Self {
        let unix = |boottime_ns: u64| {
            u64::try_from(facts.boottime_to_unix_ns.saturating_add(boottime_ns.into())).unwrap_or_default()
        };
        let watch_ns = unix(facts.snapshot.attached_ns);
        let process_ns = facts.own.start_ns.map_or(watch_ns, unix);
        Self { series, now_ns: unix(facts.snapshot.time_ns), watch_ns, process_ns, metrics: Vec::new() }
    }

    /// Ends the collection and returns the metrics.
    pub(super) fn finish(self) -> Vec<Metric> {
        self.series.end(self.now_ns);
        self.metrics
    }
}

impl MetricSink for Collection<'_> {
    fn head(&mut self, family: &MetricFamily) {
        let MetricFamily { name, kind, unit, help, .. } = family;
        let (suffix, points) = match kind {
            MetricKind::Gauge => ("", Points::Gauge(Gauge::default())),
            // OTLP has no info metrics, so they become gauges.
            MetricKind::Facts => (kind.suffix(), Points::Gauge(Gauge::default())),
            MetricKind::Counter => {
                let temporality = Temporality::Cumulative.into();
                ("", Points::Sum(CumulativeSum { data_points: Vec::new(), temporality, is_monotonic: true }))
            }
        };
        let unit = match *unit {
            "bytes" => "By",
            "seconds" => "s",
            other => other,
        };
        self.metrics.push(Metric {
            name: format!("{name}{suffix}"),
            description: (*help).to_owned(),
            unit: unit.to_owned(),
            points: Some(points),
        });
    }

    fn sample(&mut self, family: &MetricFamily, values: &[&str], number: Number) {
        let labels = family.labels.iter().zip(values).filter(|(_, value)| !value.is_empty());
        let attributes = labels.map(|(label, value)| KeyValue::new(*label, *value)).collect();
        let value = value(number);
        let start_time_unix_nano = if family.kind == MetricKind::Counter {
            let begin_ns =
                if OF_THE_PROCESS.iter().any(|own| own.name == family.name) { self.process_ns } else { self.watch_ns };
            let key = [&[family.name], values].concat().join("\0");
            self.series.start(key, as_double(value), begin_ns, self.now_ns)
        } else {
            0
        };
        let point =
            NumberDataPoint { attributes, start_time_unix_nano, time_unix_nano: self.now_ns, value: Some(value) };
        match self.metrics.last_mut().and_then(|metric| metric.points.as_mut()) {
            Some(Points::Gauge(gauge)) => gauge.data_points.push(point),
            Some(Points::Sum(sum)) => sum.data_points.push(point),
            None => {}
        }
    }
}

fn value(number: Number) -> DataPointValue {
    match number {
        Number::Whole(number) => DataPointValue::Int(i64::try_from(number).unwrap_or(i64::MAX)),
        Number::Signed(number) => DataPointValue::Int(number),
        Number::Real(number) => DataPointValue::Double(number),
    }
}

fn as_double(value: DataPointValue) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "it is compared with what it was: a counter that begins again is much smaller"
    )]
    match value {
        DataPointValue::Int(number) => number as f64,
        DataPointValue::Double(number) => number,
    }
}

#[cfg(test)]
mod tests;
