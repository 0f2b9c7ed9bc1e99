//! A script on real PyTorch that stops at checkpoints and says what it holds.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// How PyTorch takes memory from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// `cuMemAlloc`.
    Native,
    /// `expandable_segments:True`: `cuMemCreate` and `cuMemMap`.
    Expandable,
    /// `backend:cudaMallocAsync`: `cuMemAllocAsync`.
    Async,
}

impl Allocator {
    /// The value of `PYTORCH_CUDA_ALLOC_CONF`.
    pub(crate) const fn setting(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Expandable => Some("expandable_segments:True"),
            Self::Async => Some("backend:cudaMallocAsync"),
        }
    }
}

/// A running script; it is killed when it is dropped.
#[derive(Debug)]
pub struct TorchJob {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl TorchJob {
    /// Starts a command of [`Gpu::torch_command`](crate::Gpu::torch_command); it waits at each checkpoint.
    ///
    /// # Panics
    /// When Python does not start.
    pub fn start(mut command: Command) -> Self {
        command.arg("--wait");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Self { child, input, output }
    }

    /// Its process id.
    pub fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Goes to the next checkpoint, where it rests; `None` after the last.
    ///
    /// # Panics
    /// When the script fails or prints something else.
    pub fn next_checkpoint(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).expect("Python writes text") == 0 {
                let status = self.child.wait().expect("the job is ours");
                assert!(status.success(), "the script failed: {status}");
                return None;
            }
            // PyTorch's own remarks are no checkpoints.
            if let Ok(checkpoint) = serde_json::from_str::<Value>(&line)
                && checkpoint["label"].is_string()
            {
                return Some(checkpoint);
            }
        }
    }

    /// Ends it at once.
    ///
    /// # Panics
    /// When it has ended by itself.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
    }

    /// Lets it go on from the checkpoint.
    pub fn go_on(&mut self) {
        if let Some(input) = &mut self.input {
            // Fails where the script has ended; the next read shows that.
            let _ = writeln!(input);
        }
    }
}

impl Drop for TorchJob {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
