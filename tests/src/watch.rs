//! A running memwatch, and its reports.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use jiff::Timestamp;

use crate::TIMEOUT;
use crate::program::Program;
use crate::report::Report;

/// memwatch at work, one report after another.
#[derive(Debug)]
pub struct Watch {
    program: Program,
    last: Option<Report>,
}

impl Watch {
    /// Starts memwatch with `--json`, and waits for the first report: it comes after the attach.
    pub fn start(mut command: Command) -> Self {
        command.args(["--json", "--interval", "100ms"]);
        let mut watch = Self { program: Program::start(command), last: None };
        watch.next_report();
        watch
    }

    /// The next report.
    ///
    /// # Panics
    /// When none comes.
    pub fn next_report(&mut self) -> Report {
        let line = self.program.next_line();
        let line = line.unwrap_or_else(|| panic!("memwatch has ended; last: {:#?}", self.last));
        let report = Report::parse(&line);
        self.last = Some(report.clone());
        report
    }

    /// Drops the reports that have come by now, unread: reading long ones takes a test longer than making them takes memwatch.
    pub fn skip_reports(&mut self) {
        self.program.skip_lines();
    }

    /// The first report made after this call whose NVML numbers are newer than it, too: what was at rest before stands in it.
    pub fn settled(&mut self) -> Report {
        let now = Timestamp::now();
        self.until(|report| report.is_newer_than(now))
    }

    /// The first report made after this call: calls that had returned before stand in it, NVML's numbers may be older.
    pub fn next_fresh(&mut self) -> Report {
        let now = Timestamp::now();
        self.until(|report| report.is_made_after(now))
    }

    /// The first report of which `holds` is true.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn until(&mut self, holds: impl Fn(&Report) -> bool) -> Report {
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            let report = self.next_report();
            if holds(&report) {
                return report;
            }
        }
        panic!("no report was as expected; last: {:#?}", self.last)
    }

    /// memwatch's own process id.
    pub fn tgid(&self) -> u32 {
        self.program.tgid()
    }

    /// Waits for memwatch to leave by itself, because its targets have: its last report and exit code.
    ///
    /// # Panics
    /// When it does not leave.
    pub fn finish(mut self) -> (Report, i32) {
        while let Some(line) = self.program.next_line() {
            self.last = Some(Report::parse(&line));
        }
        let code = self.program.end();
        (self.last.expect("there was a first report"), code)
    }
}

/// A memwatch that has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its exit code.
    pub code: i32,
    /// What it wrote on standard output.
    pub stdout: String,
    /// What it wrote on standard error.
    pub stderr: String,
}

impl Outcome {
    /// Runs a command to its end.
    ///
    /// # Panics
    /// When it cannot be started, or is ended by a signal.
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
    /// It has ended with this code, its standard error has these sentences, and nothing has panicked.
    ///
    /// # Panics
    /// Otherwise.
    pub fn assert_ended_with(&self, code: i32, sentences: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        for sentence in sentences {
            assert!(self.stderr.contains(sentence), "no {sentence:?} in {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
    }
}
