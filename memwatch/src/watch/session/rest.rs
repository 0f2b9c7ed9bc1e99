//! Decides when a session polls and when it sleeps. It polls at a fixed interval while each poll
//! finds something. Otherwise it sleeps until a source wakes it or work is due. The caller passes
//! the current time.

use std::time::{Duration, Instant};

/// Poll interval while awake. A 16 MiB ring holds 115,000 records, so this keeps up with 5 million records a second.
pub(crate) const RHYTHM: Duration = Duration::from_millis(20);

/// A wake-up within this time after falling asleep keeps the session awake for this long, since
/// each wake-up costs the traced thread about 7 µs.
const SHORT_SLEEP: Duration = Duration::from_millis(200);

/// Whether a session polls or sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleBackoff {
    state: BackoffState,
    looked: Instant,
    /// Whether records have arrived since the last poll.
    has_records: bool,
    /// Whether many more records arrived during the last fetch.
    is_behind: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackoffState {
    /// Polls until this time, and after it for as long as each poll finds something.
    Awake(Instant),
    /// When the session went to sleep. Any source can wake it.
    Sleeps(Instant),
}

impl IdleBackoff {
    /// Creates the state of a session that is awake.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { state: BackoffState::Awake(now), looked: now, has_records: false, is_behind: false }
    }

    /// Notes that records were fetched. Until the next poll arms the wake-up again, a new record
    /// causes none.
    pub(crate) const fn note_records(&mut self) {
        self.has_records = true;
    }

    /// Notes whether many more records arrived during the fetch. If so, the next poll is due at
    /// once, after other pending events.
    pub(crate) const fn note_behind(&mut self, is_behind: bool) {
        self.is_behind = is_behind;
    }

    /// Notes that a process has mapped a library. The process is likely to map more soon, so the
    /// session stays awake.
    pub(crate) fn note_mapping(&mut self, now: Instant) {
        let BackoffState::Sleeps(since) = self.state else { return };
        let awake = if now.duration_since(since) < SHORT_SLEEP { SHORT_SLEEP } else { RHYTHM };
        self.state = BackoffState::Awake(now + awake);
    }

    /// Returns when to poll next, given when the first work is due. `None`: not before a wake-up.
    pub(crate) fn next_look(&self, due: Option<Instant>) -> Option<Instant> {
        let soonest = if self.is_behind { self.looked } else { self.looked + RHYTHM };
        match self.state {
            BackoffState::Sleeps(_) if !self.has_records => due.map(|due| due.max(soonest)),
            BackoffState::Awake(_) | BackoffState::Sleeps(_) => Some(soonest),
        }
    }

    /// Notes a poll. Returns whether the session falls asleep, so that the caller must arm the
    /// sources to wake it.
    ///
    /// A single record does not keep the session awake: it goes back to sleep, and stays awake only
    /// if it is woken again within one interval. So a program with rare calls causes one wake-up
    /// per call, and a busy program at most two.
    pub(crate) fn note_look(&mut self, now: Instant) -> bool {
        let is_early = now.duration_since(self.looked) < RHYTHM;
        let has_records = std::mem::take(&mut self.has_records);
        self.looked = now;
        let (state, is_news) = match self.state {
            BackoffState::Awake(until) if has_records || now < until => (self.state, false),
            BackoffState::Awake(_) => (BackoffState::Sleeps(now), true),
            BackoffState::Sleeps(_) if has_records && is_early => (BackoffState::Awake(now), false),
            BackoffState::Sleeps(_) if has_records => (BackoffState::Sleeps(now), true),
            BackoffState::Sleeps(_) => (self.state, false),
        };
        self.state = state;
        is_news
    }

    /// Whether the session polls, so that no source has to wake it.
    pub(crate) const fn is_awake(&self) -> bool {
        matches!(self.state, BackoffState::Awake(_))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        /// A record is emitted.
        Record,
        /// A process maps a library.
        Mapping,
        /// A snapshot fetches all records.
        Fetch,
    }

    /// A session with a model of the kernel half. Times are in milliseconds.
    struct World {
        begin: Instant,
        rest: IdleBackoff,
        /// State of the model.
        wakes: bool,
        maps_ring: bool,
        /// Arrival times of records not yet fetched.
        waiting: Vec<u64>,
        /// How long the fetched records waited.
        waits: Vec<u64>,
        looks: Vec<u64>,
        rings: Vec<u64>,
    }

    impl World {
        fn new() -> Self {
            let begin = Instant::now();
            let (waiting, waits, looks, rings) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            Self { begin, rest: IdleBackoff::new(begin), wakes: false, maps_ring: false, waiting, waits, looks, rings }
        }

        fn at(&self, ms: u64) -> Instant {
            self.begin + Duration::from_millis(ms)
        }

        fn fetch(&mut self, now_ms: u64) {
            if !self.waiting.is_empty() {
                self.rest.note_records();
            }
            self.waits.extend(self.waiting.drain(..).map(|came_ms| now_ms - came_ms));
        }

        fn look(&mut self, now_ms: u64) {
            self.fetch(now_ms);
            self.looks.push(now_ms);
            if self.rest.note_look(self.at(now_ms)) {
                (self.wakes, self.maps_ring) = (true, true);
            } else if self.rest.is_awake() {
                self.maps_ring = false;
            }
        }

        /// Advances the time and runs due polls. Each poll makes the next one due `pause` later.
        fn pass(&mut self, from_ms: u64, until_ms: u64, due_ms: Option<u64>) {
            loop {
                let last = *self.looks.last().unwrap_or(&0);
                let due = due_ms.map(|due_ms| self.at(last + due_ms));
                let Some(next) = self.rest.next_look(due).filter(|next| *next <= self.at(until_ms)) else { return };
                let next_ms = u64::try_from((next.max(self.at(from_ms)) - self.begin).as_millis()).expect("soon");
                self.look(next_ms);
            }
        }

        fn happen(&mut self, now_ms: u64, event: Event) {
            match event {
                Event::Record => {
                    self.waiting.push(now_ms);
                    if std::mem::take(&mut self.wakes) {
                        self.rings.push(now_ms);
                        self.look(now_ms);
                    }
                }
                Event::Mapping if self.maps_ring => {
                    self.rest.note_mapping(self.at(now_ms));
                    self.look(now_ms);
                }
                Event::Mapping => {}
                Event::Fetch => self.fetch(now_ms),
            }
        }

        fn play(events: &[(u64, Event)], due_ms: Option<u64>) -> Self {
            let (mut world, mut now_ms) = (Self::new(), 0);
            for (after_ms, event) in events {
                world.pass(now_ms, now_ms + after_ms, due_ms);
                now_ms += after_ms;
                world.happen(now_ms, *event);
            }
            world
        }
    }

    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let after = prop_oneof![0_u64..5, 0_u64..60, 0_u64..1000];
        let event = prop_oneof![4 => Just(Event::Record), 1 => Just(Event::Mapping), 1 => Just(Event::Fetch)];
        prop::collection::vec((after, event), 1..60)
    }

    proptest! {
        #[test]
        fn record_waits_at_most_20_ms(events in events(), due_ms in prop::option::of(1_u64..500)) {
            let mut world = World::play(&events, due_ms);
            let end_ms = events.iter().map(|(after_ms, _)| after_ms).sum::<u64>();
            world.pass(end_ms, end_ms + 1000, due_ms);
            prop_assert!(world.waiting.is_empty());
            prop_assert!(world.waits.iter().all(|wait_ms| *wait_ms <= 20), "{:?}", world.waits);
        }

        #[test]
        fn traced_threads_cause_at_most_two_wake_ups_per_20_ms(events in events()) {
            let rings = World::play(&events, None).rings;
            prop_assert!(rings.windows(3).all(|ring| ring[2] - ring[0] >= 20), "{rings:?}");
        }

        #[test]
        fn idle_poll_loop_stops_polling_without_events_and_timers(events in events()) {
            let mut world = World::play(&events, None);
            let end_ms = events.iter().map(|(after_ms, _)| after_ms).sum::<u64>();
            world.pass(end_ms, end_ms + 10_000, None);
            let last_ms = *world.looks.last().expect("there was one");
            prop_assert!(last_ms <= end_ms + 240, "{last_ms} after {end_ms}");
            prop_assert!(world.wakes && world.maps_ring);
        }
    }

    #[test]
    fn idle_poll_loop_wakes_once_for_each_rare_call() {
        let world = World::play(&[(100, Event::Record), (100, Event::Record), (100, Event::Record)], None);
        assert_eq!(world.looks, [20, 100, 200, 300]);
    }

    #[test]
    fn idle_poll_loop_returns_to_its_interval_under_many_calls() {
        let calls: Vec<(u64, Event)> = (0..100).map(|call| (if call == 0 { 100 } else { 1 }, Event::Record)).collect();
        let world = World::play(&calls, None);
        assert_eq!(world.rings, [100, 101]);
        assert_eq!(world.looks, [20, 100, 101, 121, 141, 161, 181]);
    }

    #[test]
    fn poll_loop_continues_at_once_while_records_remain() {
        let begin = Instant::now();
        let mut rest = IdleBackoff::new(begin);
        rest.note_records();
        rest.note_behind(true);
        assert!(!rest.note_look(begin + RHYTHM));
        assert_eq!(rest.next_look(None), Some(begin + RHYTHM));
        rest.note_behind(false);
        assert_eq!(rest.next_look(None), Some(begin + 2 * RHYTHM));
    }

    #[test]
    fn idle_poll_loop_runs_timers_when_due() {
        let mut world = World::new();
        world.pass(0, 500, Some(150));
        assert_eq!(world.looks, [20, 170, 320, 470]);
    }

    #[test]
    fn mapping_without_records_causes_one_poll_and_many_keep_the_loop_awake() {
        let mut world = World::play(&[(1000, Event::Mapping), (1000, Event::Mapping), (50, Event::Mapping)], None);
        assert_eq!(world.looks, [20, 1000, 1020, 2000, 2020, 2050]);
        world.pass(2050, 9000, None);
        assert_eq!(world.looks.last(), Some(&2250));
    }
}
