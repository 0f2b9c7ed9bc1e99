//! Arguments of `memwatch where`.

use crate::frameworks::watch::StackSelection;
use crate::options::moment::PAST;
use crate::options::tensors::{BudgetArgs, stacks};
use crate::options::{Checked, ReportSubject, values};
use crate::render::places::FrameDetail;
use clap::ValueEnum;
use memwatch_core::attribution::price::Budget;
use std::time::Duration;

/// What a row of `memwatch where` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhereRowKind {
    /// A line of Python
    #[default]
    Line,
    /// A module of the model
    Module,
    /// Forward, backward, optimizer and other phases
    Phase,
}

/// Which frames of a stack `memwatch where` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// The program's own line, and the library's behind it
    #[default]
    Own,
    /// All of Python
    All,
}

impl Which {
    /// Returns the frames to show.
    pub(crate) const fn shown(self) -> FrameDetail {
        match self {
            Self::Own => FrameDetail::Lines,
            Self::All => FrameDetail::Python,
        }
    }
}

/// `memwatch where`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Where {
    #[command(flatten)]
    pub(crate) places: AttributionArgs,
    /// What a row is: line (of Python), module, or phase (forward, backward, optimizer)
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    pub(crate) by: WhereRowKind,
    /// With --by line: own (the program's line, and the line of the library that it called) or all (also every library
    /// line behind each, and the stacks that hold most with all frames, wrappers and torch's own included)
    #[arg(long, value_name = "WHICH", value_enum, default_value_t, hide_possible_values = true)]
    pub(crate) frames: Which,
    /// With --by line: the stacks that hold most, with native frames
    #[arg(long)]
    pub(crate) native: bool,
    /// With --by module: what rounding and splitting waste in each
    #[arg(long)]
    pub(crate) fragmentation: bool,
}

/// Options of every list.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct AttributionArgs {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Watch for this time before the report; ends earlier on Ctrl-C or when the program ends
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// With --by line, which blocks get a line: bytes (all of 1 MiB and above; smaller ones are sampled, one per MiB on
    /// average, and sums marked ≈ have an error) or all, which slows the program more
    #[arg(long, value_name = "WHICH", default_value = "bytes", value_parser = stacks)]
    pub(crate) stacks: StackSelection,
    #[command(flatten)]
    pub(crate) price: BudgetArgs,
    /// List blocks of this size and above individually: 500M, 2G; a bare number is bytes
    #[arg(short = 'z', long, value_name = "SIZE", default_value = "100M", value_parser = values::size_bytes)]
    pub(crate) min_size: u64,
}

impl Where {
    /// Returns the question by line with default options.
    pub(crate) fn of(places: AttributionArgs) -> Self {
        let (by, frames) = (WhereRowKind::default(), Which::default());
        Self { places, by, frames, native: false, fragmentation: false }
    }
}

impl AttributionArgs {
    /// Returns default options. They are those of the attributes above.
    pub(crate) fn of(subject: ReportSubject) -> Self {
        Self {
            subject,
            duration: Duration::from_secs(10),
            top: 20,
            stacks: StackSelection::ByBytes,
            price: BudgetArgs { budget: Budget::None },
            min_size: 100 << 20,
        }
    }
}

impl Checked for Where {
    fn check(&self) -> Result<(), String> {
        if self.native && self.by != WhereRowKind::Line {
            return Err("--native goes with --by line".to_owned());
        }
        if self.frames == Which::All && self.by != WhereRowKind::Line {
            return Err("--frames goes with --by line".to_owned());
        }
        if self.fragmentation && self.by != WhereRowKind::Module {
            return Err("--fragmentation goes with --by module".to_owned());
        }
        self.places.check()
    }
}

impl Checked for AttributionArgs {
    fn check(&self) -> Result<(), String> {
        self.price.check("memwatch holdings")?;
        self.subject.check()
    }
}
