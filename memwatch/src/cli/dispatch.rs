//! What was asked for: the only file that knows all rooms.

use crate::cli::{Args, Command};
use crate::commands::export;
use crate::commands::live::watch;
use crate::commands::places::args::{Layers, Sites};
use crate::commands::ps::args::Ps;
use crate::commands::ps::report_once;
use crate::commands::ps::report_recorded;
use crate::commands::run::run_command;
use crate::exit::{Exit, Failure};
use crate::options::{Common, Rows};
use crate::render::places::Places;
use crate::sources::library::check_named;
use crate::watch::past::{Needs, Recording};

/// Does what the command line asks for.
pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let common = &args.common;
    if let Some(Command::Doctor) = args.command {
        return Ok(doctor(common));
    }
    let is_run = matches!(args.command, Some(Command::Run(_)));
    // The command's exit code could be any other.
    let of_run = |failure| Failure { exit: Exit::Command(125), ..failure };
    check_libraries(common).map_err(|failure| if is_run { of_run(failure) } else { failure })?;
    if let Some(Command::Agent(agent)) = &args.command {
        return crate::agent::run(agent, common);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
    runtime.block_on(async {
        match &args.command {
            Some(Command::Run(run)) => run_command(run, common).await,
            Some(Command::Stats(stats)) => crate::commands::stats::stats(stats, common).await,
            Some(Command::Snapshot(pickle)) => crate::commands::snapshot::snapshot(pickle, common).await,
            Some(Command::Export(args)) => export::run(&args.held, args.written(), common).await,
            Some(Command::Flamegraph(args)) => export::run(&args.held, args.written(), common).await,
            Some(Command::Sites(Sites { places, native })) => {
                crate::commands::places::places(places, (Places::Sites, true, *native), common).await
            }
            Some(Command::Stages(places)) => {
                crate::commands::places::places(places, (Places::Stages, true, false), common).await
            }
            Some(Command::Layers(Layers { places, fragmentation })) => {
                crate::commands::places::places(places, (Places::Layers, !fragmentation, false), common).await
            }
            Some(Command::Diff(diff)) => crate::commands::diff::run(diff, common).await,
            Some(Command::Leak(leak)) => crate::commands::leak::run(leak, common).await,
            Some(Command::Oom(oom)) => crate::commands::oom::run(oom, common).await,
            Some(Command::Fragment(fragment)) => crate::commands::fragment::run(fragment, common).await,
            Some(Command::Simulate(simulate)) => crate::commands::simulate::run(simulate, common).await,
            Some(Command::Timeline(args)) => crate::commands::timeline::run(args, common).await,
            Some(Command::Monitor(args)) => crate::commands::monitor::run(args, common).await,
            Some(Command::Profile(args)) => crate::commands::profile::run(args, common).await,
            Some(Command::Record(record)) => crate::commands::record::record(record, common).await,
            Some(Command::ResetPeaks(whose)) => crate::commands::reset_peaks::run(whose, common).await,
            Some(Command::Report(report)) => crate::commands::report::report(report, common).await,
            Some(Command::Ps(Ps { targets, rows, past })) => {
                match Recording::named(past, Needs::Calls, common).await? {
                    Some(recording) => report_recorded(&recording, targets, *rows, common),
                    None => report_once(targets, *rows, common).await,
                }
            }
            None if args.once => report_once(&args.targets, Rows::Process, common).await,
            _ => watch((&args.targets, &args.tensors, args.pace), common).await,
        }
    })
}

/// Refuses libraries that are named and cannot be any: without them a report would be short of what they were named for.
fn check_libraries(common: &Common) -> Result<(), Failure> {
    let nvml = "Leave it out, and memwatch takes the driver's own libnvidia-ml.so.1.";
    let cuda = "Leave it out, and memwatch finds the driver's own and those that programs have loaded.";
    let named = common.nvml_lib.iter().map(|path| ("--nvml-lib", path, nvml));
    let named = named.chain(common.libcuda.iter().map(|path| ("--libcuda", path, cuda)));
    for (option, path, advice) in named {
        check_named(path).map_err(|why| {
            Failure::new(Exit::Error, format_args!("{option} {}: {why}", path.display())).advise(advice)
        })?;
    }
    Ok(())
}

fn doctor(common: &Common) -> Exit {
    crate::commands::doctor::run(&crate::commands::doctor::DoctorOptions {
        json: common.json,
        nvml_library: common.nvml_lib.clone(),
        libraries: common.libcuda.clone(),
        sockets: common.sockets.places(),
        color: crate::render::output::use_color(common),
        verbose: common.verbose > 0,
    })
}
