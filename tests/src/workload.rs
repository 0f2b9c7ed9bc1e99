//! The simulator's own workload program, command by command.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A running workload; it is killed when it is dropped.
#[derive(Debug)]
pub struct Workload {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Workload {
    /// Starts it by a command of [`crate::Gpu::workload_command`], or one that leads to it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the workload program starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Self { child, input, output }
    }

    /// Its process id.
    pub fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// The same as a word of a command line.
    pub fn tgid_word(&self) -> String {
        self.tgid().to_string()
    }

    /// Runs one command and returns its answer.
    ///
    /// # Panics
    /// When there is none.
    pub fn ask(&mut self, line: &str) -> Value {
        self.tell(line);
        self.answer()
    }

    /// The answer to a command that was only told.
    ///
    /// # Panics
    /// When there is none.
    pub fn answer(&mut self) -> Value {
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the workload answers");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error} in {answer:?}"))
    }

    /// Runs commands that must all succeed.
    ///
    /// # Panics
    /// When one does not.
    pub fn run(&mut self, lines: &[&str]) {
        for line in lines {
            let answer = self.ask(line);
            assert_eq!(answer["result"], 0, "{line}: {answer}");
        }
    }

    /// Sends a command that is not answered, such as `kill`.
    ///
    /// # Panics
    /// When the workload has ended.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the workload was not ended");
        writeln!(input, "{line}").expect("the workload reads");
    }

    /// Ends its input, and with it the workload; waits for that.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn end(&mut self) {
        self.input = None;
        self.child.wait().expect("the workload is ours");
    }

    /// Waits for an end that was caused otherwise.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn wait(&mut self) {
        self.child.wait().expect("the workload is ours");
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
