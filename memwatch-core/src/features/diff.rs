//! Compares the memory of two runs of a program by call site, phase and module.

use std::collections::BTreeMap;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::snapshot::{ModuleView, PhaseView, SiteView, Snapshot, SumView};
use crate::words::json;

/// Differences between two runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Bytes from the driver, over all processes and GPUs.
    pub driver: RunSums,
    /// Bytes from PyTorch's allocators, over all processes and GPUs.
    pub tensors: RunSums,
    /// Differences by call site; entries that are in neither run are left out.
    #[serde(rename = "lines")]
    pub sites: Vec<DiffRow<SiteView>>,
    /// Differences by phase.
    pub phases: Vec<DiffRow<PhaseView>>,
    /// Differences by module.
    #[serde(serialize_with = "json::apart")]
    pub modules: Vec<DiffRow<ModuleView>>,
}

/// An entry of two runs; its sums are in `pair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiffRow<T> {
    /// The entry, taken from the earlier run if that has it, else from the later one.
    #[serde(flatten)]
    pub place: T,
    /// Sums of both runs.
    #[serde(flatten)]
    pub pair: RunSums,
}

/// Sums of the earlier and the later run; `None` if a run lacks the entry. Peaks of several
/// processes and GPUs are added up, although they need not coincide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSums {
    /// Sum of the earlier run.
    pub before: Option<SumView>,
    /// Sum of the later run.
    pub after: Option<SumView>,
    /// Whether pre-existing memory of the earlier and of the later run may belong to the entry, so
    /// that the run's sum is a lower bound.
    pub older: [bool; 2],
}

/// Compared number of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumField {
    /// Live bytes at the end.
    Live,
    /// Peak of the live bytes.
    Peak,
    /// Bytes of all allocations.
    Total,
    /// Number of allocations.
    Count,
}

impl SumField {
    /// All numbers.
    pub const ALL: [Self; 4] = [Self::Live, Self::Peak, Self::Total, Self::Count];

    /// Returns the name in JSON, as in [`SumView`].
    const fn name(self) -> &'static str {
        match self {
            Self::Live => "live_bytes",
            Self::Peak => "peak_bytes",
            Self::Total => "total_bytes",
            Self::Count => "allocations",
        }
    }

    /// Returns the number from a sum.
    pub const fn of(self, sum: &SumView) -> u64 {
        match self {
            Self::Live => sum.live_bytes,
            Self::Peak => sum.peak_bytes,
            Self::Total => sum.total_bytes,
            Self::Count => sum.allocations,
        }
    }
}

impl RunSums {
    /// Returns the later value minus the earlier one; a missing value counts as 0.
    pub fn change(&self, side: SumField) -> i64 {
        let of = |sum: &Option<SumView>| i128::from(sum.as_ref().map_or(0, |sum| side.of(sum)));
        let change = of(&self.after) - of(&self.before);
        i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns the change if it is certain: a lower bound of a run may hide that both runs are
    /// equal.
    pub fn known_change(&self, side: SumField) -> Option<i64> {
        let change = self.change(side);
        let [before, after] = self.older;
        Some(change).filter(|change| !(before && *change > 0 || after && *change < 0))
    }

    /// Returns the change as a fraction of the earlier value; `None` if that is 0 or the change is
    /// uncertain.
    #[expect(clippy::cast_precision_loss, reason = "a part needs no sixteen digits")]
    pub fn growth(&self, side: SumField) -> Option<f64> {
        let before = self.before.as_ref().map(|sum| side.of(sum)).filter(|before| *before > 0)?;
        Some(self.known_change(side)? as f64 / before as f64)
    }

    /// Returns `new`, `gone` or `both`; `unknown` if the run without the entry had pre-existing
    /// memory.
    pub const fn state(&self) -> &'static str {
        let [before, after] = self.older;
        match (&self.before, &self.after) {
            (None, Some(_)) if before => "unknown",
            (Some(_), None) if after => "unknown",
            (None, _) => "new",
            (Some(_), None) => "gone",
            _ => "both",
        }
    }
}

/// Serializes both sums, their change, and the change as a fraction of the earlier sum.
impl Serialize for RunSums {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sum = |sum: SumView| BTreeMap::from(SumField::ALL.map(|side| (side.name(), side.of(&sum))));
        let growth = |side: SumField| (side.name().trim_end_matches("_bytes"), self.growth(side));
        let mut pair = serializer.serialize_struct("Pair", 5)?;
        pair.serialize_field("state", self.state())?;
        pair.serialize_field("before", &self.before.map(sum))?;
        pair.serialize_field("after", &self.after.map(sum))?;
        pair.serialize_field(
            "change",
            &BTreeMap::from(SumField::ALL.map(|side| (side.name(), self.known_change(side)))),
        )?;
        pair.serialize_field("growth", &BTreeMap::from(SumField::ALL.map(growth)))?;
        pair.end()
    }
}

/// Compares two runs, entries with the largest change of `side` first. With `by_function` all lines
/// of a function are one entry, so that a changed file can be compared.
pub fn difference(before: &Snapshot, after: &Snapshot, side: SumField, by_function: bool) -> Difference {
    let named = |site: &SiteView| SiteView {
        line: site.line.filter(|_| !by_function),
        library_lines: Vec::new(),
        ..site.clone()
    };
    let site_key = |site: &SiteView| {
        let SiteView { kind, file, line, function, held, .. } = site.clone();
        (kind, file, line, function, held)
    };
    let phase_key = |phase: &PhaseView| (phase.phase.clone(), phase.recomputed, phase.captured);
    let module_key =
        |module: &ModuleView| (module.kind.clone(), module.model.clone(), module.name.clone(), module.class.clone());
    let sites = |snapshot: &Snapshot| devices(snapshot, |device| device.sites.iter().map(named).collect());
    let phases = |snapshot: &Snapshot| devices(snapshot, |device| device.phases.clone());
    let modules = |snapshot: &Snapshot| devices(snapshot, |device| device.modules.clone());
    let came_late = [before, after].map(came_late);
    let older = [before, after].map(has_older_tensors);
    let mut difference = Difference {
        driver: RunSums { before: driver(before), after: driver(after), older: came_late },
        tensors: RunSums { before: tensors(before), after: tensors(after), older: [false; 2] },
        sites: joined([sites(before), sites(after)], side, site_key, |site| site.sum),
        phases: joined([phases(before), phases(after)], side, phase_key, |phase| phase.sum),
        modules: joined([modules(before), modules(after)], side, module_key, |module| module.sum),
    };
    // The rows that pre-existing memory belongs to are unknown, so nothing is known about this row.
    let older = |kind: &str| if kind == PREEXISTING { older.map(|_| older.contains(&true)) } else { older };
    difference.sites.iter_mut().for_each(|row| row.pair.older = older(&row.place.kind));
    difference.phases.iter_mut().for_each(|row| row.pair.older = older(&row.place.phase));
    difference.modules.iter_mut().for_each(|row| row.pair.older = older(&row.place.kind));
    difference
}

/// Kind of rows for memory that existed before the session.
const PREEXISTING: &str = "preexisting";

/// Returns whether a process was attached to after its start, so that earlier driver calls are
/// missing.
fn came_late(snapshot: &Snapshot) -> bool {
    snapshot.processes.iter().any(|process| !process.from_start)
}

fn has_older_tensors(snapshot: &Snapshot) -> bool {
    let is_older = |site: &&SiteView| site.kind == PREEXISTING && site.sum.peak_bytes > 0;
    !devices(snapshot, |device| device.sites.iter().filter(is_older).cloned().collect()).is_empty()
}

fn devices<T>(snapshot: &Snapshot, list: impl Fn(&crate::snapshot::DeviceAttributionView) -> Vec<T>) -> Vec<T> {
    let tensors = snapshot.processes.iter().filter_map(|process| process.tensors.as_ref());
    tensors.flat_map(|tensors| &tensors.attribution.devices).flat_map(list).collect()
}

fn joined<T, K: Ord>(
    runs: [Vec<T>; 2],
    side: SumField,
    key: impl Fn(&T) -> K,
    sum: impl Fn(&T) -> SumView,
) -> Vec<DiffRow<T>> {
    let [before, after] = runs;
    let mut rows: BTreeMap<K, DiffRow<T>> = BTreeMap::new();
    for (is_later, place) in
        before.into_iter().map(|place| (false, place)).chain(after.into_iter().map(|place| (true, place)))
    {
        let own = sum(&place);
        let row = rows.entry(key(&place)).or_insert_with(|| DiffRow { place, pair: RunSums::default() });
        let slot = if is_later { &mut row.pair.after } else { &mut row.pair.before };
        *slot = Some(slot.map_or(own, |known| added(&known, &own)));
    }
    let mut rows: Vec<DiffRow<T>> = rows.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.pair.change(side).unsigned_abs()));
    rows
}

fn added(one: &SumView, other: &SumView) -> SumView {
    SumView {
        live_bytes: one.live_bytes.saturating_add(other.live_bytes),
        peak_bytes: one.peak_bytes.saturating_add(other.peak_bytes),
        at_peak_bytes: one.at_peak_bytes.saturating_add(other.at_peak_bytes),
        total_bytes: one.total_bytes.saturating_add(other.total_bytes),
        allocations: one.allocations + other.allocations,
        frees: one.frees + other.frees,
        mean_lifetime_ns: None,
        longest_lifetime_ns: one.longest_lifetime_ns.max(other.longest_lifetime_ns),
        sampled: None,
        sampled_live: None,
        at_least: one.at_least || other.at_least,
    }
}

fn tensors(snapshot: &Snapshot) -> Option<SumView> {
    devices(snapshot, |device| vec![device.total]).into_iter().reduce(|one, other| added(&one, &other))
}

/// Returns `None` if no process had driver memory, and if a late attached process has not allocated
/// any since.
fn driver(snapshot: &Snapshot) -> Option<SumView> {
    let gpus = snapshot.processes.iter().flat_map(|process| &process.gpus);
    let sums = gpus.map(|gpu| SumView {
        live_bytes: gpu.live_bytes,
        peak_bytes: gpu.peak_bytes,
        total_bytes: gpu.kinds.values().fold(0, |sum, kind| sum.saturating_add(kind.total_bytes)),
        allocations: gpu.allocations,
        frees: gpu.frees,
        ..SumView::default()
    });
    let sum = sums.reduce(|one, other| added(&one, &other));
    sum.filter(|sum| sum.allocations > 0 || !came_late(snapshot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(line: u32, peak_bytes: u64) -> SiteView {
        let sum = SumView { peak_bytes, live_bytes: peak_bytes / 2, allocations: 1, ..SumView::default() };
        let (file, function) = (Some("train.py".to_owned()), Some("step".to_owned()));
        SiteView { kind: "line".into(), file, line: Some(line), function, held: None, library_lines: Vec::new(), sum }
    }

    fn rows(before: Vec<SiteView>, after: Vec<SiteView>) -> Vec<(Option<u32>, &'static str, i64)> {
        let key = |site: &SiteView| site.line;
        let rows = joined([before, after], SumField::Peak, key, |site| site.sum);
        rows.iter().map(|row| (row.place.line, row.pair.state(), row.pair.change(SumField::Peak))).collect()
    }

    #[test]
    fn diff_rows_are_new_gone_or_both_with_the_largest_change_first() {
        let reported = rows(vec![site(1, 10), site(2, 500), site(3, 7)], vec![site(1, 110), site(3, 7), site(4, 90)]);
        assert_eq!(
            reported,
            [(Some(2), "gone", -500), (Some(1), "both", 100), (Some(4), "new", 90), (Some(3), "both", 0)]
        );
    }

    #[test]
    fn a_place_on_two_devices_is_one_and_growth_needs_something_before() {
        let rows = joined(
            [vec![site(1, 10), site(1, 30)], vec![site(1, 60)]],
            SumField::Peak,
            |site| site.line,
            |site| site.sum,
        );
        assert_eq!(rows[0].pair.before.map(|sum| (sum.peak_bytes, sum.allocations)), Some((40, 2)));
        assert_eq!((rows[0].pair.growth(SumField::Peak), rows[0].pair.growth(SumField::Total)), (Some(0.5), None));
        assert_eq!(RunSums::default().growth(SumField::Peak), None);
    }

    #[test]
    fn diff_state_is_unknown_for_lines_hidden_by_memory_before_attach() {
        let sum = |peak_bytes| Some(SumView { peak_bytes, ..SumView::default() });
        let of = |before, after, older| {
            let pair = RunSums { before: sum(before), after, older };
            (pair.state(), pair.known_change(SumField::Peak), pair.growth(SumField::Peak))
        };
        assert_eq!(of(100, None, [false; 2]), ("gone", Some(-100), Some(-1.0)));
        assert_eq!(of(100, None, [false, true]), ("unknown", None, None));
        assert_eq!(of(100, sum(40), [false, true]), ("both", None, None));
        assert_eq!(of(100, sum(150), [false, true]), ("both", Some(50), Some(0.5)));
        assert_eq!(of(100, sum(150), [true, false]), ("both", None, None));
    }
}
