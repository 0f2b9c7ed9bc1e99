//! Each cause is listed first for a situation that has it, and is not listed first for one that
//! only looks similar.

use super::CauseKind::{self, *};
use super::{Cause, CauseEvidence, Confidence, GrownName, causes, held_names};
use crate::features::leak::model::Verdict;
use crate::features::leak::view::{CachedView, LeakView, RetainerView};
use crate::features::trend::Trend;
use crate::input::held_names::HeldGroup;
use crate::input::holdings::{AdviceKind, Holding, HoldingClass, Holdings, MemoryAdvice, OwnerModule};
use crate::words::Ordinal;

mod by_name;
mod failed;
mod serving;

const MIB: u64 = 1 << 20;

fn finding(level: &str, verdict: Verdict) -> LeakView {
    let trend = Trend { first_bytes: 0, last_bytes: 600 * MIB, ..Trend::default() };
    LeakView {
        device: Some(0),
        file: Some("train.py".to_owned()),
        line: Some(12),
        bytes_per_minute: 9e8,
        ..LeakView::of(level, verdict, &trend)
    }
}

fn kept(class: HoldingClass, name: &str, kept_by: Option<&str>) -> LeakView {
    let pattern = |name: &str| name.replace("[7]", "[*]").replace("(7)", "(*)");
    let full = kept_by.unwrap_or(name);
    let retainer = RetainerView {
        class,
        name: Some(pattern(name)),
        kept_by: kept_by.map(pattern),
        bytes: 590 * MIB,
        count: 20,
        oldest: Some(full.replace("[7]", "[0]").replace("(7)", "(0)")),
        newest: Some(full.to_owned()),
    };
    LeakView { retainers: vec![retainer], read_bytes: 595 * MIB, ..finding("tensor", Verdict::Leak) }
}

fn of_growth(growing: &[LeakView]) -> Vec<Cause> {
    causes(&CauseEvidence { growing, ..CauseEvidence::default() })
}

#[test]
fn growth_from_reading_to_reading_is_a_cause_where_the_detector_knows_no_place() {
    let grown = |class, name: &str, blocks| GrownName {
        group: HeldGroup {
            ordinal: Ordinal(0),
            class,
            is_kv_cache: false,
            name: Some(name.to_owned()),
            kept_by: (class == HoldingClass::SavedForBackward).then(|| name.to_owned()),
            dtype: None,
            bytes: 600 * MIB,
            blocks,
        },
        first_bytes: 100 * MIB,
        first_blocks: 5,
        period_ns: 60_000_000_000,
    };
    let of = |grown: GrownName, growing: &[LeakView]| {
        let found = causes(&CauseEvidence { growing, grown: &[grown], ..CauseEvidence::default() });
        found.into_iter().map(|cause| (cause.kind, cause.subject, cause.count)).collect::<Vec<_>>()
    };
    let expected = |kind, name: &str, count| vec![(kind, Some(name.to_owned()), count)];
    let list = grown(HoldingClass::Tensor, "train.py:main: kept[*]", 30);
    let kept = "train.py:main: kept[*]";
    assert_eq!(of(list.clone(), &[]), expected(Unbounded, kept, Some(30)));
    assert_eq!(of(list.clone(), &[finding("allocated", Verdict::Leak)]), expected(Unbounded, kept, Some(30)));
    let by_line = of(list, &[self::kept(HoldingClass::Tensor, "other[7]", None)]);
    assert_eq!(by_line, expected(Unbounded, "other[*]", Some(20)), "the detector sees more moments");
    let graphs = grown(HoldingClass::SavedForBackward, "losses[*]", 30);
    assert_eq!(of(graphs, &[]), expected(GraphsKept, "losses[*]", None));
    assert_eq!(of(grown(HoldingClass::SavedForBackward, "total", 30), &[]), expected(RunningSum, "total", None));
    assert_eq!(of(grown(HoldingClass::Tensor, "seq", 5), &[]), expected(LineKeeps, "seq", Some(5)));
}

fn kinds(causes: &[Cause]) -> Vec<CauseKind> {
    causes.iter().map(|cause| cause.kind).collect()
}

#[test]
fn growth_cause_follows_from_its_retainer() {
    use HoldingClass::{Buffer, Parameter, SavedForBackward, Tensor, Unreachable};
    let node = "AddmmBackward0";
    for (class, name, kept_by, expected) in [
        (SavedForBackward, node, Some("metrics['val'][7]"), GraphsKept),
        (SavedForBackward, node, Some("board['sparsity'].acc"), RunningSum),
        (SavedForBackward, node, Some("error.__traceback__.tb_frame.f_locals[7]"), ExceptionKept),
        (Tensor, "a.py:main: history[7]", None, Unbounded),
        (Tensor, "loader.work_queue[7]", None, QueueBacksUp),
        (Tensor, "encode: lru_cache[7]", None, CacheByArgument),
        (Tensor, "Out[7]", None, Notebook),
        (Tensor, "sys.last_traceback[7]", None, ExceptionKept),
        (Parameter, "Policy (7).body.0.weight", None, Instances),
        (Buffer, "Norm (7).mean", None, Instances),
        (Unreachable, "Node.tensor", None, Cycle),
        (Tensor, "model.last", None, LineKeeps),
    ] {
        let found = of_growth(&[kept(class, name, kept_by)]);
        assert_eq!(kinds(&found), [expected], "{name} {kept_by:?}");
        assert_eq!((found[0].line.as_deref(), found[0].bytes), (Some("train.py:12"), 600 * MIB));
        let settled = LeakView { verdict: Verdict::LevelledOff, late_p: 1.0, ..kept(class, name, kept_by) };
        assert_eq!(of_growth(&[settled]), [], "a cache that has filled, a warm-up");
    }
}

#[test]
fn growing_single_tensor_has_the_longer_tensor_cause() {
    let many = kept(HoldingClass::Tensor, "evaluation.total", None);
    let one = RetainerView { count: 1, ..many.retainers[0].clone() };
    let found = of_growth(&[LeakView { retainers: vec![one.clone()], ..many.clone() }]);
    assert_eq!((kinds(&found), found[0].subject.as_deref()), (vec![LongerTensor], Some("evaluation.total")));
    assert_eq!(kinds(&of_growth(&[many])), [LineKeeps]);
    // The shorter tensors have left more than the longer one holds.
    let small = LeakView { last_bytes: 40 * MIB, read_bytes: 40 * MIB, ..found_of(&one) };
    let cached = CachedView { reserved_bytes: 900 * MIB, free_bytes: 850 * MIB, ..CachedView::default() };
    let growing = [finding("reserved", Verdict::Leak), small];
    let both = causes(&CauseEvidence { growing: &growing, cached: &[cached], ..CauseEvidence::default() });
    assert_eq!(kinds(&both), [LongerTensor, CacheGrows]);
    let elsewhere = causes(&CauseEvidence { growing: &growing[..1], cached: &[cached], ..CauseEvidence::default() });
    assert_eq!(kinds(&elsewhere), [CacheGrows]);
}

fn found_of(retainer: &RetainerView) -> LeakView {
    LeakView { retainers: vec![retainer.clone()], ..finding("tensor", Verdict::Leak) }
}

#[test]
fn growth_cause_from_an_early_reading_names_the_retainer_without_a_count() {
    let late = kept(HoldingClass::Unreachable, "Policy.body.0.weight", None);
    let early = RetainerView { bytes: 88 * MIB, count: 176, ..late.retainers[0].clone() };
    let found = of_growth(&[LeakView { retainers: vec![early.clone()], read_bytes: 90 * MIB, ..late.clone() }]);
    assert_eq!((kinds(&found), found[0].count, found[0].bytes), (vec![Cycle], None, 600 * MIB));
    assert_eq!(of_growth(std::slice::from_ref(&late))[0].count, Some(20));
    // Most of the bytes that were read are not this retainer's.
    let little = of_growth(&[LeakView { retainers: vec![early], read_bytes: 400 * MIB, ..late.clone() }]);
    assert_eq!((kinds(&little), little[0].subject.as_deref()), (vec![LineKeeps], Some("train.py:12")));
    // A graph without a known retainer is not named by its operator.
    let graph = kept(HoldingClass::SavedForBackward, "MulBackward0", None);
    assert_eq!(
        (kinds(&of_growth(std::slice::from_ref(&graph))), of_growth(&[graph])[0].subject.as_deref()),
        (vec![LineKeeps], Some("train.py:12"))
    );
    // Tensors for which no path was found.
    let nameless = RetainerView { name: None, class: HoldingClass::Tensor, ..late.retainers[0].clone() };
    let found = of_growth(&[LeakView { retainers: vec![nameless], ..late }]);
    assert_eq!((found[0].subject.as_deref(), found[0].confidence), (Some("train.py:12"), Confidence::Likely));
}

#[test]
fn growing_list_with_turnover_is_a_queue_that_backs_up() {
    let list = kept(HoldingClass::Tensor, "a.py:main: pending[7]", None);
    assert_eq!(kinds(&of_growth(std::slice::from_ref(&list))), [Unbounded]);
    let queue = LeakView { turnover_ns: Some(9_000_000_000), ..list };
    assert_eq!(kinds(&of_growth(std::slice::from_ref(&queue))), [QueueBacksUp]);
    // Results and labels in a tuple, each joined with those of the next batch.
    let few = RetainerView { count: 2, ..queue.retainers[0].clone() };
    let joined = LeakView { retainers: vec![few], grows_in_number: false, ..queue.clone() };
    assert_eq!(kinds(&of_growth(std::slice::from_ref(&joined))), [LongerTensor]);
    assert_eq!(kinds(&of_growth(&[LeakView { grows_in_number: true, ..joined }])), [QueueBacksUp]);
    assert_eq!(kinds(&of_growth(&[LeakView { grows_in_number: false, ..queue }])), [QueueBacksUp], "many of them");
}

#[test]
fn slowing_graph_growth_is_a_likely_leak_but_a_slowing_cache_is_not() {
    // A running sum in steps of 0.1 s, and later of 4 s.
    let slower = |class, name: &str, kept_by, late_p| LeakView {
        verdict: Verdict::LevelledOff,
        bytes_per_minute: 294.3 * 1_048_576.0,
        late_bytes_per_minute: 53.0 * 1_048_576.0,
        late_p,
        ..kept(class, name, kept_by)
    };
    let sum = |late_p| slower(HoldingClass::SavedForBackward, "AddmmBackward0", Some("board['sparsity'].acc"), late_p);
    let found = of_growth(&[sum(0.001)]);
    assert_eq!((kinds(&found), found[0].confidence), (vec![RunningSum], Confidence::Likely));
    assert_eq!(found[0].bytes_per_minute, Some(53.0 * 1_048_576.0));
    assert_eq!(of_growth(&[sum(0.3)]), [], "it has stopped");
    assert_eq!(of_growth(&[slower(HoldingClass::Tensor, "a.py:main: cache[7]", None, 0.001)]), []);
}

#[test]
fn growth_outside_of_tensors_has_the_cause_of_its_level() {
    for (level, expected) in [("pinned_host", PinnedGrows), ("driver", OutsideGrows), ("allocated", NoPlaceYet)] {
        assert_eq!(kinds(&of_growth(&[finding(level, Verdict::Leak)])), [expected]);
        assert_eq!(of_growth(&[finding(level, Verdict::Steady)]), []);
    }
    let of_nobody = of_growth(&[finding("tensor", Verdict::Leak)]);
    assert_eq!(kinds(&of_nobody), [LineKeeps]);
}

#[test]
fn allocator_growth_cause_follows_from_the_use_of_its_free_memory() {
    let growing = [finding("reserved", Verdict::Leak)];
    let of = |cached: CachedView| {
        causes(&CauseEvidence { growing: &growing, cached: &[cached], ..CauseEvidence::default() })
    };
    let base = CachedView { reserved_bytes: 900 * MIB, free_bytes: 800 * MIB, ..CachedView::default() };
    let streams = of(CachedView { side_streams: 20, side_bytes: 700 * MIB, ..base });
    assert_eq!((kinds(&streams), streams[0].count, streams[0].bytes), (vec![StreamCache], Some(20), 700 * MIB));
    assert_eq!(kinds(&of(CachedView { side_streams: 1, side_bytes: 700 * MIB, ..base })), [CacheGrows], "one stream");
    assert_eq!(kinds(&of(CachedView { private_bytes: 700 * MIB, ..base })), [PrivatePools]);
    assert_eq!(kinds(&of(CachedView { private_bytes: 9 * MIB, ..base })), [CacheGrows], "a small pool");
    let waits = of(CachedView {
        free_bytes: 90 * MIB,
        waiting_bytes: 700 * MIB,
        side_bytes: 80 * MIB,
        side_streams: 9,
        ..base
    });
    assert_eq!((kinds(&waits), waits[0].bytes), (vec![RecordStream], 700 * MIB));
    assert_eq!(kinds(&of(CachedView { waiting_bytes: 700 * MIB, ..base })), [CacheGrows], "more is free than waits");
    let rests = [finding("reserved", Verdict::LevelledOff)];
    let cached = [CachedView { side_streams: 20, side_bytes: 700 * MIB, ..base }];
    assert_eq!(causes(&CauseEvidence { growing: &rests, cached: &cached, ..CauseEvidence::default() }), []);
}

fn row(class: HoldingClass, name: &str, shape: &[u64]) -> Holding {
    Holding {
        class,
        name: Some(name.to_owned()),
        shape: Some(shape.to_vec()),
        dtype: Some("float32".to_owned()),
        ..Holding::unknown(Ordinal(0), 0, 4 * MIB)
    }
}

fn model() -> Vec<Holding> {
    let names = [("0.weight", &[512, 512][..]), ("0.bias", &[512]), ("2.weight", &[512, 512]), ("2.bias", &[512])];
    names.into_iter().map(|(name, shape)| row(HoldingClass::Parameter, name, shape)).collect()
}

fn of_held(rows: &[Holding], advice: &[MemoryAdvice]) -> Vec<Cause> {
    let holdings = Holdings { rows: rows.to_vec(), advice: advice.to_vec(), ..Holdings::default() };
    causes(&CauseEvidence { held: Some(&held_names(&holdings, &[])), ..CauseEvidence::default() })
}

fn of_rows(rows: &[Holding]) -> Vec<Cause> {
    of_held(rows, &[])
}

#[test]
fn copies_of_every_parameter_shape_are_a_cause() {
    let mut rows = model();
    assert_eq!(of_rows(&rows), [], "a model alone");
    for epoch in ["a", "b"] {
        rows.extend(model().into_iter().map(|own| Holding {
            class: HoldingClass::Tensor,
            name: Some(format!("keeper.book['{epoch}']['{}']", own.name.as_deref().unwrap_or_default())),
            ..own
        }));
    }
    let copies = of_rows(&rows);
    assert_eq!(
        (kinds(&copies), copies[0].count, copies[0].subject.as_deref()),
        (vec![StateCopies], Some(2), Some("keeper.book"))
    );
    let mut others = model();
    others.extend((0..9).map(|index| row(HoldingClass::Tensor, &format!("batches[{index}]"), &[512, 512])));
    assert_eq!(of_rows(&others), [], "batches that are as large as a weight");
}

#[test]
fn graphs_of_many_elements_are_kept_and_those_of_a_step_are_not() {
    let saved = |owners: u64| -> Vec<Holding> {
        let owner = |index: u64| Some(format!("losses[{index}]"));
        let of = |index| Holding { kept_by: owner(index), ..row(HoldingClass::SavedForBackward, "MulBackward0", &[9]) };
        (0..owners).map(of).collect()
    };
    let kept = of_rows(&saved(20));
    assert_eq!(
        (kinds(&kept), kept[0].count, kept[0].subject.as_deref()),
        (vec![GraphsKept], Some(20), Some("losses[*]"))
    );
    assert_eq!(of_rows(&saved(2)), [], "two losses of a step");
}

#[test]
fn repeated_instances_of_a_class_are_named_unlike_modules_of_one_model() {
    let of = |roots: u64| -> Vec<Holding> {
        let owned = |index: u64| Holding {
            owner: Some(OwnerModule {
                address: index,
                class: "Linear".into(),
                name: "body".into(),
                root_address: index % roots,
                root_class: "Policy".into(),
            }),
            ..row(HoldingClass::Parameter, "body.weight", &[512, 512])
        };
        (0..40).map(owned).collect()
    };
    let many = of_rows(&of(40));
    assert_eq!((kinds(&many), many[0].count, many[0].subject.as_deref()), (vec![Instances], Some(40), Some("Policy")));
    assert_eq!(of_rows(&of(1)), [], "layers of one model");
}

#[test]
fn reading_advice_is_a_cause_only_when_large() {
    let rows: Vec<Holding> = (0..100).map(|_| row(HoldingClass::Tensor, "x", &[1])).collect();
    let of = |kind, bytes| {
        let advice = [MemoryAdvice { kind, bytes, count: 3, example: "model.head".to_owned() }];
        kinds(&of_held(&rows, &advice))
    };
    for (kind, expected) in [
        (AdviceKind::FullPrecisionCopies, TwoPrecisions),
        (AdviceKind::MostlyUnusedStorage, ViewKeepsStorage),
        (AdviceKind::Traceback, ExceptionKept),
        (AdviceKind::Unreachable, Cycle),
    ] {
        assert_eq!(of(kind, 200 * MIB), [expected]);
        assert_eq!(of(kind, MIB), [], "four thousandths of it");
    }
    assert_eq!(of(AdviceKind::NoGradient, 200 * MIB), [], "frozen, as it may well be");
}

#[test]
fn a_notebooks_history_is_named_and_a_list_of_that_name_is_not() {
    let rows = [row(HoldingClass::Tensor, "Out[5]", &[9]), row(HoldingClass::Tensor, "Outputs[5]", &[9])];
    assert_eq!(kinds(&of_rows(&rows)), [Notebook]);
    assert_eq!(of_rows(&rows[1..]), []);
}

#[test]
fn causes_list_growth_first_then_the_largest_three_without_duplicates() {
    let growing = [
        kept(HoldingClass::Tensor, "a[7]", None),
        kept(HoldingClass::Tensor, "a[7]", None),
        kept(HoldingClass::Tensor, "b[7]", None),
        LeakView { last_bytes: MIB, ..kept(HoldingClass::Tensor, "c[7]", None) },
        LeakView { last_bytes: 700 * MIB, ..kept(HoldingClass::Tensor, "d[7]", None) },
        kept(HoldingClass::Tensor, "e[7]", None),
    ];
    let found = of_growth(&growing);
    let subjects: Vec<_> = found.iter().filter_map(|cause| cause.subject.as_deref()).collect();
    assert_eq!(subjects, ["d[*]", "a[*]", "b[*]"]);
}

#[test]
fn ddp_buckets_are_a_cause_only_beside_separate_gradients() {
    let bucket = || row(HoldingClass::Tensor, "gradient buckets of DistributedDataParallel", &[9]);
    let gradient = || row(HoldingClass::Gradient, "module.weight", &[9]);
    let found = of_rows(&[bucket(), bucket(), gradient(), gradient(), gradient()]);
    assert_eq!((kinds(&found), found[0].bytes, found[0].count), (vec![DdpBuckets], 8 * MIB, Some(2)));
    assert_eq!(of_rows(&[gradient(), gradient()]), [], "gradient_as_bucket_view=True");
    assert_eq!(of_rows(&[bucket(), bucket()]), [], "zero_grad(set_to_none=True)");
}

#[test]
fn workspaces_of_many_streams_are_named_and_those_of_one_are_not() {
    let of = |count| -> Vec<Holding> {
        (0..count).map(|_| Holding { name: None, ..row(HoldingClass::CublasWorkspace, "", &[9]) }).collect()
    };
    let found = of_rows(&of(9));
    assert_eq!((kinds(&found), found[0].bytes, found[0].count), (vec![Workspaces], 36 * MIB, Some(9)));
    assert_eq!(of_rows(&of(4)), [], "cuBLAS and cuBLASLt, forward and backward");
}

#[test]
fn states_of_several_optimizers_are_named_and_the_ones_of_one_are_not() {
    let state = |name: &str| row(HoldingClass::OptimizerState, name, &[9]);
    let of_one = ["exp_avg of 0.weight", "exp_avg_sq of 0.weight", "exp_avg of 0.bias", "exp_avg_sq of 0.bias"];
    let twice: Vec<Holding> = of_one.iter().chain(&of_one).chain(&of_one[..2]).map(|name| state(name)).collect();
    let found = of_rows(&twice);
    assert_eq!((kinds(&found), found[0].bytes, found[0].count), (vec![OldOptimizers], 6 * 4 * MIB, Some(3)));
    assert_eq!(of_rows(&of_one.map(state)), []);
    let by_place = "exp_avg of param_groups[0]['params'][0]";
    assert_eq!(of_rows(&[state(by_place), state(by_place)]), [], "of two optimizers, whose parameters have no names");
}
