//! Words for leak findings: the reason of a verdict, retainers, and statistics of the readings.

use memwatch_core::features::causes::{self, Cause, CauseEvidence};
use memwatch_core::features::leak::model::Verdict;
use memwatch_core::features::leak::view::{LeakView, LeaksView, ReadingsView, RetainerView};
use memwatch_core::input::holdings::HoldingClass;

use crate::render::Tone;
use crate::render::format::{bytes, count, duration, percent_of_one, plural, printable, rate_per_minute};
use crate::render::sentences::Sentence;

/// Returns the causes of a process's growth.
pub(crate) fn causes_of(leaks: &LeaksView) -> Vec<Cause> {
    let (growing, cached) = (&leaks.findings[..], &leaks.cached[..]);
    causes::causes(&CauseEvidence { tgid: leaks.tgid, growing, cached, ..CauseEvidence::default() })
}

/// Maximum number of retainers printed per line.
const LISTED_RETAINERS: usize = 3;

/// Formats `it grows at +64.0 MiB/min (confidence 99.8 %), …: +32.0 MiB/min recently (confidence
/// 99.0 %)`.
pub(crate) fn reason(finding: &LeakView) -> String {
    let (rate, late) = (rate_per_minute(finding.bytes_per_minute), rate_per_minute(finding.late_bytes_per_minute));
    let [sure, late_sure] = [finding.p, finding.late_p].map(|p| percent_of_one(1.0 - p));
    let goes = match finding.verdict {
        Verdict::Leak => {
            format!("it grows at {rate} (confidence {sure}), and still grows: {late} recently (confidence {late_sure})")
        }
        Verdict::Slow => {
            format!("it grows at {rate} (confidence {sure}), less than the threshold, and still grows: {late} recently")
        }
        Verdict::LevelledOff if finding.grows_slower() => format!(
            "it has grown from {} to {}, and grows more slowly now: {late} recently (confidence {late_sure})",
            bytes(finding.first_bytes),
            bytes(finding.last_bytes)
        ),
        Verdict::LevelledOff => format!(
            "it has grown from {} to {}, and has stopped growing: {late} recently (confidence {late_sure})",
            bytes(finding.first_bytes),
            bytes(finding.last_bytes)
        ),
        Verdict::Steady => format!("it does not grow: {rate} (confidence {sure})"),
    };
    let goes = match &*finding.level {
        "reserved" => format!(
            "{goes}; tensors need no more than before: what is new lies free in the allocator (memwatch fragment shows where)"
        ),
        "allocated" => format!("{goes}; no line or name grows by as much"),
        _ => goes,
    };
    // Memory that is replaced quickly is a buffer of each step; its turnover says nothing about
    // what stays.
    match finding
        .turnover_ns
        .filter(|turnover_ns| *turnover_ns >= SHORTEST_TURNOVER_NS && finding.verdict != Verdict::Leak)
    {
        Some(turnover_ns) => format!("{goes}; what it holds is replaced every {}", duration(turnover_ns)),
        None => goes,
    }
}

/// Minimum turnover time that is shown, in nanoseconds.
const SHORTEST_TURNOVER_NS: u64 = 1_000_000_000;

/// Formats `now held: 12.0 MiB below 1 s, 110.0 MiB below 10 s, 9.0 MiB older`; `None` if nothing
/// is held.
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

/// Formats `kept by train.py:main: history[*] (12 tensors, 6.0 MiB; newest history[11])` for the
/// largest retainers; `None` without known retainers.
pub(crate) fn kept_by(finding: &LeakView) -> Option<String> {
    let retainers: Vec<String> = finding.retainers.iter().take(LISTED_RETAINERS).map(retainer).collect();
    let more = finding.retainers.len().saturating_sub(LISTED_RETAINERS);
    let and_more = if more == 0 { String::new() } else { format!(", and {} more", count(more as u64)) };
    (!retainers.is_empty()).then(|| format!("kept by {}{and_more}", retainers.join(", ")))
}

fn retainer(retainer: &RetainerView) -> String {
    let what = if retainer.class == HoldingClass::Tensor { "tensor" } else { "block" };
    let number = plural(retainer.count, what, &format!("{what}s"));
    let newest =
        shortened(retainer.newest.as_deref(), retainer).map(|newest| format!("; newest {newest}")).unwrap_or_default();
    format!("{} ({number}, {}{newest})", named(retainer), bytes(retainer.bytes))
}

/// Formats a retainer: `train.py:main: history[*]`, `optimizer state: exp_avg of h.*.weight`, `the
/// graph of losses[*] (saved by ExpBackward0)`.
pub(crate) fn named(retainer: &RetainerView) -> String {
    let text = match (retainer.class, &retainer.name, &retainer.kept_by) {
        (HoldingClass::SavedForBackward, Some(node), Some(owner)) => format!("the graph of {owner} (saved by {node})"),
        (HoldingClass::Tensor, Some(name), _) => name.clone(),
        (class, Some(name), _) => format!("{}: {name}", class.label()),
        (class, None, _) => class.label().to_owned(),
    };
    printable(&text).into_owned()
}

/// Shortens a name to `history[11]` if the pattern contains the same function; `None` if the name
/// equals the pattern.
fn shortened(name: Option<&str>, retainer: &RetainerView) -> Option<String> {
    let pattern = retainer.kept_by.as_deref().or(retainer.name.as_deref())?;
    let name = name.filter(|name| *name != pattern)?;
    let (function, _) = pattern.split_once(": ").unwrap_or_default();
    let behind = name.strip_prefix(function).and_then(|behind| behind.strip_prefix(": ")).unwrap_or(name);
    Some(printable(behind).into_owned())
}

/// Formats `3 blocks in the first reading, 25 in the last; 22 came meanwhile, and 20 of them
/// stayed; oldest kept[0], newest kept[24]`; `None` if no readings were compared.
pub(crate) fn by_blocks(finding: &LeakView) -> Option<String> {
    let blocks = finding.blocks?;
    let first = plural(blocks.first, "block", "blocks");
    let stayed = if blocks.stayed == blocks.came { "all".to_owned() } else { count(blocks.stayed) };
    let (last, came) = (count(blocks.last), count(blocks.came));
    let text =
        format!("{first} in the first reading, {last} in the last; {came} came meanwhile, and {stayed} of them stayed");
    let retainer = finding.retainers.first().filter(|retainer| retainer.count > 1);
    let ends = retainer.into_iter().flat_map(|retainer| {
        let ends = [("oldest", &retainer.oldest), ("newest", &retainer.newest)];
        ends.map(|(word, name)| Some(format!("{word} {}", shortened(name.as_deref(), retainer)?))).into_iter().flatten()
    });
    let ends = ends.collect::<Vec<_>>().join(", ");
    Some(if ends.is_empty() { text } else { format!("{text}; {ends}") })
}

/// Formats `all blocks: 64.0 MiB in the first reading, 91.0 MiB in the last`, the number of
/// readings, and their limits.
pub(crate) fn readings(view: &ReadingsView) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    if let (Some(first), Some(last)) = (view.first_bytes, view.last_bytes) {
        let text = format!("all blocks: {} in the first reading, {} in the last", bytes(first), bytes(last));
        sentences.push(Sentence::new(Tone::Plain, text));
    }
    let warnings = [
        view.ended.as_ref().map(|why| format!("no more readings: {}", printable(why))),
        view.why_without_names.as_ref().map(|why| {
            let number = plural(view.without_names, "reading has", "readings have");
            format!("{number} no names, and is compared with nothing: {}", printable(why))
        }),
        (view.standing > 0).then(|| {
            let number = plural(view.standing, "reading has", "readings have");
            format!("{number} only the blocks that stood still for 80 ms: the program allocates without a pause")
        }),
        (view.partial > 0).then(|| {
            "names may be missing: the program has more objects than are looked at, or changes them too fast".to_owned()
        }),
        (view.left_out > 0).then(|| {
            let number = plural(view.left_out, "reading was", "readings were");
            format!("{number} left out: the program changed its objects meanwhile")
        }),
    ];
    sentences.extend(warnings.into_iter().flatten().map(|text| Sentence::new(Tone::Warning, text)));
    sentences
}
