//! The line's look at growth: taken in with each tick, reported with names when it is asked for.

pub mod model;
pub mod view;

use std::collections::{BTreeMap, BTreeSet};

use crate::Pipeline;
use crate::allocators::names::SiteKey;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::features::leak::model::{Finding, Held};
use crate::features::leak::view::{AgeView, LeakView, LeaksView};
use crate::ledger::totals::DeviceRef;
use crate::snapshot::build::places::site_name;
use crate::words::{Ordinal, Tgid};

/// At these ages live memory is distinguished, nanoseconds: a second, ten, a minute, ten, an hour.
const AGES_NS: [u64; 5] = [1_000_000_000, 10_000_000_000, 60_000_000_000, 600_000_000_000, 3_600_000_000_000];

/// Live bytes of lines by age.
type Ages = BTreeMap<(Ordinal, SiteKey), [u64; AGES_NS.len() + 1]>;

impl Pipeline {
    /// From now on what keeps growing is looked for.
    pub fn watch_leaks(&mut self) {
        self.detectors.leaks.get_or_insert_default();
    }

    /// The verdict on each place of each process, where growth of so many bytes a minute is too much; nothing before
    /// [`Pipeline::watch_leaks`].
    pub fn leaks(&self, threshold_bytes_per_minute: f64) -> Vec<LeaksView> {
        let Some(leaks) = &self.detectors.leaks else { return Vec::new() };
        let all = self.ended.iter().chain(self.processes.values());
        let view = |process: &Process| {
            let all = leaks.findings(process, threshold_bytes_per_minute);
            let (sure, short): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, finding)| finding.is_some());
            let ages = self.ages(process);
            let mut findings: Vec<LeakView> =
                sure.iter().filter_map(|(_, finding)| Some(self.finding(process, finding.as_ref()?, &ages))).collect();
            findings.sort_by(|one, other| {
                let order = one.verdict.cmp(&other.verdict);
                order.then(other.bytes_per_minute.total_cmp(&one.bytes_per_minute))
            });
            let facts = process.facts.as_ref();
            LeaksView {
                tgid: process.tgid,
                comm: facts.map(|facts| facts.comm.clone()).unwrap_or_default(),
                command: facts.map(|facts| facts.command.clone()).unwrap_or_default(),
                observed_since_ns: process.observed_since_ns,
                windows: process.tensors.as_ref().map(|_| leaks.windows(process)),
                too_short: short.len() as u64,
                findings,
            }
        };
        all.map(view).collect()
    }

    pub(crate) fn observe_leaks(&mut self) {
        let Self { detectors, processes, now_ns, .. } = self;
        let Some(leaks) = &mut detectors.leaks else { return };
        for process in processes.values() {
            leaks.observe(process, *now_ns);
        }
    }

    /// A step of a process may have ended.
    pub(crate) fn observe_steps(&mut self, tgid: Tgid) {
        let Self { detectors, processes, now_ns, .. } = self;
        if let (Some(leaks), Some(process)) = (&mut detectors.leaks, processes.get(&tgid)) {
            leaks.observe_steps(process, *now_ns);
        }
    }

    /// What is forgotten of processes is forgotten here.
    pub(crate) fn forget_leaks(&mut self) {
        let Self { detectors, processes, ended, .. } = self;
        let Some(leaks) = &mut detectors.leaks else { return };
        let known = ended.iter().chain(processes.values());
        let known: BTreeSet<_> = known.map(|process| (process.tgid, process.observed_since_ns)).collect();
        leaks.keep(|tgid, since_ns| known.contains(&(tgid, since_ns)));
    }

    /// What lines have now by how old it is.
    fn ages(&self, process: &Process) -> Ages {
        let mut ages = Ages::new();
        for block in process.tensors.iter().flat_map(|tensors| tensors.places().blocks()) {
            let age_ns = self.now_ns.saturating_sub(block.granted_ns);
            let place = AGES_NS.partition_point(|edge_ns| *edge_ns <= age_ns);
            let of_line = ages.entry((block.ordinal, block.whose.site)).or_default();
            if let Some(bytes) = of_line.get_mut(place) {
                *bytes = bytes.saturating_add(block.bytes);
            }
        }
        ages
    }

    fn finding(&self, process: &Process, finding: &Finding, ages: &Ages) -> LeakView {
        let uuid = |device| resolve(process, device, &self.reading.devices);
        let number = |device| if let DeviceRef::Ordinal(Ordinal(number)) = device { Some(number) } else { None };
        let (level, device, uuid, site) = match finding.place.held {
            Held::Site(ordinal, site) => {
                let names = process.tensors.as_ref().map(|tensors| site_name(tensors.names(), site));
                ("tensor", Some(ordinal.0), uuid(DeviceRef::Ordinal(ordinal)), names)
            }
            Held::Device(device) => ("driver", number(device), uuid(device), None),
            Held::Pinned => ("pinned_host", None, None, None),
        };
        let ages = by_age(finding.place.held, process.ended.is_some(), ages);
        let trend = &finding.trend;
        let (kind, file, line, function) =
            site.map_or((None, None, None, None), |site| (Some(site.kind), site.file, site.line, site.function));
        LeakView {
            verdict: finding.verdict,
            level: level.into(),
            device,
            uuid,
            kind,
            file,
            line,
            function,
            bytes_per_minute: trend.whole.bytes_per_second * 60.0,
            late_bytes_per_minute: trend.late.bytes_per_second * 60.0,
            p: trend.whole.p,
            late_p: trend.late.p,
            points: trend.points,
            steps: finding.by_steps.then_some(trend.points),
            first_ns: trend.first_ns,
            last_ns: trend.last_ns,
            first_bytes: trend.first_bytes,
            last_bytes: trend.last_bytes,
            turnover_ns: finding.turnover_ns,
            ages,
        }
    }
}

/// What a line has by age; of what is older than the watch nobody knows how old it is.
fn by_age(held: Held, has_ended: bool, ages: &Ages) -> Option<Vec<AgeView>> {
    let Held::Site(ordinal, site) = held else { return None };
    let edges = AGES_NS.iter().copied().map(Some).chain([None]);
    let bytes = ages.get(&(ordinal, site)).copied().unwrap_or_default();
    (!has_ended && site != SiteKey::BEFORE_ATTACH)
        .then(|| edges.zip(bytes).map(|(below_ns, bytes)| AgeView { below_ns, bytes }).collect())
}

#[cfg(test)]
mod tests {
    use super::{Ages, by_age};
    use crate::allocators::names::SiteKey;
    use crate::features::leak::model::Held;
    use crate::words::Ordinal;

    #[test]
    fn how_old_memory_is_is_reported_of_lines_that_hold_some_now_and_were_seen_to_take_it() {
        let (device, site) = (Ordinal(0), SiteKey::numbered(7));
        let ages: Ages = [((device, site), [1, 2, 3, 0, 0, 4])].into();
        let bytes = |held, has_ended| {
            by_age(held, has_ended, &ages).map(|ages| ages.into_iter().map(|age| age.bytes).collect::<Vec<_>>())
        };
        assert_eq!(bytes(Held::Site(device, site), false), Some(vec![1, 2, 3, 0, 0, 4]));
        assert_eq!(bytes(Held::Site(device, SiteKey::numbered(8)), false), Some(vec![0; 6]));
        assert_eq!(bytes(Held::Site(device, site), true), None);
        assert_eq!(bytes(Held::Site(device, SiteKey::BEFORE_ATTACH), false), None);
        assert_eq!(bytes(Held::Pinned, false), None);
        let views = by_age(Held::Site(device, site), false, &ages).expect("it holds some");
        let below: Vec<_> = views.iter().map(|age| age.below_ns.map(|below_ns| below_ns / 1_000_000_000)).collect();
        assert_eq!(below, [Some(1), Some(10), Some(60), Some(600), Some(3_600), None]);
    }
}
