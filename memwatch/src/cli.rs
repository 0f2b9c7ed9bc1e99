//! The command line: the table of commands, and what stands before them.

use crate::agent::args::Agent;
use crate::commands::diff::args::Diff;
use crate::commands::export::args::{Export, Flamegraph};
use crate::commands::fragment::args::Fragment;
use crate::commands::leak::args::Leak;
use crate::commands::monitor::args::Monitor;
use crate::commands::oom::args::Oom;
use crate::commands::places::args::{Layers, Places, Sites};
use crate::commands::profile::args::Profile;
use crate::commands::ps::args::Ps;
use crate::commands::record::args::Record;
use crate::commands::report::args::Replayed;
use crate::commands::reset_peaks::args::Whose;
use crate::commands::run::args::Run;
use crate::commands::simulate::args::Simulate;
use crate::commands::snapshot::args::Pickle;
use crate::commands::stats::args::Stats;
use crate::commands::timeline::args::Timeline;
use crate::options::{Common, Pace, Targets, Tensors};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// What follows `--help`'s list of options.
const AFTER_HELP: &str = "\
Examples:
  sudo memwatch                          every process that uses a GPU, live
  sudo memwatch --pid 1234               one process: what it holds, of which kind, since when
  sudo memwatch run -- python3 train.py  from the first allocation; ends with a summary
  sudo memwatch ps --by container        who holds it, summed by container, pod, job, user or GPU
  sudo memwatch --slurm-job 4242         one job; also --container, --pod, --user, --cgroup, --name
  sudo memwatch sites --pid 1234         which lines of a PyTorch program hold it; also stages, layers, stats
  sudo memwatch flamegraph --pid 1234 -o flame.html   the same as a picture; memwatch export: for pprof, speedscope and others
  sudo memwatch record --pid 1234 -o job.mwr   all of it into a file; memwatch report job.mwr, memwatch sites --in job.mwr
  sudo memwatch oom --since 2h           what failed on this machine, by the agent's history; --until 14:05: what stood then
  sudo memwatch ps --json                one report for a script
  sudo memwatch -d 1m --json | jq .      one JSON object per interval
  sudo memwatch doctor                   what works on this machine and how to fix the rest

Exit codes:
  0 fine, 1 error, 2 wrong usage, 3 found what --fail-on names, 4 not permitted, 5 not supported here, 6 target gone or not found
  run: the program's own code; 128+N if signal N ended it;
       125 memwatch failed, 126 program not executable, 127 program not found";

/// Who holds the GPU memory of this machine, and how much of it is explained.
///
/// memwatch watches the CUDA driver's allocation calls of running programs from outside: nothing is changed or restarted.
/// On a terminal it shows a live view; into a pipe it writes one plain table per interval.
#[derive(Debug, Parser)]
#[command(name = "memwatch", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) targets: Targets,
    #[command(flatten)]
    pub(crate) tensors: Tensors,
    #[command(flatten)]
    pub(crate) pace: Pace,
    /// Print one report and leave, as `memwatch ps` does
    #[arg(short = '1', long, conflicts_with = "duration")]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What is to be done; without one it is the live view.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print one table (or one JSON report) and leave
    Ps(Ps),
    /// Start a program, watch it from its first allocation and print a summary
    Run(Run),
    /// Print what PyTorch's memory_stats() has of a process, from outside
    Stats(Stats),
    /// Reset the agent's peak counters for a process, as torch.cuda.reset_peak_memory_stats() does in a program's own
    ResetPeaks(Whose),
    /// Say which lines of Python hold the memory of a PyTorch process
    Sites(Sites),
    /// Say what forward, backward and optimizer of a PyTorch process hold
    Stages(Places),
    /// Say which modules of a PyTorch process hold its memory
    Layers(Layers),
    /// Write a PyTorch process's memory snapshot, as torch.cuda.memory._dump_snapshot() does, from outside
    Snapshot(Pickle),
    /// Say what keeps growing, how fast, and how sure that is
    Leak(Leak),
    /// Say whether memory runs out and when, and why allocations failed: who held what then, and what would have helped
    Oom(Oom),
    /// Say what other settings of PyTorch's allocator would have taken, by replaying what the program asked for
    Simulate(Simulate),
    /// Look for everything at once: leaks, failed allocations, and what is held over time
    Monitor(Monitor),
    /// Say what GPUs and processes held over time: average, peak, percentiles, utilisation and fragmentation
    Profile(Profile),
    /// Show memory over time, with failures, large allocations and training steps: as a table, a picture, a page, or for Perfetto
    Timeline(Timeline),
    /// Say how the free memory of PyTorch's allocator lies, and draw it
    Fragment(Fragment),
    /// Draw which Python stacks hold the memory of a PyTorch process
    Flamegraph(Flamegraph),
    /// Write which Python stacks hold it, for other programs: folded, speedscope, pprof, csv, parquet, svg, html, memory-viz or openmetrics
    Export(Export),
    /// Record all that a watch sees, for later
    Record(Record),
    /// Say what a recording has: what each process took, and which stages, layers and lines of PyTorch programs held it
    Report(Replayed),
    /// Say what a later run holds more or less than an earlier one, by line, stage and layer: of two recordings, or of one and a watch
    Diff(Diff),
    /// Say for each requirement whether this machine meets it, and how to fix what is missing
    Doctor,
    /// Watch this machine for as long as it runs, and answer memwatch for users without privilege
    Agent(Agent),
}

impl Args {
    /// Reads the command line of this process; on bad usage, `--help` or `--version` it prints and exits as clap does.
    pub(crate) fn read() -> Self {
        Self::from_words(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// Bad usage, `--help` and `--version`, as clap words them.
    pub(crate) fn from_words<W: Into<std::ffi::OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(words)?;
        let args = Self::from_arg_matches(&matches)?;
        if let Some((flag, subcommand)) = args.misplaced(&matches) {
            let sentence =
                format!("'{flag}' does not belong before '{subcommand}': see 'memwatch {subcommand} --help'");
            return Err(command.error(ErrorKind::ArgumentConflict, sentence));
        }
        let written = match &args.command {
            Some(Command::Export(export)) => export.written().map(drop),
            Some(Command::Flamegraph(flamegraph)) => flamegraph.written().map(drop),
            Some(Command::Timeline(timeline)) => timeline.written().map(drop),
            Some(Command::Profile(profile)) => profile.drawn().map(drop),
            _ => Ok(()),
        };
        written.map(|()| args).map_err(|sentence| command.error(ErrorKind::ArgumentConflict, sentence))
    }

    /// An option of the live view that was typed before a subcommand, where it would be ignored.
    fn misplaced(&self, matches: &clap::ArgMatches) -> Option<(&'static str, &'static str)> {
        let subcommand = match self.command.as_ref()? {
            Command::Ps(_) => "ps",
            Command::Run(_) => "run",
            Command::Stats(_) => "stats",
            Command::ResetPeaks(_) => "reset-peaks",
            Command::Sites(_) => "sites",
            Command::Stages(_) => "stages",
            Command::Layers(_) => "layers",
            Command::Snapshot(_) => "snapshot",
            Command::Leak(_) => "leak",
            Command::Oom(_) => "oom",
            Command::Simulate(_) => "simulate",
            Command::Monitor(_) => "monitor",
            Command::Profile(_) => "profile",
            Command::Timeline(_) => "timeline",
            Command::Fragment(_) => "fragment",
            Command::Flamegraph(_) => "flamegraph",
            Command::Export(_) => "export",
            Command::Record(_) => "record",
            Command::Report(_) => "report",
            Command::Diff(_) => "diff",
            Command::Doctor => "doctor",
            Command::Agent(_) => "agent",
        };
        let typed = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        [
            ("tgids", "--pid"),
            ("gpus", "--gpu"),
            ("level", "--tensors"),
            ("containers", "--container"),
            ("pods", "--pod"),
            ("slurm_jobs", "--slurm-job"),
            ("users", "--user"),
            ("cgroups", "--cgroup"),
            ("names", "--name"),
            ("no_children", "--no-children"),
            ("interval", "--interval"),
            ("duration", "--duration"),
            ("once", "--once"),
        ]
        .into_iter()
        .find(|(id, _)| typed(id))
        .map(|(_, flag)| (flag, subcommand))
    }
}

pub(crate) mod dispatch;
pub(crate) mod large_pages;
pub(crate) mod logger;
#[cfg(test)]
mod tests;
