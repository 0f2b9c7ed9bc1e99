//! Leak detector. Updated on every tick; names are resolved when a report is requested.

pub mod by_name;
mod cached;
mod flow;
pub mod model;
mod retainers;
mod totals;
mod verdict;
pub mod view;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::allocators::names::SiteKey;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::features::leak::model::{GrowthSourceKind, LeakFinding, Leaks};
use crate::features::leak::retainers::retainers;
use crate::features::leak::totals::EXPLAINED;
use crate::features::leak::view::{AgeView, CachedView, LeakView, LeaksView, RetainerView, UndecidedView};
use crate::input::holdings::Holding;
use crate::ledger::totals::DeviceRef;
use crate::snapshot::build::places::site_name;
use crate::snapshot::{PREEXISTING, SiteView};
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::Ordinal;

/// Upper edges of the age classes of live memory, in nanoseconds: 1 s, 10 s, 1 min, 10 min, 1 h.
const AGES_NS: [u64; 5] = [1_000_000_000, 10_000_000_000, 60_000_000_000, 600_000_000_000, 3_600_000_000_000];

/// Live bytes of each call site by age class.
type Ages = BTreeMap<(Ordinal, SiteKey), [u64; AGES_NS.len() + 1]>;

impl Detector for Leaks {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        match event {
            // A step of the process may have ended.
            Event::Tensor(event) => {
                if let Some(process) = state.processes.get(&event.tgid) {
                    self.observe_steps(process, state.now_ns);
                }
            }
            Event::Tick => {
                for process in state.processes.values() {
                    self.observe(process, state.now_ns);
                }
            }
            Event::Forgotten => self.forget(state),
            _ => {}
        }
    }
}

impl Leaks {
    /// Returns the verdict on each growth source of each process. `threshold_bytes_per_minute`
    /// separates a leak from slow growth.
    pub fn report(&self, state: &State, threshold_bytes_per_minute: f64) -> Vec<LeaksView> {
        let all = state.ended.iter().chain(state.processes.values());
        let view = |process: &Process| {
            let all = self.findings(process, threshold_bytes_per_minute);
            let too_short = all.iter().filter(|(_, finding)| finding.is_none()).count() as u64;
            let sure = all.into_iter().filter_map(|(_, finding)| finding).collect();
            let [found, undecided] = of_the_whole(self, process, sure, threshold_bytes_per_minute);
            let (ages, retainers) = (ages(state, process), kept_of(process));
            let view = |finding: &LeakFinding| finding_view(state, process, finding, (&ages, &retainers));
            let undecided_view = |finding: &LeakFinding| {
                let GrowthSourceKind::Allocated(ordinal) = finding.place.held else { return None };
                let uuid = resolve(process, DeviceRef::Ordinal(ordinal), &state.reading.devices);
                Some(UndecidedView::of(ordinal.0, uuid, &finding.trend))
            };
            let mut findings: Vec<LeakView> = found.iter().map(view).collect();
            findings.sort_by(worst_first);
            let facts = process.facts.as_ref();
            LeaksView {
                tgid: process.tgid,
                comm: facts.map(|facts| facts.comm.clone()).unwrap_or_default(),
                command: facts.map(|facts| facts.command.clone()).unwrap_or_default(),
                observed_since_ns: process.observed_since_ns,
                windows: process.tensors.as_ref().map(|_| self.windows(process)),
                readings: None,
                too_short,
                findings,
                undecided: undecided.iter().filter_map(undecided_view).collect(),
                cached: cached_of(process),
            }
        };
        all.map(view).collect()
    }

    /// Drops the series of processes that the state has forgotten.
    fn forget(&mut self, state: &State) {
        let known = state.ended.iter().chain(state.processes.values());
        let known: BTreeSet<_> = known.map(|process| (process.tgid, process.observed_since_ns)).collect();
        self.keep(|tgid, since_ns| known.contains(&(tgid, since_ns)));
    }
}

/// Returns the live bytes of each call site by age class.
fn ages(state: &State, process: &Process) -> Ages {
    let mut ages = Ages::new();
    for block in process.tensors.iter().flat_map(|tensors| tensors.attribution().blocks()) {
        let age_ns = state.now_ns.saturating_sub(block.granted_ns);
        let place = AGES_NS.partition_point(|edge_ns| *edge_ns <= age_ns);
        let of_line = ages.entry((block.ordinal, block.whose.site)).or_default();
        if let Some(bytes) = of_line.get_mut(place) {
            *bytes = bytes.saturating_add(block.bytes);
        }
    }
    ages
}

fn finding_view(
    state: &State,
    process: &Process,
    finding: &LeakFinding,
    (ages, kept): (&Ages, &BTreeMap<GrowthSourceKind, SiteRetainers>),
) -> LeakView {
    let uuid = |device| resolve(process, device, &state.reading.devices);
    let number = |device| if let DeviceRef::Ordinal(Ordinal(number)) = device { Some(number) } else { None };
    let (level, device, uuid, site) = match finding.place.held {
        GrowthSourceKind::Site(ordinal, site) => {
            let names = process.tensors.as_ref().map(|tensors| site_name(tensors.names(), site));
            ("tensor", Some(ordinal.0), uuid(DeviceRef::Ordinal(ordinal)), names)
        }
        GrowthSourceKind::Device(device) => ("driver", number(device), uuid(device), None),
        GrowthSourceKind::Pinned => ("pinned_host", None, None, None),
        GrowthSourceKind::Allocated(ordinal) => ("allocated", Some(ordinal.0), uuid(DeviceRef::Ordinal(ordinal)), None),
        GrowthSourceKind::Reserved(ordinal) => ("reserved", Some(ordinal.0), uuid(DeviceRef::Ordinal(ordinal)), None),
    };
    let is_older = site.as_ref().is_some_and(|site| matches!(&*site.kind, "preexisting" | "untraced"));
    let ages = by_age(finding.place.held, process.ended.is_some() || is_older, ages);
    let trend = &finding.trend;
    let site = site.map(|SiteView { kind, file, line, function, held, .. }| (Some(kind), file, line, function, held));
    let (kind, file, line, function, held) = site.unwrap_or_default();
    LeakView {
        device,
        uuid,
        kind,
        file,
        line,
        function,
        held,
        steps: finding.by_steps.then_some(trend.points),
        turnover_ns: finding.turnover_ns,
        grows_in_number: finding.grows_in_number,
        ages,
        retainers: kept.get(&finding.place.held).map(|kept| kept.retainers.clone()).unwrap_or_default(),
        read_bytes: kept.get(&finding.place.held).map_or(0, |kept| kept.read_bytes),
        ..LeakView::of(level, finding.verdict, trend)
    }
}

fn cached_of(process: &Process) -> Vec<CachedView> {
    let allocators = process.tensors.iter().flat_map(|tensors| tensors.allocators());
    allocators.filter_map(|(ordinal, allocator)| cached::cached(*ordinal, allocator)).collect()
}

/// Splits growth into findings and undecided growth: adds growth of a whole device that no finding
/// explains, drops findings that repeat another one.
fn of_the_whole(
    leaks: &Leaks,
    process: &Process,
    mut found: Vec<LeakFinding>,
    threshold: f64,
) -> [Vec<LeakFinding>; 2] {
    let Some(tensors) = process.tensors.as_ref() else { return [found, Vec::new()] };
    // Pre-existing memory cannot grow. Growth attributed to it is memory allocated later that has
    // no call site.
    let is_older =
        |held| matches!(held, GrowthSourceKind::Site(_, site) if site_name(tensors.names(), site).kind == PREEXISTING);
    found.retain(|finding| !(finding.verdict.grows() && is_older(finding.place.held)));
    // Steady memory outside of the allocators is not worth a finding.
    let is_outside = |held| matches!(held, GrowthSourceKind::Device(_)) && tensors.sampling().is_none();
    found.retain(|finding| finding.verdict.grows() || !is_outside(finding.place.held));
    let (sure, undecided) = leaks.unplaced(process, &found, threshold);
    found.extend(sure);
    let rate = |finding: &LeakFinding| finding.trend.whole.bytes_per_second;
    let is_in_tensors = |finding: &&LeakFinding| {
        finding.verdict.grows() && !matches!(finding.place.held, GrowthSourceKind::Device(_) | GrowthSourceKind::Pinned)
    };
    let explained: f64 = found.iter().filter(is_in_tensors).map(rate).sum();
    // The driver's view of the same memory: the findings on tensors explain it already.
    let is_again = |finding: &LeakFinding| {
        finding.verdict.grows()
            && matches!(finding.place.held, GrowthSourceKind::Device(_))
            && explained >= EXPLAINED * rate(finding)
    };
    found.retain(|finding| !is_again(finding));
    [found, undecided]
}

/// Orders leaks first, the fastest growing first.
fn worst_first(one: &LeakView, other: &LeakView) -> Ordering {
    let order = one.verdict.cmp(&other.verdict);
    order.then(other.bytes_per_minute.total_cmp(&one.bytes_per_minute))
}

/// Retainers of the blocks of one call site, and how many of its bytes the last reading covers.
#[derive(Debug, Default, PartialEq, Eq)]
struct SiteRetainers {
    retainers: Vec<RetainerView>,
    read_bytes: u64,
}

/// Retainers by call site from the last reading of the process's memory. They are those of the
/// blocks that are still live. Where all blocks of a call site have been replaced since, those of
/// the blocks at the reading say what holds the later ones.
fn kept_of(process: &Process) -> BTreeMap<GrowthSourceKind, SiteRetainers> {
    let (mut live, mut replaced) = (RetainedRows::new(), RetainedRows::new());
    if let Some(tensors) = &process.tensors {
        for row in tensors.still_held() {
            if let Some(block) = tensors.attribution().live(row.ordinal, row.address) {
                let place = GrowthSourceKind::Site(row.ordinal, block.whose.site);
                live.entry(place).or_default().push((row, block.granted_ns));
            }
        }
        for (row, site, since_ns) in tensors.held_by_site() {
            replaced.entry(GrowthSourceKind::Site(row.ordinal, site)).or_default().push((row, since_ns));
        }
    }
    let is_named = |rows: &[(&Holding, u64)]| rows.iter().any(|(row, _)| row.class.is_named());
    replaced.retain(|place, rows| is_named(rows) && !live.get(place).is_some_and(|rows| is_named(rows)));
    live.extend(replaced);
    let kept = |blocks: Vec<(&Holding, u64)>| SiteRetainers {
        read_bytes: blocks.iter().map(|(row, _)| row.block_bytes).fold(0, u64::saturating_add),
        retainers: retainers(blocks.into_iter().filter(|(row, _)| row.class.is_named())),
    };
    live.into_iter().map(|(held, blocks)| (held, kept(blocks))).collect()
}

/// Rows of a reading by call site, each with the time of its block's allocation.
type RetainedRows<'r> = BTreeMap<GrowthSourceKind, Vec<(&'r Holding, u64)>>;

/// Returns a call site's live bytes by age class. The age of pre-existing memory is unknown.
fn by_age(held: GrowthSourceKind, is_unknown: bool, ages: &Ages) -> Option<Vec<AgeView>> {
    let GrowthSourceKind::Site(ordinal, site) = held else { return None };
    let edges = AGES_NS.iter().copied().map(Some).chain([None]);
    let bytes = ages.get(&(ordinal, site)).copied().unwrap_or_default();
    (!is_unknown).then(|| edges.zip(bytes).map(|(below_ns, bytes)| AgeView { below_ns, bytes }).collect())
}

#[cfg(test)]
mod tests {
    use super::{Ages, by_age, kept_of};
    use crate::allocators::TensorLedger;
    use crate::allocators::names::SiteKey;
    use crate::attribution::process::Process;
    use crate::decode::{StackRef, TensorChange, TensorEvent};
    use crate::features::leak::model::GrowthSourceKind;
    use crate::input::holdings::{Holding, HoldingClass, Holdings};
    use crate::words::{Ordinal, Tgid, Tid};

    /// Returns a process that allocates blocks of 512 bytes at these addresses and times (`true`)
    /// and frees them (`false`).
    fn process(blocks: &[(u64, u64, bool)]) -> Process {
        let mut process = Process::new(Tgid(1), None, 0, 0);
        let mut tensors = TensorLedger::default();
        let mut allocated_bytes = 0;
        for (address, time_ns, is_taken) in blocks {
            let block_bytes = if *is_taken { 512_i64 } else { -512 };
            allocated_bytes = u64::saturating_add_signed(allocated_bytes, block_bytes);
            let (ordinal, address, reserved_bytes) = (Ordinal(0), *address, 1 << 40);
            let what = TensorChange::Reported { ordinal, address, block_bytes, allocated_bytes, reserved_bytes };
            let (tid, stack) = (Tid(1), StackRef::NoPython);
            tensors.apply(&TensorEvent::made((Tgid(1), tid), *time_ns, stack, what));
        }
        process.tensors = Some(Box::new(tensors));
        process
    }

    #[test]
    fn line_retainer_counts_only_blocks_of_the_last_reading_still_live() {
        let mut process =
            process(&[(1, 10, true), (2, 20, true), (3, 30, true), (4, 40, true), (5, 60, true), (3, 70, false)]);
        let row = |address, name: Option<&str>| {
            let class = if name.is_some() { HoldingClass::Tensor } else { HoldingClass::NoPythonObject };
            Holding { class, name: name.map(str::to_owned), ..Holding::unknown(Ordinal(0), address, 512) }
        };
        let names = [Some("kept[0]"), Some("kept[1]"), Some("kept[2]"), None, Some("kept[4]")];
        let rows = (1..).zip(names).map(|(address, name)| row(address, name)).collect();
        let holdings = Holdings { tgid: Tgid(1), time_ns: 50, rows, ..Holdings::default() };
        process.tensors.as_mut().expect("it has PyTorch").learn_holdings(Box::new(holdings));
        let kept = kept_of(&process);
        // The third block is freed, the fourth has no name, and the fifth was allocated after the
        // reading.
        let [(GrowthSourceKind::Site(Ordinal(0), _), held)] = &kept.iter().collect::<Vec<_>>()[..] else {
            panic!("{kept:?}")
        };
        let [retainer] = &held.retainers[..] else { panic!("{kept:?}") };
        assert_eq!((retainer.name.as_deref(), retainer.count, retainer.bytes), (Some("kept[*]"), 2, 1024));
        assert_eq!(held.read_bytes, 1536, "the fourth was read, too");
        assert_eq!((retainer.oldest.as_deref(), retainer.newest.as_deref()), (Some("kept[0]"), Some("kept[1]")));
    }

    #[test]
    fn line_whose_blocks_were_all_replaced_keeps_its_last_retainer() {
        let mut process = process(&[(1, 10, true), (2, 20, true)]);
        let row = |address, name: &str| Holding {
            class: HoldingClass::Tensor,
            name: Some(name.to_owned()),
            ..Holding::unknown(Ordinal(0), address, 512)
        };
        let rows = vec![row(1, "total[0]"), row(2, "total[1]")];
        let holdings = Holdings { tgid: Tgid(1), time_ns: 50, rows, ..Holdings::default() };
        let tensors = process.tensors.as_mut().expect("it has PyTorch");
        tensors.learn_holdings(Box::new(holdings));
        for (address, time_ns) in [(1, 60), (2, 61)] {
            let (ordinal, block_bytes, reserved_bytes, allocated_bytes) = (Ordinal(0), -512, 1 << 40, 0);
            let what = TensorChange::Reported { ordinal, address, block_bytes, allocated_bytes, reserved_bytes };
            tensors.apply(&TensorEvent::made((Tgid(1), Tid(1)), time_ns, StackRef::NoPython, what));
        }
        let kept: Vec<_> = kept_of(&process).into_values().flat_map(|held| held.retainers).collect();
        let names: Vec<_> = kept.iter().map(|retainer| (retainer.name.as_deref(), retainer.count)).collect();
        assert_eq!(names, [(Some("total[*]"), 2)]);
    }

    #[test]
    fn block_ages_are_reported_only_for_lines_seen_to_allocate() {
        let (device, site) = (Ordinal(0), SiteKey::numbered(7));
        let ages: Ages = [((device, site), [1, 2, 3, 0, 0, 4])].into();
        let bytes = |held, has_ended| {
            by_age(held, has_ended, &ages).map(|ages| ages.into_iter().map(|age| age.bytes).collect::<Vec<_>>())
        };
        assert_eq!(bytes(GrowthSourceKind::Site(device, site), false), Some(vec![1, 2, 3, 0, 0, 4]));
        assert_eq!(bytes(GrowthSourceKind::Site(device, SiteKey::numbered(8)), false), Some(vec![0; 6]));
        assert_eq!(bytes(GrowthSourceKind::Site(device, site), true), None);
        assert_eq!(bytes(GrowthSourceKind::Pinned, false), None);
        let views = by_age(GrowthSourceKind::Site(device, site), false, &ages).expect("it holds some");
        let below: Vec<_> = views.iter().map(|age| age.below_ns.map(|below_ns| below_ns / 1_000_000_000)).collect();
        assert_eq!(below, [Some(1), Some(10), Some(60), Some(600), Some(3_600), None]);
    }
}
