//! Random programs: the model of fixed segments equals the naive one, and no policy reserves less
//! than it has granted.

use proptest::collection::vec;
use proptest::prelude::*;

use super::MIB;
use super::naive::NaivePolicy;
use crate::features::simulate::model::{BlockHandle, Capacity, PolicyPlan, Settings, SimulatedRequest};

const CASES: u32 = 200;

/// Next step: action, place and amount.
type PolicyStep = (u8, u8, u32);

fn steps() -> impl Strategy<Value = Vec<PolicyStep>> {
    vec(any::<PolicyStep>(), 1..200)
}

/// Returns a request with one of few sizes of all kinds: several blocks of one size are what
/// matters.
fn request(place: u8, amount: u32) -> SimulatedRequest {
    let bytes = match amount % 8 {
        0 | 1 => u64::from(amount / 8 % 2_000),
        2 => u64::from(amount / 8 % 4) * 262_144 + 1,
        3 | 4 => MIB + u64::from(amount / 8 % 9) * MIB,
        5 => 10 * MIB + u64::from(amount / 8 % 3) * 700_000,
        6 => 33 * MIB,
        _ => u64::from(amount / 8 % 100) * MIB,
    };
    let private_pool = if place.is_multiple_of(11) { (1, 0) } else { (0, 0) };
    SimulatedRequest { bytes: bytes.max(1), stream: u64::from(place.is_multiple_of(3)), private_pool }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn fixed_segments_are_the_naive_ones(steps in steps(), is_tight in any::<bool>(), limit in proptest::option::of(21_u64..64)) {
        let available_bytes = if is_tight { 400 * MIB } else { u64::MAX };
        // Without retries: the naive allocator does not model which blocks a split limit releases
        // first.
        let available_bytes = if limit.is_some() { u64::MAX } else { available_bytes };
        let max_split_bytes = limit.map(|limit| limit * MIB);
        let mut policy = PolicyPlan::PyTorch(Settings { max_split_bytes, ..Settings::default() }).policy();
        policy.set_capacity(Capacity { total_bytes: 1 << 40, available_bytes });
        let mut naive = NaivePolicy::new(max_split_bytes, available_bytes);
        let (mut held, mut hits): (Vec<(usize, BlockHandle)>, u64) = (Vec::new(), 0);
        for (owner, (what, place, amount)) in steps.into_iter().enumerate() {
            match what {
                0..150 => {
                    let request = request(place, amount);
                    let granted = policy.allocate(&request);
                    prop_assert_eq!(granted.is_some(), naive.allocate(owner, &request));
                    if let Some(granted) = granted {
                        hits += u64::from(granted.is_hit);
                        held.push((owner, granted.handle));
                    }
                }
                150..245 if !held.is_empty() => {
                    let (owner, handle) = held.swap_remove(amount as usize % held.len());
                    policy.give_back(handle);
                    policy.complete(handle);
                    naive.free(owner);
                }
                _ => {
                    policy.empty_cache();
                    naive.empty_cache();
                }
            }
            let meter = policy.meter();
            prop_assert_eq!(meter.reserved_bytes, naive.reserved_bytes());
            prop_assert_eq!(meter.allocated_bytes, naive.allocated_bytes());
            prop_assert_eq!((meter.peak_reserved_bytes, hits), (naive.peak_bytes, naive.hits));
        }
    }

    #[test]
    fn simulated_policy_reserves_what_it_granted_and_frees_all_at_the_end(steps in steps(), which in 0..5_usize, available in 100_u64..2_000) {
        let mut policy = PolicyPlan::usual()[which].policy();
        policy.set_capacity(Capacity { total_bytes: 2_000 * MIB, available_bytes: available * MIB });
        let mut held: Vec<BlockHandle> = Vec::new();
        let mut pending: Vec<BlockHandle> = Vec::new();
        for (what, place, amount) in steps {
            match what {
                0..140 => held.extend(policy.allocate(&request(place, amount)).map(|granted| granted.handle)),
                140..230 if !held.is_empty() => {
                    let handle = held.swap_remove(amount as usize % held.len());
                    policy.give_back(handle);
                    if place > 50 {
                        policy.complete(handle);
                    } else {
                        pending.push(handle);
                    }
                }
                230..245 if !pending.is_empty() => policy.complete(pending.swap_remove(amount as usize % pending.len())),
                _ => {
                    policy.empty_cache();
                    pending.clear();
                }
            }
            let meter = policy.meter();
            prop_assert!(meter.allocated_bytes <= meter.reserved_bytes, "{:?}", meter);
            prop_assert!(meter.reserved_bytes <= available * MIB, "{:?}", meter);
            prop_assert!(meter.peak_reserved_bytes >= meter.reserved_bytes);
            prop_assert!(meter.allocated_bytes + policy.free_bytes().1 <= meter.reserved_bytes, "{:?}", policy);
        }
        for handle in held {
            policy.give_back(handle);
            policy.complete(handle);
        }
        policy.empty_cache();
        policy.release_pool((1, 0));
        prop_assert_eq!((policy.meter().reserved_bytes, policy.meter().allocated_bytes), (0, 0));
        prop_assert_eq!(policy.free_bytes(), (0, 0));
    }
}
