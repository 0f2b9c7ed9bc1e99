//! When the live objects of which process are read: at intervals, at a new peak and after a failure,
//! as far as the shares of its process, its user and the machine allow.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_core::state::AllocatedBytes;
use memwatch_core::words::Tgid;

use super::credit::Credit;

/// Interval of readings of a process.
const EVERY: Duration = Duration::from_mins(5);
/// A peak this much above the one of the last reading, in percent, is a reason to read.
const HIGHER_PERCENT: u64 = 5;
/// Pause before a reading at a new peak. It doubles with each such reading, and is the first again
/// [`QUIET`] after the last one.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_mins(10);
/// Minimum memory of a process that is read, in bytes.
const LEAST_BYTES: u64 = 16 << 20;
/// Retry of a process that was not read, which doubles up to [`EVERY`].
const RETRY: Duration = Duration::from_secs(10);

/// Parts of a core for the readings at intervals, and for those at new peaks, of one process; and
/// processor seconds that new peaks may take at once.
const OF_INTERVALS: f64 = 0.0005;
const OF_PEAKS: f64 = 0.0005;
const PEAKS_AT_ONCE: f64 = 4.0;
/// Part of a core for the readings of all processes, and processor seconds that they may take at once.
const OF_MACHINE: f64 = 0.008;
const MACHINE_AT_ONCE: f64 = 10.0;
/// Processor seconds of one reading, at most, that count for the machine. What a reading takes beyond
/// is its user's alone, so that nobody else waits for it.
const FOR_MACHINE: f64 = 2.0;
/// Processor seconds that the readings after failures of one user may take at once, and part of a core.
const AFTER_FAILURES: (f64, f64) = (20.0, 0.02);
/// Readings after failures of one process and of one user: at once, and per second.
const FAILURES_OF_PROCESS: (f64, f64) = (3.0, 1.0 / 60.0);
const FAILURES_OF_USER: (f64, f64) = (6.0, 1.0 / 10.0);

/// Why a process is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// By its interval, or at a new peak.
    InTime,
    /// One of its allocations has failed.
    AfterFailure,
}

/// A reading that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedReading {
    pub(super) tgid: Tgid,
    /// Start of the process: `CLOCK_BOOTTIME`, nanoseconds.
    pub(super) start_ns: u64,
    /// Login user of the process. Its share pays even if the process is gone by the end.
    pub(super) user: Option<u32>,
    due: Due,
}

/// Plan of all readings.
pub(super) struct NamesSchedule {
    processes: BTreeMap<Tgid, PlannedProcess>,
    users: BTreeMap<Option<u32>, PlannedUser>,
    /// Users of whom nothing is read for now, because one of their readings does not end.
    stuck: BTreeSet<Option<u32>>,
    machine: Credit,
    left_out: u64,
}

struct PlannedProcess {
    start_ns: u64,
    user: Option<u32>,
    bytes: u64,
    /// Most bytes at a reading.
    read_bytes: u64,
    /// Time of the last reading.
    last: Option<Instant>,
    /// Processor time of the last reading, in seconds.
    cost: f64,
    /// Pause before a reading at a new peak, and the time of the last one.
    pause: Duration,
    last_peak: Option<Instant>,
    peaks: Credit,
    failures: Credit,
    has_failed: bool,
    /// Pause after the last reading without a result; zero if it had one.
    retry: Duration,
}

struct PlannedUser {
    /// Number of readings after failures.
    failures: Credit,
    /// Processor time of the readings after failures, and of the others, in seconds.
    after_failures: Credit,
    in_time: Credit,
    /// When one of the user's processes was read last, in time and after a failure.
    served: Option<Instant>,
    served_after_failure: Option<Instant>,
}

impl NamesSchedule {
    /// Creates the plan without any process.
    pub(super) fn new(now: Instant) -> Self {
        let machine = Credit::full(MACHINE_AT_ONCE, OF_MACHINE, now);
        Self { processes: BTreeMap::new(), users: BTreeMap::new(), stuck: BTreeSet::new(), machine, left_out: 0 }
    }

    /// Returns the number of failures after which nothing is read, because the share of their process
    /// or user was used up.
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes in what the processes have allocated, and drops those that are gone.
    pub(super) fn update(&mut self, allocated: impl Iterator<Item = AllocatedBytes>, now: Instant) {
        let mut before = std::mem::take(&mut self.processes);
        for AllocatedBytes { tgid, start_ns, user, bytes } in allocated {
            let known = before.remove(&tgid).filter(|known| known.start_ns == start_ns);
            let own = known.unwrap_or_else(|| PlannedProcess::new((start_ns, user), now));
            self.processes.insert(tgid, PlannedProcess { user, bytes, ..own });
        }
        // A process is read after its failure even if its counters were not.
        self.processes.extend(before.into_iter().filter(|(_, process)| process.has_failed));
        let is_known = |user: &Option<u32>| self.processes.values().any(|process| process.user == *user);
        self.users.retain(|user, planned| is_known(user) || !planned.has_all(now));
    }

    /// Sets the users of whom a reading does not end although it is over.
    pub(super) fn set_stuck(&mut self, users: BTreeSet<Option<u32>>) {
        self.stuck = users;
    }

    /// Notes that an allocation of a process has failed. The counters of a young process may not have
    /// been read yet.
    pub(super) fn note_failure(&mut self, failed: AllocatedBytes, now: Instant) {
        let AllocatedBytes { tgid, start_ns, user, .. } = failed;
        let known = self.processes.remove(&tgid).filter(|known| known.start_ns == start_ns);
        let own = known.unwrap_or_else(|| PlannedProcess::new((start_ns, user), now));
        self.processes.insert(tgid, PlannedProcess { has_failed: true, ..own });
    }

    /// Whether an allocation of some process has failed since its last reading.
    pub(super) fn has_failed(&self) -> bool {
        self.processes.values().any(|process| process.has_failed)
    }

    /// Returns the reading that is to begin now, and counts its process as read. Of several, it is one
    /// of the user with the longest wait.
    pub(super) fn next(&mut self, due: Due, now: Instant) -> Option<PlannedReading> {
        match due {
            Due::AfterFailure => self.next_failed(now),
            Due::InTime => self.next_in_time(now),
        }
    }

    fn next_failed(&mut self, now: Instant) -> Option<PlannedReading> {
        let Self { processes, users, stuck, left_out, .. } = self;
        loop {
            let served = |user: Option<u32>| users.get(&user).and_then(|user| user.served_after_failure);
            let is_next = |process: &PlannedProcess| process.has_failed && !stuck.contains(&process.user);
            let failed = processes.iter_mut().filter(|(_, process)| is_next(process));
            let (tgid, process) = failed.min_by_key(|(tgid, process)| (served(process.user), **tgid))?;
            process.has_failed = false;
            let user = users.entry(process.user).or_insert_with(|| PlannedUser::new(now));
            if user.after_failures.has(0.0, now) && process.failures.has(1.0, now) && user.failures.try_take(1.0, now) {
                process.failures.take(1.0);
                user.served_after_failure = Some(now);
                return Some(process.begin(*tgid, Due::AfterFailure, now));
            }
            *left_out += 1;
        }
    }

    fn next_in_time(&mut self, now: Instant) -> Option<PlannedReading> {
        if !self.machine.has(0.0, now) {
            return None;
        }
        let Self { processes, users, stuck, .. } = self;
        let mut may_take =
            |user| !stuck.contains(&user) && users.get_mut(&user).is_none_or(|own| own.in_time.has(0.0, now));
        let due = processes.iter_mut().filter_map(|(tgid, process)| {
            let why = process.due(now).filter(|_| may_take(process.user))?;
            Some((*tgid, why, process.user))
        });
        let due: Vec<_> = due.collect();
        let served = |user: Option<u32>| users.get(&user).and_then(|user| user.served);
        let (tgid, why, user) = due.into_iter().min_by_key(|(tgid, _, user)| (served(*user), *tgid))?;
        users.entry(user).or_insert_with(|| PlannedUser::new(now)).served = Some(now);
        let process = processes.get_mut(&tgid)?;
        if why == DueInTime::Peak {
            process.peaks.take(process.cost);
            process.pause = process.pause.saturating_mul(2).min(EVERY);
            process.last_peak = Some(now);
        }
        Some(process.begin(tgid, Due::InTime, now))
    }

    /// Notes what a reading has cost, in nanoseconds of a processor.
    pub(super) fn note_read(&mut self, reading: &PlannedReading, processor_ns: u64, now: Instant) {
        let cost = self.pay(reading, processor_ns, now);
        if let Some(process) = self.processes.get_mut(&reading.tgid) {
            process.cost = cost;
            process.retry = Duration::ZERO;
            process.last = Some(now);
        }
    }

    /// Notes that a process was not read, and what the attempt has cost at most, in nanoseconds of a
    /// processor.
    pub(super) fn note_refused(&mut self, reading: &PlannedReading, processor_ns: u64, now: Instant) {
        self.pay(reading, processor_ns, now);
        if let Some(process) = self.processes.get_mut(&reading.tgid) {
            process.retry = process.retry.saturating_mul(2).clamp(RETRY, EVERY);
            process.last = Some(now);
        }
    }

    /// Takes the cost of a reading from the shares of its user and the machine. Returns it in seconds.
    fn pay(&mut self, reading: &PlannedReading, processor_ns: u64, now: Instant) -> f64 {
        let cost = Duration::from_nanos(processor_ns).as_secs_f64();
        self.machine.take(cost.min(FOR_MACHINE));
        let user = self.users.entry(reading.user).or_insert_with(|| PlannedUser::new(now));
        match reading.due {
            Due::InTime => user.in_time.take(cost),
            Due::AfterFailure => user.after_failures.take(cost),
        }
        cost
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DueInTime {
    Interval,
    Peak,
}

impl PlannedProcess {
    fn new((start_ns, user): (u64, Option<u32>), now: Instant) -> Self {
        Self {
            start_ns,
            user,
            bytes: 0,
            read_bytes: 0,
            last: None,
            cost: 0.0,
            pause: FIRST_PAUSE,
            last_peak: None,
            peaks: Credit::full(PEAKS_AT_ONCE, OF_PEAKS, now),
            failures: Credit::full(FAILURES_OF_PROCESS.0, FAILURES_OF_PROCESS.1, now),
            has_failed: false,
            retry: Duration::ZERO,
        }
    }

    /// Returns why the process is to be read now, if it is.
    fn due(&mut self, now: Instant) -> Option<DueInTime> {
        if self.bytes < LEAST_BYTES {
            return None;
        }
        let Some(last) = self.last else { return Some(DueInTime::Interval) };
        let passed = now.saturating_duration_since(last);
        if self.retry > Duration::ZERO {
            return (passed >= self.retry).then_some(DueInTime::Interval);
        }
        if passed >= EVERY.max(Credit::time_for(self.cost, OF_INTERVALS)) {
            return Some(DueInTime::Interval);
        }
        let is_higher = self.bytes > self.read_bytes.saturating_add(self.read_bytes / 100 * HIGHER_PERCENT);
        if self.last_peak.is_some_and(|peak| now.saturating_duration_since(peak) >= QUIET) {
            self.pause = FIRST_PAUSE;
        }
        (is_higher && passed >= self.pause && self.peaks.has(self.cost, now)).then_some(DueInTime::Peak)
    }

    fn begin(&mut self, tgid: Tgid, due: Due, now: Instant) -> PlannedReading {
        self.read_bytes = self.read_bytes.max(self.bytes);
        self.last = Some(now);
        PlannedReading { tgid, start_ns: self.start_ns, user: self.user, due }
    }
}

impl PlannedUser {
    fn new(now: Instant) -> Self {
        Self {
            failures: Credit::full(FAILURES_OF_USER.0, FAILURES_OF_USER.1, now),
            after_failures: Credit::full(AFTER_FAILURES.0, AFTER_FAILURES.1, now),
            in_time: Credit::full(MACHINE_AT_ONCE, OF_MACHINE, now),
            served: None,
            served_after_failure: None,
        }
    }

    /// Whether nothing of the shares is used.
    fn has_all(&mut self, now: Instant) -> bool {
        self.failures.has(FAILURES_OF_USER.0, now)
            && self.after_failures.has(AFTER_FAILURES.0, now)
            && self.in_time.has(MACHINE_AT_ONCE, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    /// Processor time of a reading in the tests.
    const COST_NS: u64 = 200_000_000;

    fn allocated(tgid: u32, user: u32, bytes: u64) -> AllocatedBytes {
        AllocatedBytes { tgid: Tgid(tgid), start_ns: u64::from(tgid), user: Some(user), bytes }
    }

    /// A schedule, and the time of its begin.
    struct Simulated {
        schedule: NamesSchedule,
        begun: Instant,
    }

    impl Simulated {
        fn new() -> Self {
            let begun = Instant::now();
            Self { schedule: NamesSchedule::new(begun), begun }
        }

        /// Returns the seconds at which process 7 of one user is read.
        fn read_at(&mut self, seconds: std::ops::Range<u64>, bytes: impl Fn(u64) -> u64) -> Vec<u64> {
            let is_read = |second: &u64| {
                let now = self.begun + Duration::from_secs(*second);
                self.schedule.update([allocated(7, 1000, bytes(*second))].into_iter(), now);
                let due = self.schedule.next(Due::InTime, now);
                if let Some(reading) = &due {
                    self.schedule.note_read(reading, COST_NS, now);
                }
                due.is_some()
            };
            seconds.filter(is_read).collect()
        }
    }

    #[test]
    fn steady_process_is_read_at_once_and_then_at_intervals_that_its_cost_allows() {
        assert_eq!(Simulated::new().read_at(0..1000, |_| GIB), [0, 400, 800], "0.2 s each are 0.05 % of 400 s");
        assert_eq!(Simulated::new().read_at(0..1000, |_| LEAST_BYTES - 1), Vec::<u64>::new());
    }

    #[test]
    fn growing_process_is_read_at_new_peaks_in_pauses_that_double_until_its_share_is_used() {
        let reads = Simulated::new().read_at(0..400, |second| GIB + (second << 27));
        assert_eq!(reads, [0, 5, 15, 35, 75, 155, 315]);
        assert_eq!(Simulated::new().read_at(0..300, |second| GIB + (second << 10)), [0], "less than 5 %");
        // Every ten minutes it doubles: its share is 20 readings, and one more in 400 s.
        let reads = Simulated::new().read_at(0..86_400, |second| GIB << (second / 601).min(30));
        assert!(reads.len() < 86_400 / 400 + 20 + 86_400 / 400, "{}", reads.len());
    }

    #[test]
    fn leak_that_begins_late_has_its_readings() {
        let mut simulated = Simulated::new();
        simulated.read_at(0..5000, |second| GIB + (second.min(60) << 27));
        let reads = simulated.read_at(5000..5100, |second| (9 * GIB) + ((second - 5000) << 28));
        assert!(reads.len() >= 4 && reads[1] - reads[0] <= 10, "{reads:?}");
    }

    #[test]
    fn process_is_read_after_its_failures_within_its_share_and_its_users() {
        let (mut schedule, now) = (NamesSchedule::new(Instant::now()), Instant::now());
        let all = (1..=9).map(|tgid| allocated(tgid, if tgid == 9 { 1001 } else { 1000 }, GIB));
        schedule.update(all, now);
        let mut fails = |tgid: u32, seconds| {
            let user = if tgid == 9 { 1001 } else { 1000 };
            schedule.note_failure(allocated(tgid, user, GIB), now);
            let read = schedule.next(Due::AfterFailure, now + Duration::from_secs(seconds));
            (read.map(|reading| reading.tgid.0), schedule.left_out())
        };
        assert_eq!([1, 1, 1].map(|tgid| fails(tgid, 0).0), [Some(1); 3]);
        assert_eq!(fails(1, 0), (None, 1), "the share of process 1");
        assert_eq!([2, 3, 4].map(|tgid| fails(tgid, 0).0), [Some(2), Some(3), Some(4)]);
        assert_eq!(fails(5, 0), (None, 2), "the share of user 1000");
        assert_eq!(fails(9, 0), (Some(9), 2), "another user");
        assert_eq!((fails(5, 10).0, fails(1, 60).0), (Some(5), Some(1)));
        assert_eq!(fails(77, 120).0, Some(77), "it is too young to have counters");
    }

    #[test]
    fn users_take_turns_and_all_together_stay_below_a_part_of_a_core() {
        let (mut schedule, begun) = (NamesSchedule::new(Instant::now()), Instant::now());
        let all = || (1..=200).map(|tgid| allocated(tgid, if tgid == 200 { 1001 } else { 1000 }, GIB));
        let mut reads = Vec::new();
        for second in 0..3600 {
            let now = begun + Duration::from_secs(second);
            schedule.update(all(), now);
            if let Some(reading) = schedule.next(Due::InTime, now) {
                schedule.note_read(&reading, COST_NS, now);
                reads.push(reading.tgid.0);
            }
        }
        assert!(reads[..2].contains(&200), "{:?}", &reads[..4]);
        assert!(reads.len() <= 51 + 3600 * 8 * 5 / 1000, "{}", reads.len());
        assert!(reads.iter().filter(|tgid| **tgid == 200).count() >= 8, "{reads:?}");
    }

    #[test]
    fn process_that_cannot_be_read_is_tried_again_ever_later() {
        let mut simulated = Simulated::new();
        let mut tries = Vec::new();
        for second in 0..700 {
            let now = simulated.begun + Duration::from_secs(second);
            simulated.schedule.update([allocated(7, 1000, GIB)].into_iter(), now);
            if let Some(reading) = simulated.schedule.next(Due::InTime, now) {
                simulated.schedule.note_refused(&reading, 0, now);
                tries.push(second);
            }
        }
        assert_eq!(tries, [0, 10, 30, 70, 150, 310, 610]);
    }

    /// Returns how often a process of an honest user is read in an hour, beside a user with ever new
    /// processes: their readings take this long and have no result.
    fn honest_readings(hostile_ns: u64) -> (usize, usize) {
        let (mut schedule, begun) = (NamesSchedule::new(Instant::now()), Instant::now());
        let (mut honest, mut hostile) = (0, 0);
        for second in 0..3600 {
            let now = begun + Duration::from_secs(second);
            let new = 100 + u32::try_from(second).expect("an hour");
            schedule.update([allocated(9, 1001, GIB), allocated(new, 1000, GIB)].into_iter(), now);
            let Some(reading) = schedule.next(Due::InTime, now) else { continue };
            if reading.tgid == Tgid(9) {
                schedule.note_read(&reading, COST_NS, now);
                honest += 1;
            } else {
                schedule.note_refused(&reading, hostile_ns, now);
                hostile += 1;
            }
        }
        (honest, hostile)
    }

    #[test]
    fn processes_whose_readings_fail_late_cost_their_user_and_nobody_else() {
        let (honest, hostile) = honest_readings(20_000_000_000);
        assert!(honest >= 8 && hostile <= 2, "{honest} and {hostile}");
    }

    #[test]
    fn expensive_readings_after_failures_of_one_user_leave_the_place_to_others() {
        let (mut schedule, now) = (NamesSchedule::new(Instant::now()), Instant::now());
        schedule.update((1..=9).map(|tgid| allocated(tgid, if tgid == 9 { 1001 } else { 1000 }, GIB)), now);
        for tgid in 1..=9 {
            schedule.note_failure(allocated(tgid, if tgid == 9 { 1001 } else { 1000 }, GIB), now);
        }
        let mut next = || {
            let reading = schedule.next(Due::AfterFailure, now)?;
            schedule.note_refused(&reading, 20_000_000_000, now);
            Some(reading.tgid.0)
        };
        assert_eq!([next(), next(), next(), next()], [Some(1), Some(9), Some(2), None]);
        assert_eq!(schedule.left_out(), 6);
    }

    #[test]
    fn nothing_is_read_of_a_user_with_a_reading_that_does_not_end() {
        let (mut schedule, now) = (NamesSchedule::new(Instant::now()), Instant::now());
        schedule.update([allocated(7, 1000, GIB), allocated(9, 1001, GIB)].into_iter(), now);
        for (tgid, user) in [(7, 1000), (9, 1001)] {
            schedule.note_failure(allocated(tgid, user, GIB), now);
        }
        schedule.set_stuck([Some(1000)].into());
        for due in [Due::InTime, Due::AfterFailure] {
            let read: Vec<_> = (0..2).filter_map(|_| schedule.next(due, now)).map(|one| one.tgid.0).collect();
            assert_eq!(read, [9], "{due:?}");
        }
    }
}
