//! Measures the overhead of readings for the program that is read, in alternating time windows with
//! and without readings. See docs/project/overhead.md.

use std::fs::{File, read_to_string};
use std::os::unix::fs::FileExt as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::StateReader;
use crate::frameworks::pytorch::HoldingsReader;

const WINDOW: Duration = Duration::from_secs(2);
const PAIRS: usize = 30;
/// Intervals for 1,000 readings of allocator state, or 100 of names, in 30 windows of 2 s.
const ALLOCATOR_STATE_BETWEEN: Duration = Duration::from_millis(60);
const NAMES_BETWEEN: Duration = Duration::from_millis(600);

/// Returns the training's steps so far and the CPU time of its first thread in nanoseconds.
fn now(tgid: u32, steps: &File) -> (u64, u64) {
    let mut bytes = [0; 8];
    steps.read_exact_at(&mut bytes, 0).expect("a counter");
    let text = read_to_string(format!("/proc/{tgid}/schedstat")).expect("it runs");
    let ran = text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    (u64::from_le_bytes(bytes), ran)
}

/// Returns steps per second, CPU nanoseconds per step and the number of readings in one window.
fn window(tgid: u32, steps: &File, between: Option<Duration>, read: &mut dyn FnMut()) -> (f64, f64, u32) {
    let (began, (first_steps, first_ran)) = (Instant::now(), now(tgid, steps));
    let mut readings = 0;
    while began.elapsed() < WINDOW {
        match between {
            Some(between) => {
                read();
                readings += 1;
                sleep((between * readings).saturating_sub(began.elapsed()));
            }
            None => sleep(WINDOW.saturating_sub(began.elapsed())),
        }
    }
    let elapsed = began.elapsed();
    let (last_steps, last_ran) = now(tgid, steps);
    #[expect(clippy::cast_precision_loss, reason = "thousands of steps and some seconds")]
    let (count, ran) = ((last_steps - first_steps) as f64, (last_ran - first_ran) as f64);
    (count / elapsed.as_secs_f64(), ran / count, readings)
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn measure(what: &str, (tgid, steps): (u32, &File), between: Duration, read: &mut dyn FnMut()) {
    let (mut slower, mut dearer, mut readings) = (Vec::new(), Vec::new(), 0);
    for pair in 0..PAIRS {
        // The order alternates from pair to pair.
        let mut of = |is_read: bool| window(tgid, steps, is_read.then_some(between), read);
        let (with, without) = if pair % 2 == 0 {
            let with = of(true);
            (with, of(false))
        } else {
            let without = of(false);
            (of(true), without)
        };
        slower.push((without.0 / with.0 - 1.0) * 100.0);
        dearer.push((with.1 / without.1 - 1.0) * 100.0);
        readings += with.2;
    }
    println!(
        "{what}: {readings} readings in {PAIRS} windows of {WINDOW:?}; per pair, median: {:+.2} % of the time of a step, {:+.2} % of its processor time",
        median(&mut slower),
        median(&mut dearer)
    );
}

#[test]
#[ignore = "takes four minutes; MEMWATCH_COST=PID:FILE names a training and the file with its number of steps (tests/workloads/counted_steps.py)"]
fn bench_cost_of_readings_to_a_training() {
    let given = std::env::var("MEMWATCH_COST").expect("MEMWATCH_COST=PID:FILE");
    let (tgid, path) = given.split_once(':').expect("PID:FILE");
    let (tgid, steps) = (tgid.parse().expect("a number"), File::open(path).expect("the file is there"));
    let mut allocator_state = StateReader::open(tgid).expect("it may be read").expect("it has PyTorch");
    let (mut whole, mut took) = (0, Duration::ZERO);
    measure("books", (tgid, &steps), ALLOCATOR_STATE_BETWEEN, &mut || {
        let began = Instant::now();
        whole += u32::from(allocator_state.read().is_ok());
        took += began.elapsed();
    });
    println!("{whole} of them were of one moment; they took {took:?} in all");
    measure("blocks that change", (tgid, &steps), ALLOCATOR_STATE_BETWEEN, &mut || drop(allocator_state.read_moving()));
    let mut names =
        HoldingsReader::open(tgid, Duration::from_secs(10)).expect("it may be read").expect("it has PyTorch");
    measure("books and names", (tgid, &steps), NAMES_BETWEEN, &mut || {
        drop(names.read().or_else(|_| names.read_standing()));
    });
}
