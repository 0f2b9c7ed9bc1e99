use memwatch_common::tensor::{FLAG_COPY_LOST, FLAG_COPY_OVER_BUDGET};

use super::*;
use crate::allocators::pytorch::tests::naive::NaiveAllocator;
use crate::decode::{TensorChange, TensorEvent};
use crate::stack::native::{NativeEnd, NativeFrame, NativeRole, NativeStack};
use crate::stack::{PythonFrame, PythonStack};
use crate::words::{Tgid, Tid};

/// Returns a ledger with one block of this size on each of `lines` lines, and the free of half of
/// the first block.
fn ledger(lines: u32) -> TensorLedger {
    let mut ledger = TensorLedger::default();
    let mut allocated_bytes = 0;
    for line in 1..=lines {
        let code = PythonCode { function: "f".into(), file: "a.py".into(), line: Some(line) };
        let frames = vec![PythonFrame { code: Some(code), module: None }];
        ledger.learn(u64::from(line), PythonStack { frames, truncated: false, borders: Vec::new() });
        let block_bytes = i64::from(line) * 512;
        allocated_bytes += block_bytes.unsigned_abs();
        let what = TensorChange::Reported {
            ordinal: Ordinal(0),
            address: u64::from(line) << 32,
            block_bytes,
            allocated_bytes,
            reserved_bytes: allocated_bytes,
        };
        let stack = StackRef::Known(u64::from(line));
        ledger.apply(&TensorEvent::made((Tgid(1), Tid(1)), u64::from(line), stack, what));
    }
    ledger
}

fn view(ledger: &TensorLedger) -> DeviceAttributionView {
    let mut devices = tensors(ledger, |_| None).attribution.devices;
    assert_eq!(devices.len(), 1);
    devices.remove(0)
}

#[test]
fn lists_begin_with_the_largest_row_and_add_up() {
    let device = view(&ledger(3));
    let lines: Vec<_> = device.sites.iter().map(|site| (site.line, site.sum.live_bytes)).collect();
    assert_eq!(lines, [(Some(3), 1536), (Some(2), 1024), (Some(1), 512)]);
    assert_eq!((device.allocated_bytes, device.unplaced_bytes), (3072, 0));
    assert_eq!(device.phases[0].phase, "outside");
    assert_eq!((device.modules[0].kind.as_ref(), device.ranges[0].kind.as_ref()), ("none", "none"));
    assert_eq!(device.stacks[0].frames[0].line, Some(3));
}

#[test]
fn attribution_rows_past_the_limit_are_summed_in_a_rest_row() {
    let lines = 2000;
    let device = view(&ledger(lines));
    let (rest, listed) = device.sites.split_last().expect("there are rows");
    assert_eq!((listed.len(), rest.kind.as_ref(), rest.line), (SITES, "rest", None));
    assert_eq!(rest.sum.allocations, u64::from(lines) - SITES as u64);
    let sum: u64 = device.sites.iter().map(|site| site.sum.live_bytes).sum();
    assert_eq!(sum, device.allocated_bytes);
    let at_peak: u64 = device.sites.iter().map(|site| site.sum.at_peak_bytes).sum();
    assert_eq!(at_peak, device.total.peak_bytes);
    assert_eq!(device.stacks.len(), STACKS);
}

#[test]
fn call_paths_are_complete_and_include_threads_without_a_stack() {
    let mut ledger = ledger(2000);
    let what = TensorChange::Reported {
        ordinal: Ordinal(0),
        address: 7,
        block_bytes: 512,
        allocated_bytes: view(&ledger).allocated_bytes + 512,
        reserved_bytes: 1 << 40,
    };
    ledger.apply(&TensorEvent::made((Tgid(1), Tid(2)), 9, StackRef::NoPython, what));
    let mut devices = call_paths(&ledger, |_| None);
    let device = devices.remove(0);
    assert_eq!((devices.len(), device.call_paths.len(), device.unplaced_bytes), (0, 2001, 0));
    let sum = |of: fn(&SumView) -> u64| device.call_paths.iter().map(|call_path| of(&call_path.site.sum)).sum::<u64>();
    assert_eq!(sum(|sum| sum.live_bytes), device.total.live_bytes);
    assert_eq!(sum(|sum| sum.at_peak_bytes), device.total.peak_bytes);
    assert_eq!(sum(|sum| sum.total_bytes), device.total.total_bytes);
    assert_eq!(sum(|sum| sum.allocations), 2001);
    assert_eq!(device.call_paths[0].frames[0].line, Some(2000), "the largest is the first");
    let native =
        device.call_paths.iter().find(|call_path| call_path.frames.is_empty()).expect("a thread without Python");
    assert_eq!((&*native.site.kind, native.phase.sum.live_bytes), ("no_python", 512));
}

#[test]
fn native_stacks_are_merged_with_python_and_counted_by_their_end() {
    let mut ledger = ledger(1);
    let frame = |function: &str, library: &str| NativeFrame {
        function: Some(function.into()),
        name: Some(function.into()),
        library: library.into(),
        address: 16,
        role: NativeRole::Code,
    };
    let frames = || vec![frame("at::empty", "libtorch.so"), frame("_PyEval_EvalFrameDefault", "python3")];
    ledger.learn_native(1, NativeStack::new(frames(), NativeEnd::Complete));
    ledger.count_copies(FLAG_COPY_LOST);
    ledger.count_copies(FLAG_COPY_OVER_BUDGET);
    let seen = tensors(&ledger, |_| None);
    let expected = [("complete", 1), ("lost", 1), ("over_budget", 1)].map(|(name, count)| (name.into(), count));
    assert_eq!(seen.native_stacks, BTreeMap::from(expected));
    // Nothing shows that the Python frame ran in this call of the loop.
    let native = view(&ledger).stacks[0].native.clone().expect("it is known");
    let kinds: Vec<_> = native.frames.iter().map(|frame| (&*frame.kind, frame.function.as_deref())).collect();
    assert_eq!(kinds, [("native", Some("at::empty")), ("python", Some("f"))]);
    assert_eq!((&*native.end, native.cut, native.mismatched), ("complete", Some(1), true));
    ledger.learn_native(1, NativeStack::new(frames(), NativeEnd::Differing));
    assert_eq!(tensors(&ledger, |_| None).native_stacks.get("complete"), None, "it is another now");
}

/// Returns an allocator's reports of these grants, each with its stack. The first `given_back`
/// grants are freed again.
fn granted(grants: &[(u64, StackRef)], given_back: usize) -> TensorLedger {
    let mut naive = NaiveAllocator::new(0, false);
    let mut ledger = TensorLedger::default();
    ledger.begin(true, &[]);
    let mut report = |naive: &mut NaiveAllocator, stack| {
        for (tid, what) in std::mem::take(&mut naive.reported) {
            ledger.apply(&TensorEvent::made((Tgid(1), tid), 1, stack, what));
        }
    };
    for (bytes, stack) in grants {
        naive.request(Tid(1), *bytes);
        naive.grant(Tid(1), *bytes, 0, 0);
        report(&mut naive, *stack);
    }
    for _ in 0..given_back {
        naive.give_back(Tid(1), 0, false);
        report(&mut naive, StackRef::NotAsked);
    }
    ledger
}

const MIB: u64 = 1 << 20;

/// Returns the rounding of live blocks and of all blocks, and the free bytes next to them, for the
/// module of this kind.
fn fragments(ledger: &TensorLedger, kind: &str) -> [Option<u64>; 3] {
    let module = view(ledger).modules.into_iter().find(|module| module.kind == kind).expect("it has allocated");
    [module.rounding_bytes, module.total_rounding_bytes, module.nearby_split_bytes]
}

#[test]
fn module_row_has_rounding_and_free_bytes_beside_its_blocks() {
    let none = StackRef::NoPython;
    let grants = [(3 * MIB + 100, none), (5 * MIB, StackRef::NotAsked), (1000, StackRef::NotAsked)];
    let (in_large, in_small) = (20 * MIB - 8 * MIB - 512, 2 * MIB - 1024);
    let ledger = granted(&grants, 0);
    assert_eq!(fragments(&ledger, "none"), [Some(412), Some(412), Some(in_large)]);
    assert_eq!(fragments(&ledger, "not_known"), [Some(24), Some(24), Some(in_large + in_small)]);
    let ledger = granted(&grants, 1);
    assert_eq!(fragments(&ledger, "none"), [None, Some(412), None], "it has no blocks any more");
    let beside = in_large + 3 * MIB + 512 + in_small;
    assert_eq!(fragments(&ledger, "not_known"), [Some(24), Some(24), Some(beside)]);
}

#[test]
fn where_only_rounded_sizes_are_seen_nothing_is_stated_of_fragments() {
    assert_eq!(fragments(&ledger(3), "none"), [None, None, None]);
}
