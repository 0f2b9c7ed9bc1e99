//! Parses the words after the task's name.

use anyhow::{Context as _, Result, bail};
use std::time::Duration;

/// Words after the task's name. Accessors remove the words that they return; [`TaskArgs::finish`]
/// rejects the rest.
#[derive(Debug)]
pub(crate) struct TaskArgs {
    words: Vec<String>,
    /// The words after a bare `--`, which belong to another program.
    passed_on: Vec<String>,
}

impl TaskArgs {
    /// Splits the words at the first bare `--`.
    pub(crate) fn new(words: impl IntoIterator<Item = String>) -> Self {
        let mut words: Vec<String> = words.into_iter().collect();
        let mut passed_on = Vec::new();
        if let Some(position) = words.iter().position(|word| word == "--") {
            passed_on = words.split_off(position);
            passed_on.remove(0);
        }
        Self { words, passed_on }
    }

    /// Whether xtask's own words contain `--help` or `-h`.
    pub(crate) fn asks_for_help(&self) -> bool {
        self.words.iter().any(|word| word == "--help" || word == "-h")
    }

    /// Removes a flag such as `--debug` and returns whether it was present.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|word| word != name);
        self.words.len() != before
    }

    /// Removes `--name VALUE` or `--name=VALUE` and returns the value.
    ///
    /// # Errors
    /// The name is the last word.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>> {
        let assigned = format!("{name}=");
        if let Some(position) = self.words.iter().position(|word| word.starts_with(&assigned)) {
            return Ok(Some(self.words.remove(position)[assigned.len()..].to_owned()));
        }
        let Some(position) = self.words.iter().position(|word| word == name) else {
            return Ok(None);
        };
        if position + 1 == self.words.len() {
            bail!("{name} needs a value");
        }
        self.words.remove(position);
        Ok(Some(self.words.remove(position)))
    }

    /// Removes a duration such as `--duration 30s` and returns it.
    ///
    /// # Errors
    /// The value is not a number followed by nothing, `ms`, `s`, `m` or `h`.
    pub(crate) fn duration(&mut self, name: &str) -> Result<Option<Duration>> {
        self.value(name)?
            .map(|text| parse_duration(&text).with_context(|| format!("{name} {text}: write it as 30s, 2m or 1h")))
            .transpose()
    }

    /// Removes a whole number such as `--rounds 5` and returns it.
    ///
    /// # Errors
    /// The value is not a whole number.
    pub(crate) fn count(&mut self, name: &str) -> Result<Option<u64>> {
        self.value(name)?
            .map(|text| text.parse().with_context(|| format!("{name} {text}: not a whole number")))
            .transpose()
    }

    /// Removes and returns the first word, unless it is an option.
    pub(crate) fn word(&mut self) -> Option<String> {
        let is_word = self.words.first().is_some_and(|word| !word.starts_with('-'));
        is_word.then(|| self.words.remove(0))
    }

    /// Removes and returns the words after `--`.
    pub(crate) fn passed_on(&mut self) -> Vec<String> {
        std::mem::take(&mut self.passed_on)
    }

    /// Checks that all words were used.
    ///
    /// # Errors
    /// A word is left.
    pub(crate) fn finish(self) -> Result<()> {
        match self.words.iter().chain(&self.passed_on).next() {
            Some(word) => bail!("'{word}' was not expected here (see cargo xtask --help)"),
            None => Ok(()),
        }
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit_ms = match &text[digits..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> TaskArgs {
        TaskArgs::new(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn words_after_two_dashes_belong_to_the_other_program() {
        let mut args = args("--debug -- --pid 12 -- x");
        assert!(args.flag("--debug"));
        assert_eq!(args.passed_on(), ["--pid", "12", "--", "x"]);
        assert!(args.finish().is_ok());
    }

    #[test]
    fn a_value_may_be_a_word_of_its_own_or_assigned() {
        assert_eq!(args("--root /opt").value("--root").unwrap().as_deref(), Some("/opt"));
        assert_eq!(args("--root=/opt").value("--root").unwrap().as_deref(), Some("/opt"));
        assert!(args("--root").value("--root").is_err());
    }

    #[test]
    fn words_end_where_options_begin() {
        let mut args = args("overhead --rounds 3");
        assert_eq!(args.word().as_deref(), Some("overhead"));
        assert_eq!(args.word(), None);
        assert_eq!(args.count("--rounds").unwrap(), Some(3));
    }

    #[test]
    fn durations_have_units_and_default_to_seconds() {
        for (text, want_ms) in [("5", 5_000), ("250ms", 250), ("30s", 30_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(want_ms)), "{text}");
        }
        for text in ["", "s", "1d", "-3s", "99999999999999999999"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_leftover_word_is_refused_by_name() {
        let refusal = args("--nope").finish().unwrap_err().to_string();
        assert!(refusal.contains("--nope"), "{refusal}");
    }
}
