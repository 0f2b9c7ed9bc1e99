//! Decodes the allocator's statistics from its memory.
//!
//! The layout differs between versions. A layout is accepted only if all invariants hold among the
//! numbers. Sources: c10/core/CachingDeviceAllocator.h of PyTorch 2.1 to 2.15, where `DeviceStats`
//! begins with nine `StatArray`s of 3 × 4 words.

use memwatch_common::tensor::STATISTICS_WORDS;

use super::device::{Base, DeviceAllocator};
use super::pools::PrivatePools;
use super::statistics::{AllocatorCounters, AllocatorStat, AllocatorStatistics, StatFamily, StatScope, Tail};
use super::trust::Doubt;

/// Words from the start of `DeviceStats`.
pub type StatisticsWords = [u64; STATISTICS_WORDS];

/// Words per family.
const FAMILY_WORDS: usize = 12;
/// Maximum size in words of a map between `reserved_bytes` and `active_bytes` (4 words in 2.15).
const LARGEST_MAP_WORDS: usize = 16;
/// Number of families before that map.
const BEFORE_MAP: usize = 6;
/// Minimum of `max_split_size_mb`, in bytes (`kLargeBuffer`).
const LEAST_SPLIT_LIMIT: i64 = 20 << 20;
/// Upper bound of counters.
const COUNTABLE: i64 = 1 << 40;

/// Minimum time between readings of statistics that drift, nanoseconds.
const ASKED_AGAIN_NS: u64 = 1_000_000_000;

/// Number of readings that contradict the events after which no more are made.
const READOUTS_TRIED: u64 = 8;

/// Decoded statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Readout {
    /// Values of all families.
    pub statistics: AllocatorStatistics,
    /// Values after the families, if their layout was recognised.
    pub tail: Option<Tail>,
}

impl DeviceAllocator {
    /// Learns the statistics, read after the last report while the allocator is idle. Returns
    /// whether they are plausible.
    pub(super) fn learn_statistics(&mut self, time_ns: u64, words: &StatisticsWords) -> bool {
        // The reported totals, changed by the trace since.
        let current = |family| u64::try_from(self.statistics.get(family, StatScope::All).current).ok();
        let now = self.reported.and(current(StatFamily::AllocatedBytes).zip(current(StatFamily::ReservedBytes)));
        let read = now.and_then(|(allocated_bytes, reserved_bytes)| read(words, allocated_bytes, reserved_bytes));
        let Some(mut read) = read else {
            // If the allocator is not idle, its statistics may be those of a later moment.
            self.refused_readouts += u64::from(!matches!(self.base, Base::Read(_)));
            return false;
        };
        if read.tail.is_some_and(|tail| tail.pools == Some(0)) {
            self.pools = PrivatePools::new(true);
        }
        self.keep_own_peaks(&mut read.statistics);
        self.is_just_read = true;
        if self.is_whole_truth() && read.statistics != self.statistics {
            self.out_of_step += 1;
        }
        self.statistics = read.statistics;
        self.tail = read.tail;
        self.base = Base::Read(time_ns);
        self.doubts.retain(|doubt| *doubt == Doubt::RoundedOnly);
        let current = |family| self.statistics.get(family, StatScope::All).current;
        if i64::try_from(self.memory.pending_bytes())
            != Ok(current(StatFamily::ActiveBytes) - current(StatFamily::AllocatedBytes))
        {
            // The completion of a pending free was lost, and another block may be at its address.
            self.memory.forget_pending(None);
        }
        true
    }

    /// Returns whether reading the statistics while the allocator is idle would make these more
    /// certain.
    pub fn drifts(&self) -> bool {
        let is_followed = self.base != Base::None && self.tail.is_some_and(|tail| tail.oom_rejections.is_none());
        let drifts = !is_followed || !self.doubts.is_empty() || !self.sight.trace || !self.sight.attempts;
        drifts && self.reported.is_some() && !self.is_just_read
    }

    /// Returns whether reading the statistics would make these more certain.
    pub fn wants_statistics(&self) -> bool {
        let drifts = self.doubts.iter().any(|doubt| *doubt != Doubt::RoundedOnly);
        let now_ns = self.reported.map_or(0, |reported| reported.time_ns);
        match self.base {
            Base::Read(read_ns) => drifts && now_ns.saturating_sub(read_ns) >= ASKED_AGAIN_NS,
            Base::None | Base::Start => self.refused_readouts < READOUTS_TRIED,
        }
    }

    fn is_whole_truth(&self) -> bool {
        self.base != Base::None && self.doubts.is_empty() && self.sight.trace && self.tail.is_some()
    }
}

/// Decodes the words without comparing them to known totals; `None` if the invariants do not hold.
pub fn statistics_of(words: &StatisticsWords) -> Option<AllocatorStatistics> {
    let (allocated_bytes, reserved_bytes) = totals(words);
    read(words, allocated_bytes, reserved_bytes).map(|read| read.statistics)
}

/// Returns the allocated and reserved bytes in these words. Both precede the map.
pub const fn totals(words: &StatisticsWords) -> (u64, u64) {
    (
        words[StatFamily::AllocatedBytes as usize * FAMILY_WORDS],
        words[StatFamily::ReservedBytes as usize * FAMILY_WORDS],
    )
}

/// Decodes the words of an allocator that has just reported these totals; `None` if they do not
/// match or the invariants do not hold.
pub(super) fn read(words: &StatisticsWords, allocated_bytes: u64, reserved_bytes: u64) -> Option<Readout> {
    let layout = |map_words| {
        let mut statistics = AllocatorStatistics::default();
        for (index, family) in StatFamily::ALL.into_iter().enumerate() {
            let begin = index * FAMILY_WORDS + if index < BEFORE_MAP { 0 } else { map_words };
            for (place, scope) in StatScope::ALL.into_iter().enumerate() {
                *statistics.get_mut(family, scope) = stat(words.get(begin + 4 * place..)?)?;
            }
        }
        let all = |family| u64::try_from(statistics.get(family, StatScope::All).current).ok();
        let reported = all(StatFamily::AllocatedBytes) == Some(allocated_bytes)
            && all(StatFamily::ReservedBytes) == Some(reserved_bytes);
        (reported && is_consistent(&statistics)).then_some((statistics, map_words))
    };
    let (mut statistics, map_words) = (0..=LARGEST_MAP_WORDS).find_map(layout)?;
    let rest = &words[StatFamily::ALL.len() * FAMILY_WORDS + map_words..];
    // The last word of a `ska::flat_hash_map` is the number of its elements.
    let map = &words[BEFORE_MAP * FAMILY_WORDS..][..map_words];
    let tail = read_tail(rest, &mut statistics).map(|tail| Tail { pools: map.last().copied(), ..tail });
    Some(Readout { statistics, tail })
}

fn stat(words: &[u64]) -> Option<AllocatorStat> {
    let [current, peak, allocated, freed, ..] = *words else { return None };
    let [current, peak, allocated, freed] = [current, peak, allocated, freed].map(u64::cast_signed);
    Some(AllocatorStat { current, peak, allocated, freed })
}

/// Checks the invariants that hold whenever the allocator reports.
///
/// `allocated - freed = current` is not one of them: a program may reset the totals.
fn is_consistent(statistics: &AllocatorStatistics) -> bool {
    let family_is = |family| {
        let [all, small, large] = StatScope::ALL.map(|scope| statistics.get(family, scope));
        let is_sane = |stat: AllocatorStat| {
            let least = stat.current.min(stat.allocated).min(stat.freed);
            least >= 0 && stat.peak >= stat.current && stat.peak < COUNTABLE << 16
        };
        [all, small, large].into_iter().all(is_sane)
            && small.current.checked_add(large.current) == Some(all.current)
            && small.allocated.checked_add(large.allocated) == Some(all.allocated)
            && small.freed.checked_add(large.freed) == Some(all.freed)
            && all.peak >= small.peak.max(large.peak)
            && all.peak <= small.peak.saturating_add(large.peak)
    };
    // A block becomes allocated and active together, and stays active at least as long as
    // allocated.
    let go_together = |first, second| {
        StatScope::ALL.into_iter().all(|scope| {
            let (first, second) = (statistics.get(first, scope), statistics.get(second, scope));
            first.allocated == second.allocated && first.current <= second.current
        })
    };
    StatFamily::ALL.into_iter().all(family_is)
        && go_together(StatFamily::Allocation, StatFamily::Active)
        && go_together(StatFamily::AllocatedBytes, StatFamily::ActiveBytes)
        && StatScope::ALL.into_iter().all(|scope| {
            let current = |family| statistics.get(family, scope).current;
            current(StatFamily::RequestedBytes) <= current(StatFamily::ActiveBytes)
                && current(StatFamily::ActiveBytes) <= current(StatFamily::ReservedBytes)
        })
}

/// Decodes the words after the families: retries, failures, two `AllocatorStat`s, calls and rejections
/// depending on the version, and the split limit, which is -1 or large.
fn read_tail(words: &[u64], statistics: &mut AllocatorStatistics) -> Option<Tail> {
    let number = |index: usize| words.get(index).copied().map(u64::cast_signed);
    let is_limit = |index: usize| number(index).is_some_and(|limit| limit == -1 || limit >= LEAST_SPLIT_LIMIT);
    let is_counter = |index: usize| number(index).is_some_and(|count| (0..COUNTABLE).contains(&count));
    let limit = [10, 13, 14].into_iter().find(|&limit| is_limit(limit) && (0..limit).all(is_counter))?;
    statistics.counters = AllocatorCounters { retries: number(0)?, ooms: number(1)?, ..AllocatorCounters::default() };
    statistics.oversize_allocations = stat(&words[2..])?;
    statistics.oversize_segments = stat(&words[6..])?;
    if limit > 10 {
        let counters = &mut statistics.counters;
        (counters.synchronizations, counters.device_allocations, counters.device_frees) =
            (number(10)?, number(11)?, number(12)?);
    }
    Some(Tail {
        max_split_size: number(limit)?,
        counts_calls: limit > 10,
        pools: None,
        oom_rejections: if limit == 14 { number(13) } else { None },
    })
}
