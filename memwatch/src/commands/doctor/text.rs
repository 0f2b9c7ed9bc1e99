//! Text report of `memwatch doctor`: one line per check, then its details and its fix, and the
//! verdict last.

use std::fmt::Write as _;

use super::check::{Check, CheckState, Topic};
use super::prices::{PredictedOverheadReport, Prediction};
use super::{Barrier, Diagnosis};
use crate::printable::printable;
use crate::render::format::count;
use crate::render::output::host_name;
use crate::render::sentences::level::percent_of;

/// Maximum columns of a line; longer lines are wrapped at spaces, command lines never.
const COLUMNS: usize = 110;

/// Returns the mark of a state, two columns wide, and its SGR colour.
const fn look(state: CheckState) -> (&'static str, &'static str) {
    match state {
        CheckState::Ok => ("ok", "32"),
        CheckState::Degraded => ("! ", "33"),
        CheckState::Missing(_) => ("!!", "1;31"),
        CheckState::NotChecked => ("--", "2"),
    }
}

/// Renders the whole report.
pub(crate) fn render(diagnosis: &Diagnosis, color: bool) -> String {
    let paint = Paint { color };
    let checks = &diagnosis.checks;
    let label_columns = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let mut text =
        format!("memwatch {} on {}, Linux {}\n\n", env!("CARGO_PKG_VERSION"), host_name(), diagnosis.release);
    let mut reported = PrintedFixes::default();
    for topic in Topic::ALL {
        let of_topic: Vec<&Check> = checks.iter().filter(|check| check.topic == topic).collect();
        if of_topic.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", paint.with("1", topic.title()));
        for check in of_topic {
            write_check(&mut text, check, label_columns, paint);
            write_fixes(&mut text, check, reported.before(check), margin(label_columns), paint);
        }
        text.push('\n');
    }
    if let Some(report) = &diagnosis.prices {
        write_prices(&mut text, report, paint);
    }
    let color = match diagnosis.barrier() {
        None => look(CheckState::Ok).1,
        Some(Barrier::Permission | Barrier::Machine) => look(CheckState::Missing(Barrier::Machine)).1,
    };
    let _ = writeln!(text, "{}", paint.with(color, &diagnosis.summary()));
    text
}

/// Returns the columns before a fact: a mark and a label, each with two spaces around it.
const fn margin(label_columns: usize) -> usize {
    2 + 2 + 2 + label_columns + 2
}

fn write_check(text: &mut String, check: &Check, label_columns: usize, paint: Paint) {
    let (mark, color) = look(check.state);
    let margin = margin(label_columns);
    let label = format!("{:<label_columns$}", check.id);
    let fact = wrapped(&printable(&check.fact), margin);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {}  {label}  {fact}", paint.with(color, mark));
    for detail in &check.details {
        let _ = writeln!(text, "{:margin$}{}", "", paint.with("2", &wrapped(&printable(detail), margin)));
    }
}

/// Writes the fixes of a check, or refers to an earlier check with the same fixes.
fn write_fixes(text: &mut String, check: &Check, reported: Option<&str>, margin: usize, paint: Paint) {
    if let Some(id) = reported {
        let _ = writeln!(text, "{:margin$}{}", "", paint.with("2", &format!("fix: as for {id}")));
        return;
    }
    for (position, fix) in check.fixes.iter().enumerate() {
        let lead = if position == 0 { "fix: " } else { "or:  " };
        let _ = writeln!(text, "{:margin$}{}{}", "", paint.with("36", lead), printable(fix));
    }
}

/// Writes a table of levels for each process, or the reason why there is none.
fn write_prices(text: &mut String, report: &PredictedOverheadReport, paint: Paint) {
    let budget = report.budget.ns_per_second();
    let budget = budget.map_or_else(|| "no limit".to_owned(), |ns| format!("{} of one processor", percent_of(ns)));
    let probe = match &report.not_measured {
        None => format!("a probe takes {} ns here", count(report.prices.trap_ns.get())),
        Some(reason) => format!(
            "a probe is assumed to take {} ns, as on the slowest machine measured; it was not measured here: {reason}",
            count(report.prices.trap_ns.get())
        ),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", paint.with("1", "Predicted overhead of tracing PyTorch"));
    let _ = writeln!(text, "  {}", wrapped(&format!("budget: {budget}; {}", printable(&probe)), 2));
    for process in &report.processes {
        let whose = format!("PID {} ({})", process.tgid.0, printable(&process.name));
        match &process.prediction {
            Err(reason) => {
                let _ = writeln!(text, "  {}", wrapped(&format!("{whose}: {}", printable(reason)), 2));
            }
            Ok(prediction) => {
                let _ = writeln!(text, "  {whose}: {} tensor events/s", count(prediction.events_per_second));
                write_levels(text, prediction, paint);
            }
        }
    }
    text.push('\n');
}

/// Writes the levels: the chosen level has a mark, and a level above the budget is dim.
fn write_levels(text: &mut String, prediction: &Prediction, paint: Paint) {
    let row = |[mark, level, ns_per_event, part, fits]: [&str; 5], shows: &str| {
        format!("  {mark:2}  {level:<7}  {ns_per_event:>12}  {part:>14}  {fits:<6}  {shows}")
    };
    let header = row(["", "LEVEL", "NS PER EVENT", "OF A PROCESSOR", "FITS"], "SHOWS");
    let _ = writeln!(text, "{}", paint.with("2", &header));
    for price in &prediction.levels {
        let mark = if price.level == prediction.chosen { "->" } else { "" };
        let fits = if price.fits { "yes" } else { "no" };
        let (ns_per_event, part) = (count(price.event_ns), percent_of(price.ns_per_second));
        let line = row([mark, price.level.name(), &ns_per_event, &part, fits], price.shows);
        let _ = writeln!(text, "{}", if price.fits { line } else { paint.with("2", &line) });
    }
    let _ = writeln!(text, "      without --tensors it is traced at level {}", prediction.chosen.name());
}

/// Fixes printed so far, with the id of their check.
#[derive(Default)]
struct PrintedFixes<'a>(Vec<(&'a [String], &'static str)>);

impl<'a> PrintedFixes<'a> {
    /// Returns the earlier check with the same fixes; otherwise remembers these.
    fn before(&mut self, check: &'a Check) -> Option<&'static str> {
        let found = self.0.iter().find(|(fixes, _)| *fixes == check.fixes).map(|(_, id)| *id);
        if found.is_none() && !check.fixes.is_empty() {
            self.0.push((&check.fixes, check.id));
        }
        found
    }
}

/// Wraps a line at spaces so that it fits with the margin, and indents the following lines by the
/// margin.
fn wrapped(line: &str, margin: usize) -> String {
    let room = COLUMNS.saturating_sub(margin).max(20);
    let mut lines: Vec<String> = Vec::new();
    let mut current = String::new();
    let mut columns = 0;
    for word in line.split_inclusive(' ') {
        let wide = word.trim_end().chars().count();
        if columns + wide > room && columns > 0 {
            lines.push(std::mem::take(&mut current).trim_end().to_owned());
            columns = 0;
        }
        current.push_str(word);
        columns += word.chars().count();
    }
    lines.push(current);
    lines.join(&format!("\n{:margin$}", ""))
}

/// Optional colours.
#[derive(Clone, Copy)]
struct Paint {
    color: bool,
}

impl Paint {
    fn with(self, sgr: &str, text: &str) -> String {
        if self.color { format!("\u{1b}[{sgr}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, render, wrapped};
    use std::num::NonZeroU64;

    use crate::commands::doctor::tests::{broken, healthy, priced};

    #[test]
    fn every_check_has_a_line_and_the_verdict_is_the_last() {
        let text = render(&healthy(), false);
        assert!(text.contains("\n  ok  kernel"), "{text}");
        assert!(text.ends_with("\nready: 2 functions in 1 library file, 1 GPU\n"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn doctor_text_prints_each_fix_once_below_its_check() {
        let text = render(&broken(), false);
        let fact = text.find("not granted: loads the kernel half").expect("the fact");
        let fix = text.find("fix: sudo /usr/bin/memwatch doctor").expect("the fix");
        assert!(fact < fix);
        assert_eq!(text.matches("fix: sudo /usr/bin/memwatch doctor").count(), 1, "{text}");
        assert_eq!(text.matches("fix: as for cap_bpf").count(), 3, "{text}");
        assert!(
            text.lines().last().expect("a line").starts_with("not ready: permission is missing (cap_bpf, cap_perfmon)")
        );
    }

    #[test]
    fn facts_start_in_one_column_with_and_without_colour() {
        let plain = render(&broken(), false);
        let checks = plain.lines().filter(|line| line.starts_with("  !!"));
        let columns: Vec<_> = checks.map(|line| line.find("not granted")).collect();
        assert!(columns.len() == 2 && columns[0] == columns[1], "{plain}");
        let colored = render(&broken(), true);
        let mut bare = colored;
        for code in ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[36m", "\u{1b}[1;31m"] {
            bare = bare.replace(code, "");
        }
        assert_eq!(bare, plain);
    }

    #[test]
    fn each_process_has_a_table_of_levels_or_a_reason() {
        let text = render(&priced(Ok(NonZeroU64::new(1_000).expect("a price"))), false);
        let table = "\
Predicted overhead of tracing PyTorch
  budget: 2 % of one processor; a probe takes 1,000 ns here
  PID 7 (python3): 120,000 tensor events/s
      LEVEL    NS PER EVENT  OF A PROCESSOR  FITS    SHOWS
  ->  read                0             0 %  yes     totals, peaks and counts, read from its memory
      blocks          2,650          31.8 %  no      every tensor allocation and free
      lines           3,100          37.2 %  no      the lines of Python; blocks below 1 MiB are sampled
      modules         5,000            60 %  no      phases and modules
      without --tensors it is traced at level read
  PID 9 (python3): 0 tensor events/s
";
        assert!(text.contains(table), "{text}");
        assert!(text.contains("\n  ->  modules         5,000             0 %  yes     phases and modules\n"), "{text}");
        assert!(text.contains("  PID 11 (python3): PyTorch with CUDA is not loaded: there are no tensors"), "{text}");
        assert!(!render(&healthy(), false).contains("Predicted overhead"));
        let text = render(&priced(Err("the trial run did not work".to_owned())), false);
        let words: Vec<&str> = text.split_whitespace().collect();
        let assumed = "a probe is assumed to take 1,400 ns, as on the slowest machine measured; it was not measured here: \
            the trial run did not work PID 7";
        assert!(words.join(" ").contains(assumed), "{text}");
    }

    #[test]
    fn long_lines_break_at_spaces_and_keep_their_columns() {
        let line = "word ".repeat(60);
        let text = wrapped(&line, 10);
        assert!(text.lines().count() > 1);
        assert!(text.lines().skip(1).all(|line| line.starts_with("          word")));
        assert!(text.lines().all(|line| line.trim_start().chars().count() + 10 <= COLUMNS));
        assert_eq!(wrapped("a  b", 10), "a  b");
        assert_eq!(wrapped("", 10), "");
        let long = "x".repeat(500);
        assert_eq!(wrapped(&long, 10), long);
    }
}
