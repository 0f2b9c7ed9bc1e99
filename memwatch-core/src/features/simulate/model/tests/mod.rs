//! Policies against known properties of PyTorch's allocator, and against naive models.

mod feed;
mod naive;
mod properties;
mod settings;

use super::{AllocationPolicy, BlockHandle, Capacity, GrantedBlock, PolicyPlan, Settings, SimulatedRequest};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Returns a policy with this value of `PYTORCH_CUDA_ALLOC_CONF`.
fn policy(setting: &str) -> Box<dyn AllocationPolicy> {
    PolicyPlan::PyTorch(Settings::parse(setting).expect("a setting")).policy()
}

fn of(bytes: u64) -> SimulatedRequest {
    SimulatedRequest { bytes, stream: 0, private_pool: (0, 0) }
}

fn granted(policy: &mut Box<dyn AllocationPolicy>, bytes: u64) -> GrantedBlock {
    policy.allocate(&of(bytes)).expect("there is room")
}

fn free(policy: &mut Box<dyn AllocationPolicy>, handle: BlockHandle) {
    policy.give_back(handle);
    policy.complete(handle);
}

fn reserved(policy: &dyn AllocationPolicy) -> u64 {
    policy.meter().reserved_bytes
}

/// Returns the capacity of a device whose whole memory is available to the allocator.
fn capacity(bytes: u64) -> Capacity {
    Capacity { total_bytes: bytes, available_bytes: bytes }
}

#[test]
fn simulated_segments_are_2_mib_20_mib_or_the_rounded_request() {
    for (bytes, taken) in [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (77 * MIB + 5, 78 * MIB),
    ] {
        let mut policy = policy("");
        assert!(!granted(&mut policy, bytes).is_hit);
        assert_eq!(reserved(&*policy), taken, "{bytes}");
    }
}

#[test]
fn simulated_best_fit_never_crosses_streams_or_private_pools() {
    let mut policy = policy("");
    let large = granted(&mut policy, 40 * MIB).handle;
    let fitting = granted(&mut policy, 30 * MIB).handle;
    free(&mut policy, large);
    free(&mut policy, fitting);
    assert!(granted(&mut policy, 29 * MIB + MIB / 2).is_hit);
    assert!(granted(&mut policy, 40 * MIB).is_hit);
    assert_eq!(reserved(&*policy), 70 * MIB);
    let elsewhere = [SimulatedRequest { stream: 7, ..of(MIB) }, SimulatedRequest { private_pool: (1, 2), ..of(MIB) }];
    for request in elsewhere {
        assert!(!policy.allocate(&request).expect("there is room").is_hit);
    }
    assert_eq!(reserved(&*policy), 74 * MIB);
}

#[test]
fn simulated_split_keeps_remainders_above_1_mib_or_in_the_small_pool() {
    let mut policy = policy("");
    let whole = granted(&mut policy, 30 * MIB).handle;
    free(&mut policy, whole);
    granted(&mut policy, 29 * MIB);
    assert_eq!(policy.meter().allocated_bytes, 30 * MIB, "a rest of 1 MiB goes with it");
    granted(&mut policy, 512);
    granted(&mut policy, 2 * MIB / 2 - 512);
    assert_eq!(policy.meter().allocated_bytes, 31 * MIB);
    assert_eq!(policy.free_bytes(), (MIB, MIB));
}

#[test]
fn simulated_segment_is_freed_when_unused_and_pending_blocks_awaited() {
    let mut policy = policy("");
    let [first, second] = [granted(&mut policy, 9 * MIB).handle, granted(&mut policy, 9 * MIB).handle];
    free(&mut policy, first);
    policy.empty_cache();
    assert_eq!(reserved(&*policy), 20 * MIB);
    policy.give_back(second);
    assert!(!granted(&mut policy, 10 * MIB).is_hit, "a stream uses it still");
    policy.empty_cache();
    assert_eq!((reserved(&*policy), policy.meter().driver_frees), (10 * MIB, 1));
}

#[test]
fn segments_that_grow_take_whole_pages_and_give_whole_pages_back() {
    let mut policy = policy("expandable_segments:True");
    let first = granted(&mut policy, 25 * MIB).handle;
    assert_eq!(reserved(&*policy), 40 * MIB);
    let second = granted(&mut policy, 25 * MIB).handle;
    assert_eq!(reserved(&*policy), 60 * MIB, "15 MiB lay free before");
    free(&mut policy, first);
    policy.empty_cache();
    assert_eq!(reserved(&*policy), 40 * MIB, "the second page of the first is the second's, too");
    granted(&mut policy, 20 * MIB);
    assert_eq!(reserved(&*policy), 60 * MIB, "the gap is filled first");
    free(&mut policy, second);
    policy.empty_cache();
    assert_eq!(reserved(&*policy), 20 * MIB);
    granted(&mut policy, 100);
    assert_eq!(reserved(&*policy), 22 * MIB);
}

#[test]
fn pieces_that_no_fixed_segment_can_join_make_room_in_one_that_grows() {
    let pieces = |setting: &str| {
        let mut policy = policy(setting);
        policy.set_capacity(capacity(1_300 * MIB));
        let handles: Vec<BlockHandle> = (0..120).map(|_| granted(&mut policy, 9 * MIB).handle).collect();
        handles.into_iter().step_by(2).for_each(|handle| free(&mut policy, handle));
        policy.allocate(&of(512 * MIB)).is_some()
    };
    assert!(!pieces(""));
    assert!(!pieces("expandable_segments:True"), "9 MiB of 20 free no page");
    let wide = |setting: &str| {
        let mut policy = policy(setting);
        policy.set_capacity(capacity(1_300 * MIB));
        let handles: Vec<BlockHandle> = (0..20).map(|_| granted(&mut policy, 60 * MIB).handle).collect();
        handles.into_iter().step_by(2).for_each(|handle| free(&mut policy, handle));
        (policy.allocate(&of(512 * MIB)).is_some(), policy.meter().retries)
    };
    assert_eq!(wide(""), (true, 1));
    assert_eq!(wide("expandable_segments:True"), (true, 1));
}

#[test]
fn blocks_above_the_limit_are_not_split_and_go_to_no_smaller_request() {
    let mut policy = policy("max_split_size_mb:32");
    let whole = granted(&mut policy, 100 * MIB).handle;
    free(&mut policy, whole);
    assert!(!granted(&mut policy, 20 * MIB).is_hit);
    assert!(!granted(&mut policy, 80 * MIB).is_hit, "20 MiB smaller is too much");
    let loose = granted(&mut policy, 81 * MIB);
    assert!(loose.is_hit);
    assert_eq!(policy.meter().allocated_bytes, 200 * MIB, "it has all of it");
}

#[test]
fn simulated_large_segment_size_sets_sharing_and_the_rounding_limit() {
    let mut odd = policy("large_segment_size_mb:33");
    granted(&mut odd, 9 * MIB);
    granted(&mut odd, 30 * MIB);
    assert_eq!(reserved(&*odd), 63 * MIB);
    let kept = |setting: &str| {
        let mut policy = policy(setting);
        let whole = granted(&mut policy, 100 * MIB).handle;
        free(&mut policy, whole);
        granted(&mut policy, 75 * MIB).is_hit
    };
    assert!(!kept("max_split_size_mb:64"), "25 MiB smaller is too much");
    assert!(kept("max_split_size_mb:64,large_segment_size_mb:40"));
    assert!(kept("max_split_size_mb:64,max_non_split_rounding_mb:26"));
}

#[test]
fn while_a_graph_is_captured_the_cache_is_not_emptied_for_it() {
    let mut policy = policy("");
    policy.set_capacity(capacity(100 * MIB));
    let cached = granted(&mut policy, 60 * MIB).handle;
    free(&mut policy, cached);
    let captured = SimulatedRequest { private_pool: (0, 1), ..of(50 * MIB) };
    assert_eq!(policy.allocate(&captured), None);
    assert_eq!((reserved(&*policy), policy.meter().retries), (60 * MIB, 0));
    assert!(!granted(&mut policy, 70 * MIB).is_hit);
    assert_eq!((reserved(&*policy), policy.meter().retries), (70 * MIB, 1));
}

#[test]
fn blocks_above_the_limit_go_back_one_by_one_where_the_driver_refuses() {
    let mut policy = policy("max_split_size_mb:32");
    policy.set_capacity(capacity(300 * MIB));
    let (first, second) = (granted(&mut policy, 100 * MIB).handle, granted(&mut policy, 160 * MIB).handle);
    let small = granted(&mut policy, 12 * MIB).handle;
    for handle in [first, second, small] {
        free(&mut policy, handle);
    }
    granted(&mut policy, 60 * MIB);
    assert_eq!((reserved(&*policy), policy.meter().retries), (232 * MIB, 0), "the smallest that is enough went");
}

#[test]
fn simulated_garbage_collection_threshold_uses_the_memory_fraction() {
    let mut policy = policy("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5");
    policy.set_capacity(capacity(1_000 * MIB));
    let old = granted(&mut policy, 200 * MIB).handle;
    free(&mut policy, old);
    for _ in 0..8 {
        let young = granted(&mut policy, 100 * MIB + 2).handle;
        free(&mut policy, young);
    }
    granted(&mut policy, 210 * MIB);
    assert_eq!(reserved(&*policy), 410 * MIB, "200 MiB of 500 were below the threshold");
    let refused = policy.allocate(&of(300 * MIB));
    assert!(refused.is_none(), "more than half of the device");
}

#[test]
fn without_a_limit_nothing_is_collected() {
    let mut policy = policy("garbage_collection_threshold:0.1");
    policy.set_capacity(capacity(1_000 * MIB));
    let old = granted(&mut policy, 600 * MIB).handle;
    free(&mut policy, old);
    granted(&mut policy, 601 * MIB / 3 * 2);
    assert_eq!(reserved(&*policy), 600 * MIB);
}

#[test]
fn size_classes_keep_small_blocks_by_size_and_large_ones_not_at_all() {
    let mut policy = PolicyPlan::SizeClasses.policy();
    let small = granted(&mut policy, 600 * KIB).handle;
    assert_eq!((reserved(&*policy), policy.meter().allocated_bytes), (2 * MIB, 640 * KIB));
    granted(&mut policy, 600 * KIB);
    assert!(granted(&mut policy, 630 * KIB).is_hit);
    assert!(!granted(&mut policy, 641 * KIB).is_hit, "another class");
    let large = granted(&mut policy, 33 * MIB).handle;
    assert_eq!(reserved(&*policy), 38 * MIB);
    free(&mut policy, large);
    assert_eq!(reserved(&*policy), 4 * MIB);
    free(&mut policy, small);
    policy.empty_cache();
    assert_eq!(reserved(&*policy), 4 * MIB, "others are in the slab");
}
