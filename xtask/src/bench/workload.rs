//! The program with the timed calls: allocates and frees on the simulated driver as fast as it can.

use crate::child::OwnedChild;
use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A running workload program and its two pipes.
pub(super) struct BenchWorkload {
    program: OwnedChild,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    ledger: PathBuf,
}

/// A timed loop of driver calls.
pub(super) struct Timed {
    /// Number of calls.
    pub(super) calls: u64,
    total_ns: u64,
}

impl Timed {
    /// Nanoseconds per call.
    #[allow(clippy::cast_precision_loss, reason = "2^52 ns are 52 days")]
    pub(super) fn per_call_ns(&self) -> f64 {
        self.total_ns as f64 / self.calls as f64
    }
}

impl BenchWorkload {
    /// Starts the program on one simulated driver, with its own ledger.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(driver: &Path) -> Result<Self> {
        let ledger = driver.join(format!("bench-ledger-{}", std::process::id()));
        let mut command = Command::new(driver.join("bin/gpusim-workload"));
        // Requests to the kernel driver are measured separately: a real driver makes none for most
        // calls.
        command.env("LD_LIBRARY_PATH", driver.join("lib")).env("GPUSIM_LEDGER", &ledger).env("GPUSIM_RM", "off");
        let mut program = OwnedChild::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (commands, answers) = program.pipes();
        let mut workload = Self {
            program,
            commands: commands.context("the workload has no input")?,
            answers: BufReader::new(answers.context("the workload has no output")?),
            ledger,
        };
        workload.ask("device 0")?;
        Ok(workload)
    }

    /// The program's process id.
    pub(super) fn tgid(&self) -> u32 {
        self.program.tgid()
    }

    /// Returns the ledger file of the simulated GPU that the program runs on.
    pub(super) fn ledger(&self) -> &Path {
        &self.ledger
    }

    /// Times `pairs` pairs of an allocation and a free; a pair has two driver calls.
    ///
    /// # Errors
    /// The program exits, a call fails, or the answer is unexpected.
    pub(super) fn time_calls(&mut self, pairs: u64) -> Result<Timed> {
        self.time_loop("cuMemAlloc", pairs)
    }

    /// Times `turns` iterations of a loop of the workload program.
    ///
    /// # Errors
    /// Those of [`Self::time_calls`].
    pub(super) fn time_loop(&mut self, function: &str, turns: u64) -> Result<Timed> {
        let answer = self.ask(&format!("loop {function} {turns}"))?;
        let number = |name: &str| {
            let value = answer.get(name).and_then(Value::as_u64);
            value.ok_or_else(|| anyhow!("the workload answered {answer}, without {name}"))
        };
        Ok(Timed { calls: number("calls")?, total_ns: number("total_ns")? })
    }

    fn ask(&mut self, command: &str) -> Result<Value> {
        writeln!(self.commands, "{command}").context("the workload reads no commands")?;
        let mut line = String::new();
        let length = self.answers.read_line(&mut line).context("the workload does not answer")?;
        if length == 0 {
            bail!("the workload ended at the command '{command}'");
        }
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("the workload answered {line}"))?;
        match answer.get("result").and_then(Value::as_i64) {
            Some(0) => Ok(answer),
            _ => bail!("the command '{command}' was answered {answer}"),
        }
    }
}

impl Drop for BenchWorkload {
    fn drop(&mut self) {
        // Remaining files are below target/ and small.
        drop(std::fs::remove_file(&self.ledger));
    }
}
