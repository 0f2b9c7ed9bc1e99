//! A running memwatch and its reports.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use jiff::Timestamp;

use crate::TIMEOUT;
use crate::program::RunningProgram;
use crate::report::ReportLine;

/// A running memwatch that writes one report after another.
#[derive(Debug)]
pub struct RunningWatch {
    program: RunningProgram,
    last: Option<ReportLine>,
}

impl RunningWatch {
    /// Starts memwatch with `--json` and waits for the first report, which memwatch writes after it
    /// has attached.
    pub fn start(mut command: Command) -> Self {
        command.args(["--json", "--interval", "100ms"]);
        let mut watch = Self { program: RunningProgram::start(command), last: None };
        watch.next_report();
        watch
    }

    /// Returns the next report.
    ///
    /// # Panics
    /// When no report comes in time.
    pub fn next_report(&mut self) -> ReportLine {
        let line = self.program.next_line();
        let line = line.unwrap_or_else(|| panic!("memwatch has ended; last: {:#?}", self.last));
        let report = ReportLine::parse(&line);
        self.last = Some(report.clone());
        report
    }

    /// Drops the reports that have already arrived, without parsing them. Parsing a long report
    /// takes the test longer than memwatch takes to write it.
    pub fn skip_reports(&mut self) {
        self.program.skip_lines();
    }

    /// Returns the first report that, with its NVML readings, is newer than this call. It contains
    /// everything that had completed before the call.
    pub fn settled(&mut self) -> ReportLine {
        let now = Timestamp::now();
        self.until(|report| report.is_newer_than(now))
    }

    /// Returns the first report made after this call. It contains every call that had returned
    /// before; its NVML readings may be older.
    pub fn next_fresh(&mut self) -> ReportLine {
        let now = Timestamp::now();
        self.until(|report| report.is_made_after(now))
    }

    /// Returns the first report that fulfils a condition.
    ///
    /// # Panics
    /// When no such report comes in time.
    pub fn until(&mut self, holds: impl Fn(&ReportLine) -> bool) -> ReportLine {
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            let report = self.next_report();
            if holds(&report) {
                return report;
            }
        }
        panic!("no report was as expected; last: {:#?}", self.last)
    }

    /// Returns memwatch's process id.
    pub fn tgid(&self) -> u32 {
        self.program.tgid()
    }

    /// Waits until memwatch exits because its targets have exited. Returns its last report and its
    /// exit code.
    ///
    /// # Panics
    /// When memwatch does not exit.
    pub fn finish(mut self) -> (ReportLine, i32) {
        while let Some(line) = self.program.next_line() {
            self.last = Some(ReportLine::parse(&line));
        }
        let code = self.program.end();
        (self.last.expect("there was a first report"), code)
    }
}

/// Result of a memwatch that has exited.
#[derive(Clone, Debug)]
pub struct CommandOutcome {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutcome {
    /// Runs a command until it exits.
    ///
    /// # Panics
    /// When the command cannot be started or is ended by a signal.
    pub fn of(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut out = child.stdout.take().expect("standard output is piped");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            text
        });
        let mut stderr = String::new();
        let _ = child.stderr.take().expect("standard error is piped").read_to_string(&mut stderr);
        let code = child.wait().expect("the program is ours").code().expect("an exit code, no signal");
        Self { code, stdout: reader.join().expect("reading does not panic"), stderr }
    }
    /// Asserts the exit code, that standard error contains these sentences, and that there was no
    /// panic.
    ///
    /// # Panics
    /// When one of these does not hold.
    pub fn assert_ended_with(&self, code: i32, sentences: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        for sentence in sentences {
            assert!(self.stderr.contains(sentence), "no {sentence:?} in {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
    }
}
