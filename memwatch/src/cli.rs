//! The command line: options in front of the commands, and parsing.

pub(crate) mod advanced;
pub(crate) mod commands;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod dispatch;
pub(crate) mod help;
pub(crate) mod large_pages;
pub(crate) mod logger;
pub(crate) mod man;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use crate::options::{CommonArgs, IntervalArgs, TargetArgs, TensorArgs};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

pub(crate) use self::commands::Command;

/// Shows who holds GPU memory, from which line of code, and why it runs out.
///
/// It attaches to the CUDA driver's allocation calls from outside: nothing is changed or restarted.
#[derive(Debug, Parser)]
#[command(name = "memwatch", version, max_term_width = 100, subcommand_precedence_over_arg = true)]
pub(crate) struct MemwatchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) targets: TargetArgs,
    #[command(flatten)]
    pub(crate) tensors: TensorArgs,
    #[command(flatten)]
    pub(crate) pace: IntervalArgs,
    /// Print one report and exit, like `memwatch ps`
    #[arg(short = '1', long, conflicts_with = "duration")]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

impl MemwatchArgs {
    /// Returns the clap definition with its help.
    pub(crate) fn definition() -> clap::Command {
        help::dressed(Self::command())
    }

    /// Parses the command line of this process. Prints and exits as clap does on usage errors,
    /// `--help` and `--version`.
    ///
    /// Defaults come from the configuration files.
    pub(crate) fn read() -> Self {
        let settings = config::read(|name| std::env::var(name).ok());
        let read = settings
            .map_err(|sentence| Self::command().error(ErrorKind::InvalidValue, sentence))
            .and_then(|settings| Self::from_words_with(std::env::args_os(), &settings));
        read.unwrap_or_else(|error| error.exit())
    }

    /// Parses a command line, starting with the program's name, without configuration files.
    #[cfg(test)]
    pub(crate) fn from_words<W: Into<std::ffi::OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        Self::from_words_with(words, &[])
    }

    /// Parses a command line, starting with the program's name.
    ///
    /// # Errors
    /// For usage errors, `--help` and `--version`, with clap's messages.
    pub(crate) fn from_words_with<W: Into<std::ffi::OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
        settings: &[config::ConfigSetting],
    ) -> Result<Self, clap::Error> {
        let mut definition = config::applied(Self::definition(), settings);
        let matches = definition.try_get_matches_from_mut(words)?;
        let args = Self::from_arg_matches(&matches)?;
        if let Some((option, command)) = misplaced(&definition, &matches) {
            let sentence = format!("'{option}' does not belong before '{command}': see 'memwatch {command} --help'");
            return Err(definition.error(ErrorKind::ArgumentConflict, sentence));
        }
        if let Some((word, command)) = misspelled(&definition, &matches) {
            let sentence = format!(
                "there is no command '{word}'; the nearest is 'memwatch {command}'. For processes of that name: memwatch --name {word}"
            );
            return Err(definition.error(ErrorKind::InvalidSubcommand, sentence));
        }
        let checked = args.command.as_ref().map_or_else(|| args.tensors.check(), Command::check);
        checked.map(|()| args).map_err(|sentence| definition.error(ErrorKind::ArgumentConflict, sentence))
    }
}

/// Returns a first word that is nearly a command, and that command. Without a command, the word would
/// select processes of that name.
fn misspelled(definition: &clap::Command, matches: &clap::ArgMatches) -> Option<(String, String)> {
    let word = matches.get_raw("words")?.next()?.to_str()?;
    let near = if word.len() > 5 { 2 } else { 1 };
    let mut commands = definition.get_subcommands().filter(|command| !command.is_hide_set());
    let nearest = commands.find(|command| word.len() > 2 && strsim::osa_distance(word, command.get_name()) <= near)?;
    Some((word.to_owned(), nearest.get_name().to_owned()))
}

/// Returns an option of the live view that was given in front of a command, where it would have no
/// effect.
fn misplaced(definition: &clap::Command, matches: &clap::ArgMatches) -> Option<(String, String)> {
    let command = matches.subcommand_name()?;
    let typed = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    let own = definition.get_arguments().filter(|argument| !argument.is_global_set());
    let found = own
        .filter(|argument| !argument.get_id().as_str().contains("help"))
        .find(|argument| typed(argument.get_id().as_str()));
    let name =
        |argument: &clap::Arg| argument.get_long().map_or_else(|| "PID|NAME".to_owned(), |long| format!("--{long}"));
    found.map(|argument| (name(argument), command.to_owned()))
}
