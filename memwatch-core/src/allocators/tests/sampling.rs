use super::*;
use crate::allocators::names::LibraryKey;
use crate::allocators::threads::{Phase, PhaseEvidence};

const GPU: Ordinal = Ordinal(0);
const MIB: u64 = 1 << 20;

fn of_line(line: u32) -> Attribution {
    Attribution {
        phase: Phase::Outside,
        by: PhaseEvidence::Nothing,
        recomputed: false,
        captured: false,
        site: SiteKey(line),
        library: LibraryKey::NONE,
        module: ModuleKey(0),
        range: None,
        range_of: None,
        stack: None,
        step: 0,
    }
}

/// Pseudorandom numbers, the same in every run.
#[derive(Debug)]
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Runs a program that allocates by ten lines in turn, with different sizes and some bursts, and
/// its windows. Returns the sample and the true bytes of each line.
fn program(draws: &mut Draws, windows: u64) -> (Sampling, Vec<u64>) {
    let (mut sampling, mut truth) = (Sampling::default(), vec![0; 10]);
    let (mut counted, mut place) = (0, 0);
    for _ in 0..windows {
        // A window begins at each line with equal probability: lines come in turns of nine.
        let (begin, length) = (place + 20 + draws.below(90), 25);
        while place < begin + length {
            if place == begin {
                sampling.open(place, 0);
                sampling.count_from(GPU, counted);
            }
            let line = if draws.below(8) == 0 { 9 } else { place % 9 };
            let bytes = MIB * (1 + line) + draws.below(MIB);
            sampling.grant(GPU, bytes, &of_line(u32::try_from(line).expect("small")));
            // Allocations before the first window are not estimated.
            if sampling.windows() > 0 || sampling.opened_ns().is_some() {
                truth[usize::try_from(line).expect("small")] += bytes;
            }
            counted += bytes;
            place += 1;
        }
        sampling.close(place, 0);
    }
    truth.push(counted);
    (sampling, truth)
}

#[test]
fn sampling_errors_of_a_regular_program_are_at_most_three_times_too_big() {
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    let (mut within, mut all) = (0_u32, 0_u32);
    // In MiB, squared: the actual and the expected deviation.
    let (mut was, mut expected) = (0, 0);
    for _ in 0..60 {
        let (sampling, truth) = program(&mut draws, 30);
        let (counted, lines) = truth.split_last().expect("all of them");
        for (line, truth) in (0..).zip(lines) {
            let estimate = sampling.estimate(GPU, SampleKey::Site(SiteKey(line)), *counted).expect("it was traced");
            let error = estimate.standard_error_bytes.expect("there were many windows");
            let off = estimate.bytes.abs_diff(*truth);
            all += 1;
            within += u32::from(off <= 2 * error);
            was += (off / MIB).pow(2);
            expected += (error / MIB).pow(2);
        }
    }
    let percent = within * 100 / all;
    assert!(percent >= 92, "{percent} % of {all}");
    assert!(expected <= 9 * was, "{expected} for {was}");
}

#[test]
fn all_lines_together_are_what_the_allocator_counts() {
    let (sampling, truth) = program(&mut Draws(7), 12);
    let counted = *truth.last().expect("all of them");
    let lines = (0..10).filter_map(|line| sampling.estimate(GPU, SampleKey::Site(SiteKey(line)), counted));
    let sum: u64 = lines.map(|estimate| estimate.bytes).sum();
    let whole: u64 = truth[..10].iter().sum();
    assert!(sum.abs_diff(whole) <= 10, "{sum} and {whole}: each is rounded");
    let module = sampling.estimate(GPU, SampleKey::Module(ModuleKey(0)), counted).expect("it was traced");
    assert_eq!((module.bytes.abs_diff(whole), module.standard_error_bytes), (0, Some(0)), "all of it is one layer's");
}

#[test]
fn a_window_of_which_events_were_lost_does_not_count() {
    let mut sampling = Sampling::default();
    sampling.open(1, 3);
    sampling.count_from(GPU, 0);
    sampling.grant(GPU, MIB, &of_line(1));
    sampling.close(5, 4);
    assert_eq!((sampling.windows(), sampling.discarded(), sampling.open_ns()), (0, 1, 0));
    assert_eq!(sampling.estimate(GPU, SampleKey::Site(SiteKey(1)), 9 * MIB), None);
    sampling.open(10, 4);
    sampling.grant(GPU, MIB, &of_line(1));
    sampling.close(15, 4);
    let estimate = sampling.estimate(GPU, SampleKey::Site(SiteKey(1)), 9 * MIB);
    assert_eq!(estimate, Some(Estimate { bytes: 9 * MIB, standard_error_bytes: None }));
    assert_eq!((sampling.windows(), sampling.open_ns()), (1, 5));
}

#[test]
fn sampling_ignores_grants_outside_windows_and_unknown_totals() {
    let mut sampling = Sampling::default();
    sampling.open(1, 0);
    sampling.count_from(GPU, 5 * MIB);
    sampling.grant(GPU, MIB, &of_line(1));
    sampling.close(5, 0);
    sampling.grant(GPU, 7 * MIB, &of_line(2));
    let estimate = |line, counted| sampling.estimate(GPU, SampleKey::Site(SiteKey(line)), counted);
    assert_eq!(estimate(2, 6 * MIB).map(|estimate| estimate.bytes), Some(0));
    assert_eq!((estimate(1, MIB), sampling.estimate(Ordinal(1), SampleKey::Site(SiteKey(1)), MIB)), (None, None));
}
