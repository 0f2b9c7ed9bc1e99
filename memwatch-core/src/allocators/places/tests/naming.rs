//! Blocks older than the watch that get a name later: the result is as if they had had it from the
//! start.

use proptest::prelude::*;

use super::*;
use std::collections::BTreeMap;

/// Address of the first older block. Events grant addresses below it.
const OLDER: u64 = 1 << 20;

/// Returns call site and module of an older block by its number.
fn held_as(number: u64) -> (SiteKey, Option<ModuleKey>) {
    (SiteKey(20 + (number % 3) as u32), Some(ModuleKey(20 + (number % 2) as u32)))
}

/// Plays events on top of older blocks; each event of an odd address frees one of these. The blocks
/// get their names before the event `named_at`, as far as they still exist at `until`.
fn play_older(older: &[u64], events: &[PlacedEvent], named_at: usize, until: usize) -> CodeAttribution {
    let mut places = CodeAttribution::default();
    let all: Vec<(u64, u64)> = (0..).zip(older).map(|(number, bytes)| (OLDER + number, *bytes)).collect();
    let mut allocated: u64 = older.iter().sum();
    places.observe(GPU, allocated, allocated);
    places.settle_older((GPU, 0), all.iter().copied().collect(), &BTreeMap::new());
    let freed_at = |index: usize, event: &PlacedEvent| {
        let one = all.get((event.address / 2) as usize % all.len().max(1)).filter(|_| event.address % 2 == 1);
        one.copied()
            .filter(|one| !events[..index].iter().any(|before| before.address % 2 == 1 && is(before, one, &all)))
    };
    let survives =
        |one: &(u64, u64)| !events[..until].iter().any(|event| event.address % 2 == 1 && is(event, one, &all));
    for (index, event) in events.iter().enumerate() {
        if index == named_at {
            for one in all.iter().filter(|one| survives(one)) {
                places.name_older((GPU, one.0), one.1, |_| held_as(one.0 - OLDER));
            }
        }
        let before = allocated;
        if let Some((address, bytes)) = freed_at(index, event) {
            allocated -= bytes;
            places.observe(GPU, before, allocated);
            places.free(GPU, address, bytes, index as u64);
        } else {
            allocated += event.bytes;
            places.observe(GPU, before, allocated);
            let whose = whose(event.site, event.module, event.phase);
            places.grant(&super::block(index as u64, event.bytes, index as u64), whose);
        }
        if event.bytes % 7 == 0 {
            places.close_window();
        }
    }
    places
}

fn is(event: &PlacedEvent, one: &(u64, u64), all: &[(u64, u64)]) -> bool {
    all.get((event.address / 2) as usize % all.len().max(1)) == Some(one)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_name_that_comes_late_counts_from_the_first_moment(
        older in prop::collection::vec(1..5000u64, 1..12), events in events(), at in any::<prop::sample::Index>()
    ) {
        let at = at.index(events.len().max(1));
        let (early, late) = (play_older(&older, &events, 0, at), play_older(&older, &events, at, at));
        let (early, late) = (&early.devices()[&GPU], &late.devices()[&GPU]);
        prop_assert_eq!(early.total(), late.total());
        let used = |device: &DeviceAttribution| {
            let site = |(key, sum): (SiteKey, &BlockSum)| {
                let floor = device.floor_bytes(key);
                (sum.peak_bytes > 0).then(|| (key, sum.live_bytes, sum.peak_bytes, device.at_peak_bytes(sum), sum.frees, floor))
            };
            device.sites().filter_map(site).collect::<Vec<_>>()
        };
        prop_assert_eq!(used(early), used(late));
        let sums = |device: &DeviceAttribution| -> Vec<_> {
            let modules = device.modules().map(|(_, module)| (module.sum, module.live_by_phase.iter().sum::<u64>()));
            let sums = modules.chain(device.phases().map(|(_, sum)| (*sum, sum.live_bytes)));
            sums.filter(|(sum, _)| sum.peak_bytes > 0).map(|(sum, live)| (live, sum.live_bytes, sum.peak_bytes, device.at_peak_bytes(&sum))).collect()
        };
        prop_assert_eq!(sums(early), sums(late));
        for list in lists(late) {
            prop_assert_eq!(list.iter().map(|sum| sum.live_bytes).sum::<u64>(), late.allocated_bytes());
            prop_assert_eq!(list.iter().map(|sum| late.at_peak_bytes(sum)).sum::<u64>(), late.total().peak_bytes);
        }
    }
}
