use super::*;
use memwatch_common::probes::PROBES;

fn row(symbol: &str) -> Option<u16> {
    PROBES.iter().find(|probe| probe.symbol == symbol).map(|probe| probe.id)
}

fn label(seen: PurposeEvidence<'_>) -> (MemoryPurpose, Sure) {
    let named = seen.named();
    (named.label, named.sure)
}

#[test]
fn a_function_in_flight_decides_without_a_stack() {
    let of = |symbol| label(PurposeEvidence { probe: row(symbol), ..PurposeEvidence::default() });
    for (symbol, expected, sure) in [
        ("cuDevicePrimaryCtxRetain", MemoryPurpose::Context, Sure::High),
        ("cuCtxCreate_v4", MemoryPurpose::Context, Sure::High),
        ("cuGreenCtxCreate", MemoryPurpose::Context, Sure::High),
        ("cuCtxSetLimit", MemoryPurpose::Context, Sure::Medium),
        ("cuStreamCreateWithPriority", MemoryPurpose::Stream, Sure::High),
        ("cuModuleLoadData", MemoryPurpose::Code, Sure::High),
        ("cuGraphInstantiate", MemoryPurpose::Code, Sure::Medium),
        ("cuMemAllocAsync", MemoryPurpose::Pool, Sure::High),
        ("cuMemAllocFromPoolAsync_ptsz", MemoryPurpose::Pool, Sure::High),
        ("cuMemAlloc_v2", MemoryPurpose::Requested, Sure::Medium),
        ("cuMemCreate", MemoryPurpose::Requested, Sure::Medium),
        ("cuArrayCreate_v2", MemoryPurpose::Requested, Sure::Medium),
        ("cuMemFree_v2", MemoryPurpose::Driver, Sure::Low),
    ] {
        assert_eq!(of(symbol), (expected, sure), "{symbol}");
    }
    assert_eq!(label(PurposeEvidence::default()), (MemoryPurpose::Driver, Sure::Low));
}

#[test]
fn label_without_a_probe_comes_from_the_stack_after_a_regrown_context() {
    let caller = |function: &str| Caller { function: Some(function.into()), owner: Some("NCCL".into()) };
    let of = |function, regrown| {
        let caller = caller(function);
        label(PurposeEvidence { caller: Some(&caller), regrown, ..PurposeEvidence::default() })
    };
    assert_eq!(of("cuKernelGetFunction", false), (MemoryPurpose::Code, Sure::High));
    assert_eq!(of("cuLaunchKernel", false), (MemoryPurpose::Code, Sure::Medium));
    assert_eq!(of("cuLaunchKernel", true), (MemoryPurpose::LocalMemory, Sure::High));
    assert_eq!(of("cuEventCreate", false), (MemoryPurpose::Driver, Sure::Low));
}

#[test]
fn label_owner_is_the_caller_except_for_context_wide_objects() {
    let caller = Caller { function: Some("cuStreamCreate".into()), owner: Some("cuDNN".into()) };
    let of =
        |symbol| PurposeEvidence { probe: row(symbol), caller: Some(&caller), ..PurposeEvidence::default() }.named();
    assert_eq!(of("cuStreamCreate").owner.as_deref(), Some("cuDNN"));
    assert_eq!(of("cuMemAlloc_v2").sure, Sure::High);
    assert_eq!((of("cuCtxCreate_v2").owner, of("cuCtxCreate_v2").function.as_deref()), (None, Some("cuCtxCreate_v2")));
}

#[test]
fn memory_that_a_graph_takes_as_pools_do_is_a_pools() {
    let seen =
        |coherency_1| label(PurposeEvidence { probe: row("cuGraphLaunch"), coherency_1, ..PurposeEvidence::default() });
    assert_eq!(seen(true), (MemoryPurpose::Pool, Sure::Medium));
    assert_eq!(seen(false), (MemoryPurpose::Code, Sure::Medium));
}
