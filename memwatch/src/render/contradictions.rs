//! Reports contradictions within a report on stderr, so that users of every output format see them.

use memwatch_core::features::checks::{ContradictionKind, ReportContradiction};

/// Prints one line per contradiction.
pub(crate) fn report(found: &[ReportContradiction]) {
    for one in found {
        eprintln!("memwatch: this report contradicts itself: {}", text(one));
    }
}

fn text(found: &ReportContradiction) -> String {
    let ReportContradiction { kind, tgid, numbers: [one, other] } = found;
    let of = tgid.map(|tgid| format!("PID {}: ", tgid.0)).unwrap_or_default();
    let what = match kind {
        ContradictionKind::PartsAndTotal => format!("rows add up to {one} bytes, and the total is {other}"),
        ContradictionKind::GrowthWithoutPart => {
            format!("all blocks grow from {one} to {other} bytes, but no part of them grows")
        }
        ContradictionKind::OlderGrows => format!("memory from before the attach grows from {one} to {other} bytes"),
        ContradictionKind::CompleteAndLost => format!("marked complete although {other} records were lost"),
        ContradictionKind::FreeAndRefused => {
            format!("{one} bytes were free, but an allocation of {other} bytes failed for no known reason")
        }
        ContradictionKind::FailureInOne => format!("{other} failures in the allocator's report, and {one} here"),
        ContradictionKind::SmallerBatchBesideLeak => {
            format!("{one} bytes grow with any batch, and a smaller one is recommended for {other}")
        }
    };
    format!("{of}{what}; please report it")
}

#[cfg(test)]
mod tests {
    use memwatch_core::words::Tgid;

    use super::*;

    #[test]
    fn a_contradiction_has_its_process_and_both_numbers() {
        let found =
            ReportContradiction { kind: ContradictionKind::PartsAndTotal, tgid: Some(Tgid(7)), numbers: [3, 5] };
        assert_eq!(text(&found), "PID 7: rows add up to 3 bytes, and the total is 5; please report it");
    }
}
