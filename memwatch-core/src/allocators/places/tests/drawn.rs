use super::*;
use crate::allocators::sampling::tests::Draws;

const MIB: u64 = 1 << 20;

/// Decides like the kernel half whether a block is sampled.
fn takes(draws: &mut Draws, bytes: u64) -> bool {
    chance(bytes).is_none_or(|chance| draws.below(1 << 32) < chance.into())
}

/// A line: the size of its blocks in bytes, the number of its allocations, and how many of these
/// stay live.
struct SampledLine {
    bytes: u64,
    blocks: u64,
    stay: u64,
}

/// Returns lines of all kinds, each with at least 1 % of all bytes.
fn lines(draws: &mut Draws) -> Vec<SampledLine> {
    (0..20)
        .map(|_| {
            let bytes = 512 << draws.below(11);
            let all = 20 * MIB + draws.below(80 * MIB);
            let blocks = all / bytes;
            SampledLine { bytes, blocks, stay: blocks / 2 + draws.below(blocks.div_ceil(2)) }
        })
        .collect()
}

/// Returns the true and the estimated live and total bytes of a line. The estimates come from the
/// sampled blocks.
fn run(line: &SampledLine, draws: &mut Draws) -> [(u64, Estimate); 2] {
    let (mut known, mut live_bytes, mut total_bytes) = (SampledBlocks::default(), 0, 0);
    for block in 0..line.blocks {
        if takes(draws, line.bytes) {
            known.grant(line.bytes);
            total_bytes += line.bytes;
            if block < line.stay {
                live_bytes += line.bytes;
            } else {
                known.free(line.bytes);
            }
        }
    }
    [(line.stay * line.bytes, known.live(live_bytes)), (line.blocks * line.bytes, known.total(total_bytes))]
}

#[test]
fn sampled_estimates_are_within_two_errors_for_95_percent_of_lines() {
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    let (mut within, mut all) = (0_u32, 0_u32);
    for _ in 0..30 {
        for line in lines(&mut draws) {
            for (truth, estimate) in run(&line, &mut draws) {
                let error = estimate.standard_error_bytes.expect("it is known");
                within += u32::from(estimate.bytes.abs_diff(truth) <= 2 * error);
                all += 1;
            }
        }
    }
    let percent = within * 100 / all;
    assert!((92..=98).contains(&percent), "{percent} % of {all}");
}

#[test]
fn sampled_totals_are_unbiased() {
    let mut draws = Draws(7);
    for bytes in [512, 6 << 10, 100 << 10, 700 << 10] {
        let line = SampledLine { bytes, blocks: 2_000 * MIB / bytes, stay: 1 };
        let [_, (truth, estimate)] = run(&line, &mut draws);
        let error = estimate.standard_error_bytes.expect("it is known");
        // Two thousand samples: the error is a fiftieth.
        assert!(error < truth / 40 && estimate.bytes.abs_diff(truth) < 3 * error, "{bytes}: {estimate:?} for {truth}");
    }
}

#[test]
fn sampled_blocks_that_were_freed_do_not_count_as_live() {
    let mut drawn = SampledBlocks::default();
    for bytes in [512, 4096, 4096, MIB - 512] {
        drawn.grant(bytes);
    }
    let all = drawn.live(MIB + 2 * 4096);
    assert!((4 * MIB..6 * MIB).contains(&all.bytes) && all.standard_error_bytes > Some(MIB), "{all:?}");
    drawn.free(MIB - 512);
    assert!((3 * MIB..4 * MIB).contains(&drawn.live(512 + 2 * 4096).bytes));
    for bytes in [4096, 512, 4096] {
        drawn.free(bytes);
    }
    let none = drawn.live(0);
    assert_eq!((none.bytes, none.standard_error_bytes), (0, Some(MIB)), "none was drawn, which is no proof of none");
    assert_eq!(drawn.total(MIB + 2 * 4096), all);
}
