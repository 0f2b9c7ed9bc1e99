//! A script on real PyTorch that stops at checkpoints and reports what it holds.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// How PyTorch allocates memory from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TorchAllocator {
    /// `cuMemAlloc`.
    Native,
    /// `expandable_segments:True`: `cuMemCreate` and `cuMemMap`.
    Expandable,
    /// `backend:cudaMallocAsync`: `cuMemAllocAsync`.
    Async,
}

impl TorchAllocator {
    /// Returns the value of `PYTORCH_CUDA_ALLOC_CONF`.
    pub(crate) const fn setting(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Expandable => Some("expandable_segments:True"),
            Self::Async => Some("backend:cudaMallocAsync"),
        }
    }
}

/// A running script. It is killed when it is dropped.
#[derive(Debug)]
pub struct TorchJob {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl TorchJob {
    /// Starts a command of [`SimulatedGpu::torch_command`](crate::SimulatedGpu::torch_command). The script waits at
    /// each checkpoint.
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

    /// Returns the process id.
    pub fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the script stops at its next checkpoint. Returns `None` after the last one.
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
            // Messages of PyTorch itself are not checkpoints.
            if let Ok(checkpoint) = serde_json::from_str::<Value>(&line)
                && checkpoint["label"].is_string()
            {
                return Some(checkpoint);
            }
        }
    }

    /// Kills the script.
    ///
    /// # Panics
    /// When the script has already exited.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
    }

    /// Lets the script continue after the checkpoint.
    pub fn go_on(&mut self) {
        if let Some(input) = &mut self.input {
            // Fails if the script has exited; the next read shows that.
            let _ = writeln!(input);
        }
    }
}

impl Drop for TorchJob {
    fn drop(&mut self) {
        // Fails if the script has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
