//! The ledger against a naive model ([`crate::test_driver`]) on random histories.

use proptest::collection::vec;
use proptest::prelude::*;

use super::ProcessLedger;
use super::pool::Backed;
use super::totals::{AllocationKind, ByteCounter, DeviceRef};
use crate::decode::decode;
use crate::test_driver::{
    DEVICES, DriverHistory, DriverStep, Focus, Habits, HeldSums, HistoryMoment, SimulatedCounts, play,
};
use crate::words::Ordinal;

const CASES: u32 = 800;
/// A device that the model does not have.
const UNKNOWN: u32 = u32::MAX;

fn steps() -> impl Strategy<Value = Vec<DriverStep>> {
    vec(any::<DriverStep>(), 0..250)
}

fn habits(threads: impl Strategy<Value = usize>, teardown: bool) -> impl Strategy<Value = Habits> {
    let focus = prop::sample::select(Focus::ALL.as_slice());
    let habits = move |(threads, focus)| Habits { threads, teardown, fresh_handles: false, stateful: true, focus };
    (threads, focus).prop_map(habits)
}

fn counters(ledger: &ProcessLedger) -> impl Iterator<Item = ((Option<u32>, AllocationKind), ByteCounter)> {
    let devices = ledger.totals().devices().flat_map(|(device, totals)| {
        let ordinal = match device {
            DeviceRef::Ordinal(Ordinal(ordinal)) => u32::try_from(ordinal).expect("no negative device"),
            DeviceRef::Unknown => UNKNOWN,
        };
        AllocationKind::ALL.map(|kind| ((Some(ordinal), kind), *totals.kind(kind)))
    });
    let host = ledger.totals().host();
    devices.chain(AllocationKind::ALL.map(|kind| ((None, kind), *host.kind(kind))))
}

fn live(ledger: &ProcessLedger) -> HeldSums {
    counters(ledger)
        .filter(|(_, counter)| counter.live_bytes > 0)
        .map(|(key, counter)| (key, counter.live_bytes))
        .collect()
}

fn owned_bytes(sums: &HeldSums) -> u64 {
    sums.iter().filter(|((_, kind), _)| kind.is_owned_device_memory()).map(|(_, bytes)| bytes).sum()
}

fn owned_on(sums: &HeldSums, device: u32) -> u64 {
    owned_bytes(&sums.iter().filter(|((own, _), _)| *own == Some(device)).map(|(key, bytes)| (*key, *bytes)).collect())
}

fn counted(ledger: &ProcessLedger) -> SimulatedCounts {
    SimulatedCounts {
        aliases: ledger.aliases(),
        reservation_bytes: ledger.reservation_bytes(),
        modules: ledger.modules(),
        graph_node_bytes: ledger.graph_node_bytes(),
        has_graph_memory: ledger.has_graph_memory(),
    }
}

/// Checks pools: they hold at least what is used of them, an amount that the ledger calls exact
/// equals the driver's, and the amounts that the program has queried are exact.
fn check_pools(
    ledger: &ProcessLedger,
    moment: &HistoryMoment,
    reported: impl Fn() -> String,
) -> Result<(), TestCaseError> {
    for (device, truth) in (0..DEVICES).zip(&moment.pools) {
        let backed =
            ledger.pool_backed(DeviceRef::Ordinal(Ordinal(device.cast_signed()))).expect("seen from the start");
        prop_assert!(truth.used_bytes <= backed.bytes, "device {device}: {truth:?}, {backed:?} after{}", reported());
        if let Some(held_bytes) = truth.held_bytes {
            let is_true = backed == Backed { bytes: held_bytes, estimated: false };
            let is_reported = truth.is_asked || !backed.estimated;
            prop_assert!(is_true || !is_reported, "device {device}: {truth:?}, {backed:?} after{}", reported());
        }
    }
    Ok(())
}

/// Applies a history and compares the ledger with the model after every record.
fn check(history: &DriverHistory) -> Result<ProcessLedger, TestCaseError> {
    let mut ledger = ProcessLedger::new(true);
    let (mut lowest_peak, mut highest_peak) = (0, 0);
    for (index, moment) in history.moments.iter().enumerate() {
        ledger.apply(&decode(&moment.record).expect("a row of the table"));
        let held = live(&ledger);
        let of = |sums: &HeldSums, key| sums.get(key).copied().unwrap_or(0);
        for key in held.keys().chain(moment.at_least.keys()) {
            let (least, held, most) = (of(&moment.at_least, key), of(&held, key), of(&moment.at_most, key));
            prop_assert!(
                least <= held && held <= most,
                "{key:?}: {least} <= {held} <= {most} after{}",
                history.reported(index)
            );
        }
        for (key, counter) in counters(&ledger) {
            let ByteCounter { live_bytes, peak_bytes, total_bytes, allocations, frees } = counter;
            prop_assert!(live_bytes <= peak_bytes && peak_bytes <= total_bytes, "record {index}: {key:?}: {counter:?}");
            prop_assert!(frees <= allocations, "record {index}: {key:?}: {counter:?}");
            prop_assert!(
                frees < allocations || key.1 == AllocationKind::Graph || live_bytes == 0,
                "{key:?}: {counter:?}"
            );
        }
        check_pools(&ledger, moment, || history.reported(index))?;
        if let Some(counts) = moment.counts {
            prop_assert_eq!(counted(&ledger), counts, "after{}", history.reported(index));
        }
        lowest_peak = lowest_peak.max(owned_bytes(&moment.at_least));
        highest_peak = highest_peak.max(owned_bytes(&moment.at_most));
    }
    let owned = ledger.totals().whole().owned;
    prop_assert!(lowest_peak <= owned.peak_bytes && owned.peak_bytes <= highest_peak);
    prop_assert_eq!(ledger.unknown_frees(), 0, "nothing is older than the ledger");
    prop_assert_eq!(ledger.implicit_frees(), history.torn_down);
    let failed = ledger.totals().whole().failed_allocations + ledger.totals().host().failed_allocations;
    prop_assert_eq!(failed, history.refused);
    Ok(ledger)
}

/// Returns the bytes held at the last moment. No call is running then, so they are exact.
fn in_the_end(history: &DriverHistory) -> HeldSums {
    history.moments.last().map(|moment| moment.at_most.clone()).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn contended_histories_of_all_families_end_with_what_is_truly_held(
        habits in habits(2..5_usize, false),
        steps in steps(),
    ) {
        let history = play(habits, &steps);
        let ledger = check(&history)?;
        prop_assert_eq!(live(&ledger), in_the_end(&history));
    }

    #[test]
    fn context_teardowns_take_what_cuda_says_and_nothing_else(habits in habits(1..4_usize, true), steps in steps()) {
        let history = play(habits, &steps);
        let ledger = check(&history)?;
        prop_assert_eq!(live(&ledger), in_the_end(&history));
    }

    #[test]
    fn the_calls_of_one_thread_have_exact_numbers_and_peaks_at_every_moment(
        habits in habits(Just(1_usize), true),
        steps in steps(),
    ) {
        let history = play(habits, &steps);
        let ledger = check(&history)?;
        let moments = &history.moments;
        let peak = |on: &dyn Fn(&HeldSums) -> u64| moments.iter().map(|moment| on(&moment.at_most)).max().unwrap_or(0);
        prop_assert_eq!(ledger.totals().whole().owned.peak_bytes, peak(&owned_bytes));
        for device in 0..DEVICES {
            let device_ref = DeviceRef::Ordinal(Ordinal(device.cast_signed()));
            let own = ledger.totals().devices().find(|(other, _)| *other == device_ref);
            prop_assert_eq!(own.map_or(0, |(_, own)| own.owned.peak_bytes), peak(&|sums| owned_on(sums, device)));
        }
    }

    #[test]
    fn a_ledger_that_comes_late_holds_just_what_it_saw_allocated(
        threads in 1..5_usize,
        steps in steps(),
        cut in any::<prop::sample::Index>(),
    ) {
        let focus = Focus::Everything;
        let history = play(Habits { threads, teardown: false, fresh_handles: true, stateful: false, focus }, &steps);
        let cut = cut.index(history.moments.len());
        let mut ledger = ProcessLedger::new(false);
        for moment in &history.moments[cut..] {
            ledger.apply(&decode(&moment.record).expect("a row of the table"));
        }
        for kind in AllocationKind::ALL {
            let seen = history.survivors.iter().filter(|thing| thing.kind == kind && thing.since >= cut);
            let totals = ledger.totals();
            let held = if kind.is_host() { totals.host() } else { totals.whole() }.kind(kind).live_bytes;
            prop_assert_eq!(held, seen.map(|thing| thing.bytes).sum::<u64>(), "{:?}", kind);
        }
    }

    #[test]
    fn held_bytes_at_a_past_moment_are_exact_or_unknown(
        habits in habits(1..4_usize, true),
        steps in vec(any::<DriverStep>(), 0..150),
        moment in any::<prop::sample::Index>(),
    ) {
        let history = play(habits, &steps);
        let ledger = check(&history)?;
        let then = moment.get(&history.moments);
        let then_ns = then.record.returned_ns + 1;
        let in_flight = |other: &HistoryMoment| other.record.entered_ns <= then_ns && then_ns <= other.record.returned_ns;
        for device in 0..DEVICES {
            let held = ledger.totals().held_over(DeviceRef::Ordinal(Ordinal(device.cast_signed())), then_ns, then_ns);
            let (least, most) = (owned_on(&then.at_least, device), owned_on(&then.at_most, device));
            prop_assert!(held.is_none_or(|held| least <= held && held <= most), "{least} <= {held:?} <= {most}");
            prop_assert!(held.is_some() || history.moments.iter().any(in_flight), "nothing was at work then");
        }
    }

    #[test]
    fn the_end_of_a_process_frees_everything_once(habits in habits(1..5_usize, true), steps in steps()) {
        let history = play(habits, &steps);
        let mut ledger = check(&history)?;
        let (peak, survivors) = (ledger.totals().whole().owned.peak_bytes, history.survivors.len());
        ledger.end(u64::MAX);
        prop_assert_eq!(live(&ledger), HeldSums::new());
        prop_assert_eq!(ledger.totals().whole().owned.peak_bytes, peak);
        prop_assert_eq!(ledger.implicit_frees(), history.torn_down + u64::try_from(survivors).expect("few"));
    }
}
