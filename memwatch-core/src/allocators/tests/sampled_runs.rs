//! Totals from windows against the full trace, on recorded runs of real PyTorch: checks the stated
//! errors.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::*;
use crate::allocators::TensorLedger;
use crate::pipeline::Pipeline;
use crate::recording::{RecordingPart, RecordingReader};
use crate::words::Tgid;

/// Duration of a window, and bounds of the time until the next one, in nanoseconds.
const OPEN_NS: u64 = 200_000_000;
const PAUSE_NS: (u64, u64) = (400_000_000, 1_200_000_000);
/// Minimum number of windows for a comparison.
const LEAST_WINDOWS: u64 = 5;

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/replays");
    let files = std::fs::read_dir(folder).expect("the recordings are in the tree").map(|entry| entry.expect("a file"));
    let mut paths: Vec<_> = files.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "mwr"));
    paths.sort();
    paths
}

/// Schedule of the windows of each process.
struct Schedule {
    draws: u64,
    /// Whether each process has one window that never closes and sees everything.
    is_whole: bool,
    turns_ns: BTreeMap<Tgid, (u64, bool)>,
}

impl Schedule {
    fn new(seed: u64, is_whole: bool) -> Self {
        Self { draws: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, is_whole, turns_ns: BTreeMap::new() }
    }

    fn pause_ns(draws: &mut u64) -> u64 {
        *draws ^= *draws << 13;
        *draws ^= *draws >> 7;
        *draws ^= *draws << 17;
        PAUSE_NS.0 + *draws % (PAUSE_NS.1 - PAUSE_NS.0)
    }

    fn turn(&mut self, tgid: Tgid, time_ns: u64, ledger: &mut TensorLedger) {
        let Self { draws, is_whole, turns_ns } = self;
        let (due_ns, is_open) = turns_ns.entry(tgid).or_insert_with(|| (time_ns + Self::pause_ns(draws), false));
        if time_ns < *due_ns {
            return;
        }
        let lost = ledger.lost_events();
        let sampling = ledger.sampling.get_or_insert_default();
        (*due_ns, *is_open) = if *is_open {
            sampling.close(time_ns, lost);
            (time_ns + Self::pause_ns(draws), false)
        } else {
            sampling.open(time_ns, lost);
            (if *is_whole { u64::MAX } else { time_ns + OPEN_NS }, true)
        };
    }
}

/// Plays a recording with all its events, with these windows in parallel.
fn play(path: &Path, mut schedule: Schedule) -> Vec<(Tgid, Sampling)> {
    let mut reader =
        RecordingReader::open(BufReader::new(File::open(path).expect("it is there"))).expect("it is a recording");
    let mut pipeline = Pipeline::new(true);
    while let Some(part) = reader.next_part().expect("it can be read") {
        let RecordingPart::Chunk(chunk) = part else { panic!("{} has no beginning", path.display()) };
        let played = chunk.for_each(|input| {
            let time_ns = input.time_ns();
            for (tgid, process) in &mut pipeline.state.processes {
                if let (Some(time_ns), Some(tensors)) = (time_ns, &mut process.tensors) {
                    schedule.turn(*tgid, time_ns, tensors);
                }
            }
            pipeline.step(input);
        });
        assert!(played.is_ok(), "{} is damaged", path.display());
    }
    let ended = pipeline.state.processes.values_mut().chain(pipeline.state.ended.iter_mut());
    let of = |process: &mut crate::attribution::process::Process| {
        let mut sampling = process.tensors.as_mut()?.sampling.take()?;
        sampling.close(u64::MAX, sampling.lost_before());
        Some((process.tgid, *sampling))
    };
    ended.filter_map(of).collect()
}

/// Number of lines with 1 % of the bytes or more, and how many of their true values are within two
/// standard errors.
#[derive(Debug, Default)]
struct SampleCoverage {
    runs: u32,
    lines: u32,
    within: u32,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sums of sizes are whole, and below 2^53")]
fn bytes(sum: f64) -> u64 {
    sum as u64
}

impl SampleCoverage {
    /// Compares one device of a process: the sample from windows, and the full trace.
    fn compare(&mut self, (sample, windows): (&DeviceSample, u64), whole: &DeviceSample) {
        for (key, truth) in &whole.all {
            if matches!(key, SampleKey::Site(_)) && truth.bytes >= whole.bytes / 100.0 {
                let estimate = sample.estimate(*key, bytes(whole.bytes), windows).expect("there were bytes");
                let error = estimate.standard_error_bytes.expect("there were several windows");
                self.lines += 1;
                self.within += u32::from(estimate.bytes.abs_diff(bytes(truth.bytes)) <= 2 * error);
            }
        }
    }
}

#[test]
fn sampled_runs_are_within_two_standard_errors_at_the_expected_rate() {
    let mut covered = SampleCoverage::default();
    for (seed, path) in (1..).zip(recordings()) {
        let truths = play(&path, Schedule::new(seed, true));
        let before = covered.lines;
        for (tgid, sampling) in play(&path, Schedule::new(seed, false)) {
            let (_, truth) = truths.iter().find(|(own, _)| *own == tgid).expect("the same process");
            for (ordinal, whole) in truth.devices.iter().filter(|_| sampling.windows() >= LEAST_WINDOWS) {
                covered.compare((&sampling.devices[ordinal], sampling.windows()), whole);
            }
        }
        covered.runs += u32::from(covered.lines > before);
    }
    let percent = f64::from(covered.within) / f64::from(covered.lines) * 100.0;
    assert!(covered.runs >= 30, "{covered:?}");
    assert!((92.0..=98.0).contains(&percent), "{percent:.1} %: {covered:?}");
}
