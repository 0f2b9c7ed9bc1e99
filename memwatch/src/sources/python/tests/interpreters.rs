//! Interpreters on this machine, and processes of them that are killed with their test.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memwatch_core::stack::PythonStack;
use serde::Deserialize;

use crate::sources::python::resolver::Sent;
use crate::sources::python::{PythonProcess, walk};

/// Time limit that no step of a working machine exceeds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Supported versions. `system` is `/usr/bin/python3`, whatever its version (a static executable in
/// Debian).
pub(super) const VERSIONS: [&str; 7] = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "system"];

/// Returns the real interpreter of a version. Prints a message if there is none.
pub(super) fn interpreter(version: &str) -> Option<PathBuf> {
    let found = candidates(version).into_iter().find_map(|program| asked(&program, version));
    if found.is_none() {
        eprintln!("SKIPPED: no Python {version} on this machine");
    }
    found
}

/// Returns paths to try. `MEMWATCH_PYTHON_3_14` and similar variables name an interpreter
/// elsewhere.
fn candidates(version: &str) -> Vec<PathBuf> {
    if version == "system" {
        return vec!["/usr/bin/python3".into()];
    }
    let named = std::env::var_os(format!("MEMWATCH_PYTHON_{}", version.replace('.', "_"))).map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let installed = std::fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let prefix = format!("{version}.");
    let pyenv = installed
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path().join("bin/python3"));
    named.into_iter().chain(pyenv).chain([PathBuf::from(format!("python{version}"))]).collect()
}

/// Returns the executable if the program itself reports the right version. Shims of version
/// managers may run another version than their name says.
fn asked(program: &Path, version: &str) -> Option<PathBuf> {
    let ask = "import sys; print(sys.version_info[:2] >= (3, 9), '%d.%d' % sys.version_info[:2], sys.executable)";
    let output = Command::new(program).args(["-I", "-c", ask]).output().ok()?;
    let answer = String::from_utf8(output.stdout).ok()?;
    let mut words = answer.trim().splitn(3, ' ');
    let is_new = words.next()? == "True";
    let is_wanted = words.next()? == version || version == "system";
    // A wrapper that changes the root directory reports a path that does not exist outside.
    let executable = PathBuf::from(words.next()?);
    let own = if executable.exists() { executable } else { program.to_owned() };
    (is_new && is_wanted).then_some(own)
}

/// A place in a script, as the script prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ScriptPlace {
    #[serde(rename = "place")]
    pub(super) name: String,
    /// `threading.get_ident()`.
    pub(super) thread: u64,
    /// `threading.get_native_id()`.
    pub(super) tid: u32,
    /// File, qualified name (before 3.11: name) and line, innermost first.
    #[serde(default)]
    pub(super) frames: Vec<(String, String, Option<u32>)>,
    /// Class and name of the modules on the stack, innermost first, and the class of a module
    /// wrapped by each.
    #[serde(default)]
    pub(super) modules: Vec<(String, Option<String>, Option<String>)>,
}

/// A script that stops at places.
pub(super) struct StoppingScript {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StoppingScript {
    /// Runs a script file. `environment` is a variable with a folder.
    pub(super) fn run(interpreter: &Path, script: &Path, environment: Option<(&str, &Path)>) -> Self {
        let mut child = Command::new(interpreter)
            .args(["-X", "utf8"])
            .arg(script)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the interpreter starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    pub(super) fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line that the script writes, or `None` at the end.
    pub(super) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the script writes UTF-8");
        let line = line.trim_end().to_owned();
        (!line.is_empty()).then_some(line)
    }

    /// Returns the next place.
    pub(super) fn place(&mut self) -> Option<ScriptPlace> {
        let line = self.line()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Waits until a thread reads its byte. From then on its frames do not change.
    pub(super) fn wait_for_stop(&self, tid: u32) {
        let start = Instant::now();
        let path = format!("/proc/{}/task/{tid}/syscall", self.tgid());
        // Standard input, or the pipe of the threads of `places.py`.
        let is_read = |call: &str| matches!(call.split(' ').nth(1), Some("0x0" | "0x64")) && call.starts_with(READ);
        while !std::fs::read_to_string(&path).is_ok_and(|call| is_read(&call)) {
            assert!(start.elapsed() < TIMEOUT, "the script does not stop: {:?}", std::fs::read_to_string(&path));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the script continue.
    pub(super) fn go_on(&mut self) {
        self.input.write_all(b".").expect("the script reads");
    }
}

/// The number of `read` as `/proc/PID/syscall` shows it, followed by a space.
pub(super) const READ: &str = if cfg!(target_arch = "x86_64") { "0 " } else { "63 " };

impl Drop for StoppingScript {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl PythonProcess {
    /// Returns what the kernel half would send for a thread at this moment, resolved.
    pub(super) fn stack_of(&mut self, thread: u64) -> PythonStack {
        let walked = self.walk_of(thread);
        self.resolver.resolve_sent(Sent {
            id: thread,
            frames: walked.frames.into(),
            truncated: walked.truncated,
            entries: [0; 2],
        })
    }

    /// Returns what the kernel half would send for a thread at this moment.
    pub(super) fn walk_of(&self, thread: u64) -> walk::ThreadFrames {
        let (memory, layout) = (self.resolver.memory(), self.layout());
        let threads = walk::threads(memory, &layout).expect("the threads can be read");
        let found = threads.into_iter().find(|known| known.id == thread).expect("the thread is there");
        walk::frames(memory, &layout, found).expect("its frames can be read")
    }
}
