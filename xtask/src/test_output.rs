//! Running `cargo test` so that its closing lines can end the whole output.

use crate::child::Owned;
use crate::orphans;
use crate::run::line;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Far beyond what the tests take: one that hangs ends the run, with what was printed so far.
const AT_MOST: Duration = Duration::from_mins(40);
/// For processes that are just about to end.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a `cargo test`, passes its output on, and keeps the last `test result:` line back in `closing_lines`.
///
/// Both of its outputs go through one pipe, since cargo announces each test program on the error output: the order stays.
///
/// Whatever the tests leave running is killed: it would hold the pipe open for ever.
///
/// # Errors
/// When it cannot be started, a test failed, it takes longer than [`AT_MOST`], or something was left running.
pub(crate) fn run_tests(cargo: &mut Command, closing_lines: &mut String) -> Result<()> {
    let (output, input) = std::io::pipe().context("cannot make a pipe")?;
    let errors = input.try_clone().context("cannot share a pipe")?;
    orphans::adopt()?;
    let mut child = Owned::start_on_terminal(cargo.stdout(input).stderr(errors))?;
    // Our ends for writing have to be closed, or the pipe never ends.
    cargo.stdout(Stdio::null()).stderr(Stdio::null());
    let reader = std::thread::spawn(move || pass_on(BufReader::new(output), &mut std::io::stdout()));
    let status = child.wait(AT_MOST)?;
    drop(child);
    let left = orphans::end_all(GRACE);
    let passed_on = reader.join().expect("passing lines on does not panic");
    *closing_lines = passed_on.context("cannot pass on what cargo test prints")?;
    match status {
        None => bail!("not ended after {} minutes: {}", AT_MOST.as_secs() / 60, line(cargo)),
        Some(status) if !status.success() => bail!("{status}: {}", line(cargo)),
        Some(_) if !left.is_empty() => bail!("the tests left processes running: {}", left.join(", ")),
        Some(_) => Ok(()),
    }
}

/// Copies lines, but holds every `test result:` line back until something else follows; returns what is still held.
fn pass_on(from: impl BufRead, to: &mut impl Write) -> std::io::Result<String> {
    let mut held = String::new();
    for text in from.lines() {
        let text = text?;
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
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_result_is_kept_back() {
        let output = "running 1 test\ntest a ... ok\n\ntest result: ok. 1\n\nrunning 0 tests\n\ntest result: ok. 0\n\n";
        let mut shown = Vec::new();
        let held = pass_on(output.as_bytes(), &mut shown).unwrap();
        assert_eq!(held, "test result: ok. 0\n\n");
        assert_eq!(String::from_utf8(shown).unwrap() + &held, output);
    }
}
