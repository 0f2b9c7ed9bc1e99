//! What metrics are written into, whatever its form: a text that is scraped, or messages that are pushed.

use super::families::Family;

/// A series' number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// Bytes and counts: written in full, though a Prometheus keeps 53 bits of them.
    Whole(u64),
    /// Differences.
    Signed(i64),
    /// Seconds.
    Real(f64),
}

/// Something that takes families with their samples, in the order of the table.
pub(super) trait Samples {
    /// A family begins, which has one sample or more.
    fn head(&mut self, family: &Family);

    /// A sample of the family that began last: a value for each of its labels, in its order.
    fn sample(&mut self, family: &Family, values: &[&str], number: Number);

    /// Takes a family; nothing at all where it has no samples.
    fn family<'a, const LABELS: usize>(
        &mut self,
        family: &Family,
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
