//! The command line: says what was typed, does nothing.

mod choice;
mod diff;
mod export;
mod fragment;
mod leak;
mod moment;
mod monitor;
mod oom;
mod profile;
mod recording;
mod simulate;
mod tensors;
mod timeline;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use memwatch_core::words::Tgid;

use crate::sources::containers::RuntimeSockets;

pub(crate) use self::choice::{Choice, Rows};
pub(crate) use self::diff::{Diff, Growth};
pub(crate) use self::export::{Export, Flamegraph, Held, Written};
pub(crate) use self::fragment::Fragment;
pub(crate) use self::leak::Leak;
pub(crate) use self::moment::{Moment, Past, Window};
pub(crate) use self::monitor::Monitor;
pub(crate) use self::oom::{Oom, OomFound};
pub(crate) use self::profile::{Looks, Profile};
pub(crate) use self::recording::{Record, Replayed, Subject, TapeArgs};
pub(crate) use self::simulate::Simulate;
pub(crate) use self::tensors::{Layers, Pickle, Places, Sites, Stats, Tensors, Whose};
pub(crate) use self::timeline::{Timeline, TimelineFormat, by_name};

/// Where the agent of this machine listens, unless told otherwise.
pub(crate) const DEFAULT_SOCKET: &str = "/run/memwatch/memwatch.sock";

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
    /// Begin the peaks of a process anew in the agent's books, as torch.cuda.reset_peak_memory_stats() does in a program's own
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

/// Whom to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "What to watch")]
pub(crate) struct Targets {
    /// Watch only these processes (default: all); may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',')]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true)]
    pub(crate) tgids: Vec<Tgid>,
    /// Show only these GPUs, by index, UUID (or its beginning) or PCI bus id; may be repeated. 0:1 is a MIG instance, 0 all of GPU 0
    #[arg(short, long = "gpu", value_name = "GPU", value_delimiter = ',', value_parser = values::gpu)]
    pub(crate) gpus: Vec<String>,
    #[command(flatten)]
    pub(crate) choice: Choice,
}

/// One report.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// What a row is: sums by owner add up to each GPU's used bytes, with a row for what is charged to nobody
    #[arg(long = "by", value_name = "OWNER", value_enum, default_value_t)]
    pub(crate) rows: Rows,
    #[command(flatten)]
    pub(crate) past: Past,
}

/// How often and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Time")]
pub(crate) struct Pace {
    /// Time between two refreshes: 500ms, 2s, 1m; a bare number is seconds; at least 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Duration,
    /// Stop watching after this time (default: at Ctrl-C, or when the watched processes have ended)
    #[arg(short, long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
}

/// A program to be started.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(override_usage = "memwatch run [OPTIONS] -- <CMD>...")]
pub(crate) struct Run {
    /// Show only these GPUs, by index, UUID (or its beginning) or PCI bus id; may be repeated. 0:1 is a MIG instance, 0 all of GPU 0
    #[arg(short, long = "gpu", value_name = "GPU", value_delimiter = ',', value_parser = values::gpu)]
    #[arg(help_heading = "What to watch")]
    pub(crate) gpus: Vec<String>,
    #[command(flatten)]
    pub(crate) tensors: Tensors,
    #[command(flatten)]
    pub(crate) tape: TapeArgs,
    /// Record all that is seen into this file
    #[arg(short, long, value_name = "FILE", help_heading = "Recording")]
    pub(crate) output: Option<PathBuf>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(help_heading = "Arguments")]
    pub(crate) program: Vec<std::ffi::OsString>,
}

/// The agent of this machine.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Agent")]
pub(crate) struct Agent {
    /// Where memwatch asks it
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Serve metrics over HTTP on this address, such as 127.0.0.1:9747 (default: nowhere)
    #[arg(long, value_name = "ADDR", env = "MEMWATCH_LISTEN")]
    pub(crate) listen: Option<SocketAddr>,
    /// Keep a history of the watch in this directory, which --since and --until of other commands read (default: none)
    #[arg(long, value_name = "DIR", env = "MEMWATCH_HISTORY")]
    pub(crate) history: Option<PathBuf>,
    /// Let it become no larger than this, and the oldest go: 256M, 2G; at least 1M. As much again is kept of the watch before
    #[arg(long, value_name = "SIZE", default_value = "64M", env = "MEMWATCH_HISTORY_SIZE")]
    #[arg(value_parser = values::history_bytes)]
    pub(crate) history_size: u64,
    /// Run without NVML, on a machine that has none: /readyz does not wait for it
    #[arg(long, conflicts_with = "nvml_lib")]
    pub(crate) no_nvml: bool,
    /// Serve metrics of the N largest processes, too: off, or N up to 1000
    #[arg(long, value_name = "N", default_value = "off", value_parser = values::process_metrics)]
    pub(crate) process_metrics: ProcessMetrics,
}

/// So many pairs of process and GPU have metrics of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMetrics(pub(crate) usize);

/// What every command takes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Output and libraries")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Common {
    /// Write JSON: one object per report
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to use colours: auto, always or never; auto obeys NO_COLOR and CLICOLOR_FORCE
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub(crate) color: ColorWhen,
    /// Draw with ASCII characters only
    #[arg(long, global = true)]
    pub(crate) ascii: bool,
    /// Probe this libcuda file, too; may be repeated
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) libcuda: Vec<PathBuf>,
    /// Load NVML from this file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) nvml_lib: Option<PathBuf>,
    /// Ask the agent that listens here, even if an option asks for an own watch (default: /run/memwatch/memwatch.sock, if one does)
    #[arg(long, global = true, value_name = "PATH", env = "MEMWATCH_AGENT")]
    pub(crate) agent: Option<PathBuf>,
    /// Watch by oneself, even where an agent runs
    #[arg(long, global = true)]
    pub(crate) no_agent: bool,
    #[command(flatten)]
    pub(crate) sockets: Sockets,
    /// Log more, on stderr; may be repeated
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Size of the ring buffer between kernel and memwatch: a power of two
    #[arg(long, global = true, hide = true, value_name = "SIZE", value_parser = values::ring_bytes)]
    pub(crate) ring_bytes: Option<u32>,
    /// Attach one uprobe per function, as kernels without uprobe_multi need it
    #[arg(long, global = true, hide = true)]
    pub(crate) classic_uprobes: bool,
    /// Look for new driver libraries now and then, as kernels that do not report mappings need it
    #[arg(long, global = true, hide = true)]
    pub(crate) poll_libraries: bool,
}

/// Where names of containers and pods come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Names of containers")]
pub(crate) struct Sockets {
    /// Ask this Docker or Podman for names (default: the usual sockets of both, users' own among them); may be repeated
    #[arg(long = "docker-socket", global = true, value_name = "FILE")]
    docker: Vec<PathBuf>,
    /// Ask this Kubernetes runtime for names (default: the usual sockets of containerd, CRI-O and others); may be repeated
    #[arg(long = "cri-socket", global = true, value_name = "FILE")]
    cri: Vec<PathBuf>,
    /// Ask this kubelet what it has promised to pods (default: /var/lib/kubelet/pod-resources/kubelet.sock)
    #[arg(long = "kubelet-socket", global = true, value_name = "FILE")]
    kubelet: Option<PathBuf>,
}

impl Sockets {
    /// As the session wants them.
    pub(crate) fn places(&self) -> RuntimeSockets {
        RuntimeSockets { docker: self.docker.clone(), cri: self.cri.clone(), kubelet: self.kubelet.clone() }
    }
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorWhen {
    /// Whether to use colours on an output; `variable` reads an environment variable.
    ///
    /// A flag wins over the environment; there, `NO_COLOR` wins over `CLICOLOR_FORCE`, and empty values count as unset.
    pub(crate) fn decide(self, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
        let set = |name| variable(name).is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto if set("NO_COLOR") => false,
            Self::Auto if variable("CLICOLOR_FORCE").is_some_and(|value| !matches!(value.as_str(), "" | "0")) => true,
            Self::Auto => is_terminal && variable("TERM").as_deref() != Some("dumb"),
        }
    }
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

#[cfg(test)]
mod tests;
