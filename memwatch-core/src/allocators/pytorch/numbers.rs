//! Statistics of an allocator under PyTorch's keys, each with its certainty.

use std::borrow::Cow;

use super::device::{Base, DeviceAllocator};
use super::history::AllocatorHistory;
use super::memory::AllocatorMemory;
use super::statistics::{AllocatorStat, AllocatorStatistics, StatFamily, StatScope};
use super::trust::{Doubt, NamedNumber, ObservedEvents, RatedNumber};
use crate::allocators::ReportedTotals;

/// Tensor probe rows for rare functions. Their events cannot prove that the probes are attached.
const ROW_SYNCHRONIZED: u16 = 6;
const ROW_PEAKS_RESET: u16 = 8;
const ROW_ACCUMULATED_RESET: u16 = 9;

/// Suffix of PyTorch's key for one value of a statistic, and how to get it.
type StatField = (&'static str, fn(&AllocatorStat) -> i64);

const SIDES: [StatField; 4] = [
    ("current", |stat| stat.current),
    ("peak", |stat| stat.peak),
    ("allocated", |stat| stat.allocated),
    ("freed", |stat| stat.freed),
];

impl DeviceAllocator {
    /// Returns all statistics.
    pub const fn statistics(&self) -> &AllocatorStatistics {
        &self.statistics
    }

    /// Returns the known segments and blocks.
    pub const fn memory(&self) -> &AllocatorMemory {
        &self.memory
    }

    /// Returns the size in bytes from which blocks are not split; -1 if all are; `None` if unknown.
    pub fn max_split_size(&self) -> Option<i64> {
        self.tail.map(|tail| tail.max_split_size)
    }

    /// Returns the recorded history.
    pub const fn history(&self) -> &AllocatorHistory {
        &self.history
    }

    /// Returns the last reported totals.
    pub const fn reported(&self) -> Option<ReportedTotals> {
        self.reported
    }

    /// Returns the origin of the statistics.
    pub const fn base(&self) -> Base {
        self.base
    }

    /// Returns the number of cache hits since the attach.
    pub const fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns the number of grants that needed the driver.
    pub const fn misses(&self) -> u64 {
        self.misses
    }

    /// Returns the peak of the cached bytes at reports since the attach or the last reset of the
    /// peaks.
    pub const fn peak_cached_bytes(&self) -> u64 {
        self.peaks.cached_bytes
    }

    /// Returns the name of the best source of observations.
    pub fn observed_by(&self) -> &'static str {
        match self.sight {
            _ if self.is_stopped() => "numbers",
            ObservedEvents { trace: true, .. } => "trace",
            ObservedEvents { block_frees: true, .. } | ObservedEvents { attempts: true, .. } => "blocks",
            ObservedEvents { .. } => "reports",
        }
    }

    /// Returns whether only totals are observed, so that segments are inferred from them or
    /// unknown.
    pub fn shows_totals_alone(&self) -> bool {
        matches!(self.observed_by(), "reports" | "numbers")
    }

    /// Returns how often reported totals differed from those computed.
    pub const fn out_of_step(&self) -> u64 {
        self.out_of_step
    }

    /// Returns how often the statistics were read but implausible.
    pub const fn refused_readouts(&self) -> u64 {
        self.refused_readouts
    }

    /// Returns the bytes of blocks from before the attach.
    pub fn preexisting_bytes(&self) -> Option<u64> {
        let reported = self.reported.filter(|_| !self.is_stopped())?;
        Some(reported.allocated_bytes.saturating_sub(self.memory.allocated_bytes()).saturating_add(self.older_bytes()))
    }

    /// Returns every field of `torch.cuda.memory_stats()`, in the order of the keys.
    pub fn numbers(&self) -> Vec<NamedNumber> {
        let mut numbers = Vec::with_capacity(128);
        for family in StatFamily::ALL {
            for scope in StatScope::ALL {
                let stat = self.statistics().get(family, scope);
                for (side, value) in SIDES {
                    let doubt = self.doubt_of(family, scope, side);
                    let key = format!("{}.{}.{side}", family.name(), scope.name());
                    numbers.push((Cow::Owned(key), RatedNumber { value: value(&stat), doubt }));
                }
            }
        }
        numbers.extend(self.counters());
        numbers.extend(self.private_pools());
        // A version does not list what it does not count.
        numbers.retain(|(_, trust)| trust.doubt != Some(Doubt::NotCounted));
        numbers.sort_by(|(first, _), (second, _)| first.cmp(second));
        numbers
    }

    fn counters(&self) -> Vec<NamedNumber> {
        let counters = &self.statistics().counters;
        let has = |doubt| self.doubts.contains(&doubt).then_some(doubt);
        let calls = self.counter_doubt(true).or(self.segments_doubt()).or_else(|| has(Doubt::CallsUnseen));
        let not_counted = self.tail.filter(|tail| !tail.counts_calls).map(|_| Doubt::NotCounted);
        let number = |key: &'static str, value, doubt| (Cow::Borrowed(key), RatedNumber { value, doubt });
        let tail = |value: Option<i64>, doubt: Option<Doubt>| RatedNumber { value: value.unwrap_or(0), doubt };
        let limit = self.tail.map(|tail| tail.max_split_size);
        let unread = if self.tail.is_none() { Some(Doubt::NotRead) } else { None };
        let rejections = self.tail.map(|tail| tail.oom_rejections);
        let rejections_doubt = match rejections {
            None => Some(Doubt::NotRead),
            Some(None) => Some(Doubt::NotCounted),
            Some(Some(_)) => self.as_read(),
        };
        let mut numbers = vec![
            number("num_alloc_retries", counters.retries, self.counter_doubt(self.sight.attempts)),
            number("num_ooms", counters.ooms, self.counter_doubt(true)),
            number("num_sync_all_streams", counters.synchronizations, not_counted.or(self.synchronizations_doubt())),
            number("num_device_alloc", counters.device_allocations, not_counted.or(calls)),
            number("num_device_free", counters.device_frees, not_counted.or(calls)),
            (Cow::Borrowed("num_oom_rejections"), tail(rejections.flatten(), rejections_doubt)),
            (Cow::Borrowed("max_split_size"), tail(limit, unread)),
        ];
        let oversize = unread.or(self.doubt_of_all());
        for (name, stat) in [
            ("oversize_allocations", self.statistics().oversize_allocations),
            ("oversize_segments", self.statistics().oversize_segments),
        ] {
            for (side, value) in SIDES {
                numbers
                    .push((Cow::Owned(format!("{name}.{side}")), RatedNumber { value: value(&stat), doubt: oversize }));
            }
        }
        numbers
    }

    fn private_pools(&self) -> impl Iterator<Item = NamedNumber> {
        let are_counted = self.tail.is_some_and(|tail| tail.pools.is_some());
        let pools = if are_counted { Some(self.pools.all()) } else { None };
        let missed = (!self.pools.is_whole()).then_some(Doubt::OlderPools);
        pools.into_iter().flatten().flat_map(move |(id, stats)| {
            StatScope::ALL.into_iter().zip(stats).flat_map(move |(scope, stat)| {
                let id = id.clone();
                SIDES.into_iter().map(move |(side, value)| {
                    let key = format!("reserved_bytes_by_private_pools.{id}.{}.{side}", scope.name());
                    (Cow::Owned(key), RatedNumber { value: value(stat), doubt: missed })
                })
            })
        })
    }

    /// Returns one value of a family.
    pub fn number(&self, family: StatFamily, scope: StatScope, side: &str) -> Option<RatedNumber> {
        let (side, value) = SIDES.into_iter().find(|(name, _)| *name == side)?;
        let stat = self.statistics().get(family, scope);
        Some(RatedNumber { value: value(&stat), doubt: self.doubt_of(family, scope, side) })
    }

    fn doubt_of(&self, family: StatFamily, scope: StatScope, side: &str) -> Option<Doubt> {
        let is_total = scope == StatScope::All && side == "current";
        if is_total && matches!(family, StatFamily::AllocatedBytes | StatFamily::ReservedBytes) {
            return if self.is_reported_last { None } else { self.doubt_of_all() };
        }
        let has = |doubt| self.doubts.contains(&doubt).then_some(doubt);
        let sees_streams = self.sight.trace || self.sight.block_frees || self.is_just_read;
        let streams = (!sees_streams).then_some(Doubt::StreamsUnseen);
        let row = match side {
            "peak" => Some(ROW_PEAKS_RESET),
            "allocated" | "freed" => Some(ROW_ACCUMULATED_RESET),
            _ => None,
        };
        let resets = row.is_some_and(|row| self.is_missing(row)).then_some(Doubt::ResetsUnseen);
        let resets = resets.or(if side == "peak" { self.peaks_doubt() } else { None });
        let own = match family {
            StatFamily::Allocation | StatFamily::AllocatedBytes => None,
            StatFamily::Segment => self.segments_doubt(),
            StatFamily::ReservedBytes => self.pools_doubt(scope),
            StatFamily::Active | StatFamily::ActiveBytes => has(Doubt::OlderBlocks).or(streams),
            StatFamily::InactiveSplit | StatFamily::InactiveSplitBytes => has(Doubt::OlderNeighbours).or(streams),
            StatFamily::RequestedBytes => has(Doubt::RoundedOnly).or_else(|| has(Doubt::OlderBlocks)).or(streams),
        };
        self.doubt_of_all().or(own).or(resets)
    }

    fn pools_doubt(&self, scope: StatScope) -> Option<Doubt> {
        let has = |doubt| self.doubts.contains(&doubt).then_some(doubt);
        if scope == StatScope::All { None } else { has(Doubt::OlderSegments).or_else(|| has(Doubt::SegmentsUnseen)) }
    }

    fn segments_doubt(&self) -> Option<Doubt> {
        self.doubts.contains(&Doubt::SegmentsUnseen).then_some(Doubt::SegmentsUnseen)
    }

    fn counter_doubt(&self, is_seen: bool) -> Option<Doubt> {
        let unseen = if matches!(self.base, Base::Read(_)) { self.as_read() } else { Some(Doubt::Unseen) };
        let resets = self.is_missing(ROW_ACCUMULATED_RESET).then_some(Doubt::ResetsUnseen);
        self.doubt_of_all().or(unseen.filter(|_| !is_seen)).or(resets)
    }

    /// Returns the doubt about a number that no event reports.
    fn as_read(&self) -> Option<Doubt> {
        (!self.is_just_read).then_some(Doubt::AsRead)
    }

    fn synchronizations_doubt(&self) -> Option<Doubt> {
        self.counter_doubt(self.sight.trace && !self.is_missing(ROW_SYNCHRONIZED))
    }

    /// Returns the doubt about all numbers except the totals that the allocator reports.
    fn doubt_of_all(&self) -> Option<Doubt> {
        if self.is_settled {
            return None;
        }
        let has = |doubt| self.doubts.contains(&doubt).then_some(doubt);
        let base = (self.base == Base::None).then_some(Doubt::NotRead);
        [Doubt::EventsLost, Doubt::OutOfStep, Doubt::AsRead]
            .into_iter()
            .fold(base, |found, doubt| found.or_else(|| has(doubt)))
    }
}
