//! Runs `cargo test` and moves its closing lines to the end of the whole output.

use crate::child::OwnedChild;
use crate::orphans;
use crate::run::line;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit far above what the tests take: a hanging test ends the run, with its output so far.
const AT_MOST: Duration = Duration::from_mins(60);
/// Time limit for processes that are about to exit.
const GRACE: Duration = Duration::from_secs(5);

/// A failed test in the output of `cargo test`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestFailure {
    /// Name of the test.
    test: String,
    /// Beginning of the reason: location and message of the panic.
    why: String,
}

/// Maximum number of lines of a failure that are repeated at the end, and of characters per line.
const WHY_LINES: usize = 3;
const WHY_CHARACTERS: usize = 300;

/// Runs a `cargo test`, forwards its output, and holds the last `test result:` line back in
/// `closing_lines`.
///
/// # Errors
/// A test failed; the error lists all failed tests. Also the errors of [`failures_of`].
pub(crate) fn run_tests(cargo: &mut Command, closing_lines: &mut String) -> Result<()> {
    let failures = failures_of(cargo, closing_lines)?;
    if failures.is_empty() { Ok(()) } else { bail!("{}", listed(&failures)) }
}

/// Runs a `cargo test` like [`run_tests`], and returns the failed tests.
///
/// Both output streams use one pipe to preserve the order, since cargo announces each test program
/// on stderr.
///
/// Processes that the tests leave running are killed: they would hold the pipe open forever.
///
/// # Errors
/// The command cannot be started, fails for another reason than a test, takes longer than
/// [`AT_MOST`], or leaves a process running.
fn failures_of(cargo: &mut Command, closing_lines: &mut String) -> Result<Vec<TestFailure>> {
    let (output, input) = std::io::pipe().context("cannot make a pipe")?;
    let errors = input.try_clone().context("cannot share a pipe")?;
    orphans::adopt()?;
    let mut child = OwnedChild::start_on_terminal(cargo.stdout(input).stderr(errors))?;
    // Our write ends must be closed, or the pipe never ends.
    cargo.stdout(Stdio::null()).stderr(Stdio::null());
    let reader = std::thread::spawn(move || pass_on(BufReader::new(output), &mut std::io::stdout()));
    let status = child.wait(AT_MOST)?;
    drop(child);
    let left = orphans::end_all(GRACE);
    let passed_on = reader.join().expect("passing lines on does not panic");
    let (held, failures) = passed_on.context("cannot pass on what cargo test prints")?;
    *closing_lines = held;
    match status {
        None => bail!("not ended after {} minutes: {}", AT_MOST.as_secs() / 60, line(cargo)),
        Some(status) if !status.success() && failures.is_empty() => bail!("{status}: {}", line(cargo)),
        Some(_) if !left.is_empty() && failures.is_empty() => {
            bail!("the tests left processes running: {}", left.join(", "))
        }
        Some(_) => Ok(failures),
    }
}

/// Lists each failed test with its reason on lines of their own.
fn listed(failures: &[TestFailure]) -> String {
    let lines = failures.iter().map(|failure| format!("{}: {}", failure.test, failure.why));
    format!("failed tests: {}\n{}", failures.len(), lines.collect::<Vec<_>>().join("\n"))
}

/// Copies lines, but holds a `test result:` line back until another line follows. Returns the held
/// line and the failures.
fn pass_on(from: impl BufRead, to: &mut impl Write) -> std::io::Result<(String, Vec<TestFailure>)> {
    let mut held = String::new();
    let (mut failures, mut lines_left) = (Vec::new(), 0);
    for text in from.lines() {
        let text = text?;
        note_failure(&text, &mut failures, &mut lines_left);
        if !held.is_empty() && text.is_empty() {
            held.push('\n');
            continue;
        }
        to.write_all(std::mem::take(&mut held).as_bytes())?;
        if text.starts_with("test result:") {
            held = text + "\n";
        } else {
            writeln!(to, "{text}")?;
        }
    }
    Ok((held, failures))
}

/// Records a failure: a failed test's output follows a line with its name, and its reason begins
/// with the panic.
fn note_failure(text: &str, failures: &mut Vec<TestFailure>, lines_left: &mut usize) {
    if let Some(name) = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----")) {
        let name = name.strip_suffix(" stdout").unwrap_or(name);
        failures.push(TestFailure { test: name.to_owned(), why: String::new() });
        *lines_left = 0;
    }
    let Some(TestFailure { why, .. }) = failures.last_mut() else { return };
    if why.is_empty() && text.contains(" panicked at ") {
        *lines_left = WHY_LINES;
    }
    if *lines_left > 0 && !text.is_empty() {
        *lines_left -= 1;
        let separator = if why.is_empty() { "" } else { " | " };
        why.push_str(separator);
        why.extend(text.chars().take(WHY_CHARACTERS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_result_is_kept_back() {
        let output = "running 1 test\ntest a ... ok\n\ntest result: ok. 1\n\nrunning 0 tests\n\ntest result: ok. 0\n\n";
        let mut shown = Vec::new();
        let (held, failures) = pass_on(output.as_bytes(), &mut shown).unwrap();
        assert_eq!((held.as_str(), failures), ("test result: ok. 0\n\n", Vec::new()));
        assert_eq!(String::from_utf8(shown).unwrap() + &held, output);
    }
    #[test]
    fn a_failed_test_is_known_by_its_name_and_where_it_panicked() {
        let output = "running 2 tests\ntest a::b ... FAILED\ntest c ... FAILED\n\nfailures:\n\n---- a::b stdout ----\nstep 1\n\nthread 'a::b' \
                      panicked at tests/a.rs:7:5:\nleft: 1\nright: 2\nnote: run\n\n---- c ----\n\nfailures:\n    a::b\n    c\n\n\
                      test result: FAILED. 0 passed; 2 failed\n";
        let (held, failures) = pass_on(output.as_bytes(), &mut Vec::new()).unwrap();
        assert_eq!(held, "test result: FAILED. 0 passed; 2 failed\n");
        let failure = |test: &str, why: &str| TestFailure { test: test.to_owned(), why: why.to_owned() };
        let why = "thread 'a::b' panicked at tests/a.rs:7:5: | left: 1 | right: 2";
        assert_eq!(failures, [failure("a::b", why), failure("c", "")]);
    }
}
