//! The words of real allocators, read in the processes themselves, and the result of
//! `memory_stats()` at the same moment.

use memwatch_common::tensor::STATISTICS_WORDS;
use proptest::prelude::*;

use crate::allocators::pytorch::readout::read;
use crate::allocators::pytorch::{StatFamily, StatScope, StatisticsWords};

const READ: [(&str, &str); 2] =
    [("2.8.0", include_str!("words-2.8.0.txt")), ("2.15.0", include_str!("words-2.15.0.txt"))];

fn words_and_truth(text: &str) -> (StatisticsWords, impl Fn(&str) -> Option<i64>) {
    let mut lines = text.lines();
    let words: Vec<u64> = lines.next().expect("a line").split(' ').map(|word| word.parse().expect("a word")).collect();
    let truth = move |key: &str| {
        let value = lines.clone().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        Some(value.parse().expect("a number"))
    };
    (words.try_into().expect("so many"), truth)
}

#[test]
fn both_layouts_are_determined_by_what_must_hold_among_the_numbers() {
    for (version, text) in READ {
        let (words, truth) = words_and_truth(text);
        let total = |key: &str| u64::try_from(truth(key).expect("it is there")).expect("not below 0");
        let totals = [total("allocated_bytes.all.current"), total("reserved_bytes.all.current")];
        let readout = read(&words, totals[0], totals[1]).expect("it is what it should be");
        for family in StatFamily::ALL {
            for scope in StatScope::ALL {
                let stat = readout.statistics.get(family, scope);
                let sides = [stat.current, stat.peak, stat.allocated, stat.freed];
                for (side, value) in ["current", "peak", "allocated", "freed"].into_iter().zip(sides) {
                    let key = format!("{}.{}.{side}", family.name(), scope.name());
                    assert_eq!(truth(&key), Some(value), "{version}: {key}");
                }
            }
        }
        let (counters, tail) = (readout.statistics.counters, readout.tail.expect("it is found"));
        assert_eq!(Some(counters.retries), truth("num_alloc_retries"), "{version}");
        assert_eq!(Some(counters.ooms), truth("num_ooms"), "{version}");
        assert_eq!(Some(counters.synchronizations), truth("num_sync_all_streams"), "{version}");
        assert_eq!(Some(counters.device_allocations), truth("num_device_alloc"), "{version}");
        assert_eq!(Some(counters.device_frees), truth("num_device_free"), "{version}");
        assert_eq!(Some(tail.max_split_size), truth("max_split_size"), "{version}");
        assert_eq!(tail.oom_rejections, truth("num_oom_rejections"), "{version}");
        assert_eq!(read(&words, totals[0] + 512, totals[1]), None, "{version}: it is not what was reported");
        let mut shifted = words;
        shifted.rotate_left(1);
        assert_eq!(read(&shifted, totals[0], totals[1]), None, "{version}: it is not there");
    }
}

proptest! {
    #[test]
    fn statistics_readout_of_arbitrary_words_never_panics(words in prop::collection::vec(any::<u64>(), STATISTICS_WORDS), zero in 0..STATISTICS_WORDS) {
        let mut words: StatisticsWords = words.try_into().expect("so many");
        words[..zero].fill(0);
        read(&words, words[48], words[60]);
    }
}
