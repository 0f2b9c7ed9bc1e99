//! Drives the simulator's workload program, command by command.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::TIMEOUT;

/// A running workload. It is killed when it is dropped.
#[derive(Debug)]
pub struct SimulatedWorkload {
    /// `None` if another program has started the workload.
    child: Option<Child>,
    input: Option<File>,
    output: BufReader<File>,
}

/// Two named pipes, `questions` and `answers`, to talk to a workload that another program starts.
#[derive(Debug)]
pub struct Pipes {
    directory: PathBuf,
    questions: File,
    answers: File,
}

impl Pipes {
    /// Makes the pipes in a new directory.
    ///
    /// # Panics
    /// When a pipe cannot be made.
    pub fn make(directory: &Path) -> Self {
        fs::create_dir(directory).expect("a new directory");
        let open = |name| {
            let path = directory.join(name);
            let status = Command::new("mkfifo").arg(&path).status();
            assert!(status.is_ok_and(|status| status.success()), "no pipe at {}", path.display());
            // Each pipe is opened for reading and writing, so that neither side waits for the other
            // in `open`. If the workload has exited, the next command gets no answer.
            OpenOptions::new().read(true).write(true).open(&path).expect("the pipe is ours")
        };
        Self { questions: open("questions"), answers: open("answers"), directory: directory.to_owned() }
    }

    /// Returns the directory of the pipes.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl SimulatedWorkload {
    /// Starts a command of [`crate::SimulatedGpu::workload_command`], or one that runs it.
    ///
    /// # Panics
    /// When the command cannot be started.
    pub fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the workload program starts");
        let input = child.stdin.take().map(|input| File::from(OwnedFd::from(input)));
        let output = child.stdout.take().expect("standard output is piped");
        Self { child: Some(child), input, output: BufReader::new(OwnedFd::from(output).into()) }
    }

    /// Connects to the workload at the other end of these pipes. Dropping the value does not kill
    /// that workload.
    pub fn behind(pipes: Pipes) -> Self {
        let mut workload = Self { child: None, input: Some(pipes.questions), output: BufReader::new(pipes.answers) };
        workload.ask("tgid");
        workload
    }

    /// Returns the process id of the started command.
    ///
    /// # Panics
    /// When the workload was started elsewhere.
    pub fn tgid(&self) -> u32 {
        self.child.as_ref().expect("it was started here").id()
    }

    /// Returns the process id as a command-line argument.
    pub fn tgid_word(&self) -> String {
        self.tgid().to_string()
    }

    /// Runs one command and returns its answer.
    ///
    /// # Panics
    /// When there is no answer.
    pub fn ask(&mut self, line: &str) -> Value {
        self.report(line);
        self.answer()
    }

    /// Reads the answer to a command that was sent with [`Self::report`].
    ///
    /// # Panics
    /// When there is no answer.
    pub fn answer(&mut self) -> Value {
        if self.child.is_none() {
            wait_for_data(&self.output);
        }
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the workload answers");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error} in {answer:?}"))
    }

    /// Runs commands and asserts that each succeeds.
    ///
    /// # Panics
    /// When a command fails.
    pub fn run(&mut self, lines: &[&str]) {
        for line in lines {
            let answer = self.ask(line);
            assert_eq!(answer["result"], 0, "{line}: {answer}");
        }
    }

    /// Sends a command without reading an answer, such as `kill`.
    ///
    /// # Panics
    /// When the workload has exited.
    pub fn report(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the workload was not ended");
        writeln!(input, "{line}").expect("the workload reads");
    }

    /// Closes the workload's input, which makes it exit, and waits for that.
    ///
    /// # Panics
    /// When the workload cannot be waited for.
    pub fn end(&mut self) {
        self.input = None;
        self.wait();
    }

    /// Waits until the workload exits for another reason.
    ///
    /// # Panics
    /// When the workload cannot be waited for.
    pub fn wait(&mut self) {
        self.child.as_mut().expect("it was started here").wait().expect("the workload is ours");
    }
}

/// Waits for data with a timeout: a pipe that is open for both directions never reports end of
/// file, even if the other side has exited.
fn wait_for_data(pipe: &BufReader<File>) {
    if pipe.buffer().is_empty() {
        let mut asked = libc::pollfd { fd: pipe.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeouts = i32::try_from(TIMEOUT.as_millis()).expect("a minute");
        // SAFETY: one entry, which lives as long as the call.
        let ready = unsafe { libc::poll(&raw mut asked, 1, timeouts) };
        assert_eq!(ready, 1, "the workload does not answer");
    }
}

impl Drop for SimulatedWorkload {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Fails if the workload has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
