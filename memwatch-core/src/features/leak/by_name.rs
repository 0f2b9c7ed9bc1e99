//! Finds leaks by retainer: compares successive readings of a process's live objects. Needs no
//! events. A block allocated and freed between two readings does not show; a block that stays does.

use std::collections::{BTreeMap, BTreeSet};

use crate::allocators::places::BlockSum;
use crate::features::leak::flow::BlockFlow;
use crate::features::leak::retainers::{Retainer, retainers};
use crate::features::leak::totals::{Placed, of_tensors};
use crate::features::leak::verdict::judge_series;
use crate::features::leak::view::{BlocksView, LeakView, LeaksView, ReadingsView, UndecidedView};
use crate::features::leak::worst_first;
use crate::features::trend::TrendSeries;
use crate::input::ProcessFacts;
use crate::input::holdings::{Holding, Holdings};
use crate::words::{Ordinal, Tgid};

/// Number of consecutive readings for which a block keeps its last name. A reading of a running
/// process misses the names of objects that change at that moment.
const MOST_MISSES: u8 = 10;

/// Key of a group: the blocks of one retainer on one device.
type RetainerKey = (Ordinal, Retainer);

/// Comparison of all readings of one process.
#[derive(Clone, Debug, Default)]
pub struct NamedLeaks {
    groups: BTreeMap<RetainerKey, RetainerGroup>,
    /// Series of zeros at the times of the readings so far: the past of a group that first appears
    /// now.
    nothing: TrendSeries,
    /// Rows of the last reading, by device and address.
    last: BTreeMap<(Ordinal, u64), NamedBlock>,
    readings: ReadingsView,
    /// Total block bytes of each device at each reading.
    wholes: BTreeMap<Ordinal, TrendSeries>,
    /// Every reading lacks objects, because the process has too many to be read in full.
    are_partial: bool,
}

/// A block of the last reading, with its last known name.
#[derive(Clone, Debug)]
struct NamedBlock {
    row: Holding,
    /// Number of consecutive readings since then that found no name.
    misses: u8,
}

/// How a reading was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HowRead {
    /// Only blocks that did not change during the reading are in it.
    pub is_standing: bool,
    /// Processor time of the reading, in nanoseconds.
    pub processor_ns: u64,
}

/// Blocks of one retainer.
#[derive(Clone, Debug, Default)]
struct RetainerGroup {
    /// Live bytes at each reading.
    series: TrendSeries,
    sum: BlockSum,
    flow: BlockFlow,
    /// Number of blocks in the first reading.
    first: u64,
    /// Blocks by address.
    blocks: BTreeMap<u64, RetainedBlock>,
}

#[derive(Clone, Copy, Debug)]
struct RetainedBlock {
    bytes: u64,
    /// Number of the first of the consecutive readings that contain the block.
    since: u64,
    since_ns: u64,
}

impl NamedLeaks {
    /// Adds a reading. Times must not decrease.
    pub fn observe(&mut self, holdings: &Holdings, how: HowRead) {
        let readings = &mut self.readings;
        readings.read_bytes = readings.read_bytes.saturating_add(holdings.read_bytes);
        readings.processor_ns = readings.processor_ns.saturating_add(how.processor_ns);
        if holdings.without_names.is_some() && !holdings.rows.is_empty() {
            readings.without_names += 1;
            readings.why_without_names.clone_from(&holdings.without_names);
            return;
        }
        let number = readings.count;
        // A process too large to be read in full is partial from the first reading on. A reading
        // that becomes partial later was made while the process changed its objects.
        self.are_partial |= number == 0 && holdings.is_partial;
        if holdings.is_partial && !self.are_partial {
            readings.left_out += 1;
            return;
        }
        readings.partial += u64::from(holdings.is_partial);
        readings.count += 1;
        readings.standing += u64::from(how.is_standing);
        let bytes = holdings.rows.iter().map(|row| row.block_bytes).fold(0, u64::saturating_add);
        readings.first_bytes.get_or_insert(bytes);
        readings.last_bytes = Some(bytes);
        self.observe_wholes(holdings);
        let rows = holdings.rows.iter().map(|row| ((row.ordinal, row.address), self.with_last_name(row)));
        self.last = rows.collect();
        let mut now = BTreeMap::<RetainerKey, BTreeMap<u64, u64>>::new();
        for NamedBlock { row, .. } in self.last.values() {
            now.entry((row.ordinal, Retainer::of(row))).or_default().insert(row.address, row.block_bytes);
        }
        for place in now.keys() {
            if !self.groups.contains_key(place) {
                self.groups
                    .insert(place.clone(), RetainerGroup { series: self.nothing.clone(), ..RetainerGroup::default() });
            }
        }
        for (place, group) in &mut self.groups {
            group.observe(now.remove(place).unwrap_or_default(), number, holdings.time_ns);
        }
        self.nothing.push(holdings.time_ns, 0);
    }

    fn observe_wholes(&mut self, holdings: &Holdings) {
        for row in &holdings.rows {
            self.wholes.entry(row.ordinal).or_insert_with(|| self.nothing.clone());
        }
        for (ordinal, series) in &mut self.wholes {
            let own = holdings.rows.iter().filter(|row| row.ordinal == *ordinal);
            series.push(holdings.time_ns, own.map(|row| row.block_bytes).fold(0, u64::saturating_add));
        }
    }

    /// Growth of all blocks of a device, where the findings explain less than half of it: a
    /// verdict, or else growth that is still undecided.
    fn of_the_whole(
        &self,
        (ordinal, series): (&Ordinal, &TrendSeries),
        found: &[LeakView],
        threshold: f64,
    ) -> (Option<LeakView>, Option<UndecidedView>) {
        let grows = |one: &&LeakView| one.verdict.grows() && one.device == Some(ordinal.0);
        let bytes_per_second = found.iter().filter(grows).map(|one| one.bytes_per_minute / 60.0).sum();
        let own = self.groups.iter().filter(|((on, _), _)| on == ordinal);
        let turnover_ns = own.filter_map(|(_, group)| group.sum.turnover_ns()).max().unwrap_or(0);
        let all = found.iter().filter(|one| one.device == Some(ordinal.0));
        let grown_bytes = all.map(|one| one.last_bytes.saturating_sub(one.first_bytes)).fold(0, u64::saturating_add);
        let placed = Placed { bytes_per_second, turnover_ns, grown_bytes };
        let (sure, undecided) = of_tensors(series, placed, self.readings.ended.is_some(), threshold);
        let sure = sure
            .map(|(verdict, trend)| LeakView { device: Some(ordinal.0), ..LeakView::of("allocated", verdict, &trend) });
        (sure, undecided.map(|trend| UndecidedView::of(ordinal.0, None, &trend)))
    }

    /// Returns the row; if this reading found no name, with the name that the block had in the
    /// previous reading.
    fn with_last_name(&self, row: &Holding) -> NamedBlock {
        let known = self.last.get(&(row.ordinal, row.address)).filter(|known| {
            let is_missed = known.row.is_found() && !row.is_found() && known.misses < MOST_MISSES;
            is_missed && known.row.block_bytes == row.block_bytes
        });
        match known {
            Some(known) => NamedBlock { row: known.row.clone(), misses: known.misses + 1 },
            None => NamedBlock { row: row.clone(), misses: 0 },
        }
    }

    /// Returns the number of compared readings.
    pub const fn readings(&self) -> u64 {
        self.readings.count
    }

    /// Records why no further reading follows; only the first reason is kept.
    pub fn end(&mut self, why: impl Into<String>) {
        self.readings.ended.get_or_insert_with(|| why.into());
    }

    /// Returns the verdict on each group. `threshold_bytes_per_minute` separates a leak from slow
    /// growth.
    pub fn view(&self, process: &ProcessFacts, observed_since_ns: u64, threshold_bytes_per_minute: f64) -> LeaksView {
        let mut rows = BTreeMap::<RetainerKey, Vec<&Holding>>::new();
        for NamedBlock { row, .. } in self.last.values() {
            rows.entry((row.ordinal, Retainer::of(row))).or_default().push(row);
        }
        let nothing = Vec::new();
        let found = self.groups.iter().map(|(place, group)| {
            let rows = rows.get(place).unwrap_or(&nothing);
            self.finding(place, group, rows, threshold_bytes_per_minute)
        });
        let found: Vec<_> = found.collect();
        let too_short = found.iter().filter(|finding| finding.is_none()).count() as u64;
        let mut findings: Vec<_> = found.into_iter().flatten().collect();
        let wholes = self.wholes.iter().map(|whole| self.of_the_whole(whole, &findings, threshold_bytes_per_minute));
        let (sure, undecided): (Vec<_>, Vec<_>) = wholes.unzip();
        findings.extend(sure.into_iter().flatten());
        findings.sort_by(worst_first);
        LeaksView {
            tgid: Tgid(process.tgid),
            comm: process.comm.clone(),
            command: process.command.clone(),
            observed_since_ns,
            windows: None,
            readings: Some(self.readings.clone()),
            too_short,
            findings,
            undecided: undecided.into_iter().flatten().collect(),
            cached: Vec::new(),
        }
    }

    fn finding(
        &self,
        place: &RetainerKey,
        group: &RetainerGroup,
        rows: &[&Holding],
        threshold: f64,
    ) -> Option<LeakView> {
        let turnover_ns = group.sum.turnover_ns().filter(|turnover_ns| *turnover_ns > 0);
        let has_ended = self.readings.ended.is_some();
        let (verdict, trend) =
            judge_series(&group.series, Some((turnover_ns.unwrap_or(0), Some(&group.flow))), has_ended, threshold)?;
        let since_ns = |row: &Holding| group.blocks.get(&row.address).map_or(0, |block| block.since_ns);
        Some(LeakView {
            device: Some(place.0.0),
            turnover_ns,
            retainers: retainers(rows.iter().map(|row| (*row, since_ns(row)))),
            read_bytes: rows.iter().map(|row| row.block_bytes).fold(0, u64::saturating_add),
            grows_in_number: group.flow.grows_in_number(),
            blocks: Some(group.view()),
            ..LeakView::of("name", verdict, &trend)
        })
    }
}

impl RetainerGroup {
    /// Adds one reading of the group, as bytes by address.
    fn observe(&mut self, now: BTreeMap<u64, u64>, number: u64, time_ns: u64) {
        let is_there = |address: &u64, block: &RetainedBlock| now.get(address) == Some(&block.bytes);
        let gone: BTreeSet<u64> = self
            .blocks
            .iter()
            .filter(|(address, block)| !is_there(address, block))
            .map(|(address, _)| *address)
            .collect();
        for block in gone.iter().filter_map(|address| self.blocks.remove(address)) {
            // The age of a block of the first reading is unknown.
            let age_ns = (block.since > 0).then(|| time_ns.saturating_sub(block.since_ns));
            self.sum.free(block.bytes, age_ns, 0);
        }
        for (address, bytes) in now {
            if self.blocks.contains_key(&address) {
                continue;
            }
            if number == 0 {
                self.first += 1;
                self.sum.adopt(bytes, 0);
            } else {
                self.sum.grant(bytes, 0);
            }
            self.blocks.insert(address, RetainedBlock { bytes, since: number, since_ns: time_ns });
        }
        self.series.push(time_ns, self.sum.live_bytes);
        self.flow.push(time_ns, self.sum.allocations, self.sum.frees);
    }

    fn view(&self) -> BlocksView {
        BlocksView {
            first: self.first,
            last: self.blocks.len() as u64,
            came: self.sum.allocations,
            stayed: self.blocks.values().filter(|block| block.since > 0).count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::leak::model::Verdict;
    use crate::input::holdings::HoldingClass;

    const MIB: u64 = 1 << 20;
    /// 1 MiB per minute.
    const THRESHOLD: f64 = 1_048_576.0;

    fn row(address: u64, name: String, bytes: u64) -> Holding {
        let class = HoldingClass::Tensor;
        Holding { class, name: Some(name), ..Holding::unknown(Ordinal(0), address, bytes) }
    }

    /// Compares `readings` readings of these rows, one second apart.
    fn read(readings: u64, rows: impl Fn(u64) -> Vec<Holding>) -> (NamedLeaks, LeaksView) {
        let mut leaks = NamedLeaks::default();
        for second in 0..readings {
            let holdings = Holdings { time_ns: second * 1_000_000_000, rows: rows(second), ..Holdings::default() };
            leaks.observe(&holdings, HowRead { is_standing: second % 2 == 1, processor_ns: 5 });
        }
        let view = leaks.view(&ProcessFacts::default(), 0, THRESHOLD);
        (leaks, view)
    }

    /// A list that grows by one element per reading.
    fn kept(second: u64) -> Vec<Holding> {
        (0..second + 3).map(|index| row(index * MIB, format!("a.py:main: kept[{index}]"), MIB)).collect()
    }

    #[test]
    fn a_list_that_grows_is_a_leak_with_its_path_its_blocks_and_its_newest() {
        let (_, view) = read(20, |second| {
            let mut rows = kept(second);
            rows.push(row(1 << 40, "cache".to_owned(), 7 * MIB));
            rows
        });
        let verdicts: Vec<_> = view.findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!((verdicts, view.too_short), (vec![Verdict::Leak, Verdict::Steady], 0));
        let leak = &view.findings[0];
        assert_eq!((&*leak.level, leak.device, leak.turnover_ns), ("name", Some(0), None));
        assert!((leak.bytes_per_minute - 60.0 * 1_048_576.0).abs() < 1.0, "{leak:?}");
        assert_eq!((leak.first_bytes, leak.last_bytes), (3 * MIB, 22 * MIB));
        assert_eq!(leak.blocks, Some(BlocksView { first: 3, last: 22, came: 19, stayed: 19 }));
        let [retainer] = &leak.retainers[..] else { panic!("{leak:?}") };
        assert_eq!((retainer.name.as_deref(), retainer.count), (Some("a.py:main: kept[*]"), 22));
        let ends = (retainer.oldest.as_deref(), retainer.newest.as_deref());
        assert_eq!(ends, (Some("a.py:main: kept[0]"), Some("a.py:main: kept[21]")));
        let readings = view.readings.expect("it was read");
        assert_eq!((readings.count, readings.standing, readings.processor_ns), (20, 10, 100));
        assert_eq!((readings.first_bytes, readings.last_bytes), (Some(10 * MIB), Some(29 * MIB)));
    }

    #[test]
    fn leak_block_with_a_missed_name_keeps_it_for_ten_readings() {
        let with_gaps = |gap: u64| {
            let (_, view) = read(48, |second| {
                let rows = kept(second).into_iter();
                let is_missed = second % 12 >= 12 - gap;
                rows.map(|row| if is_missed { Holding::unknown(row.ordinal, row.address, MIB) } else { row }).collect()
            });
            let kept =
                view.findings.iter().find(|finding| finding.retainers.first().is_some_and(|one| one.name.is_some()));
            kept.map(|finding| (finding.verdict, finding.blocks))
        };
        // A block that appears while names are missed has no name until the next reading.
        let blocks = BlocksView { first: 3, last: 40, came: 37, stayed: 37 };
        assert_eq!(with_gaps(10), Some((Verdict::Leak, Some(blocks))));
        assert_eq!(with_gaps(11), None, "what has no name for so long has none any more");
    }

    #[test]
    fn a_reading_that_lacks_objects_is_compared_only_where_all_do() {
        let of = |is_partial: fn(u64) -> bool| {
            let mut leaks = NamedLeaks::default();
            for second in 0..10 {
                let is_partial = is_partial(second);
                let holdings = Holdings { time_ns: second, rows: kept(second), is_partial, ..Holdings::default() };
                leaks.observe(&holdings, HowRead::default());
            }
            (leaks.readings.count, leaks.readings.partial, leaks.readings.left_out)
        };
        assert_eq!(of(|second| second == 4), (9, 0, 1));
        assert_eq!(of(|second| second > 0), (1, 0, 9));
        assert_eq!(of(|_| true), (10, 10, 0));
    }

    #[test]
    fn few_readings_give_no_verdict() {
        let (_, view) = read(9, kept);
        assert_eq!((view.findings.len(), view.too_short), (0, 1));
    }

    #[test]
    fn leak_group_that_appears_late_starts_at_zero_bytes() {
        let (_, view) = read(30, |second| if second < 10 { Vec::new() } else { kept(second - 10) });
        let leak = &view.findings[0];
        assert_eq!((leak.verdict, leak.points, leak.first_bytes), (Verdict::Leak, 30, 0));
        assert_eq!(leak.blocks, Some(BlocksView { first: 0, last: 22, came: 22, stayed: 22 }));
    }

    #[test]
    fn leak_ignores_a_fixed_length_list_of_recent_tensors() {
        let last = |second: u64| -> Vec<Holding> {
            let ones = second..second + 8;
            ones.map(|index| row(index * 100, format!("last[{}]", index - second), (1 + index / 9) * MIB)).collect()
        };
        let (_, view) = read(30, last);
        let growing = view.findings.iter().filter(|finding| finding.verdict.grows()).count();
        assert_eq!(growing, 0, "{view:?}");
        let (leaks, _) = read(30, |second| last(second / 20));
        let group = leaks.groups.values().next().expect("a group");
        assert_eq!(group.view(), BlocksView { first: 8, last: 8, came: 1, stayed: 1 });
    }

    #[test]
    fn a_reading_without_names_is_counted_and_compared_with_nothing() {
        let mut leaks = NamedLeaks::default();
        let unnamed = Holdings {
            rows: vec![Holding::unknown(Ordinal(0), 0, MIB)],
            without_names: Some("there are no Python tensors".to_owned()),
            ..Holdings::default()
        };
        leaks.observe(&unnamed, HowRead::default());
        leaks.end("it has ended");
        leaks.end("it has gone");
        let readings = leaks.view(&ProcessFacts::default(), 0, THRESHOLD).readings.expect("it was read");
        assert_eq!((readings.count, readings.without_names, readings.last_bytes), (0, 1, None));
        assert_eq!(readings.why_without_names, unnamed.without_names);
        assert_eq!(readings.ended.as_deref(), Some("it has ended"));
        // A process that holds no blocks has nothing to name.
        leaks.observe(&Holdings { rows: Vec::new(), ..unnamed }, HowRead::default());
        assert_eq!(leaks.readings.last_bytes, Some(0));
    }
}
