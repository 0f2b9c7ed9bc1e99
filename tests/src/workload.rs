//! The simulator's own workload program, command by command.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::TIMEOUT;

/// A running workload; it is killed when it is dropped.
#[derive(Debug)]
pub struct Workload {
    /// `None` where somebody else has started it.
    child: Option<Child>,
    input: Option<File>,
    output: BufReader<File>,
}

/// Two named pipes, through which somebody else's workload is talked to: `questions` and `answers`.
#[derive(Debug)]
pub struct Pipes {
    directory: PathBuf,
    questions: File,
    answers: File,
}

impl Pipes {
    /// Makes them in a new directory.
    ///
    /// # Panics
    /// When that fails.
    pub fn make(directory: &Path) -> Self {
        fs::create_dir(directory).expect("a new directory");
        let open = |name| {
            let path = directory.join(name);
            let status = Command::new("mkfifo").arg(&path).status();
            assert!(status.is_ok_and(|status| status.success()), "no pipe at {}", path.display());
            // Open to both sides: neither has to wait for the other. A workload that has ended shows in what is asked of it.
            OpenOptions::new().read(true).write(true).open(&path).expect("the pipe is ours")
        };
        Self { questions: open("questions"), answers: open("answers"), directory: directory.to_owned() }
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Workload {
    /// Starts it by a command of [`crate::Gpu::workload_command`], or one that leads to it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the workload program starts");
        let input = child.stdin.take().map(|input| File::from(OwnedFd::from(input)));
        let output = child.stdout.take().expect("standard output is piped");
        Self { child: Some(child), input, output: BufReader::new(OwnedFd::from(output).into()) }
    }

    /// The workload at the other end of these pipes. It is not killed with this.
    pub fn behind(pipes: Pipes) -> Self {
        let mut workload = Self { child: None, input: Some(pipes.questions), output: BufReader::new(pipes.answers) };
        workload.ask("tgid");
        workload
    }

    /// The process id of what was started here.
    ///
    /// # Panics
    /// When it was started elsewhere.
    pub fn tgid(&self) -> u32 {
        self.child.as_ref().expect("it was started here").id()
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
        self.report(line);
        self.answer()
    }

    /// The answer to a command that was only reported.
    ///
    /// # Panics
    /// When there is none.
    pub fn answer(&mut self) -> Value {
        if self.child.is_none() {
            wait_for_data(&self.output);
        }
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
    pub fn report(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the workload was not ended");
        writeln!(input, "{line}").expect("the workload reads");
    }

    /// Ends its input, and with it the workload; waits for that.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn end(&mut self) {
        self.input = None;
        self.wait();
    }

    /// Waits for an end that was caused otherwise.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn wait(&mut self) {
        self.child.as_mut().expect("it was started here").wait().expect("the workload is ours");
    }
}

/// A pipe that is open to both sides never ends: who has gone just says nothing any more.
fn wait_for_data(pipe: &BufReader<File>) {
    if pipe.buffer().is_empty() {
        let mut asked = libc::pollfd { fd: pipe.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeouts = i32::try_from(TIMEOUT.as_millis()).expect("a minute");
        // SAFETY: one entry, which lives as long as the call.
        let ready = unsafe { libc::poll(&raw mut asked, 1, timeouts) };
        assert_eq!(ready, 1, "the workload does not answer");
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Fails where it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
