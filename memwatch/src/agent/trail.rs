//! Memory of each GPU since the agent's start, as a time series of bounded length whose interval
//! grows with its duration. Without requests it holds NVML's numbers at intervals. Bytes granted by
//! the driver are included whenever a snapshot was made for a client. If a previous agent has left
//! a history, the series starts with that.

pub(super) mod past;

use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;
use serde::Serialize;

/// Maximum number of samples. When it is reached, every other sample is dropped.
const LOOKS: usize = 1440;
/// Minimum interval of samples without requests.
const AT_REST_NS: u64 = 10_000_000_000;

/// Time after the last sample of a previous agent at which an empty sample is added, so that a
/// plot's line ends there.
const GAP_NS: i64 = 1_000_000;

/// GPU memory over time. It contains no user's data: the totals of the machine are shown to all
/// users.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trail {
    gpus: Vec<GpuUuid>,
    looks: Vec<GpuMemoryPoint>,
    /// Minimum interval of samples, nanoseconds.
    step_ns: u64,
}

#[derive(Clone, Debug)]
struct GpuMemoryPoint {
    /// `CLOCK_BOOTTIME`, nanoseconds; negative before the machine's start.
    time_ns: i64,
    /// For each GPU in the order of `gpus`: bytes used according to NVML, and bytes granted by the
    /// driver.
    bytes: Vec<[Option<u64>; 2]>,
}

/// The time series in the format of plots: a list of times, and one list of values per line.
#[derive(Debug, Serialize)]
pub(crate) struct TrailJson<'a> {
    /// Seconds since 1970.
    times: Vec<f64>,
    gpus: Vec<GpuTrailJson<'a>>,
}

#[derive(Debug, Serialize)]
struct GpuTrailJson<'a> {
    uuid: &'a str,
    used_bytes: Vec<Option<u64>>,
    driver_allocated_bytes: Vec<Option<u64>>,
}

impl Trail {
    /// Adds a sample from a snapshot.
    pub(crate) fn note(&mut self, snapshot: &Snapshot) {
        let gpus = snapshot.gpus.iter().map(|gpu| (&gpu.uuid, [gpu.used_bytes, Some(gpu.live_bytes)]));
        self.look(signed(snapshot.time_ns), self.step_ns, gpus);
    }

    /// Adds a sample of NVML's numbers if the last sample is old enough.
    pub(crate) fn note_used<'a>(&mut self, time_ns: u64, gpus: impl Iterator<Item = (&'a GpuUuid, Option<u64>)>) {
        let gpus = gpus.map(|(uuid, used_bytes)| (uuid, [used_bytes, None]));
        self.look(signed(time_ns), self.step_ns.max(AT_REST_NS), gpus);
    }

    /// Puts an earlier series before this one, with a gap between the two.
    pub(crate) fn follow(&mut self, mut earlier: Self) {
        let own = std::mem::take(self);
        let begun_ns = own.looks.first().map_or(i64::MAX, |look| look.time_ns);
        earlier.looks.retain(|look| look.time_ns < begun_ns);
        if let Some(last) = earlier.looks.last() {
            let time_ns = last.time_ns.saturating_add(GAP_NS).min(begun_ns);
            earlier.looks.push(GpuMemoryPoint { time_ns, bytes: Vec::new() });
        }
        earlier.step_ns = own.step_ns;
        *self = earlier;
        for look in own.looks {
            let of = |at: usize| look.bytes.get(at).copied().unwrap_or_default();
            self.look(look.time_ns, 0, own.gpus.iter().enumerate().map(|(at, uuid)| (uuid, of(at))));
        }
    }

    fn look<'a>(&mut self, time_ns: i64, apart_ns: u64, gpus: impl Iterator<Item = (&'a GpuUuid, [Option<u64>; 2])>) {
        if self.looks.last().is_some_and(|last| time_ns < last.time_ns.saturating_add_unsigned(apart_ns)) {
            return;
        }
        let mut bytes = vec![[None; 2]; self.gpus.len()];
        for (uuid, own) in gpus {
            if let Some(at) = self.gpus.iter().position(|known| known == uuid) {
                bytes[at] = own;
            } else {
                self.gpus.push(uuid.clone());
                bytes.push(own);
            }
        }
        self.looks.push(GpuMemoryPoint { time_ns, bytes });
        if self.looks.len() >= LOOKS {
            let first_ns = self.looks.first().map_or(0, |look| look.time_ns);
            self.step_ns = 2 * time_ns.abs_diff(first_ns) / LOOKS as u64;
            let mut is_kept = false;
            self.looks.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
    }

    /// Returns the series as JSON.
    pub(crate) fn json(&self, boottime_to_unix_ns: i128) -> TrailJson<'_> {
        #[expect(clippy::cast_precision_loss, reason = "a double holds the seconds since 1970 to a microsecond")]
        let seconds = |look: &GpuMemoryPoint| (i128::from(look.time_ns) + boottime_to_unix_ns) as f64 / 1e9;
        let line = |gpu: usize, which: usize| {
            self.looks.iter().map(|look| look.bytes.get(gpu).and_then(|bytes| bytes[which])).collect()
        };
        let gpus = self.gpus.iter().enumerate().map(|(at, uuid)| GpuTrailJson {
            uuid: uuid.as_str(),
            used_bytes: line(at, 0),
            driver_allocated_bytes: line(at, 1),
        });
        TrailJson { times: self.looks.iter().map(seconds).collect(), gpus: gpus.collect() }
    }
}

/// Converts a time since the machine's start, which stays below 2^63 nanoseconds for 292 years.
fn signed(time_ns: u64) -> i64 {
    i64::try_from(time_ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::busy_node;

    #[test]
    fn history_is_kept_in_bounded_memory_from_start_to_end() {
        let (mut trail, mut snapshot) = (Trail::default(), busy_node());
        let begun_ns = snapshot.time_ns;
        for _ in 0..10 * LOOKS {
            snapshot.time_ns += 1_000_000_000;
            trail.note(&snapshot);
            assert!(trail.looks.len() < LOOKS);
        }
        let times: Vec<i64> = trail.looks.iter().map(|look| look.time_ns).collect();
        assert!(times.is_sorted_by(|one, other| one < other) && times.len() > LOOKS / 4, "{}", times.len());
        assert_eq!(times.first(), Some(&signed(begun_ns + 1_000_000_000)));
        assert!(signed(snapshot.time_ns).abs_diff(times[times.len() - 1]) <= trail.step_ns);
    }

    #[test]
    fn history_without_viewers_polls_nvml_used_bytes_every_ten_seconds() {
        let (mut trail, snapshot) = (Trail::default(), busy_node());
        let gpus = || snapshot.gpus.iter().map(|gpu| (&gpu.uuid, gpu.used_bytes));
        for second in 0..=30 {
            trail.note_used(second * 1_000_000_000, gpus());
        }
        let json = trail.json(0);
        assert_eq!(json.times, [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(json.gpus[0].used_bytes, [snapshot.gpus[0].used_bytes; 4]);
        assert_eq!(json.gpus[0].driver_allocated_bytes, [None; 4]);
        trail.note_used(60 * 1_000_000_000, std::iter::empty());
        assert_eq!(trail.json(0).gpus[0].used_bytes[4], None, "it is not listed any more");
    }

    #[test]
    fn history_of_a_late_gpu_or_a_missing_reading_is_null() {
        let (mut trail, mut snapshot) = (Trail::default(), busy_node());
        let late = snapshot.gpus.pop().expect("it has GPUs");
        trail.note(&snapshot);
        snapshot.time_ns += 1;
        snapshot.gpus[0].used_bytes = None;
        snapshot.gpus.push(late.clone());
        trail.note(&snapshot);
        let json = trail.json(0);
        assert_eq!(json.times.len(), 2);
        assert!(json.gpus.iter().all(|gpu| gpu.used_bytes.len() == 2));
        assert!(json.gpus[0].used_bytes[0].is_some() && json.gpus[0].used_bytes[1].is_none());
        let last = json.gpus.last().expect("it has come");
        assert_eq!((last.uuid, last.used_bytes[0], last.used_bytes[1]), (late.uuid.as_str(), None, late.used_bytes));
    }

    #[test]
    fn history_of_the_previous_agent_precedes_a_gap() {
        let gpus = busy_node().gpus;
        let (one, other) = (&gpus[0].uuid, &gpus[1].uuid);
        let (mut trail, mut earlier) = (Trail::default(), Trail::default());
        for (second, bytes) in [(-20, 1), (-10, 2), (40, 3)] {
            earlier.look(second * 1_000_000_000, 0, [(other, [Some(bytes), None])].into_iter());
        }
        trail.note_used(30 * 1_000_000_000, [(one, Some(7)), (other, Some(8))].into_iter());
        trail.follow(earlier);
        let json = trail.json(0);
        assert_eq!(json.times, [-20.0, -10.0, -9.999, 30.0], "each moment once");
        let used =
            |uuid: &GpuUuid| json.gpus.iter().find(|gpu| gpu.uuid == uuid.as_str()).map(|gpu| &gpu.used_bytes[..]);
        assert_eq!(used(other), Some(&[Some(1), Some(2), None, Some(8)][..]));
        assert_eq!(used(one), Some(&[None, None, None, Some(7)][..]));
        let mut empty = Trail::default();
        empty.follow(Trail::default());
        assert_eq!(empty.json(0).times, [0.0; 0]);
    }
}
