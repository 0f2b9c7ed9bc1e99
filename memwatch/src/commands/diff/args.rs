//! Arguments of `memwatch diff`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use memwatch_core::features::diff::SumField;
use memwatch_core::words::Tgid;

use crate::options::moment::moment;
use crate::options::{Checked, RecordingTime, values};

/// Two recordings, a recording and a watch, or two times of one recording.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Diff {
    /// The recording to compare with
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The later recording
    #[arg(value_name = "AFTER", required_unless_present_any = ["tgids", "from"], conflicts_with_all = ["tgids", "from"])]
    pub(crate) after: Option<PathBuf>,
    /// Compare with these running processes and their children; may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',', conflicts_with = "from")]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true)]
    pub(crate) tgids: Vec<Tgid>,
    /// Watch for this time (default: until Ctrl-C or the end of the programs)
    #[arg(short, long, value_name = "TIME", requires = "tgids")]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// Compare one recording with itself, from this time: 14:05:30, 2026-11-22T14:05, or 10m before its end
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) from: Option<RecordingTime>,
    /// The later side at this time instead of its end
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "tgids")]
    pub(crate) until: Option<RecordingTime>,
    /// Sort by the change of
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub(crate) by: DiffSort,
    /// Merge the lines of a function, for files that have changed
    #[arg(long)]
    pub(crate) by_function: bool,
    /// Maximum number of rows of each list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Exit with code 3 when the peak has grown by more than this: 10% or 500M
    #[arg(long, value_name = "GROWTH", value_parser = growth)]
    pub(crate) fail_on: Option<Growth>,
}

/// What change is looked at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffSort {
    /// The most bytes there were
    #[default]
    Peak,
    /// Live bytes at the end
    Live,
    /// Bytes of all allocations
    Alloc,
    /// Their number
    Count,
}

impl DiffSort {
    /// Returns the corresponding column of the sums.
    pub(crate) const fn side(self) -> SumField {
        match self {
            Self::Peak => SumField::Peak,
            Self::Live => SumField::Live,
            Self::Alloc => SumField::Total,
            Self::Count => SumField::Count,
        }
    }
}

/// Threshold of growth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Growth {
    /// Share of the earlier value.
    Part(f64),
    /// Bytes.
    Bytes(u64),
}

fn growth(text: &str) -> Result<Growth, String> {
    let Some(percent) = text.strip_suffix('%') else {
        let refusal = "growth is a part such as 10%, or a size such as 500M";
        return crate::options::values::size_bytes(text).map(Growth::Bytes).map_err(|_refused| refusal.to_owned());
    };
    match percent.trim().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(Growth::Part(percent / 100.0)),
        _ => Err("a part is a number from 0 on with a %, such as 10%".to_owned()),
    }
}

impl Checked for Diff {}

#[cfg(test)]
mod tests {
    use super::{Growth, growth};

    #[test]
    fn growth_is_a_part_or_a_size() {
        assert_eq!(growth("10%"), Ok(Growth::Part(0.1)));
        assert_eq!(growth("0%"), Ok(Growth::Part(0.0)));
        assert_eq!(growth("500M"), Ok(Growth::Bytes(500 << 20)));
        for wrong in ["-1%", "%", "many", "NaN%", "10 %x"] {
            assert!(growth(wrong).is_err(), "{wrong}");
        }
    }
}
