//! Text exposition for Prometheus: OpenMetrics 1.0 or the Prometheus text format 0.0.4, from the
//! same samples. The module does not depend on any metric.
//!
//! OpenMetrics:
//! <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>. Text
//! format: <https://prometheus.io/docs/instrumenting/exposition_formats/>. The crate
//! prometheus-client writes only OpenMetrics and requires that it owns the counters.

use std::fmt::Write as _;

use super::families::{MetricFamily, MetricKind};
use super::samples::{MetricSink, Number};

/// Exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExpositionFormat {
    /// Prometheus text format 0.0.4, which every Prometheus version reads.
    Plain,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// Returns the `Content-Type` of the format.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Exposition under construction, one family at a time.
#[derive(Debug)]
pub(super) struct Exposition {
    text: String,
    form: ExpositionFormat,
    /// Suffix of each number: the common time of all samples, or empty.
    stamp: String,
}

impl Exposition {
    /// Creates an empty exposition.
    pub(super) fn new(form: ExpositionFormat) -> Self {
        Self { text: String::new(), form, stamp: String::new() }
    }

    /// Creates an empty OpenMetrics exposition whose samples share one time, in nanoseconds since
    /// 1970.
    pub(super) fn of_time(unix_ns: i128) -> Self {
        let (seconds, rest) = (unix_ns.div_euclid(1_000_000_000), unix_ns.rem_euclid(1_000_000_000));
        Self { stamp: format!(" {seconds}.{rest:09}"), ..Self::new(ExpositionFormat::OpenMetrics) }
    }

    /// Returns the complete text.
    pub(super) fn finish(mut self) -> String {
        if self.form == ExpositionFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Escapes a label value, which may be untrusted. Both formats accept any UTF-8 if these three
    /// characters are escaped.
    fn escape(&mut self, value: &str) {
        for letter in value.chars() {
            match letter {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                letter => self.text.push(letter),
            }
        }
    }

    fn write(&mut self, words: std::fmt::Arguments<'_>) {
        self.text.write_fmt(words).expect("a String takes any text");
    }
}

impl MetricSink for Exposition {
    /// Writes the header of a family. OpenMetrics names the family; the text format names the
    /// series, and has neither info metrics nor units.
    fn head(&mut self, family: &MetricFamily) {
        let MetricFamily { name, kind, unit, help, .. } = family;
        let (suffix, word) = match (self.form, kind) {
            (_, MetricKind::Gauge) => ("", "gauge"),
            (ExpositionFormat::OpenMetrics, MetricKind::Counter) => ("", "counter"),
            (ExpositionFormat::OpenMetrics, MetricKind::Facts) => ("", "info"),
            (ExpositionFormat::Plain, MetricKind::Counter) => (kind.suffix(), "counter"),
            (ExpositionFormat::Plain, MetricKind::Facts) => (kind.suffix(), "gauge"),
        };
        self.write(format_args!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {word}\n"));
        if self.form == ExpositionFormat::OpenMetrics && !unit.is_empty() {
            self.write(format_args!("# UNIT {name} {unit}\n"));
        }
    }

    fn sample(&mut self, family: &MetricFamily, values: &[&str], number: Number) {
        self.write(format_args!("{}{}", family.name, family.kind.suffix()));
        for (index, (label, value)) in family.labels.iter().zip(values).enumerate() {
            self.write(format_args!("{}{label}=\"", if index == 0 { '{' } else { ',' }));
            self.escape(value);
            self.text.push('"');
        }
        self.text.push_str(if values.is_empty() { " " } else { "} " });
        match number {
            Number::Whole(number) => self.write(format_args!("{number}")),
            Number::Signed(number) => self.write(format_args!("{number}")),
            Number::Real(number) => self.write(format_args!("{number}")),
        }
        let Self { text, stamp, .. } = self;
        text.push_str(stamp);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: MetricFamily =
        MetricFamily { name: "a", kind: MetricKind::Facts, unit: "", labels: &["x"], help: "Facts." };
    const COUNTER: MetricFamily =
        MetricFamily { name: "b_bytes", kind: MetricKind::Counter, unit: "bytes", labels: &["x", "y"], help: "Bytes." };
    const GAUGE: MetricFamily =
        MetricFamily { name: "c", kind: MetricKind::Gauge, unit: "", labels: &[], help: "Level." };

    fn text(form: ExpositionFormat) -> String {
        let mut exposition = Exposition::new(form);
        exposition.family(&FACTS, [(["1"], Number::Whole(1))]);
        exposition.family(&COUNTER, [(["\"\\\n", "é"], Number::Whole(u64::MAX)), (["", ""], Number::Real(0.5))]);
        exposition.family(&GAUGE, [([], Number::Signed(-7))]);
        exposition.family(&GAUGE, std::iter::empty::<([&str; 0], Number)>());
        exposition.finish()
    }

    #[test]
    fn openmetrics_names_the_family_its_unit_and_the_end() {
        let expected = concat!(
            "# HELP a Facts.\n# TYPE a info\na_info{x=\"1\"} 1\n",
            "# HELP b_bytes Bytes.\n# TYPE b_bytes counter\n# UNIT b_bytes bytes\n",
            "b_bytes_total{x=\"\\\"\\\\\\n\",y=\"é\"} 18446744073709551615\nb_bytes_total{x=\"\",y=\"\"} 0.5\n",
            "# HELP c Level.\n# TYPE c gauge\nc -7\n# EOF\n"
        );
        assert_eq!(text(ExpositionFormat::OpenMetrics), expected);
    }

    #[test]
    fn openmetrics_timestamp_follows_each_number_in_seconds() {
        let mut exposition = Exposition::of_time(1_795_223_863_000_250_000);
        exposition.family(&GAUGE, [([], Number::Signed(-7))]);
        let expected = "# HELP c Level.\n# TYPE c gauge\nc -7 1795223863.000250000\n# EOF\n";
        assert_eq!(exposition.finish(), expected);
    }

    #[test]
    fn the_older_form_names_the_series_and_calls_facts_a_gauge() {
        let expected = concat!(
            "# HELP a_info Facts.\n# TYPE a_info gauge\na_info{x=\"1\"} 1\n",
            "# HELP b_bytes_total Bytes.\n# TYPE b_bytes_total counter\n",
            "b_bytes_total{x=\"\\\"\\\\\\n\",y=\"é\"} 18446744073709551615\nb_bytes_total{x=\"\",y=\"\"} 0.5\n",
            "# HELP c Level.\n# TYPE c gauge\nc -7\n"
        );
        assert_eq!(text(ExpositionFormat::Plain), expected);
    }
}
