//! Single calls of real PyTorch on the simulated GPU, with its trace, and the results of
//! `memory_stats()` and of its snapshot.
//!
//! A line is: `K` the keys of `memory_stats()`, `S` their current values, `M` a request, `T` a
//! traced event, `R` and `O` reports, `A` a retry, `Y` a synchronization, `P` and `Z` resets; at
//! the end `G` a segment and `B` a block of it. Made with PyTorch's own memory history.

use crate::allocators::FrameworkAllocator as _;
use std::collections::{BTreeMap, BTreeSet};

use super::{ACTIONS, ALLOCATOR, device, event, reported, started, traced, values};
use crate::allocators::pytorch::{Allocators, BlockState, Certainty, DriverChange, PoolSize};
use crate::decode::{TensorChange, TraceAction};
use crate::words::Ordinal;

const RECORDED: [(&str, &str, usize); 4] = [
    ("2.8.0", include_str!("torch-2.8.0.txt"), 1),
    ("2.8.0 expandable", include_str!("torch-2.8.0-expandable.txt"), 1),
    ("2.15.0", include_str!("torch-2.15.0.txt"), 0),
    ("2.15.0 expandable", include_str!("torch-2.15.0-expandable.txt"), 0),
];
/// Set of attached probes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    Full,
    /// The full set after the trace was seen.
    WithoutRequests,
    WithoutTrace,
    Exported,
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).expect("an address")
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(word: &str) -> T {
    word.parse().expect("a number")
}

/// Returns the event of a line as it is seen with these probes. `size_word` is the word with a
/// request's size in this version.
fn seen(set: Set, words: &[&str], size_word: usize) -> Option<TensorChange> {
    let allocator = ALLOCATOR;
    let is_local = set != Set::Exported;
    let change = match *words {
        ["M", bytes] if is_local && set != Set::WithoutRequests => {
            let mut words = [0, 0];
            words[size_word] = number(bytes);
            TensorChange::Requested { allocator, words }
        }
        ["T", action, address, bytes, stream] => {
            let action = ACTIONS[number::<usize>(action)];
            match set {
                Set::Full | Set::WithoutRequests => traced(action, hex(address), number(bytes), number(stream)),
                Set::WithoutTrace if action == TraceAction::FreeCompleted => {
                    TensorChange::BlockFreed { allocator, address: Some(hex(address)) }
                }
                _ => return None,
            }
        }
        ["R", address, bytes, allocated, reserved] => {
            reported(hex(address), number(bytes), number(allocated), number(reserved))
        }
        ["O", wanted, allocated, reserved] => TensorChange::OutOfMemory {
            ordinal: Ordinal(0),
            wanted_bytes: number(wanted),
            allocated_bytes: number(allocated),
            reserved_bytes: number(reserved),
        },
        ["A"] if is_local => TensorChange::SegmentWanted { allocator, is_retry: true },
        ["Y"] if is_local => TensorChange::Synchronized { allocator },
        ["P"] if is_local => TensorChange::PeaksReset { ordinal: Ordinal(0) },
        ["Z"] if is_local => TensorChange::AccumulatedReset { ordinal: Ordinal(0) },
        _ => return None,
    };
    Some(change)
}

/// Returns the driver calls of a line. Memory is mapped in pages of 2 MiB.
fn drives(words: &[&str]) -> Option<Vec<DriverChange>> {
    let ["T", action, address, bytes, _] = *words else { return None };
    let (address, bytes): (u64, u64) = (hex(address), number(bytes));
    let pages = (address..address + bytes).step_by(2 << 20).map(|address| (address, 2 << 20));
    Some(match action {
        "4" => vec![DriverChange::Freed { address }],
        "5" => pages.map(|(address, bytes)| DriverChange::Mapped { address, bytes }).collect(),
        "6" => pages.map(|(address, bytes)| DriverChange::Unmapped { address, bytes }).collect(),
        _ => return None,
    })
}

/// Plays a recording and calls `at_statistics` with the true values at each of its checkpoints.
fn play(
    (text, size_word): (&str, usize),
    set: Set,
    mut at_statistics: impl FnMut(&Allocators, BTreeMap<&str, i64>),
) -> Allocators {
    let mut allocators = started();
    allocators.begin(true, if set == Set::Exported { &[3, 4, 5, 6, 7, 8, 9] } else { &[] });
    let mut keys = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[0] {
            "K" => keys = words[1..].to_vec(),
            "S" => {
                let truth = keys.iter().copied().zip(words[1..].iter().map(|word| number(word))).collect();
                if !allocators.devices().is_empty() {
                    at_statistics(&allocators, truth);
                }
            }
            "T" if !matches!(set, Set::Full | Set::WithoutRequests) && drives(&words).is_some() => {
                drives(&words).into_iter().flatten().for_each(|change| allocators.driver(change));
            }
            _ => {
                if let Some(change) = seen(set, &words, size_word) {
                    allocators.apply(&event(change));
                }
            }
        }
    }
    allocators
}

fn differences(allocators: &Allocators, truth: &BTreeMap<&str, i64>) -> Vec<String> {
    let own = values(allocators);
    let differ = |(key, value): (&&str, &i64)| {
        let got = own.get(*key).copied();
        (got != Some(*value)).then(|| format!("{key}: {got:?}, not {value}"))
    };
    truth.iter().filter_map(differ).collect()
}

#[test]
fn with_the_trace_every_number_is_pytorchs_own() {
    let sets = [Set::Full, Set::WithoutRequests];
    for ((name, text, size_word), set) in RECORDED.into_iter().flat_map(|recorded| sets.map(|set| (recorded, set))) {
        let mut checkpoints = 0;
        let allocators = play((text, size_word), set, |allocators, mut truth| {
            // Settings, and values that no event reports.
            truth.retain(|key, _| !["max_split_size", "num_oom_rejections"].contains(key) && !key.contains("private"));
            assert_eq!(differences(allocators, &truth), [""; 0], "{name}");
            checkpoints += 1;
        });
        assert!(checkpoints >= 8, "{name}: {checkpoints}");
        assert_eq!(device(&allocators).out_of_step(), 0, "{name}");
    }
}

#[test]
fn pytorch_allocators_resume_from_serialized_state_at_any_event() {
    for ((name, text, size_word), set) in
        RECORDED.into_iter().zip([Set::Full, Set::WithoutTrace, Set::Exported, Set::Full])
    {
        let stated = |allocators: &Allocators| {
            let device = device(allocators);
            format!(
                "{:?} {:?} {:?}",
                device.numbers(),
                device.memory(),
                (device.hits(), device.misses(), device.doubts.clone())
            )
        };
        let mut expected = Vec::new();
        let whole = play((text, size_word), set, |allocators, _| expected.push(stated(allocators)));
        let mut interrupted = started();
        interrupted.begin(true, if set == Set::Exported { &[3, 4, 5, 6, 7, 8, 9] } else { &[] });
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let is_traced = matches!(set, Set::Full | Set::WithoutRequests);
            match (seen(set, &words, size_word), drives(&words).filter(|_| !is_traced)) {
                (_, Some(changes)) => changes.into_iter().for_each(|change| interrupted.driver(change)),
                (Some(change), None) => drop(interrupted.apply(&event(change))),
                (None, None) => {}
            }
            let kept = postcard::to_allocvec(&interrupted).expect("it can be kept");
            interrupted = postcard::from_bytes(&kept).expect("it is what was kept");
        }
        assert_eq!(stated(&interrupted), stated(&whole), "{name}");
        assert_eq!(expected.last(), Some(&stated(&whole)), "{name}");
    }
}

#[test]
fn the_segments_and_blocks_are_those_of_pytorchs_snapshot() {
    for (name, text, size_word) in RECORDED {
        let allocators = play((text, size_word), Set::Full, |_, _| {});
        let memory = device(&allocators).memory();
        let segments: Vec<_> = memory
            .segments()
            .iter()
            .map(|(begin, segment)| {
                let pool = if segment.pool == PoolSize::Small { "small" } else { "large" };
                format!("{begin:x} {} {pool} {}", segment.bytes, u8::from(segment.is_expandable))
            })
            .collect();
        // The last requested size of a free block is unknown if memory is mapped behind it.
        let is_reported = |line: &str| !(line.contains("inactive") && name.contains("expandable"));
        let blocks: Vec<_> = memory
            .cells()
            .iter()
            .map(|(begin, cell)| {
                let state = match cell.state {
                    BlockState::Allocated => "active_allocated",
                    BlockState::Pending => "active_pending_free",
                    BlockState::Inactive => "inactive",
                };
                format!("{begin:x} {} {} {state}", cell.bytes, cell.requested_bytes.unwrap_or(0))
            })
            .collect();
        let lines = |kind: &str, words: usize| -> Vec<String> {
            let of_kind = text.lines().filter(|line| line.starts_with(kind));
            of_kind.map(|line| line.split_whitespace().skip(1).take(words).collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(segments, lines("G ", 4), "{name}");
        assert_eq!(blocks.len(), lines("B ", 4).len(), "{name}");
        for (got, expected) in blocks.iter().zip(lines("B ", 4)) {
            assert!(*got == expected || !is_reported(got) && !is_reported(&expected), "{name}: {got}, not {expected}");
        }
    }
}

/// Asserts that numbers that may be wrong with these probes are not reported as exact. Returns
/// the ones that are always exact.
fn exact_means_equal(set: Set) -> BTreeSet<String> {
    let mut always_exact: Option<BTreeSet<String>> = None;
    for (name, text, size_word) in RECORDED {
        play((text, size_word), set, |allocators, truth| {
            assert_eq!(device(allocators).out_of_step(), 0, "{name}");
            let numbers = device(allocators).numbers();
            let exact: BTreeMap<_, _> = numbers
                .iter()
                .filter(|(_, trust)| trust.certainty() == Certainty::Exact)
                .map(|(key, trust)| (key.as_ref(), trust.value))
                .collect();
            for (key, value) in &exact {
                assert_eq!(truth.get(key), Some(value), "{name}: {key}");
            }
            let keys: BTreeSet<_> = exact.keys().map(|key| (*key).to_owned()).collect();
            let before = always_exact.take();
            always_exact = Some(before.map_or(keys.clone(), |before| &before & &keys));
        });
    }
    always_exact.expect("there are checkpoints")
}

#[test]
fn exact_numbers_without_the_trace_equal_the_program_counters() {
    let exact = exact_means_equal(Set::WithoutTrace);
    assert!(exact.contains("allocated_bytes.all.peak"), "{exact:?}");
}

#[test]
fn exact_numbers_with_exported_symbols_only_equal_the_program_counters() {
    let exact = exact_means_equal(Set::Exported);
    assert!(exact.contains("segment.large_pool.current"), "{exact:?}");
    // A program may reset its peaks unseen.
    assert!(!exact.iter().any(|key| key.starts_with("requested_bytes") || key.ends_with("peak")), "{exact:?}");
}
