//! Totals of each list against a naive model.

mod naming;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::decode::StackRef;
use crate::words::Tid;

const GPU: Ordinal = Ordinal(0);

fn whose(site: u32, module: u32, phase: usize) -> Attribution {
    Attribution {
        phase: Phase::ALL[phase],
        site: SiteKey(site + 10),
        library: LibraryKey::NONE,
        module: ModuleKey(module + 10),
        recomputed: module == 1,
        stack: (site > 0).then_some(u64::from(site)),
        range: (site > 1).then_some(RangeKey(site)),
        ..BEFORE_ATTACH
    }
}

fn block(address: u64, block_bytes: u64, time_ns: u64) -> TensorBlock {
    TensorBlock {
        ordinal: GPU,
        address,
        block_bytes,
        requested_bytes: None,
        cached: None,
        tid: Tid(1),
        stack: StackRef::NotAsked,
        is_sampled: false,
        time_ns,
    }
}

fn lists(device: &DeviceAttribution) -> [Vec<BlockSum>; 5] {
    [
        device.sites().map(|(_, sum)| *sum).collect(),
        device.modules().map(|(_, module)| module.sum).collect(),
        device.phases().map(|(_, sum)| *sum).collect(),
        device.ranges().map(|(_, range)| range.sum).collect(),
        device.call_paths().map(|(_, sum)| *sum).collect(),
    ]
}

/// Event of the allocator: grants `bytes` at an address, or frees the address if it is in use.
#[derive(Clone, Copy, Debug)]
struct PlacedEvent {
    address: u64,
    bytes: u64,
    site: u32,
    module: u32,
    phase: usize,
}

fn events() -> impl Strategy<Value = Vec<PlacedEvent>> {
    let event = (0..40u64, 1..5000u64, 0..4u32, 0..3u32, 0..4usize)
        .prop_map(|(address, bytes, site, module, phase)| PlacedEvent { address, bytes, site, module, phase });
    prop::collection::vec(event, 0..400)
}

/// Plays events as an allocator would report them. A tenth of them free memory older than the
/// attach.
fn play(events: &[PlacedEvent], before_bytes: u64) -> (CodeAttribution, u64) {
    let mut places = CodeAttribution::default();
    let (mut allocated, mut older) = (before_bytes, before_bytes);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for (time_ns, event) in (0..).zip(events) {
        let before = allocated;
        let is_older = event.address == 0 && event.bytes <= older;
        let taken = if is_older { None } else { live.remove(&event.address) };
        let change = match taken.or(is_older.then_some(event.bytes)) {
            Some(bytes) => -bytes.cast_signed(),
            None => event.bytes.cast_signed(),
        };
        allocated = allocated.saturating_add_signed(change);
        places.observe(GPU, before, allocated);
        if is_older {
            older -= event.bytes;
            places.free(GPU, u64::MAX, event.bytes, time_ns);
        } else if change > 0 {
            live.insert(event.address, event.bytes);
            places.grant(&block(event.address, event.bytes, time_ns), whose(event.site, event.module, event.phase));
        } else {
            places.free(GPU, event.address, change.unsigned_abs(), time_ns);
        }
    }
    (places, allocated)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attribution_lists_each_sum_to_the_allocated_bytes(events in events(), before_bytes in 0..10_000u64) {
        let (places, allocated) = play(&events, before_bytes);
        let Some(device) = places.devices().get(&GPU) else { return Ok(()) };
        prop_assert_eq!(device.allocated_bytes(), allocated);
        prop_assert_eq!(device.unplaced_bytes(), 0);
        for list in lists(device) {
            let total = *device.total();
            prop_assert_eq!(list.iter().map(|sum| sum.live_bytes).sum::<u64>(), allocated);
            prop_assert_eq!(list.iter().map(|sum| sum.total_bytes).sum::<u64>(), total.total_bytes);
            prop_assert_eq!(list.iter().map(|sum| sum.allocations).sum::<u64>(), total.allocations);
            prop_assert_eq!(list.iter().map(|sum| sum.frees).sum::<u64>(), total.frees);
            prop_assert_eq!(list.iter().map(|sum| device.at_peak_bytes(sum)).sum::<u64>(), total.peak_bytes);
        }
        for (_, module) in device.modules() {
            prop_assert_eq!(module.live_by_phase.iter().sum::<u64>(), module.sum.live_bytes);
            prop_assert_eq!(module.total_by_phase.iter().sum::<u64>(), module.sum.total_bytes);
        }
    }

    #[test]
    fn attribution_at_peak_equals_a_copy_of_the_live_sums(events in events()) {
        let mut copied: BTreeMap<SiteKey, u64> = BTreeMap::new();
        let mut highest = 0;
        for end in 0..=events.len().min(60) {
            let (places, _) = play(&events[..end], 0);
            let Some(device) = places.devices().get(&GPU) else { continue };
            if device.total().peak_bytes > highest {
                highest = device.total().peak_bytes;
                copied = device.sites().map(|(key, sum)| (key, sum.live_bytes)).collect();
            }
            for (key, sum) in device.sites() {
                prop_assert_eq!(device.at_peak_bytes(sum), copied.get(&key).copied().unwrap_or(0));
            }
        }
    }
}

#[test]
fn lifetimes_are_of_blocks_seen_from_their_beginning() {
    let mut places = CodeAttribution::default();
    places.observe(GPU, 1000, 1010);
    places.grant(&block(1, 10, 100), whose(0, 0, 0));
    places.grant(&block(2, 10, 100), whose(0, 0, 0));
    places.free(GPU, 1, 10, 150);
    places.free(GPU, 2, 10, 350);
    places.free(GPU, 3, 1000, 400);
    let device = &places.devices()[&GPU];
    let (_, sum) = device.sites().find(|(key, _)| *key == SiteKey(10)).expect("it has blocks");
    assert_eq!((sum.mean_lifetime_ns(), sum.longest_ns, sum.live_bytes), (Some(150), 250, 0));
    let (_, older) = device.sites().find(|(key, _)| *key == SiteKey::BEFORE_ATTACH).expect("there was memory");
    assert_eq!((older.live_bytes, older.peak_bytes, older.frees), (0, 1000, 1));
}

#[test]
fn a_block_at_the_address_of_a_live_one_shows_that_a_free_was_lost() {
    let mut places = CodeAttribution::default();
    places.observe(GPU, 0, 10);
    places.grant(&block(1, 10, 1), whose(0, 0, 0));
    places.observe(GPU, 0, 30);
    places.grant(&block(1, 30, 2), whose(1, 0, 0));
    let device = &places.devices()[&GPU];
    assert_eq!((device.total().live_bytes, device.unplaced_bytes()), (30, 0));
    places.observe(GPU, 30, 5);
    assert_eq!(places.devices()[&GPU].unplaced_bytes(), -25);
}

#[test]
fn large_blocks_are_listed_while_they_live() {
    let mut places = CodeAttribution::default();
    places.grant(&block(1, 10, 1), whose(0, 0, 0));
    places.grant(&block(2, 100 << 20, 1), whose(0, 0, 0));
    assert_eq!(places.large().map(|block| block.address).collect::<Vec<_>>(), [2]);
    places.list_from(10);
    assert_eq!(places.large().map(|block| block.address).collect::<Vec<_>>(), [1, 2]);
    places.free(GPU, 2, 100 << 20, 2);
    assert_eq!(places.large().map(|block| block.address).collect::<Vec<_>>(), [1]);
}

#[test]
fn peaks_begin_again_where_they_are_reset() {
    let mut places = CodeAttribution::default();
    places.grant(&block(1, 100, 1), whose(0, 0, 0));
    places.grant(&block(2, 30, 1), whose(1, 1, 1));
    places.free(GPU, 1, 100, 2);
    places.reset_peaks();
    let device = &places.devices()[&GPU];
    for list in lists(device) {
        assert_eq!(list.iter().map(|sum| sum.peak_bytes).sum::<u64>(), 30);
        assert_eq!(list.iter().map(|sum| device.at_peak_bytes(sum)).sum::<u64>(), 30);
    }
}

#[test]
fn the_call_paths_beyond_the_bound_share_a_row_for_each_phase() {
    let mut places = CodeAttribution::default();
    for number in 0..CALL_PATHS as u64 + 100 {
        let whose = Attribution { stack: Some(number + 1), ..whose(0, 0, 0) };
        places.grant(&block(number, 1, 1), whose);
    }
    let device = &places.devices()[&GPU];
    let shared: Vec<_> = device.call_paths().filter(|(call_path, _)| call_path.site == SiteKey::REST).collect();
    assert_eq!(device.call_paths().count(), CALL_PATHS + 1);
    let [(call_path, sum)] = shared[..] else { panic!("one stage, one row: {shared:?}") };
    assert_eq!((call_path.stack, call_path.row.phase, sum.live_bytes), (None, Phase::ALL[0], 100));
}

#[test]
fn a_counter_that_lags_by_some_bytes_costs_no_large_block_its_row() {
    const LARGE: u64 = 1 << 30;
    let (mut all, ordinal) = (CodeAttribution::default(), Ordinal(0));
    let blocks = BTreeMap::from([(0x1000, 4 << 10), (0x10_0000, 64 << 10), (0x1000_0000, LARGE)]);
    let whole: u64 = blocks.values().sum();
    all.observe(ordinal, whole, whole);
    all.adopt_older(ordinal, &blocks);
    let has = |all: &CodeAttribution| blocks.keys().map(|at| all.live(ordinal, *at).is_some()).collect::<Vec<_>>();
    all.count_allocated(ordinal, whole - 1024);
    assert_eq!(has(&all), [false, true, true], "the smallest explains it");
    all.count_allocated(ordinal, whole - LARGE);
    assert_eq!(has(&all), [false, true, false], "only the large one explains it");
}
