//! What the table of commands is made of: how its rows become an enum, its dispatch and its part of the help.

use std::future::Future;

use crate::exit::{Exit, Failure};

/// Names of a group's commands, as Rust spells them.
pub(crate) type Group = (&'static str, &'static [&'static str]);

/// Waits for a command that watches or asks, on a runtime of one thread.
///
/// # Errors
/// What the command answers, or that there is no runtime.
pub(crate) fn awaited(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
    runtime.block_on(command)
}

/// The end of a command that needs no runtime, or builds its own.
///
/// # Errors
/// What the command answers.
pub(crate) const fn direct(ended: Result<Exit, Failure>) -> Result<Exit, Failure> {
    ended
}

/// The table: groups of rows `Name(what it takes) => awaited or direct what runs it`, each with its line of help above it.
macro_rules! commands {
    ($($group:ident { $( $(#[$attribute:meta])* $name:ident($args:ty) => $kind:ident $run:path; )* })*) => {
        /// What to do; without one it is the live view.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Command { $($( $(#[$attribute])* $name($args), )*)* }

        /// All commands by group, in the order of the help.
        pub(crate) const GROUPS: &[$crate::cli::table::Group] =
            &[$( (stringify!($group), &[$( stringify!($name) ),*]) ),*];

        impl Command {
            /// # Errors
            /// With a sentence, when its options do not go together.
            pub(crate) fn check(&self) -> Result<(), String> {
                match self { $($( Self::$name(args) => $crate::options::Checked::check(args), )*)* }
            }

            /// Does it.
            ///
            /// # Errors
            /// What it answers.
            pub(crate) fn run(&self, common: &$crate::options::Common) -> Result<$crate::exit::Exit, $crate::exit::Failure> {
                match self { $($( Self::$name(args) => $crate::cli::table::$kind($run(args, common)), )*)* }
            }
        }
    };
}

pub(crate) use commands;
