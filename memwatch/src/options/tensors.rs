//! Options for tracing PyTorch, and for the reports on it.

use std::path::PathBuf;

use memwatch_core::attribution::price::Budget;

use crate::frameworks::watch::{StackSelection, TensorLevel, TensorRequest};
use crate::options::moment::PAST;

/// How much of PyTorch is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "PyTorch")]
pub(crate) struct TensorArgs {
    /// How much of PyTorch is traced in named processes: off, blocks (its allocator), lines (also the lines), modules (also
    /// phases and modules: the default, as far as the budget reaches)
    #[arg(long = "tensors", value_name = "LEVEL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "modules", value_parser = level)]
    pub(crate) level: Option<TensorLevel>,
    /// What tracing may cost a process: percent of one processor, such as 2%; 0 to place no probe and only read its
    /// memory, none for no limit. Less is traced if more does not fit (default: 2%; none with --tensors=LEVEL or --log)
    #[arg(long, value_name = "PERCENT", value_parser = budget, allow_negative_numbers = true)]
    pub(crate) budget: Option<Budget>,
    /// At level lines, which blocks get a line: bytes (all of 1 MiB and above; smaller ones are sampled, one per MiB on
    /// average, and sums marked ≈ have an error) or all, which slows the program more
    #[arg(long, value_name = "WHICH", default_value = "bytes", value_parser = stacks)]
    pub(crate) stacks: StackSelection,
    /// Log each change of module or phase to this file, one per process, such as mem_trace_rank_{rank}.log; {pid} is the PID
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

/// Tracing budget of commands with a fixed tracing level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct BudgetArgs {
    /// What tracing may cost a process: percent of one processor, such as 2%, or none for no limit. If everything does not
    /// fit, it is traced in windows, and sums marked ≈ are estimates
    #[arg(long, value_name = "PERCENT", default_value = "none", conflicts_with_all = PAST)]
    #[arg(value_parser = budget, allow_negative_numbers = true)]
    pub(crate) budget: Budget,
}

impl BudgetArgs {
    /// # Errors
    /// If the budget is 0. The sentence names `instead`, a command that needs no probes.
    pub(crate) fn check(self, instead: &str) -> Result<(), String> {
        if self.budget.is_nothing() {
            return Err(format!("--budget 0 places no probe: give a budget, or use `{instead}`, which needs none"));
        }
        Ok(())
    }

    /// Returns the request with this budget.
    pub(crate) fn limit(self, request: TensorRequest) -> TensorRequest {
        TensorRequest { budget: (self.budget != Budget::None).then_some(self.budget), ..request }
    }
}

impl TensorArgs {
    /// Returns whether the options require a direct attach: the agent does not trace tensors.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.level.is_some_and(|level| level != TensorLevel::Off) || self.log.is_some()
    }

    /// # Errors
    /// If the budget is 0 although a level or a log is requested, or if it may leave out events that
    /// a log requires. The error is a sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.log.is_some() && !matches!(self.budget, None | Some(Budget::None)) {
            return Err("--log needs every event, and --budget may leave some out: leave out --budget".to_owned());
        }
        if self.budget.is_some_and(Budget::is_nothing) && self.is_asked_for() {
            return Err("--budget 0 places no probe: leave out --tensors, or give a budget".to_owned());
        }
        Ok(())
    }

    /// Returns whether neither a level nor a log, which requires all events, is requested.
    const fn is_default(&self) -> bool {
        self.level.is_none() && self.log.is_none()
    }

    /// Returns the request for a session. By default, named processes are traced at the full level
    /// and all others not at all.
    pub(crate) fn request(&self, named: bool) -> TensorRequest {
        let level = self.level.unwrap_or(if named { TensorLevel::Modules } else { TensorLevel::Off });
        // With an explicit level or a log, only an explicit budget applies.
        let budget = self.budget.or_else(|| self.is_default().then(Budget::default));
        TensorRequest { stacks: self.stacks, budget, ..TensorRequest::of(level) }
    }
}

pub(crate) fn level(text: &str) -> Result<TensorLevel, String> {
    match text {
        "off" => Ok(TensorLevel::Off),
        "blocks" => Ok(TensorLevel::Blocks),
        "lines" => Ok(TensorLevel::Lines),
        "modules" => Ok(TensorLevel::Modules),
        _ => Err("off, blocks, lines or modules".to_owned()),
    }
}

pub(crate) fn stacks(text: &str) -> Result<StackSelection, String> {
    match text {
        "bytes" => Ok(StackSelection::ByBytes),
        "all" => Ok(StackSelection::All),
        _ => Err("bytes or all".to_owned()),
    }
}

/// Parses a tracing budget.
///
/// # Errors
/// If the text is neither `none` nor a percentage from 0 to 100.
pub(crate) fn budget(text: &str) -> Result<Budget, String> {
    if text == "none" {
        return Ok(Budget::None);
    }
    let percent = text.strip_suffix('%').unwrap_or(text).trim_end().parse::<f64>();
    match percent {
        Ok(percent) if (0.0..=100.0).contains(&percent) => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a second")]
            let ns_per_second = (percent * 1e7).round() as u64;
            Ok(Budget::Part(ns_per_second))
        }
        _ => {
            Err("a budget is a part of one processor from 0 to 100 percent, such as 2%, or none for no limit"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_level_with_a_budget_of_zero_is_refused() {
        let none = TensorArgs { budget: Some(Budget::Part(0)), ..TensorArgs::default() };
        assert_eq!(none.check(), Ok(()));
        let traced = TensorArgs { level: Some(TensorLevel::Lines), ..none.clone() };
        assert!(traced.check().is_err_and(|error| error.contains("leave out --tensors")));
        let off = TensorArgs { level: Some(TensorLevel::Off), ..none };
        assert_eq!((off.check(), TensorArgs { budget: Some(Budget::None), ..traced }.check()), (Ok(()), Ok(())));
    }

    #[test]
    fn level_requested_by_name_has_no_budget_unless_one_is_given() {
        let of = |budget| {
            TensorArgs { level: Some(TensorLevel::Blocks), budget, ..TensorArgs::default() }.request(true).budget
        };
        for given in [None, Some(Budget::None), Some(Budget::Part(0)), Some(Budget::default())] {
            assert_eq!(of(given), given);
        }
        assert_eq!(TensorArgs::default().request(true).budget, Some(Budget::default()));
    }

    #[test]
    fn log_with_a_budget_that_may_leave_events_out_is_refused() {
        let with = |budget| TensorArgs { log: Some("job.log".into()), budget, ..TensorArgs::default() }.check();
        assert_eq!((with(None), with(Some(Budget::None))), (Ok(()), Ok(())));
        assert!(with(Some(Budget::default())).is_err_and(|error| error.contains("leave out --budget")));
    }

    #[test]
    fn a_budget_is_a_part_of_a_processor_or_none() {
        assert_eq!(budget("2%"), Ok(Budget::default()));
        assert_eq!((budget("2"), budget("0.5 %")), (Ok(Budget::default()), Ok(Budget::Part(5_000_000))));
        assert_eq!((budget("0"), budget("none")), (Ok(Budget::Part(0)), Ok(Budget::None)));
        for wrong in ["", "abc", "-1", "-2%", "101", "NaN", "inf", "2%%"] {
            assert!(budget(wrong).is_err_and(|error| error.contains("such as 2%")), "{wrong}");
        }
    }
}
