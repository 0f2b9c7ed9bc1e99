//! Folded stacks: one line `outermost;…;innermost 1234` per stack, as read by flamegraph.pl and
//! other tools.

use std::collections::BTreeMap;

use super::{CallPathProfile, ProfileFrame, ProfileWeight};

/// Writes one weight of all parts. If there are several parts, each has its own outermost frame. A
/// `;` in a name becomes `:`.
pub(crate) fn write(profile: &CallPathProfile, weight: ProfileWeight) -> String {
    let several = profile.parts.len() > 1;
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for part in &profile.parts {
        let root = several.then(|| word(&part.name()));
        for sample in &part.samples {
            let frames = sample.frames.iter().map(label);
            let stack = root.clone().into_iter().chain(frames).collect::<Vec<_>>().join(";");
            let sum = lines.entry(without_number(stack)).or_default();
            *sum = sum.saturating_add(weight.of(&sample.sum));
        }
    }
    let mut text = String::new();
    for (stack, sum) in lines.iter().filter(|(_, sum)| **sum > 0) {
        text.extend([stack, " ", &sum.to_string(), "\n"]);
    }
    text
}

/// `forward (net.py:12)`.
fn label(frame: &ProfileFrame) -> String {
    match frame.place() {
        place if place.is_empty() => word(&frame.name),
        place => word(&format!("{} ({place})", frame.name)),
    }
}

/// Converts a text to a single frame.
fn word(text: &str) -> String {
    if text.is_empty() { "(no name)".to_owned() } else { text.replace(';', ":") }
}

/// Ensures that a stack does not end in a number: some readers take a number before the weight for
/// a second weight.
fn without_number(stack: String) -> String {
    match stack.rsplit_once(' ') {
        Some((before, last)) if last.parse::<f64>().is_ok() => format!("{before}_{last}"),
        _ => stack,
    }
}
