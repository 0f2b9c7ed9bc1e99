//! `memwatch fragment`.

use std::path::PathBuf;
use std::time::Duration;

use crate::frameworks::pytorch::TensorLevel;
use crate::options::moment::PAST;
use crate::options::tensors::level;
use crate::options::{Subject, values};

/// How free memory lies.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Fragment {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Watch so long before the report (ended earlier by Ctrl-C, or when the program ends)
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// What of PyTorch is watched: off (the driver's memory alone), blocks (how memory lies in segments), sites (and which lines hold it together) or
    /// layers (and which modules)
    #[arg(long = "tensors", value_name = "LEVEL", default_value = "sites", conflicts_with = "recording")]
    #[arg(value_parser = level)]
    pub(crate) level: TensorLevel,
    /// Say what would become of a request of this size: 512M
    #[arg(short, long, value_name = "SIZE", value_parser = values::size_bytes)]
    pub(crate) request: Option<u64>,
    /// Show how it lay at its worst, as of a process that has ended, instead of how it lies now
    #[arg(long)]
    pub(crate) worst: bool,
    /// Show so many rows of each list at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Draw the segments and what lies in them into this file: map.svg, or map.html
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}
