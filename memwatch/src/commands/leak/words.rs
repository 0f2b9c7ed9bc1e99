//! Why a line is judged to grow, or not to.

use memwatch_core::features::leak::model::Verdict;
use memwatch_core::features::leak::view::LeakView;

use crate::render::format::{bytes, duration, percent_of_one, rate_per_minute};

/// `it grows at +64.0 MiB/min (sure 99.8 %), and goes on: +32.0 MiB/min recently (sure 99.0 %)`.
pub(crate) fn reason(finding: &LeakView) -> String {
    let (rate, late) = (rate_per_minute(finding.bytes_per_minute), rate_per_minute(finding.late_bytes_per_minute));
    let [sure, late_sure] = [finding.p, finding.late_p].map(|p| percent_of_one(1.0 - p));
    let goes = match finding.verdict {
        Verdict::Leak => {
            format!("it grows at {rate} (confidence {sure}), and goes on: {late} recently (confidence {late_sure})")
        }
        Verdict::Slow => {
            format!("it grows at {rate} (confidence {sure}), less than the threshold, and goes on: {late} recently")
        }
        Verdict::LevelledOff => format!(
            "it has grown from {} to {}, and does not go on: {late} recently (confidence {late_sure})",
            bytes(finding.first_bytes),
            bytes(finding.last_bytes)
        ),
        Verdict::Steady => format!("it does not grow: {rate} (confidence {sure})"),
    };
    // What is replaced within a moment is a buffer of each step: it says nothing of what stays.
    match finding
        .turnover_ns
        .filter(|turnover_ns| *turnover_ns >= SHORTEST_TURNOVER_NS && finding.verdict != Verdict::Leak)
    {
        Some(turnover_ns) => format!("{goes}; what it holds is replaced every {}", duration(turnover_ns)),
        None => goes,
    }
}

/// Turnover below this is not shown, nanoseconds.
const SHORTEST_TURNOVER_NS: u64 = 1_000_000_000;

/// `now held: 12.0 MiB below 1 s, 110.0 MiB below 10 s, 9.0 MiB older`; `None` where nothing is.
pub(crate) fn by_age(finding: &LeakView) -> Option<String> {
    let held = finding.ages.iter().flatten().filter(|age| age.bytes > 0);
    let parts: Vec<String> = held
        .map(|age| match age.below_ns {
            Some(below_ns) => {
                let below = duration(below_ns).replace(".0 s", " s");
                let below = below.trim_end_matches(" 0 s").trim_end_matches(" 0 min");
                format!("{} below {below}", bytes(age.bytes))
            }
            None => format!("{} older", bytes(age.bytes)),
        })
        .collect();
    (!parts.is_empty()).then(|| format!("now held: {}", parts.join(", ")))
}
