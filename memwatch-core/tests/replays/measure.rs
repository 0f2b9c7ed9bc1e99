//! Computes the calibration table of forecasts from forecasts and outcomes, and measures it on
//! other runs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use memwatch_core::features::forecast::calibration::{Bin, WITHIN};

use crate::play::{Given, Played, Warned, seconds};

/// Upper bounds of the bins, by the reach of a forecast.
const EDGES: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];
/// Minimum number of forecasts of runs that ran out of memory in a bin.
const FEWEST: usize = 20;
/// Number of windows by which a range is widened on either side, as in
/// src/features/forecast/model.rs.
const SLACK_WINDOWS: f64 = 2.0;

/// A forecast, and the seconds until its event. `after` is `None` if the event did not happen
/// within the recording, which continued for `seen_seconds`.
#[derive(Clone, Copy)]
struct ForecastOutcome<'a> {
    given: &'a Given,
    after: Option<f64>,
    seen_seconds: f64,
    /// Whether the run's growth is known to stop before the end.
    stops: bool,
    /// Course of the run. Runs of one course are alike.
    course: &'a str,
}

impl ForecastOutcome<'_> {
    fn is_in(&self, reach: &Range<f64>) -> bool {
        reach.contains(&self.given.end.reach)
    }
}

fn outcomes(played: &Played) -> impl Iterator<Item = ForecastOutcome<'_>> {
    let failure = played.failures_ns.first().copied();
    played.given.iter().map(move |given| ForecastOutcome {
        given,
        after: failure.map(|failure| seconds(given.time_ns, failure)),
        seen_seconds: seconds(given.time_ns, played.end_ns),
        stops: played.run.warned == Warned::WhileItGrows,
        course: &played.run.course,
    })
}

/// Returns the outcomes of the runs that the table is made from.
fn learnt(all: &[Played]) -> Vec<ForecastOutcome<'_>> {
    all.iter().filter(|played| !played.run.is_check).flat_map(outcomes).collect()
}

/// Returns the courses of these outcomes, each once.
fn courses<'a>(all: &[ForecastOutcome<'a>]) -> BTreeSet<&'a str> {
    all.iter().map(|one| one.course).collect()
}

/// Returns the outcomes of all other courses.
fn without<'a>(all: &[ForecastOutcome<'a>], course: &str) -> Vec<ForecastOutcome<'a>> {
    all.iter().filter(|one| one.course != course).copied().collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of windows are small")]
fn slack(given: &Given) -> f64 {
    SLACK_WINDOWS * given.growth.span_seconds / (given.growth.windows.max(2) - 1) as f64
}

/// Returns whether a forecast came true, or `None` if the recording ends too early to decide.
fn came_true(outcome: &ForecastOutcome<'_>, earliest_seconds: f64, latest_seconds: f64) -> Option<bool> {
    match outcome.after {
        Some(after) => Some((earliest_seconds..=latest_seconds).contains(&after)),
        None => (outcome.stops || outcome.seen_seconds > latest_seconds).then_some(false),
    }
}

fn quantile(numbers: &mut [f64], part: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a rank")]
    let rank = (part * (numbers.len().saturating_sub(1)) as f64).round() as usize;
    numbers.get(rank).copied().unwrap_or(0.0)
}

/// Returns the quantile of numbers with weights.
fn weighted_quantile(numbers: &mut [(f64, f64)], part: f64) -> f64 {
    numbers.sort_by(|one, other| one.0.total_cmp(&other.0));
    let total: f64 = numbers.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    let reached = numbers.iter().find(|(_, weight)| {
        sum += weight;
        sum >= part * total - 1e-9
    });
    reached.or(numbers.last()).map_or(0.0, |(number, _)| *number)
}

/// Returns the rows of `BINS`, computed from all runs.
pub(crate) fn table(all: &[Played]) -> String {
    let mut text = "/// By how far they reach.\npub const BINS: &[Bin] = &[\n".to_owned();
    for Bin { reach_below, earliest, latest, confidence, given } in fitted(&learnt(all)) {
        writeln!(
            text,
            "    Bin {{ reach_below: {reach_below:?}, earliest: {earliest:?}, latest: {latest:?}, confidence: {confidence:?}, given: {given} }},"
        )
        .expect("a string takes all");
    }
    text + "];\n"
}

/// Fits the bins. The ranges come from all outcomes. The confidence is cross-validated: each course
/// is judged by ranges from all other courses, since a user's program follows none of these courses
/// either.
fn fitted(all: &[ForecastOutcome<'_>]) -> Vec<Bin> {
    let mut bins = ranges(all);
    let mut judged: Vec<Vec<bool>> = vec![Vec::new(); bins.len()];
    for course in courses(all) {
        let others = ranges(&without(all, course));
        for one in all.iter().filter(|one| one.course == course) {
            let Some(bin) = bin(&others, one) else { continue };
            let place = bins.iter().position(|own| own.reach_below.total_cmp(&bin.reach_below).is_eq());
            if let Some((place, is_true)) = place.zip(judged_by(bin, one)) {
                judged[place].push(is_true);
            }
        }
    }
    for (bin, judged) in bins.iter_mut().zip(&judged) {
        bin.confidence = round(share(judged));
        bin.given = u32::try_from(judged.len()).unwrap_or(u32::MAX);
    }
    bins.retain(|bin| bin.given > 0);
    bins
}

/// Returns the ranges that hold [`WITHIN`] of the forecasts of runs that ran out of memory. Each
/// course has the same weight, however long its runs are.
fn ranges(all: &[ForecastOutcome<'_>]) -> Vec<Bin> {
    let mut bins = Vec::new();
    let mut from = 0.0;
    for reach_below in EDGES {
        let own: Vec<&ForecastOutcome<'_>> = all.iter().filter(|one| one.is_in(&(from..reach_below))).collect();
        let ended: Vec<(f64, &ForecastOutcome<'_>)> = own.iter().filter_map(|one| Some((one.after?, *one))).collect();
        if ended.len() < FEWEST {
            continue;
        }
        from = reach_below;
        let alike = |course: &str| ended.iter().filter(|(_, one)| one.course == course).count();
        // Ratio of the actual to the extrapolated time. Deviations within the slack, in which no
        // forecast is reported, count as right.
        let part = |slack_sign: f64, part: f64| {
            let mut numbers: Vec<(f64, f64)> = ended
                .iter()
                .map(|(after, one)| {
                    let seconds = one.given.end.seconds.max(0.5);
                    ((after + slack_sign * slack(one.given)) / seconds, 1.0 / count(alike(one.course)))
                })
                .collect();
            weighted_quantile(&mut numbers, part)
        };
        let earliest = round(part(1.0, (1.0 - WITHIN) / 2.0).min(1.0));
        let latest = round(part(-1.0, f64::midpoint(1.0, WITHIN)).max(1.0));
        bins.push(Bin { reach_below, earliest, latest, confidence: 0.0, given: 0 });
    }
    bins
}

/// Returns the bin of a forecast.
fn bin<'a>(bins: &'a [Bin], one: &ForecastOutcome<'_>) -> Option<&'a Bin> {
    bins.iter().find(|bin| one.given.end.reach < bin.reach_below)
}

/// Returns whether the forecast of this bin came true.
fn judged_by(bin: &Bin, one: &ForecastOutcome<'_>) -> Option<bool> {
    let (seconds, slack) = (one.given.end.seconds, slack(one.given));
    came_true(one, (seconds * bin.earliest - slack).max(0.0), seconds * bin.latest + slack)
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn share(judged: &[bool]) -> f64 {
    count(judged.iter().filter(|is_true| **is_true).count()) / count(judged.len().max(1))
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn count(number: usize) -> f64 {
    number as f64
}

/// Returns the tables for docs/project/verdicts.md.
pub(crate) fn document(all: &[Played]) -> String {
    format!("\n{}\n{}\n{}\n{}\n", leaks(all), warnings(all), forecasts(all), checked(all))
}

/// Returns the table of verdicts on lines: reported against expected.
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
        "| {} runs, their lines | reported to grow | not reported |\n|---|---|---|\n| grow | {found} | {missed} |\n| do not | {wrong} | {quiet} |\n",
        all.len()
    )
}

/// Returns the table of runs: warned or not, against their outcome.
fn warnings(all: &[Played]) -> String {
    let mut text = "| runs | | warned before | false warnings | not warned |\n|---|---|---|---|---|\n".to_owned();
    let kinds = [
        ("the memory runs out", true, Warned::Before),
        ("growth that stops before the end", false, Warned::WhileItGrows),
        ("nothing is wrong, or its end is too far to decide", false, Warned::Never),
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

/// A reported forecast, and whether it came true.
struct JudgedForecast<'a> {
    one: ForecastOutcome<'a>,
    reach_below: f64,
    confidence: f64,
    came_true: Option<bool>,
}

/// Returns the table of reported forecasts with the share that came true. Each course is judged by
/// a table from all others.
fn forecasts(all: &[Played]) -> String {
    let all = learnt(all);
    let mut reported = Vec::new();
    for course in courses(&all) {
        let bins = fitted(&without(&all, course));
        reported.extend(all.iter().filter(|one| one.course == course).filter_map(|one| reported_by(&bins, *one)));
    }
    let mut text = rows_head("left, in multiples of the growth seen", "courses");
    let mut from = 0.0;
    for reach_below in EDGES {
        let own: Vec<&JudgedForecast<'_>> =
            reported.iter().filter(|reported| reported.reach_below.total_cmp(&reach_below).is_eq()).collect();
        let of: BTreeSet<&str> = own.iter().map(|reported| reported.one.course).collect();
        if !own.is_empty() {
            row(&mut text, &format!("{from} to {reach_below}"), Some(of.len()), &own);
            from = reach_below;
        }
    }
    let (every, of): (Vec<&JudgedForecast<'_>>, BTreeSet<&str>) =
        reported.iter().map(|reported| (reported, reported.one.course)).unzip();
    row(&mut text, "all", Some(of.len()), &every);
    let further = all.len() - reported.len();
    writeln!(text, "\n{further} forecasts reach further, and have neither range nor confidence. The same by course:\n")
        .expect("a string takes all");
    text += &rows_head("course", "");
    for course in of {
        let own: Vec<&JudgedForecast<'_>> = reported.iter().filter(|reported| reported.one.course == course).collect();
        row(&mut text, course, None, &own);
    }
    text
}

/// Returns the results of the current table on runs that were not used to fit any table.
fn checked(all: &[Played]) -> String {
    let bins = fitted(&learnt(all));
    let runs: Vec<&Played> = all.iter().filter(|played| played.run.is_check).collect();
    let given: Vec<ForecastOutcome<'_>> = runs.iter().copied().flat_map(outcomes).collect();
    let reported: Vec<JudgedForecast<'_>> = given.iter().filter_map(|one| reported_by(&bins, *one)).collect();
    let mut text = format!("{} runs have no part in any table. What the one in force says of them:\n\n", runs.len());
    text += &rows_head("course", "");
    for course in courses(&given) {
        let own: Vec<&JudgedForecast<'_>> = reported.iter().filter(|reported| reported.one.course == course).collect();
        if !own.is_empty() {
            row(&mut text, course, None, &own);
        }
    }
    row(&mut text, "all", None, &reported.iter().collect::<Vec<_>>());
    text
}

/// Returns the judged forecast, or `None` if it reaches further than all bins.
fn reported_by<'a>(bins: &[Bin], one: ForecastOutcome<'a>) -> Option<JudgedForecast<'a>> {
    let bin = bin(bins, &one)?;
    let (reach_below, confidence) = (bin.reach_below, bin.confidence);
    Some(JudgedForecast { one, reach_below, confidence, came_true: judged_by(bin, &one) })
}

fn rows_head(first: &str, second: &str) -> String {
    let columns: Vec<&str> = [first, second, "forecasts", "sure on average", "came true", "not reported yet"]
        .into_iter()
        .filter(|name| !name.is_empty())
        .collect();
    format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()))
}

fn row(text: &mut String, name: &str, courses: Option<usize>, own: &[&JudgedForecast<'_>]) {
    let judged: Vec<bool> = own.iter().filter_map(|reported| reported.came_true).collect();
    let sure = own.iter().map(|reported| reported.confidence).sum::<f64>() / count(own.len().max(1));
    let courses = courses.map(|courses| format!("{courses} | ")).unwrap_or_default();
    let waiting = own.len() - judged.len();
    let (sure, came_true) = (sure * 100.0, share(&judged) * 100.0);
    writeln!(text, "| {name} | {courses}{} | {sure:.0} % | {came_true:.0} % | {waiting} |", judged.len())
        .expect("a string takes all");
}
