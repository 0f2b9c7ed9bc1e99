//! Churn of memory: counted with each event; names are resolved when a report is requested.

pub mod model;
pub mod view;

use std::cmp::Reverse;

use crate::features::churn::model::{Churn, ChurnCounts, LIFETIMES_NS, MemoryKind};
use crate::features::churn::view::{ChurnView, FlowView, LifetimeView, SizeView, TemporaryView};
use crate::features::samples::{ProcessLifetime, of_life};
use crate::snapshot::SumView;
use crate::snapshot::build::places::site_name;
use crate::state::State;
use crate::state::event::{Detector, Event};

impl Detector for Churn {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        let of = |tgid| state.processes.get(&tgid);
        match event {
            Event::Call(call) => {
                if let Some(process) = of(call.tgid) {
                    self.observe_call(process, call);
                }
            }
            Event::Tensor(event) => {
                if let Some(process) = of(event.tgid) {
                    self.observe_tensors(process, event);
                }
            }
            Event::Ends { tgid, .. } => {
                if let Some(process) = of(*tgid) {
                    self.end(ProcessLifetime::of(process));
                }
            }
            _ => {}
        }
    }
}

impl Churn {
    /// Returns the report.
    pub fn report(&self, state: &State) -> ChurnView {
        let mut temporaries: Vec<TemporaryView> = self
            .sites()
            .iter()
            .filter(|(_, counts)| counts.temporary > 0)
            .filter_map(|((life, site), counts)| {
                let tensors = of_life(state, *life)?.tensors.as_ref()?;
                let mut site = site_name(tensors.names(), *site);
                site.sum =
                    SumView { allocations: counts.allocations, total_bytes: counts.total_bytes, ..SumView::default() };
                Some(TemporaryView {
                    tgid: life.tgid,
                    site,
                    allocations: counts.allocations,
                    temporary: counts.temporary,
                    temporary_bytes: counts.temporary_bytes,
                    mean_lifetime_ns: counts.temporary_ns / counts.temporary,
                })
            })
            .collect();
        temporaries.sort_by_key(|one| (Reverse(one.temporary_bytes), Reverse(one.temporary)));
        let watched_ns = self.begun_ns().map_or(0, |begun_ns| state.now_ns.saturating_sub(begun_ns));
        ChurnView {
            watched_ns,
            temporary_within: self.within(),
            kinds: self.kinds().iter().map(|(flow, counts)| view(*flow, counts, watched_ns)).collect(),
            temporaries,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no sixteen digits")]
fn view(flow: MemoryKind, counts: &ChurnCounts, watched_ns: u64) -> FlowView {
    let rate = |number: u64| (watched_ns > 0).then(|| number as f64 / (watched_ns as f64 / 1e9));
    let mean = counts.lifetime_ns.checked_div(u128::from(counts.frees)).and_then(|mean| u64::try_from(mean).ok());
    let sizes = (0_u32..).zip(&counts.sizes).filter(|(_, (count, _))| *count > 0);
    let size = |(power, (count, bytes)): (u32, &(u64, u64))| SizeView {
        from_bytes: if power == 0 { 0 } else { 1 << power },
        below_bytes: 1_u64.checked_shl(power + 1),
        allocations: *count,
        bytes: *bytes,
    };
    let limits = LIFETIMES_NS.iter().copied();
    let lifetimes = std::iter::once(0).chain(limits.clone()).zip(limits.map(Some).chain([None])).zip(&counts.lifetimes);
    FlowView {
        kind: name(flow).into(),
        allocations: counts.allocations,
        total_bytes: counts.total_bytes,
        frees: counts.frees,
        older_frees: counts.older_frees,
        allocations_per_second: rate(counts.allocations),
        bytes_per_second: rate(counts.total_bytes),
        mean_lifetime_ns: mean,
        longest_lifetime_ns: mean.map(|_| counts.longest_ns),
        temporary: counts.temporary.0,
        temporary_bytes: counts.temporary.1,
        sizes: sizes.map(size).collect(),
        lifetimes: lifetimes
            .map(|((from_ns, below_ns), (count, bytes))| LifetimeView {
                from_ns,
                below_ns,
                frees: *count,
                bytes: *bytes,
            })
            .collect(),
    }
}

const fn name(flow: MemoryKind) -> &'static str {
    match flow {
        MemoryKind::Tensor => "tensor",
        MemoryKind::Device => "device",
        MemoryKind::Pool => "pool",
        MemoryKind::Physical => "physical",
        MemoryKind::Managed => "managed",
        MemoryKind::Array => "array",
        MemoryKind::Pinned => "pinned",
    }
}
