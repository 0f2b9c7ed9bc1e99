//! Selects processes by PID, name, or owner.

use clap::{ArgMatches, Command};
use memwatch_core::words::Tgid;

use super::{Choice, values};

/// Processes selected on the command line. A bare number is a PID, any other bare word a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selected {
    /// Selected PIDs.
    pub(crate) tgids: Vec<Tgid>,
    /// Selection by name, container, pod, job, user or control group.
    pub(crate) choice: Choice,
}

impl Selected {
    /// Selects only these processes.
    pub(crate) fn of(tgids: &[Tgid]) -> Self {
        Self { tgids: tgids.to_vec(), choice: Choice::default() }
    }

    /// Returns whether nothing is selected, which means all processes.
    pub(crate) fn is_everybody(&self) -> bool {
        self.tgids.is_empty() && self.choice.is_empty()
    }
}

/// Target arguments in the form that clap parses.
#[derive(clap::Args)]
struct Typed {
    /// Processes by PID, or by name such as train.py (* stands for any text), with their children
    #[arg(value_name = "PID|NAME", value_parser = word, help_heading = "Which processes")]
    words: Vec<Word>,
    /// Processes by PID, with their children; may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',')]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true, help_heading = "Which processes")]
    tgids: Vec<Tgid>,
    #[command(flatten)]
    choice: Choice,
}

/// A positional argument.
#[derive(Clone, Debug)]
enum Word {
    Pid(Tgid),
    Name(String),
}

/// # Errors
/// If the word is a number but not a valid PID, or blank.
fn word(text: &str) -> Result<Word, String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return values::tgid(text).map(Word::Pid);
    }
    if text.trim().is_empty() {
        return Err("a process has a PID or a name".to_owned());
    }
    Ok(Word::Name(text.to_owned()))
}

impl From<Typed> for Selected {
    fn from(Typed { words, mut tgids, mut choice }: Typed) -> Self {
        for word in words {
            match word {
                Word::Pid(tgid) => tgids.push(tgid),
                Word::Name(name) => choice.names.push(name),
            }
        }
        Self { tgids, choice }
    }
}

impl clap::FromArgMatches for Selected {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Typed::from_arg_matches(matches).map(Self::from)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Selected {
    fn augment_args(command: Command) -> Command {
        Typed::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Typed::augment_args_for_update(command)
    }
}
