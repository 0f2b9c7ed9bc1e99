//! From what was forecast and what happened: the table that makes forecasts as sure as they say, and what it is worth on other runs.

use std::fmt::Write as _;

use memwatch_core::analysis::calibration::{Bin, WITHIN};

use crate::play::{Given, Played, Warned, seconds};

/// Bins of forecasts by how far they reach.
const EDGES: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];
/// Fewer forecasts are no measure.
const FEWEST: usize = 20;
/// A range is so many windows wider on either side: as in analysis/forecast.rs.
const SLACK_WINDOWS: f64 = 2.0;
/// Forecasts that say about the same are checked together.
const CONFIDENCES: [(f64, f64); 3] = [(0.5, 0.75), (0.75, 0.85), (0.85, 1.01)];

/// A forecast, and after how many seconds it happened; `None` where it did not within the recording, which went on for so long.
struct Outcome<'a> {
    given: &'a Given,
    after: Option<f64>,
    seen_seconds: f64,
}

fn outcomes(played: &Played) -> impl Iterator<Item = Outcome<'_>> {
    let failure = played.failures_ns.first().copied();
    played.given.iter().map(move |given| Outcome {
        given,
        after: failure.map(|failure| seconds(given.time_ns, failure)),
        seen_seconds: seconds(given.time_ns, played.end_ns),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts of windows are small")]
fn slack(given: &Given) -> f64 {
    SLACK_WINDOWS * given.growth.span_seconds / (given.growth.windows.max(2) - 1) as f64
}

/// Whether it came true; `None` where the recording ends too early to tell.
fn came_true(outcome: &Outcome<'_>, earliest_seconds: f64, latest_seconds: f64) -> Option<bool> {
    match outcome.after {
        Some(after) => Some((earliest_seconds..=latest_seconds).contains(&after)),
        None => (outcome.seen_seconds > latest_seconds).then_some(false),
    }
}

fn quantile(numbers: &mut [f64], part: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a rank")]
    let rank = (part * (numbers.len().saturating_sub(1)) as f64).round() as usize;
    numbers.get(rank).copied().unwrap_or(0.0)
}

/// The rows of `BINS`, from all runs.
pub(crate) fn table(all: &[Played]) -> String {
    let mut text = "/// By how far they reach.\npub const BINS: &[Bin] = &[\n".to_owned();
    for Bin { reach_below, earliest, latest, confidence, given } in fitted(all.iter()) {
        writeln!(
            text,
            "    Bin {{ reach_below: {reach_below:?}, earliest: {earliest:?}, latest: {latest:?}, confidence: {confidence:?}, given: {given} }},"
        )
        .expect("a string takes all");
    }
    text + "];\n"
}

/// What these runs teach.
fn fitted<'a>(runs: impl Iterator<Item = &'a Played>) -> Vec<Bin> {
    let all: Vec<Outcome<'_>> = runs.flat_map(outcomes).collect();
    let mut bins = Vec::new();
    let mut from = 0.0;
    for reach_below in EDGES {
        let own: Vec<&Outcome<'_>> =
            all.iter().filter(|one| (from..reach_below).contains(&one.given.end.reach)).collect();
        if own.len() < FEWEST {
            continue;
        }
        from = reach_below;
        let ends = own.iter().filter_map(|one| Some((one.after?, one.given.end.seconds.max(0.5), slack(one.given))));
        let (mut low, mut high): (Vec<f64>, Vec<f64>) =
            ends.map(|(after, seconds, slack)| ((after + slack) / seconds, (after - slack) / seconds)).unzip();
        let earliest = round(quantile(&mut low, (1.0 - WITHIN) / 2.0).min(1.0));
        let latest = round(quantile(&mut high, f64::midpoint(1.0, WITHIN)).max(1.0));
        let mut bin = Bin { reach_below, earliest, latest, confidence: 0.0, given: 0 };
        let judged: Vec<bool> = own.iter().filter_map(|one| judged_by(&bin, one)).collect();
        bin.confidence = round(share(&judged));
        bin.given = u32::try_from(judged.len()).unwrap_or(u32::MAX);
        bins.push(bin);
    }
    bins
}

/// Whether what this bin says of it came true.
fn judged_by(bin: &Bin, one: &Outcome<'_>) -> Option<bool> {
    let (seconds, slack) = (one.given.end.seconds, slack(one.given));
    came_true(one, (seconds * bin.earliest - slack).max(0.0), seconds * bin.latest + slack)
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn share(judged: &[bool]) -> f64 {
    judged.iter().filter(|is_true| **is_true).count() as f64 / judged.len().max(1) as f64
}

/// What stands in docs/analysis.md.
pub(crate) fn document(all: &[Played]) -> String {
    format!("\n{}\n{}\n{}\n", leaks(all), warnings(all), forecasts(all))
}

/// Verdicts on lines, told against deserved.
fn leaks(all: &[Played]) -> String {
    let (mut found, mut missed, mut wrong, mut quiet) = (0, 0, 0, 0);
    for played in all {
        let is_right = |pair: &(&String, &String)| played.run.growing.get(pair.0) == Some(pair.1);
        found += played.growing.iter().filter(is_right).count();
        wrong += played.growing.iter().filter(|pair| !is_right(pair)).count();
        missed += played.run.growing.keys().filter(|function| !played.growing.contains_key(*function)).count();
        quiet += played.quiet_lines;
    }
    format!(
        "| {} runs, their lines | told to grow | not told |\n|---|---|---|\n| grow | {found} | {missed} |\n| do not | {wrong} | {quiet} |\n",
        all.len()
    )
}

/// Runs, warned or not, against what became of them.
fn warnings(all: &[Played]) -> String {
    let mut text = "| runs | | warned before | warned in vain | not warned |\n|---|---|---|---|---|\n".to_owned();
    let kinds = [
        ("the memory runs out", true, Warned::Before),
        ("growth that stops before the end", false, Warned::WhileItGrows),
        ("nothing is wrong", false, Warned::Never),
    ];
    for (name, runs_out, warned) in kinds {
        let own: Vec<&Played> = all.iter().filter(|played| played.run.warned == warned).collect();
        let were = own.iter().filter(|played| played.warned_seconds.is_some()).count();
        let (before, vain) = if runs_out { (were, 0) } else { (0, were) };
        writeln!(text, "| {name} | {} | {before} | {vain} | {} |", own.len(), own.len() - were)
            .expect("a string takes all");
    }
    let mut leads: Vec<f64> =
        all.iter().filter(|played| played.run.runs_out).filter_map(|played| played.warned_seconds).collect();
    let (least, median) = (quantile(&mut leads, 0.0), quantile(&mut leads, 0.5));
    writeln!(
        text,
        "\nThe first warning came {median:.0} s before the end in the middle of these runs, {least:.0} s at the least."
    )
    .expect("a string takes all");
    text
}

/// What forecasts said, and how often it came true: of each run by a table from all others.
fn forecasts(all: &[Played]) -> String {
    let mut rows: Vec<(usize, f64, Option<bool>)> = Vec::new();
    for (index, played) in all.iter().enumerate() {
        let others = all.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let bins = fitted(others);
        for one in outcomes(played) {
            let bin = bins.iter().find(|bin| one.given.end.reach < bin.reach_below);
            rows.extend(bin.map(|bin| (index, bin.confidence, judged_by(bin, &one))));
        }
    }
    let mut text = "| sure, as told | forecasts | of runs | sure on average | came true | not told yet |\n|---|---|---|---|---|---|\n".to_owned();
    for (from, below) in CONFIDENCES {
        let own: Vec<_> = rows.iter().filter(|(_, confidence, _)| (from..below).contains(confidence)).collect();
        if own.is_empty() {
            continue;
        }
        let judged: Vec<bool> = own.iter().filter_map(|(_, _, judged)| *judged).collect();
        let runs: std::collections::BTreeSet<usize> = own.iter().map(|(run, ..)| *run).collect();
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let told = own.iter().map(|(_, confidence, _)| confidence).sum::<f64>() / own.len() as f64;
        writeln!(
            text,
            "| {:.0} to {:.0} % | {} | {} | {:.0} % | {:.0} % | {} |",
            from * 100.0,
            below.min(1.0) * 100.0,
            judged.len(),
            runs.len(),
            told * 100.0,
            share(&judged) * 100.0,
            own.len() - judged.len()
        )
        .expect("a string takes all");
    }
    text
}
