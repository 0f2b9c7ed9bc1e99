//! Arguments of `memwatch fragment`.

use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::features::simulate::model::Settings;

use crate::frameworks::watch::TensorLevel;
use crate::options::moment::PAST;
use crate::options::tensors::level;
use crate::options::{Checked, ReportSubject, values};

/// How free memory lies.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Fragment {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Watch for this time before the report; ends earlier on Ctrl-C or when the program ends
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// How much of PyTorch is traced: off (driver only), blocks (segments), lines (also lines) or modules (also modules)
    #[arg(long = "tensors", value_name = "LEVEL", default_value = "lines", conflicts_with = "recording")]
    #[arg(value_parser = level)]
    pub(crate) level: TensorLevel,
    /// Would a request of this size fit: 512M
    #[arg(short, long, value_name = "SIZE", value_parser = values::size_bytes)]
    pub(crate) request: Option<u64>,
    /// Show the moment of the worst fragmentation, as of a process that has ended, instead of now
    #[arg(long)]
    pub(crate) worst: bool,
    /// Predict the memory with another value of PYTORCH_CUDA_ALLOC_CONF, such as --what-if=max_split_size_mb:256 (default:
    /// the usual ones); as `memwatch simulate`
    #[arg(long, value_name = "CONF", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    #[arg(value_parser = values::setting, conflicts_with_all = ["request", "worst", "output", "level"])]
    pub(crate) what_if: Vec<Settings>,
    /// Maximum number of rows of each list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Draw the segments and blocks to this file: map.svg or map.html
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

impl Checked for Fragment {
    fn check(&self) -> Result<(), String> {
        self.subject.check()
    }
}
