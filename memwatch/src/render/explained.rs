//! Names for the parts of used memory, shared by all screens.

use memwatch_core::kernel_driver::decode::Lies;
use memwatch_core::kernel_driver::labels::MemoryPurpose;
use memwatch_core::snapshot::{ExplainedUse, RefusedView};

use crate::render::format::{UNKNOWN, bytes, known, printable};

/// Returns the name of a part: `context`, `local memory`, `PyTorch`.
pub(crate) fn name_of(label: MemoryPurpose, owner: Option<&str>) -> String {
    match label {
        MemoryPurpose::LocalMemory => "local memory".to_owned(),
        MemoryPurpose::Context => "context".to_owned(),
        MemoryPurpose::Stream => "streams".to_owned(),
        MemoryPurpose::Code => "code".to_owned(),
        MemoryPurpose::Pool => "async pools".to_owned(),
        MemoryPurpose::Requested => owner.map_or_else(|| "requested".to_owned(), |owner| printable(owner).into_owned()),
        MemoryPurpose::Inherited => "inherited".to_owned(),
        MemoryPurpose::Driver => "driver, other".to_owned(),
    }
}

/// Returns a function and its caller: `cuMemAlloc_v2 by PyTorch`.
pub(crate) fn called(function: Option<&str>, owner: Option<&str>) -> String {
    let function = function.map_or_else(|| UNKNOWN.to_owned(), |name| printable(name).into_owned());
    owner.map_or_else(|| function.clone(), |owner| format!("{function} by {}", printable(owner)))
}

/// Returns the refused size and its memory (`128.0 MiB`, `8.0 MiB of host memory`), and the result
/// of [`called`].
pub(crate) fn refused(refused: &RefusedView) -> (String, String) {
    let host = if refused.lies == Lies::Video { "" } else { " of host memory" };
    let asked = format!("{}{host}", known(refused.asked_bytes, bytes));
    (asked, called(refused.function.as_deref(), refused.owner.as_deref()))
}

/// Returns the parts of at least `least_bytes` by name, largest first with pre-existing memory
/// last, and the remaining bytes. The sum is NVML's number at its last settled reading. Returns
/// `None` before the first one.
pub(crate) fn parts_of(own: &ExplainedUse, least_bytes: u64) -> Option<(Vec<(String, u64)>, i64)> {
    let older = own.older_bytes.filter(|older| *older > 0).map(|older| ("pre-existing".to_owned(), older));
    let named = own.summands().into_iter().map(|summand| (name_of(summand.label, summand.owner), summand.bytes));
    let large: Vec<_> = named.chain(older).filter(|(_, bytes)| *bytes >= least_bytes).collect();
    let shown: i128 = large.iter().map(|(_, bytes)| i128::from(*bytes)).sum();
    let rest = i64::try_from(i128::from(own.used_bytes?) - shown).ok()?;
    Some((large, rest))
}

#[cfg(test)]
mod tests {
    use memwatch_core::kernel_driver::labels::Sure;
    use memwatch_core::kernel_driver::trust::LedgerTrust;
    use memwatch_core::snapshot::{ColumnsView, PartView};

    use super::*;

    #[test]
    fn explained_parts_merge_small_ones_and_sum_to_used() {
        let part = |label, bytes| PartView {
            label,
            owner: None,
            function: None,
            bytes,
            objects: 1,
            sure: Sure::High,
            bytes_per_thread: None,
            left_by: None,
        };
        let own = ExplainedUse {
            uuid: None,
            trust: LedgerTrust::Trusted,
            used_bytes: Some(600),
            live_bytes: 560,
            older_bytes: Some(40),
            difference_bytes: Some(0),
            parts: vec![
                part(MemoryPurpose::Context, 518),
                part(MemoryPurpose::Stream, 2),
                part(MemoryPurpose::Code, 40),
            ],
            columns: ColumnsView::default(),
            pieces: Vec::new(),
        };
        let (large, rest) = parts_of(&own, 40).expect("there was a reading");
        let names: Vec<_> = large.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        assert_eq!((names, rest), (vec![("context", 518), ("code", 40), ("pre-existing", 40)], 2));
        assert_eq!(parts_of(&ExplainedUse { used_bytes: None, ..own }, 40), None);
    }
}
