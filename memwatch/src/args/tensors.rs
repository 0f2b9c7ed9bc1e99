//! What of a PyTorch program is watched, and the reports on it.

use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::words::Tgid;

use super::moment::PAST;
use super::{Past, Subject, values};
use crate::sources::torch::{TensorLevel, TensorWish};

/// How much of PyTorch is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "What to watch")]
pub(crate) struct Tensors {
    /// What of PyTorch is seen in the processes named by --pid: off, blocks (what its allocator does), sites (and from which lines), layers (and
    /// in which stage and layer: the default, unless that would slow a process by more than 5 %)
    #[arg(long = "tensors", value_name = "LEVEL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "layers", value_parser = level)]
    pub(crate) level: Option<TensorLevel>,
    /// Write a line for each change of module or stage into this file, one per process, such as mem_trace_rank_{rank}.log; {pid} is the process id
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

impl Tensors {
    /// Whether the command line asks for what only an own watch sees: the agent watches no tensors.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.level.is_some_and(|level| level != TensorLevel::Off) || self.log.is_some()
    }

    /// Whether nobody asked for a level by name, or for what takes all of it.
    pub(crate) const fn is_default(&self) -> bool {
        self.level.is_none() && self.log.is_none()
    }

    /// The level for a watch: everything in processes that were named, nothing in all others.
    pub(crate) fn wish(&self, named: bool) -> TensorWish {
        let level = self.level.unwrap_or(if named { TensorLevel::Layers } else { TensorLevel::Off });
        TensorWish { level, reports_only: false }
    }
}

pub(super) fn level(text: &str) -> Result<TensorLevel, String> {
    match text {
        "off" => Ok(TensorLevel::Off),
        "blocks" => Ok(TensorLevel::Blocks),
        "sites" => Ok(TensorLevel::Sites),
        "layers" => Ok(TensorLevel::Layers),
        _ => Err("off, blocks, sites or layers".to_owned()),
    }
}

/// Whose tensors a report is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Whose {
    /// The process, and its children; may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',', required = true)]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true)]
    pub(crate) tgids: Vec<Tgid>,
}

/// `memwatch stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Print them again and again, so often, until Ctrl-C or the end of the program
    #[arg(short, long, value_name = "TIME", value_parser = values::interval, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = PAST)]
    pub(crate) interval: Option<Duration>,
    /// Begin peaks anew with each report, in memwatch's books: each then has the peaks of its interval
    #[arg(long, requires = "interval")]
    pub(crate) reset_peaks: bool,
}

/// `memwatch stages`, and what `memwatch sites` and `memwatch layers` have in common with it.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Places {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Watch so long before the report (ended earlier by Ctrl-C, or when the program ends)
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Show so many rows at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// List blocks of this size and above one by one: 500M, 2G; a bare number is bytes
    #[arg(short = 'z', long, value_name = "SIZE", default_value = "100M", value_parser = values::size_bytes)]
    pub(crate) min_size: u64,
}

/// `memwatch sites`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Sites {
    #[command(flatten)]
    pub(crate) places: Places,
    /// Show the stacks that hold most, with native frames
    #[arg(long)]
    pub(crate) native: bool,
}

/// `memwatch layers`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Layers {
    #[command(flatten)]
    pub(crate) places: Places,
    /// Say also what rounding and splitting waste of each: three probes for a tensor instead of one
    #[arg(long)]
    pub(crate) fragmentation: bool,
}

/// `memwatch snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Pickle {
    /// The process; of a recording with one PyTorch process it need not be said
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = values::tgid, allow_negative_numbers = true)]
    #[arg(required_unless_present_any = PAST)]
    pub(crate) tgid: Option<Tgid>,
    #[command(flatten)]
    pub(crate) past: Past,
    /// The file, which pytorch.org/memory_viz reads
    #[arg(short, long, value_name = "FILE", default_value = "snapshot.pickle")]
    pub(crate) output: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Watch so long before it is written (ended earlier by Ctrl-C, or when the program ends)
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Write native frames, too, as torch.cuda.memory._record_memory_history(stacks="all") does
    #[arg(long)]
    pub(crate) native: bool,
}
