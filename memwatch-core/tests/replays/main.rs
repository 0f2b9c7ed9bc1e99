//! Recorded runs of real PyTorch, played again: verdicts on leaks and forecasts are as expected,
//! and their confidence is calibrated.
//!
//! `cargo xtask replays` makes the recordings, `cargo xtask calibrate` writes the results of this
//! test into the code and docs/project/verdicts.md.

mod measure;
mod play;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use measure::{document, table};
use play::{Played, Warned};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace").to_owned()
}

/// Returns all runs, played once.
fn all() -> &'static [Played] {
    static ALL: OnceLock<Vec<Played>> = OnceLock::new();
    ALL.get_or_init(|| play::all(&play::runs(&root().join("tests/replays"))))
}

#[test]
fn each_line_has_the_verdict_that_it_deserves() {
    let wrong: Vec<String> = all()
        .iter()
        .filter(|played| played.growing != played.run.growing)
        .map(|played| format!("{}: {:?}, reported {:?}", played.run.name, played.run.growing, played.growing))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_report_contradicts_itself() {
    let wrong = all().iter().filter(|played| !played.contradictions.is_empty());
    let wrong: Vec<String> = wrong.map(|played| format!("{}: {:?}", played.run.name, played.contradictions)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn forecast_warns_exactly_the_runs_that_run_out_of_memory() {
    let is_wrong = |played: &&Played| {
        let was_warned = played.warned_seconds.is_some();
        let ran_out = !played.failures_ns.is_empty();
        ran_out != played.run.runs_out
            || match played.run.warned {
                Warned::Never => was_warned,
                Warned::WhileItGrows => played.is_warned_at_end,
                Warned::Before => !was_warned,
            }
    };
    let report = |played: &Played| {
        let Played { run, warned_seconds, is_warned_at_end, failures_ns, .. } = played;
        format!(
            "{}: warned {warned_seconds:?} s before, at its end {is_warned_at_end}, {} failures",
            run.name,
            failures_ns.len()
        )
    };
    let wrong: Vec<String> = all().iter().filter(is_wrong).map(report).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn growth_names_only_the_growing_program() {
    for Played { run, growing_commands, .. } in all() {
        let own = format!("courses.py {} ", run.course);
        let is_own = |command: &String| command.contains(&own);
        assert!(growing_commands.iter().all(is_own), "{}: {growing_commands:?}", run.name);
        assert!(!(run.runs_out && growing_commands.is_empty()), "{}: nobody grows", run.name);
    }
}

#[test]
fn every_recording_has_its_row_and_none_is_large() {
    let folder = root().join("tests/replays");
    let files = std::fs::read_dir(&folder).expect("the recordings are in the tree").map(|entry| entry.expect("a file"));
    let recordings = files.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "mwr"));
    let sizes: Vec<(String, u64)> = recordings
        .map(|entry| {
            let name = entry.path().file_stem().expect("it has a name").to_string_lossy().into_owned();
            (name, entry.metadata().expect("it is there").len())
        })
        .collect();
    let named: BTreeSet<String> = sizes.iter().map(|(name, _)| name.clone()).collect();
    let rows: BTreeSet<String> = all().iter().map(|played| played.run.name.clone()).collect();
    assert_eq!(named, rows);
    assert!(sizes.iter().all(|(_, bytes)| *bytes < 300 << 10), "{sizes:?}");
    assert!(sizes.iter().map(|(_, bytes)| bytes).sum::<u64>() < 8 << 20, "8 MiB in all: {sizes:?}");
}

/// Compares a part of a file with its expected text, or writes the text if `cargo xtask calibrate`
/// runs the test.
fn check(path: &str, (begin, end): (&str, &str), wanted: &str, part: &str) {
    let path = root().join(path);
    let text = std::fs::read_to_string(&path).expect("it is in the tree");
    let (before, rest) = text.split_once(begin).expect("it has the mark");
    let after = if end.is_empty() { "" } else { rest.split_once(end).expect("it has the second mark").1 };
    let fresh = format!("{before}{begin}{wanted}{end}{after}");
    if std::env::var("MEMWATCH_CALIBRATE").is_ok_and(|asked| asked == part) {
        std::fs::write(&path, fresh).expect("it can be written");
    } else if std::env::var_os("MEMWATCH_CALIBRATE").is_none() {
        assert!(
            text == fresh,
            "{} is not what is measured now. To write it again: cargo xtask calibrate",
            path.display()
        );
    }
}

#[test]
fn the_table_in_the_code_is_current() {
    let mark = "// Written by `cargo xtask calibrate`: from here on.\n";
    check("memwatch-core/src/features/forecast/calibration.rs", (mark, ""), &table(all()), "table");
}

#[test]
fn the_document_is_current() {
    let marks = ("<!-- Written by `cargo xtask calibrate`: from here -->\n", "<!-- to here -->");
    check("docs/project/verdicts.md", marks, &document(all()), "document");
}
