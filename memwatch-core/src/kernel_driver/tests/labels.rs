use super::*;
use memwatch_common::probes::PROBES;

fn row(symbol: &str) -> Option<u16> {
    PROBES.iter().find(|probe| probe.symbol == symbol).map(|probe| probe.id)
}

fn label(seen: Evidence<'_>) -> (Label, Sure) {
    let named = seen.named();
    (named.label, named.sure)
}

#[test]
fn a_function_in_flight_decides_without_a_stack() {
    let of = |symbol| label(Evidence { probe: row(symbol), ..Evidence::default() });
    for (symbol, expected, sure) in [
        ("cuDevicePrimaryCtxRetain", Label::Context, Sure::High),
        ("cuCtxCreate_v4", Label::Context, Sure::High),
        ("cuGreenCtxCreate", Label::Context, Sure::High),
        ("cuCtxSetLimit", Label::Context, Sure::Medium),
        ("cuStreamCreateWithPriority", Label::Stream, Sure::High),
        ("cuModuleLoadData", Label::Code, Sure::High),
        ("cuGraphInstantiate", Label::Code, Sure::Medium),
        ("cuMemAllocAsync", Label::Pool, Sure::High),
        ("cuMemAllocFromPoolAsync_ptsz", Label::Pool, Sure::High),
        ("cuMemAlloc_v2", Label::Requested, Sure::Medium),
        ("cuMemCreate", Label::Requested, Sure::Medium),
        ("cuArrayCreate_v2", Label::Requested, Sure::Medium),
        ("cuMemFree_v2", Label::Driver, Sure::Low),
    ] {
        assert_eq!(of(symbol), (expected, sure), "{symbol}");
    }
    assert_eq!(label(Evidence::default()), (Label::Driver, Sure::Low));
}

#[test]
fn without_one_the_stack_decides_and_a_call_that_grew_a_context_comes_first() {
    let caller = |function: &str| Caller { function: Some(function.into()), owner: Some("NCCL".into()) };
    let of = |function, regrown| {
        let caller = caller(function);
        label(Evidence { caller: Some(&caller), regrown, ..Evidence::default() })
    };
    assert_eq!(of("cuKernelGetFunction", false), (Label::Code, Sure::High));
    assert_eq!(of("cuLaunchKernel", false), (Label::Code, Sure::Medium));
    assert_eq!(of("cuLaunchKernel", true), (Label::LocalMemory, Sure::High));
    assert_eq!(of("cuEventCreate", false), (Label::Driver, Sure::Low));
}

#[test]
fn who_called_is_kept_but_of_what_belongs_to_the_whole_context() {
    let caller = Caller { function: Some("cuStreamCreate".into()), owner: Some("cuDNN".into()) };
    let of = |symbol| Evidence { probe: row(symbol), caller: Some(&caller), ..Evidence::default() }.named();
    assert_eq!(of("cuStreamCreate").owner.as_deref(), Some("cuDNN"));
    assert_eq!(of("cuMemAlloc_v2").sure, Sure::High);
    assert_eq!((of("cuCtxCreate_v2").owner, of("cuCtxCreate_v2").function.as_deref()), (None, Some("cuCtxCreate_v2")));
}

#[test]
fn memory_that_a_graph_takes_as_pools_do_is_a_pools() {
    let seen = |coherency_1| label(Evidence { probe: row("cuGraphLaunch"), coherency_1, ..Evidence::default() });
    assert_eq!(seen(true), (Label::Pool, Sure::Medium));
    assert_eq!(seen(false), (Label::Code, Sure::Medium));
}
