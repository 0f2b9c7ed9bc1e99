//! The memory of each GPU since somebody first opened the page: a course of bounded length, whose steps grow with it.

use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;
use serde::Serialize;

/// So many looks are kept; then every other is forgotten.
const LOOKS: usize = 1440;

/// All GPUs over time. It has nothing of anybody: what the machine has as a whole is shown to all.
#[derive(Debug, Default)]
pub(super) struct Trail {
    gpus: Vec<GpuUuid>,
    looks: Vec<Look>,
    /// Looks are so far apart, nanoseconds.
    step_ns: u64,
}

#[derive(Debug)]
struct Look {
    time_ns: u64,
    /// By the order of `gpus`: what NVML counts, and what the driver has granted.
    bytes: Vec<[Option<u64>; 2]>,
}

/// The course in the form that plots have: a list of times, and one of values for each line.
#[derive(Debug, Serialize)]
pub(super) struct TrailJson<'a> {
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
    /// Notes what a snapshot has.
    pub(super) fn note(&mut self, snapshot: &Snapshot) {
        let time_ns = snapshot.time_ns;
        if self.looks.last().is_some_and(|last| time_ns < last.time_ns.saturating_add(self.step_ns)) {
            return;
        }
        for gpu in &snapshot.gpus {
            if !self.gpus.contains(&gpu.uuid) {
                self.gpus.push(gpu.uuid.clone());
            }
        }
        let of = |uuid: &GpuUuid| snapshot.gpus.iter().find(|gpu| gpu.uuid == *uuid);
        let bytes =
            self.gpus.iter().map(|uuid| of(uuid).map_or([None; 2], |gpu| [gpu.used_bytes, Some(gpu.live_bytes)]));
        self.looks.push(Look { time_ns, bytes: bytes.collect() });
        if self.looks.len() >= LOOKS {
            let first_ns = self.looks.first().map_or(0, |look| look.time_ns);
            self.step_ns = 2 * (time_ns - first_ns) / LOOKS as u64;
            let mut is_kept = false;
            self.looks.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
    }

    /// What was noted.
    pub(super) fn json(&self, boottime_to_unix_ns: i128) -> TrailJson<'_> {
        #[expect(clippy::cast_precision_loss, reason = "a double holds the seconds since 1970 to a microsecond")]
        let seconds = |look: &Look| (i128::from(look.time_ns) + boottime_to_unix_ns) as f64 / 1e9;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::busy_node;

    #[test]
    fn a_course_of_any_length_is_kept_in_bounded_room_from_its_beginning_to_its_end() {
        let (mut trail, mut snapshot) = (Trail::default(), busy_node());
        let begun_ns = snapshot.time_ns;
        for _ in 0..10 * LOOKS {
            snapshot.time_ns += 1_000_000_000;
            trail.note(&snapshot);
            assert!(trail.looks.len() < LOOKS);
        }
        let times: Vec<u64> = trail.looks.iter().map(|look| look.time_ns).collect();
        assert!(times.is_sorted_by(|one, other| one < other) && times.len() > LOOKS / 4, "{}", times.len());
        assert_eq!(times.first(), Some(&(begun_ns + 1_000_000_000)));
        assert!(snapshot.time_ns - times[times.len() - 1] <= trail.step_ns);
    }

    #[test]
    fn a_gpu_that_comes_later_was_not_there_before_and_one_without_a_reading_has_none() {
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
}
