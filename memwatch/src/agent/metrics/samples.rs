//! Sink for metrics, independent of the format: text for scrapes, or messages for pushes.

use super::families::MetricFamily;

/// Value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// Bytes and counts. They are written with all digits, although Prometheus keeps only 53 bits.
    Whole(u64),
    /// Differences.
    Signed(i64),
    /// Seconds.
    Real(f64),
}

/// Sink for families and their samples, in the order of the table.
pub(super) trait MetricSink {
    /// Begins a family that has at least one sample.
    fn head(&mut self, family: &MetricFamily);

    /// Adds a sample to the current family, with one value per label in the family's order.
    fn sample(&mut self, family: &MetricFamily, values: &[&str], number: Number);

    /// Writes a family. A family without samples is skipped.
    fn family<'a, const LABELS: usize>(
        &mut self,
        family: &MetricFamily,
        samples: impl IntoIterator<Item = ([&'a str; LABELS], Number)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            self.head(family);
        }
        for (values, number) in samples {
            assert_eq!(values.len(), family.labels.len(), "a value for each label of {}", family.name);
            self.sample(family, &values, number);
        }
    }
}
