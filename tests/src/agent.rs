//! A running agent, its service manager, and those who ask it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::watch::Outcome;
use crate::{Gpu, Program, TIMEOUT, Workload};

/// The agent of a simulated machine, under a service manager that only listens.
#[derive(Debug)]
pub struct Agent {
    program: Program,
    manager: UnixDatagram,
    socket: PathBuf,
}

impl Agent {
    /// Starts it and waits until it is ready.
    pub fn start(gpu: &Gpu) -> Self {
        Self::by(gpu, gpu.memwatch(&[]))
    }

    /// The same by a command that leads to memwatch, to which the words of the agent are added.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn by(gpu: &Gpu, command: Command) -> Self {
        Self::with(gpu, command, &[])
    }

    /// The same with further words of the agent's own.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn with(gpu: &Gpu, mut command: Command, words: &[&str]) -> Self {
        open_to_all(gpu);
        let socket = gpu.directory().join("run/memwatch.sock");
        let notify = gpu.directory().join("notify");
        let _ = fs::remove_file(&notify);
        let manager = UnixDatagram::bind(&notify).expect("a socket in the temporary directory");
        fs::set_permissions(&notify, Permissions::from_mode(0o666)).expect("it is ours");
        manager.set_read_timeout(Some(TIMEOUT)).expect("a time that is not 0");
        command.arg("agent").arg("--socket").arg(&socket).args(words);
        if !words.contains(&"--bpffs") {
            // Whatever is mounted on this machine, what an agent has pinned there would be the next one's.
            command.arg("--bpffs").arg(gpu.directory().join("no-bpf"));
        }
        command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "2000000").env_remove("WATCHDOG_PID");
        let agent = Self { program: Program::start(command), manager, socket };
        agent.until_reported("READY=1");
        agent
    }

    /// Where it listens.
    pub fn socket(&self) -> &PathBuf {
        &self.socket
    }

    /// Its process id.
    pub fn tgid(&self) -> u32 {
        self.program.tgid()
    }

    /// Waits until it reports something that begins so to its service manager.
    ///
    /// # Panics
    /// When it does not.
    pub fn until_reported(&self, beginning: &str) -> String {
        let begin = Instant::now();
        let mut reported = [0; 4096];
        while begin.elapsed() < TIMEOUT {
            let length = self.manager.recv(&mut reported).expect("the agent reports its status to its service manager");
            let reported = String::from_utf8_lossy(&reported[..length]);
            if reported.starts_with(beginning) {
                return reported.into_owned();
            }
        }
        panic!("the agent has not sent its service manager {beginning}")
    }

    /// Drops what it has reported by now: where nobody reads, there is no room for more after a minute.
    ///
    /// # Panics
    /// When its socket cannot be set up.
    pub fn skip_reports(&self) {
        self.manager.set_nonblocking(true).expect("a socket of ours");
        while self.manager.recv(&mut [0; 4096]).is_ok() {}
        self.manager.set_nonblocking(false).expect("a socket of ours");
    }

    /// Sends it a signal.
    pub fn signal(&self, number: i32) {
        self.program.signal(number);
    }

    /// Waits for its end; its exit code, or -1 if a signal has ended it.
    pub fn end(&mut self) -> i32 {
        self.program.end()
    }

    /// memwatch asking this agent, as this user.
    pub fn client(&self, gpu: &Gpu, uid: u32, words: &[&str]) -> Command {
        let mut command = as_user(gpu, uid, &[]);
        command.arg("--agent").arg(&self.socket).args(words);
        command
    }

    /// The same, run to its end.
    pub fn ask(&self, gpu: &Gpu, uid: u32, words: &[&str]) -> Outcome {
        Outcome::of(self.client(gpu, uid, words))
    }
}

/// memwatch as a file that everybody may execute, run as this user, and nobody else's group.
///
/// # Panics
/// When it cannot be copied.
pub fn as_user(gpu: &Gpu, uid: u32, words: &[&str]) -> Command {
    open_to_all(gpu);
    let reported = gpu.memwatch(words);
    let program = gpu.directory().join("memwatch");
    if !program.exists() {
        fs::copy(reported.get_program(), &program).expect("a copy of memwatch");
    }
    let mut command = Command::new(program);
    for (name, value) in reported.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(reported.get_args()).uid(uid).gid(uid);
    command
}

/// A workload of this user, on a machine with a libcuda of its own, which users can read wherever the tests are.
///
/// # Panics
/// When it cannot be started.
pub fn workload_of(gpu: &Gpu, uid: u32) -> Workload {
    Workload::start(workload_command_of(gpu, uid))
}

/// The same as a command that was not started.
///
/// # Panics
/// When its files cannot be had.
pub fn workload_command_of(gpu: &Gpu, uid: u32) -> Command {
    open_to_all(gpu);
    // The simulator's ledger are made by the first workload, and kept by all.
    let ledger = gpu.directory().join("ledger");
    if !ledger.exists() {
        gpu.workload().run(&["init"]);
    }
    fs::set_permissions(ledger, Permissions::from_mode(0o666)).expect("it is ours");
    let program = gpu.directory().join("workload");
    if !program.exists() {
        fs::copy(gpu.workload_program(), &program).expect("a copy of the workload program");
    }
    let mut command = Command::new(program);
    gpu.apply(&mut command);
    command.uid(uid).gid(uid);
    command
}

fn open_to_all(gpu: &Gpu) {
    fs::set_permissions(gpu.directory(), Permissions::from_mode(0o755)).expect("the directory is ours");
}
