//! Macro that turns the table of commands into an enum, its dispatch and its part of the help.

use std::future::Future;

use crate::exit::{Exit, ExitFailure};

/// A group of commands: its name, and the variant names of its commands.
pub(crate) type CommandGroup = (&'static str, &'static [&'static str]);

/// Runs an asynchronous command on a single-threaded runtime.
///
/// # Errors
/// If the command fails, or the runtime cannot be created.
pub(crate) fn awaited(command: impl Future<Output = Result<Exit, ExitFailure>>) -> Result<Exit, ExitFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
    runtime.block_on(command)
}

/// Returns the result of a command that needs no runtime, or builds its own.
///
/// # Errors
/// If the command failed.
pub(crate) const fn direct(ended: Result<Exit, ExitFailure>) -> Result<Exit, ExitFailure> {
    ended
}

/// The table of commands: groups of rows `Name(arguments) => awaited or direct function`, each with
/// its help line above it.
macro_rules! commands {
    ($($group:ident { $( $(#[$attribute:meta])* $name:ident($args:ty) => $kind:ident $run:path; )* })*) => {
        /// Command to run; without one, the live view is shown.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Command { $($( $(#[$attribute])* $name($args), )*)* }

        /// All commands by group, in the order of the help.
        pub(crate) const GROUPS: &[$crate::cli::table::CommandGroup] =
            &[$( (stringify!($group), &[$( stringify!($name) ),*]) ),*];

        impl Command {
            /// # Errors
            /// If the options are incompatible. The error is a sentence.
            pub(crate) fn check(&self) -> Result<(), String> {
                match self { $($( Self::$name(args) => $crate::options::Checked::check(args), )*)* }
            }

            /// Runs the command.
            ///
            /// # Errors
            /// If the command fails.
            pub(crate) fn run(&self, common: &$crate::options::CommonArgs) -> Result<$crate::exit::Exit, $crate::exit::ExitFailure> {
                match self { $($( Self::$name(args) => $crate::cli::table::$kind($run(args, common)), )*)* }
            }
        }
    };
}

pub(crate) use commands;
