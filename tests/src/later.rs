//! A program that loads the driver library only on demand: `workloads/later.c`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The running program. It is killed when it is dropped.
#[derive(Debug)]
pub struct Later {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Later {
    /// Starts the program and waits until it is ready.
    ///
    /// # Panics
    /// When the program does not start.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut later = Self { child, output };
        let line = later.line();
        assert!(line == "ready" || line == "mapped", "{line:?}");
        later
    }

    /// Returns the process id.
    pub fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Makes the program load the library and allocate, and waits until it has done so.
    ///
    /// # Panics
    /// When the program does not allocate.
    pub fn load(&mut self) {
        self.child.stdin.as_mut().expect("its input is piped").write_all(b"\n").expect("it reads");
        assert_eq!(self.line(), "allocated");
    }

    /// Closes the program's input, which makes it exit, and waits for that.
    ///
    /// # Panics
    /// When the program cannot be waited for.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("it is ours");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes text");
        line.trim_end().to_owned()
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        // Fails if the program has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
