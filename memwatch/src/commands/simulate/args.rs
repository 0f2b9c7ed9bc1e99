//! `memwatch simulate`.

use std::time::Duration;

use memwatch_core::features::simulate::model::{Plan, Settings};

use crate::options::moment::PAST;
use crate::options::{Subject, values};

/// What other settings would have taken.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Simulate {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Watch so long (default: until Ctrl-C, or the end of the program)
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// Try this value of PYTORCH_CUDA_ALLOC_CONF, such as max_split_size_mb:256, beside PyTorch's default; may be repeated (default: the usual ones)
    #[arg(short, long = "setting", value_name = "CONF", value_parser = values::setting)]
    settings: Vec<Settings>,
    /// Try it on a card of this size: 24G
    #[arg(long, value_name = "SIZE", value_parser = values::size_bytes)]
    pub(crate) capacity: Option<u64>,
}

impl Simulate {
    /// What is tried: PyTorch's default, and what was typed.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        if self.settings.is_empty() {
            return Plan::usual();
        }
        let mut all = vec![Settings::default()];
        all.extend(self.settings.iter().filter(|typed| **typed != Settings::default()).cloned());
        all.into_iter().map(Plan::PyTorch).collect()
    }
}
