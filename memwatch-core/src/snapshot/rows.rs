//! Truncates lists of rows: the last row sums up the rows beyond the bound, so that the totals
//! still add up.

use std::cmp::Ordering;

use super::{ModuleView, RangeView, SiteView, SumView};
use crate::allocators::sampling::Estimate;
use crate::words::{Name, sum_of_known};

/// Kind of the row for the remainder of a list.
const REST: Name = Name::Borrowed("rest");

/// A row of a list that can be truncated.
pub trait TruncatableRow {
    /// Returns the kind of the row.
    fn kind(&self) -> &Name;
    /// Returns the memory of the row.
    fn sum(&self) -> &SumView;
    /// Returns the memory of the row for modification.
    fn sum_mut(&mut self) -> &mut SumView;
    /// Turns the row into a remainder row.
    fn become_rest(&mut self);
    /// Adds the fields of another row that are not in its sum.
    fn take_over(&mut self, other: &Self);
    /// Returns the names, by which rows with equal sums are ordered.
    fn names(&self) -> [Option<&str>; 3];
    /// Returns the line in the source file, if the first name is a source file.
    fn line(&self) -> Option<u32> {
        None
    }
}

impl TruncatableRow for SiteView {
    fn kind(&self) -> &Name {
        &self.kind
    }

    fn sum(&self) -> &SumView {
        &self.sum
    }

    fn sum_mut(&mut self) -> &mut SumView {
        &mut self.sum
    }

    fn become_rest(&mut self) {
        *self = Self {
            kind: REST,
            file: None,
            line: None,
            function: None,
            held: None,
            library_lines: Vec::new(),
            sum: self.sum,
        };
    }

    fn take_over(&mut self, _: &Self) {}

    fn names(&self) -> [Option<&str>; 3] {
        let held = self.held.as_ref().and_then(|held| held.name.as_deref());
        [self.file.as_deref(), self.function.as_deref(), held]
    }

    fn line(&self) -> Option<u32> {
        self.line
    }
}

impl TruncatableRow for ModuleView {
    fn kind(&self) -> &Name {
        &self.kind
    }

    fn sum(&self) -> &SumView {
        &self.sum
    }

    fn sum_mut(&mut self) -> &mut SumView {
        &mut self.sum
    }

    fn become_rest(&mut self) {
        (self.kind, self.model, self.name, self.class) = (REST, None, None, None);
        self.nearby_split_bytes = None;
    }

    fn take_over(&mut self, other: &Self) {
        for (phase, bytes) in &other.phases {
            let own = self.phases.entry(phase.clone()).or_default();
            own.live_bytes = own.live_bytes.saturating_add(bytes.live_bytes);
            own.total_bytes = own.total_bytes.saturating_add(bytes.total_bytes);
        }
        let both = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one.saturating_add(other));
        self.host_duration_ns = sum_of_known(self.host_duration_ns, other.host_duration_ns);
        self.rounding_bytes = both(self.rounding_bytes, other.rounding_bytes);
        self.total_rounding_bytes = both(self.total_rounding_bytes, other.total_rounding_bytes);
        // Several modules may share a segment.
        self.nearby_split_bytes = None;
    }

    fn names(&self) -> [Option<&str>; 3] {
        [self.model.as_deref(), self.name.as_deref(), self.class.as_deref()]
    }
}

impl TruncatableRow for RangeView {
    fn kind(&self) -> &Name {
        &self.kind
    }

    fn sum(&self) -> &SumView {
        &self.sum
    }

    fn sum_mut(&mut self) -> &mut SumView {
        &mut self.sum
    }

    fn become_rest(&mut self) {
        (self.kind, self.name) = (REST, None);
    }

    fn take_over(&mut self, other: &Self) {
        self.temporary_bytes = sum_of_known(self.temporary_bytes, other.temporary_bytes);
        self.temporary_blocks = sum_of_known(self.temporary_blocks, other.temporary_blocks);
        self.most_temporary_bytes = self.most_temporary_bytes.max(other.most_temporary_bytes);
    }

    fn names(&self) -> [Option<&str>; 3] {
        [self.name.as_deref(), None, None]
    }
}

/// Returns the `most` rows with most live bytes. All others, with an existing remainder row, are
/// summed up in a last row.
pub fn largest<R: TruncatableRow>(mut rows: Vec<R>, most: usize) -> Vec<R> {
    rows.sort_by(order);
    cut(rows, most)
}

/// Returns the `most` rows with most live bytes at the device's peak, since little is left of a
/// program that has ended.
pub fn largest_at_peak<R: TruncatableRow>(mut rows: Vec<R>, most: usize) -> Vec<R> {
    let at_peak = |row: &R| (*row.kind() != REST, row.sum().at_peak_bytes);
    rows.sort_by(|one, other| at_peak(other).cmp(&at_peak(one)).then_with(|| order(one, other)));
    cut(rows, most)
}

fn cut<R: TruncatableRow>(mut rows: Vec<R>, most: usize) -> Vec<R> {
    let mut beyond = rows.split_off(rows.len().min(most)).into_iter();
    if let Some(mut rest) = beyond.next() {
        rest.become_rest();
        for row in beyond {
            add(rest.sum_mut(), row.sum());
            rest.take_over(&row);
        }
        rows.push(rest);
    }
    rows
}

/// Orders remainder rows last, then by live bytes, peak, total bytes and name, so that two sessions
/// list one program alike.
fn order<R: TruncatableRow>(one: &R, other: &R) -> Ordering {
    let held = |sum: &SumView| sum.sampled_live.map_or(sum.live_bytes, |estimate| estimate.bytes);
    let sums = |row: &R| (held(row.sum()), row.sum().peak_bytes, row.sum().total_bytes);
    let by_name = || (one.kind(), one.names(), one.line()).cmp(&(other.kind(), other.names(), other.line()));
    (*one.kind() == REST).cmp(&(*other.kind() == REST)).then_with(|| sums(other).cmp(&sums(one))).then_with(by_name)
}

/// Adds a sum to another one. The peaks may be at different times, so the resulting peak is an
/// upper bound.
pub(crate) fn add(sum: &mut SumView, other: &SumView) {
    *sum = SumView {
        live_bytes: sum.live_bytes.saturating_add(other.live_bytes),
        peak_bytes: sum.peak_bytes.saturating_add(other.peak_bytes),
        at_peak_bytes: sum.at_peak_bytes.saturating_add(other.at_peak_bytes),
        total_bytes: sum.total_bytes.saturating_add(other.total_bytes),
        allocations: sum.allocations.saturating_add(other.allocations),
        frees: sum.frees.saturating_add(other.frees),
        mean_lifetime_ns: mean_lifetime_ns(sum, other),
        longest_lifetime_ns: sum.longest_lifetime_ns.max(other.longest_lifetime_ns),
        sampled: both((sum.sampled, sum.total_bytes), (other.sampled, other.total_bytes)),
        sampled_live: both((sum.sampled_live, sum.live_bytes), (other.sampled_live, other.live_bytes)),
        at_least: sum.at_least || other.at_least,
    };
}

/// Returns the sum of two numbers, either of which may be exact.
fn both(one: (Option<Estimate>, u64), other: (Option<Estimate>, u64)) -> Option<Estimate> {
    let known = |(estimate, bytes): (Option<Estimate>, u64)| estimate.unwrap_or(Estimate::exactly(bytes));
    (one.0.is_some() || other.0.is_some()).then(|| known(one).plus(known(other)))
}

/// Returns the mean weighted by frees; if only one is known, that one.
fn mean_lifetime_ns(one: &SumView, other: &SumView) -> Option<u64> {
    let (Some(mean_ns), Some(other_ns)) = (one.mean_lifetime_ns, other.mean_lifetime_ns) else {
        return one.mean_lifetime_ns.or(other.mean_lifetime_ns);
    };
    let (frees, others) = (u128::from(one.frees), u128::from(other.frees));
    let sum_ns = u128::from(mean_ns) * frees + u128::from(other_ns) * others;
    u64::try_from(sum_ns.checked_div(frees + others)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_equal_sums_have_a_stable_order() {
        let site = |line| SiteView {
            kind: "line".into(),
            file: Some("train.py".to_owned()),
            line: Some(line),
            function: None,
            held: None,
            library_lines: Vec::new(),
            sum: SumView { live_bytes: 512, ..SumView::default() },
        };
        let lines = |rows: Vec<SiteView>| largest(rows, 3).iter().map(|row| row.line).collect::<Vec<_>>();
        assert_eq!(lines(vec![site(7), site(30), site(4)]), [Some(4), Some(7), Some(30)]);
        assert_eq!(lines(vec![site(30), site(4), site(7)]), [Some(4), Some(7), Some(30)]);
    }

    #[test]
    fn unknown_lifetime_is_left_out_of_the_mean() {
        let of = |mean_lifetime_ns, frees| SumView { frees, mean_lifetime_ns, ..SumView::default() };
        let both = |mut one: SumView, other: &SumView| {
            add(&mut one, other);
            (one.mean_lifetime_ns, one.frees)
        };
        assert_eq!(both(of(None, 3), &of(None, 4)), (None, 7));
        assert_eq!(both(of(Some(10), 3), &of(None, 4)), (Some(10), 7));
        assert_eq!(both(of(None, 3), &of(Some(10), 4)), (Some(10), 7));
        assert_eq!(both(of(Some(10), 3), &of(Some(40), 6)), (Some(30), 9));
    }
}
