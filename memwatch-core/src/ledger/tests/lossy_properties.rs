//! The ledger after lost records: random histories with a gap, for which the kernel half's
//! allocation map is used instead.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::ProcessLedger;
use super::totals::AllocationKind;
use crate::decode::decode;
use crate::test_driver::{DriverHistory, Focus, Habits, HeldSums, HistoryMoment, play};

/// Returns steps with few sizes, so that allocations often look alike.
fn steps() -> impl Strategy<Value = Vec<(u8, u8, u8, u16)>> {
    vec((any::<u8>(), any::<u8>(), any::<u8>(), 0..5_u16), 0..200)
}

fn by_kind(sums: &HeldSums) -> BTreeMap<AllocationKind, u64> {
    let mut kinds = BTreeMap::new();
    for ((_, kind), bytes) in sums {
        *kinds.entry(*kind).or_insert(0) += bytes;
    }
    kinds
}

fn live(ledger: &ProcessLedger) -> BTreeMap<AllocationKind, u64> {
    let totals = ledger.totals();
    let of = |kind: AllocationKind| if kind.is_host() { totals.host() } else { totals.whole() }.kind(kind).live_bytes;
    AllocationKind::ALL.into_iter().map(|kind| (kind, of(kind))).filter(|(_, bytes)| *bytes > 0).collect()
}

fn apply(ledger: &mut ProcessLedger, moment: &HistoryMoment) {
    ledger.apply(&decode(&moment.record).expect("a row of the table"));
}

/// Returns the runs of records that may be lost, each up to a moment at which no call was running.
fn losses(history: &DriverHistory) -> Vec<(usize, usize)> {
    let moments = &history.moments;
    let ends = (0..moments.len()).filter(|last| moments[*last].counts.is_some() && moments[*last].losable);
    ends.map(|last| {
        let kept = moments[..last].iter().rposition(|moment| !moment.losable);
        (kept.map_or(0, |kept| kept + 1), last)
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn resync_after_lost_grants_and_frees_restores_every_kind(
        threads in 1..4_usize,
        focus in prop::sample::select([Focus::Everything, Focus::Pools, Focus::Graphs].as_slice()),
        steps in steps(),
        (loss, length) in any::<(Index, Index)>(),
    ) {
        let habits = Habits { threads, teardown: false, fresh_handles: false, stateful: true, focus };
        let history = play(habits, &steps);
        let losses = losses(&history);
        prop_assume!(!losses.is_empty());
        let (first, last) = *loss.get(&losses);
        let first = first + length.index(last + 1 - first);
        let mut ledger = ProcessLedger::new(true);
        for moment in &history.moments[..first] {
            apply(&mut ledger, moment);
        }
        let then = &history.moments[last];
        prop_assert!(ledger.anchor(&then.allocation_map, 0, then.record.returned_ns));
        prop_assert_eq!(live(&ledger), by_kind(&then.at_least), "without {} to {} of{}", first, last, history.reported(last));
        for (index, moment) in history.moments.iter().enumerate().skip(last + 1) {
            apply(&mut ledger, moment);
            let (least, held, most) = (by_kind(&moment.at_least), live(&ledger), by_kind(&moment.at_most));
            let of = |sums: &BTreeMap<AllocationKind, u64>, kind| sums.get(&kind).copied().unwrap_or(0);
            for kind in AllocationKind::ALL {
                let is_true = of(&least, kind) <= of(&held, kind) && of(&held, kind) <= of(&most, kind);
                prop_assert!(is_true, "{kind:?} without {first} to {last} of{}", history.reported(index));
            }
        }
        prop_assert_eq!(ledger.unknown_frees(), 0, "what was adopted is freed like anything else");
    }
}

/// A model that never makes a call would not test it.
#[test]
fn random_programs_come_to_every_call_of_the_model() {
    let mut made = BTreeSet::new();
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random.to_be_bytes()
    };
    for (focus, teardown) in Focus::ALL.into_iter().flat_map(|focus| [(focus, false), (focus, true)]) {
        let habits = Habits { threads: 2, teardown, fresh_handles: false, stateful: true, focus };
        for _ in 0..40 {
            let steps: Vec<_> =
                (0..250).map(|_| next()).map(|[a, b, c, d, e, ..]| (a, b, c, u16::from_be_bytes([d, e]))).collect();
            let moments = play(habits, &steps).moments;
            let calls = moments.iter().map(|moment| decode(&moment.record).expect("a row of the table"));
            made.extend(calls.filter(|call| call.status == 0).map(|call| call.symbol));
        }
    }
    assert_eq!(made.len(), 60, "{made:#?}");
}
