//! Text output of `memwatch leak`.

use std::io;

use memwatch_core::features::leak::model::Verdict;
use memwatch_core::features::leak::view::{LeakView, LeaksView, UndecidedView};
use memwatch_core::snapshot::Snapshot;

use crate::commands::leak::words::causes_of;
use crate::commands::leak::words::{by_age, by_blocks, kept_by, named, readings, reason};
use crate::render::Tone;
use crate::render::causes;
use crate::render::format::{bytes, count, duration, percent_of_one, plural, rate_per_minute};
use crate::render::places;
use crate::render::sentences::level::is_sampled;
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

const COLUMNS: [(&str, Align); 7] = [
    ("VERDICT", Align::Left),
    ("PER MINUTE", Align::Right),
    ("RECENT RATE", Align::Right),
    ("BASELINE AT START", Align::Right),
    ("BASELINE NOW", Align::Right),
    ("CONFIDENCE", Align::Right),
    ("WHERE", Align::Left),
];

/// Writes the verdict on each process, and at most `top` call sites that grow or have grown.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (leaks, top): (&[LeaksView], usize),
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    section(&mut page, (leaks, top), snapshot);
    match overhead_of_readings(leaks) {
        Some(sentence) => page.line(&sentence),
        None => page.trust(snapshot, clock),
    }
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// Writes the content of [`write`] as a section of another report.
pub(crate) fn section(page: &mut TextPage, (leaks, top): (&[LeaksView], usize), snapshot: &Snapshot) {
    for process in leaks {
        let (tone, text) = heading(process, snapshot);
        let heading = Sentence::new(tone, text);
        // The causes come first, but those of several processes belong below their process.
        let are_several = leaks.len() > 1;
        if are_several {
            page.line(&heading);
        }
        for line in &causes::lines(&causes_of(process)) {
            page.line(line);
        }
        if !are_several {
            page.line(&heading);
        }
        if let Some(text) = settled(process) {
            page.line(&Sentence::new(Tone::Plain, text));
        }
        if let Some(text) = without_verdict(process, snapshot) {
            page.line(&Sentence::new(Tone::Faint, text));
        }
        let rows: Vec<&LeakView> =
            process.findings.iter().filter(|finding| finding.verdict != Verdict::Steady).collect();
        for undecided in &process.undecided {
            page.line(&Sentence::new(Tone::Warning, no_verdict_on_growth(undecided, snapshot)));
        }
        if !rows.is_empty() {
            let mut grid = TextGrid::new(&COLUMNS);
            for finding in rows.iter().take(top) {
                grid.push(row(snapshot, finding));
            }
            page.grid(&grid);
            let view = snapshot.process(process.tgid, process.observed_since_ns);
            if view.is_some_and(is_sampled) && rows.iter().any(|row| row.level == "tensor") {
                let text = "lines are sampled: growth values are lower bounds";
                page.line(&Sentence::new(Tone::Warning, text));
            }
            let grow = |finding: &&&LeakView| finding.verdict.grows();
            for finding in rows.iter().take(top).filter(grow) {
                // A finding of a reading is already named by its retainer.
                let retainers = if finding.blocks.is_some() { by_blocks(finding) } else { kept_by(finding) };
                let why = [Some(reason(finding)), by_age(finding), retainers];
                let why = why.into_iter().flatten().collect::<Vec<_>>().join("; ");
                page.line(&Sentence::new(Tone::Plain, format!("why {}: {why}", place(snapshot, finding))));
            }
        }
        for finding in process.findings.iter().filter(|finding| finding.grows_slower()) {
            page.line(&Sentence::new(Tone::Warning, slower(finding)));
        }
        if rows.len() > top {
            page.line(&Sentence::new(Tone::Faint, format!("and {} more", count((rows.len() - top) as u64))));
        }
        process.readings.iter().flat_map(readings).for_each(|sentence| page.line(&sentence));
    }
    if leaks.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "No process with GPU memory."));
    }
}

/// Formats `PID 1234  train.py: 1 leaking, 0 slowly, 3 levelled off, 12 steady; 58 samples in 60
/// s`.
fn heading(process: &LeaksView, snapshot: &Snapshot) -> (Tone, String) {
    let of = |verdict| process.findings.iter().filter(|finding| finding.verdict == verdict).count() as u64;
    let leaks = of(Verdict::Leak);
    let verdicts = if process.findings.is_empty() {
        "no verdict yet".to_owned()
    } else {
        format!(
            "{} leaking, {} slowly, {} levelled off, {} steady",
            count(leaks),
            count(of(Verdict::Slow)),
            count(of(Verdict::LevelledOff)),
            count(of(Verdict::Steady)),
        )
    };
    let view = snapshot.process(process.tgid, process.observed_since_ns);
    let command = view.map(sentences::short_command).unwrap_or_default();
    let watched = duration(snapshot.time_ns.saturating_sub(process.observed_since_ns));
    let steps = process.findings.iter().filter_map(|finding| finding.steps).max();
    let from = match (steps, process.windows) {
        _ if process.readings.is_some() => {
            let readings = process.readings.as_ref().map_or(0, |readings| readings.count);
            format!("{} in {watched}", plural(readings, "reading", "readings"))
        }
        (Some(steps), _) => format!("{} in {watched}", plural(steps as u64, "step", "steps")),
        (None, Some(windows)) => format!("{} in {watched}", plural(windows, "sample", "samples")),
        (None, None) => watched,
    };
    let tone = if leaks > 0 { Tone::Bad } else { Tone::Heading };
    (tone, format!("PID {}  {command}: {verdicts}; {from}", process.tgid.0))
}

/// Formats `no leak: GPU memory of train.py:12 main grew from 10.0 MiB to 300.0 MiB, and has
/// stopped`: the effect of a warm-up, or of a cache that has filled. `None` if anything grows or
/// may grow.
fn settled(process: &LeaksView) -> Option<String> {
    let has_grown = |finding: &&LeakView| finding.verdict == Verdict::LevelledOff;
    let grown = |finding: &&LeakView| finding.last_bytes.saturating_sub(finding.first_bytes);
    let largest = process.findings.iter().filter(has_grown).max_by_key(grown)?;
    let others = process.findings.iter().filter(has_grown).count() as u64 - 1;
    let may_grow = process.too_short > 0
        || !process.undecided.is_empty()
        || process.findings.iter().any(|finding| finding.verdict.grows() || finding.grows_slower());
    let others = match others {
        0 => String::new(),
        others => format!(", and so have {}", plural(others, "other", "others")),
    };
    let (first, last) = (bytes(largest.first_bytes), bytes(largest.last_bytes));
    (!may_grow).then(|| format!("no leak: {} grew from {first} to {last} and has stopped{others}", what(largest)))
}

/// Formats `train.py:12 main still grows, more slowly than before: …`.
fn slower(finding: &LeakView) -> String {
    let retainer = kept_by(finding).map(|retainer| format!(", {retainer}")).unwrap_or_default();
    format!(
        "{} still grows{retainer}, more slowly than before: {} recently, {} overall. This may be a cache that fills, or a leak in a program that has \
         become slower: watch longer with --duration",
        what(finding),
        rate_per_minute(finding.late_bytes_per_minute),
        rate_per_minute(finding.bytes_per_minute)
    )
}

/// Formats the place of a finding without its GPU: `train.py:12 main`, `train.py:main: kept[*]`,
/// `pinned host memory`, `memory of the driver`.
fn what(finding: &LeakView) -> String {
    match (&*finding.level, finding.retainers.first()) {
        ("name", Some(retainer)) => named(retainer),
        ("pinned_host", _) => "pinned host memory".to_owned(),
        _ => places::leak(finding).unwrap_or_else(|| "memory of the driver".to_owned()),
    }
}

/// Formats `68 lines have no verdict: …`; `None` if each has one.
fn without_verdict(process: &LeaksView, snapshot: &Snapshot) -> Option<String> {
    let view = snapshot.process(process.tgid, process.observed_since_ns);
    let has_ended = match &process.readings {
        Some(readings) => readings.ended.is_some(),
        None => view.is_some_and(|view| view.ended_ns.is_some()),
    };
    let (lines, needed) = if process.readings.is_some() {
        (plural(process.too_short, "name has", "names have"), "a verdict takes 10 readings")
    } else {
        let needed = "a verdict takes 10 samples (one per second and step), or 20 steps";
        (plural(process.too_short, "line has", "lines have"), needed)
    };
    let advice = if has_ended { "the program ended before that" } else { "watch longer, with --duration" };
    (process.too_short > 0).then(|| format!("{lines} no verdict: {needed}; {advice}"))
}

/// Formats `GPU 0: all tensors together grow at +12.0 MiB/min, …`, for growth that is not yet
/// attributed to a call site.
fn no_verdict_on_growth(undecided: &UndecidedView, snapshot: &Snapshot) -> String {
    let on = match &undecided.uuid {
        Some(uuid) => format!("GPU {}", sentences::gpu_number(snapshot, Some(uuid))),
        None => format!("cuda:{}", undecided.device),
    };
    let (rate, first) = (rate_per_minute(undecided.bytes_per_minute), bytes(undecided.first_bytes));
    format!(
        "{on}: all tensors together grow at {rate}, from {first} to {}, without a verdict yet: what they are is replaced too slowly to distinguish growth \
         from chance; watch longer, with --duration",
        bytes(undecided.last_bytes)
    )
}

/// Formats `only read, nothing attached: 30 readings of 84.2 MiB and 120 ms of processor time
/// each`; `None` if a process was traced.
fn overhead_of_readings(leaks: &[LeaksView]) -> Option<Sentence> {
    let all = || leaks.iter().filter_map(|leaks| leaks.readings.as_ref());
    let number: u64 = all().map(|readings| readings.count + readings.without_names + readings.left_out).sum();
    let mean = |sum: u64| sum.checked_div(number);
    let read = mean(all().map(|readings| readings.read_bytes).fold(0, u64::saturating_add))?;
    let processor_ns = mean(all().map(|readings| readings.processor_ns).fold(0, u64::saturating_add))?;
    let number = plural(number, "reading", "readings");
    let milliseconds = count(processor_ns.div_ceil(1_000_000));
    let text = format!(
        "only read, nothing attached: {number} of {} and {milliseconds} ms of processor time each",
        bytes(read)
    );
    Some(Sentence::new(Tone::Faint, text))
}

fn row(snapshot: &Snapshot, finding: &LeakView) -> Vec<String> {
    vec![
        finding.verdict.word().to_owned(),
        rate_per_minute(finding.bytes_per_minute),
        rate_per_minute(finding.late_bytes_per_minute),
        bytes(finding.first_bytes),
        bytes(finding.last_bytes),
        if finding.verdict.grows() { percent_of_one(1.0 - finding.p) } else { "-".to_owned() },
        place(snapshot, finding),
    ]
}

/// Formats the place of a finding: `GPU 0: train.py:12 main`, `GPU 0: driver`, `pinned host
/// memory`, `cuda:0: train.py:main: kept[*]`.
fn place(snapshot: &Snapshot, finding: &LeakView) -> String {
    if let ("name", Some(device), Some(retainer)) = (&*finding.level, finding.device, finding.retainers.first()) {
        return format!("cuda:{device}: {}", named(retainer));
    }
    let gpu = sentences::gpu_number(snapshot, finding.uuid.as_ref());
    match &*finding.level {
        "allocated" if finding.uuid.is_none() => {
            let device = finding.device.unwrap_or_default();
            format!("cuda:{device}: all blocks, and no name that explains it yet")
        }
        "pinned_host" => "pinned host memory".to_owned(),
        _ => format!("GPU {gpu}: {}", places::leak(finding).unwrap_or_else(|| "memory of the driver".to_owned())),
    }
}

#[cfg(test)]
mod tests;
