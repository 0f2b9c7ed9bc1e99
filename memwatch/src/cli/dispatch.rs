//! Runs the requested command or the live view.

use crate::cli::table::awaited;
use crate::cli::{Command, MemwatchArgs};
use crate::commands::live::watch;
use crate::commands::ps;
use crate::exit::{Exit, ExitFailure};
use crate::options::CommonArgs;
use crate::render::units;
use crate::sources::library::check_named;

/// Runs what the command line requests.
///
/// # Errors
/// If the command fails.
pub(crate) fn run(args: &MemwatchArgs) -> Result<Exit, ExitFailure> {
    let common = &args.common;
    units::choose(common.units);
    let is_run = matches!(args.command, Some(Command::Run(_)));
    // Any other exit code could be the program's own.
    let of_run = |failure| ExitFailure { exit: Exit::Command(125), ..failure };
    if !matches!(args.command, Some(Command::Doctor(_))) {
        check_libraries(common).map_err(|failure| if is_run { of_run(failure) } else { failure })?;
    }
    match &args.command {
        Some(command) => command.run(common),
        None if args.once => awaited(ps::run(&ps::args::Ps::of(&args.targets), common)),
        None => awaited(watch((&args.targets, &args.tensors, args.pace), common)),
    }
}

/// Rejects libraries named on the command line that cannot be loaded. Without them, a report would
/// silently lack their data.
fn check_libraries(common: &CommonArgs) -> Result<(), ExitFailure> {
    let nvml = "Without --nvml-lib, memwatch uses the driver's own libnvidia-ml.so.1.";
    let cuda = "Without --libcuda, memwatch finds the driver's own library and those that programs have loaded.";
    let named = common.nvml_lib.iter().map(|path| ("--nvml-lib", path, nvml));
    let named = named.chain(common.libcuda.iter().map(|path| ("--libcuda", path, cuda)));
    for (option, path, advice) in named {
        check_named(path).map_err(|why| {
            ExitFailure::new(Exit::Error, format_args!("{option} {}: {why}", path.display())).advise(advice)
        })?;
    }
    Ok(())
}
