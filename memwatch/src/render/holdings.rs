//! Formats live objects by name.

use memwatch_core::features::holdings::view::{HoldingGroupView, HoldingGrouping, HoldingsView};

use super::format::{UNKNOWN, duration, plural, printable};

/// `parameters 474 MiB · optimizer state 949 MiB`.
pub(crate) fn classes(view: &HoldingsView, size: impl Fn(u64) -> String, between: &str) -> String {
    let sums = view.classes.iter().map(|sum| format!("{} {}", sum.class.label(), size(sum.bytes)));
    sums.collect::<Vec<_>>().join(between)
}

/// `768x3072`.
pub(crate) fn shape(shape: &[u64]) -> String {
    if shape.is_empty() {
        return "scalar".to_owned();
    }
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

/// Returns the name shared by the objects of a group.
pub(crate) fn name_of(by: HoldingGrouping, group: &HoldingGroupView) -> String {
    if group.lost_models > 0 && by != HoldingGrouping::Class {
        let class = group.name.as_deref().unwrap_or("?").trim_matches(['<', '>']);
        let modules = plural(group.lost_models, "module", "modules");
        return printable(&format!("{modules} of class {class} that no variable leads to")).into_owned();
    }
    let own = if by == HoldingGrouping::Class { group.example.as_deref() } else { group.name.as_deref() };
    let own = match own {
        // The empty name belongs to the model itself: its parameters that are in no submodule.
        Some("") => "(model)",
        Some(name) => name,
        None => UNKNOWN,
    };
    let kept_by = group.kept_by.as_ref().filter(|_| by != HoldingGrouping::Retainer);
    let kept_by = kept_by.map(|retainer| format!(", kept by {retainer}")).unwrap_or_default();
    let age = group.name_age_ns.map(|age| format!(" (name read {} before)", duration(age))).unwrap_or_default();
    let others = match group.other_names {
        0 => String::new(),
        names => format!(" (and {})", plural(names, "other name", "other names")),
    };
    printable(&format!("{own}{others}{kept_by}{age}")).into_owned()
}

/// Returns the bytes allocated after the reading.
pub(crate) fn later_bytes(view: &HoldingsView) -> u64 {
    view.devices.iter().filter_map(|device| device.later_bytes).fold(0, u64::saturating_add)
}
