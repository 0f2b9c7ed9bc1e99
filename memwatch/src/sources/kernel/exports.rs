//! Classifies the exports of a driver, to find those unknown to this version of memwatch.
//!
//! A driver newer than memwatch may allocate memory through functions that the table lacks. Every
//! export of the families of memory functions is either probed, left out for a reason listed here,
//! or unknown; `memwatch doctor` lists the unknown ones.

use memwatch_common::probes::PROBES;

/// Families of memory functions, by the beginning of their names.
const FAMILIES: [&str; 9] =
    ["cuMem", "cuArray", "cuMipmapped", "cuIpc", "cuCtx", "cuGraph", "cuImport", "cuExternal", "cuMulticast"];

/// Suffixes of variants for the per-thread default stream.
const PER_THREAD: [&str; 2] = ["_ptsz", "_ptds"];

/// Why a function is not probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SkipReason {
    /// The function only reads or describes.
    Reads,
    /// The function changes a setting, an order or an access right.
    Settings,
    /// The function changes the contents of memory, or the location of managed pages.
    Contents,
    /// The function builds a graph from nodes without device memory.
    Graph,
    /// The function maps memory that was allocated elsewhere.
    Alias,
    /// An old version of the function: programs built since call one with a higher version suffix.
    Legacy,
    /// The function may allocate memory but is not traced: its memory counts as unattributed.
    Unexplained,
}

impl SkipReason {
    /// Returns the reason as a phrase about such functions.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Reads => "only read",
            Self::Settings => "change settings",
            Self::Contents => "change contents",
            Self::Graph => "build graphs",
            Self::Alias => "show other owners' memory",
            Self::Legacy => "legacy forms",
            Self::Unexplained => "not traced, so unattributed",
        }
    }
}

/// Classification of an export of these families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportStatus {
    /// The function is in the probe table.
    Probed,
    /// The function is left out on purpose.
    LeftOut(SkipReason),
    /// The function is unknown.
    Unknown,
}

/// Patterns of names that are not probed, by reason; `*` matches any characters. A new version
/// suffix on an exact name makes another function, which is unknown.
const RULES: &[(SkipReason, &str)] = &[
    (
        SkipReason::Reads,
        "cuArray*Get* cuCtxGet* cuGraph*NodeGet* cuGraphDebugDotPrint cuGraphExecGet* cuGraphGet* cuGraphNodeFindInClone \
         cuIpcGetEventHandle cuMemGet* cuMemHostGet* cuMemPoolGet* cuMemRangeGet* cuMipmappedArrayGet* cuMulticastGet*",
    ),
    (
        SkipReason::Settings,
        "cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxRecordEvent cuCtxResetPersistingL2Cache cuCtxSet* \
         cuCtxSynchronize* cuCtxWaitEvent cuGraph*NodeCopyAttributes cuGraph*NodeSet* cuImportExternalSemaphore \
         cuIpcOpenEventHandle cuMemPoolSetAccess cuMemSetAccess",
    ),
    (SkipReason::Contents, "cuMemAdvise* cuMemBatchDecompress* cuMemDiscard* cuMemPrefetch* cuMemcpy* cuMemset*"),
    (
        SkipReason::Graph,
        "cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode cuGraphAddDependencies* cuGraphAddEmptyNode \
         cuGraphAddEvent*Node cuGraphAddExternalSemaphores*Node cuGraphAddHostNode cuGraphAddKernelNode* \
         cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphClone cuGraphConditionalHandleCreate cuGraphCreate \
         cuGraphDestroyNode cuGraphExecUpdate* cuGraphReleaseUserObject cuGraphRemoveDependencies* \
         cuGraphRetainUserObject",
    ),
    (
        SkipReason::Alias,
        "cuExternalMemoryGetMapped* cuGraphics* cuMemPoolExportToShareableHandle cuMulticastAddDevice cuMulticastBindAddr*",
    ),
    (
        SkipReason::Legacy,
        "cuArray3DCreate cuArrayCreate cuCtxAttach cuCtxCreate cuCtxDestroy cuCtxDetach cuCtxPopCurrent cuCtxPushCurrent \
         cuGraphInstantiate_v2 cuIpcOpenMemHandle cuMemAlloc cuMemAllocHost cuMemAllocPitch cuMemFree cuMemHostRegister",
    ),
    (SkipReason::Unexplained, "cuGraphAddNode_v3 cuGraphUpload cuMemMapArrayAsync"),
];

/// Classifies an export; `None` if it is of no memory family.
pub(crate) fn classify(symbol: &str) -> Option<ExportStatus> {
    if !FAMILIES.iter().any(|family| symbol.starts_with(family)) {
        return None;
    }
    if PROBES.iter().any(|probe| probe.symbol == symbol) {
        return Some(ExportStatus::Probed);
    }
    let base = PER_THREAD.iter().find_map(|suffix| symbol.strip_suffix(suffix)).unwrap_or(symbol);
    let rule = RULES.iter().find(|(_, names)| names.split_whitespace().any(|name| matches(name, base)));
    Some(rule.map_or(ExportStatus::Unknown, |(reason, _)| ExportStatus::LeftOut(*reason)))
}

/// Whether a text matches a pattern; `*` matches any characters or none.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(tail) = text.strip_prefix(head) else { return false };
    (0..=tail.len()).any(|start| tail.get(start..).is_some_and(|tail| matches(rest, tail)))
}

#[cfg(test)]
mod tests {
    use super::{ExportStatus, RULES, SkipReason, classify, matches};

    /// Exports of drivers up to CUDA 13.5 that are declared in the CUDA headers.
    fn exports() -> Vec<&'static str> {
        let table = include_str!("../../../../tests/gpusim/driver/driver-exports.tsv");
        let rows = table.lines().filter(|line| line.starts_with("cu"));
        rows.filter_map(|row| row.split('\t').next()).collect()
    }

    #[test]
    fn every_export_that_deals_with_memory_is_probed_or_left_out_for_a_reason() {
        let unknown: Vec<_> =
            exports().into_iter().filter(|symbol| classify(symbol) == Some(ExportStatus::Unknown)).collect();
        assert_eq!(unknown, Vec::<&str>::new());
    }

    #[test]
    fn a_reason_that_no_export_needs_is_deleted() {
        let left_out: Vec<_> = exports()
            .into_iter()
            .filter(|symbol| matches!(classify(symbol), Some(ExportStatus::LeftOut(_))))
            .map(|symbol| symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds"))
            .collect();
        for name in RULES.iter().flat_map(|(_, names)| names.split_whitespace()) {
            assert!(left_out.iter().any(|symbol| matches(name, symbol)), "nothing needs {name} any more");
        }
    }

    #[test]
    fn new_driver_export_is_unknown_even_if_similar_to_a_known_one() {
        for symbol in
            ["cuMemAlloc_v3", "cuMemCreate_ptsz", "cuArrayCreate_v3", "cuMemAllocNew", "cuCtxCreate_v5", "cuIpcNew"]
        {
            assert_eq!(classify(symbol), Some(ExportStatus::Unknown), "{symbol}");
        }
        for (symbol, reason) in [
            ("cuMemcpyNew_v2_ptsz", SkipReason::Contents),
            ("cuMemAlloc", SkipReason::Legacy),
            ("cuMemMapArrayAsync_ptsz", SkipReason::Unexplained),
        ] {
            assert_eq!(classify(symbol), Some(ExportStatus::LeftOut(reason)), "{symbol}");
        }
        assert_eq!(classify("cuMemAlloc_v2"), Some(ExportStatus::Probed));
        assert_eq!(classify("cuLaunchKernel"), None);
    }

    #[test]
    fn export_pattern_star_matches_any_characters_or_none() {
        assert!(matches("cuGraph*NodeGet*", "cuGraphKernelNodeGetParams_v2"));
        assert!(matches("cuGraph*NodeGet*", "cuGraphNodeGet"));
        assert!(!matches("cuGraph*NodeGet*", "cuGraphKernelNodeSetParams"));
        assert!(!matches("cuMemFree", "cuMemFreeHost") && !matches("*Node", "cuNodes"));
    }
}
