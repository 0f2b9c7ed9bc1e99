//! A running agent, its service manager and its clients.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::watch::CommandOutcome;
use crate::{RunningProgram, SimulatedGpu, SimulatedWorkload, TIMEOUT};

/// The agent of a simulated machine. Its service manager only receives notifications.
#[derive(Debug)]
pub struct TestAgent {
    program: RunningProgram,
    manager: UnixDatagram,
    socket: PathBuf,
}

impl TestAgent {
    /// Starts the agent and waits until it is ready.
    pub fn start(gpu: &SimulatedGpu) -> Self {
        Self::by(gpu, gpu.memwatch(&[]))
    }

    /// Starts the agent with a command that runs memwatch; the agent's arguments are appended.
    ///
    /// # Panics
    /// When the agent does not become ready.
    pub fn by(gpu: &SimulatedGpu, command: Command) -> Self {
        Self::with(gpu, command, &[])
    }

    /// Starts the agent like [`Self::by`], with further arguments.
    ///
    /// # Panics
    /// When the agent does not become ready.
    pub fn with(gpu: &SimulatedGpu, mut command: Command, words: &[&str]) -> Self {
        open_to_all(gpu);
        let socket = gpu.directory().join("run/memwatch.sock");
        let notify = gpu.directory().join("notify");
        let _ = fs::remove_file(&notify);
        let manager = UnixDatagram::bind(&notify).expect("a socket in the temporary directory");
        fs::set_permissions(&notify, Permissions::from_mode(0o666)).expect("it is ours");
        manager.set_read_timeout(Some(TIMEOUT)).expect("a time that is not 0");
        command.arg("agent").arg("--socket").arg(&socket).args(words);
        if !words.contains(&"--bpffs") {
            // On a mounted bpf file system, the next agent would take over what this one has
            // pinned.
            command.arg("--bpffs").arg(gpu.directory().join("no-bpf"));
        }
        command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "2000000").env_remove("WATCHDOG_PID");
        let agent = Self { program: RunningProgram::start(command), manager, socket };
        agent.until_reported("READY=1");
        agent
    }

    /// Returns the path of the agent's socket.
    pub fn socket(&self) -> &PathBuf {
        &self.socket
    }

    /// Returns the agent's process id.
    pub fn tgid(&self) -> u32 {
        self.program.tgid()
    }

    /// Waits for a notification to the service manager that starts with this text.
    ///
    /// # Panics
    /// When no such notification comes in time.
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

    /// Drops the notifications received so far. If nothing reads them, the socket's queue is full
    /// after a minute.
    ///
    /// # Panics
    /// When the socket cannot be set up.
    pub fn skip_reports(&self) {
        self.manager.set_nonblocking(true).expect("a socket of ours");
        while self.manager.recv(&mut [0; 4096]).is_ok() {}
        self.manager.set_nonblocking(false).expect("a socket of ours");
    }

    /// Sends the agent a signal.
    pub fn signal(&self, number: i32) {
        self.program.signal(number);
    }

    /// Waits until the agent exits. Returns its exit code, or -1 if a signal ended it.
    pub fn end(&mut self) -> i32 {
        self.program.end()
    }

    /// Returns a command that runs memwatch as this user as a client of the agent.
    pub fn client(&self, gpu: &SimulatedGpu, uid: u32, words: &[&str]) -> Command {
        let mut command = as_user(gpu, uid, &[]);
        command.arg("--agent").arg(&self.socket).args(words);
        command
    }

    /// Runs memwatch as this user as a client of the agent, until it exits.
    pub fn ask(&self, gpu: &SimulatedGpu, uid: u32, words: &[&str]) -> CommandOutcome {
        CommandOutcome::of(self.client(gpu, uid, words))
    }
}

/// Returns a command that runs a world-executable copy of memwatch as this user, in the group of
/// the same number.
///
/// # Panics
/// When memwatch cannot be copied.
pub fn as_user(gpu: &SimulatedGpu, uid: u32, words: &[&str]) -> Command {
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

/// Starts a workload as this user. The machine has its own copy of libcuda, which every user can
/// read wherever the tests are.
///
/// # Panics
/// When the workload cannot be started.
pub fn workload_of(gpu: &SimulatedGpu, uid: u32) -> SimulatedWorkload {
    SimulatedWorkload::start(workload_command_of(gpu, uid))
}

/// Returns the command of a workload as this user.
///
/// # Panics
/// When its files cannot be copied.
pub fn workload_command_of(gpu: &SimulatedGpu, uid: u32) -> Command {
    open_to_all(gpu);
    // The first workload creates the simulator's ledger; all workloads use it.
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

fn open_to_all(gpu: &SimulatedGpu) {
    fs::set_permissions(gpu.directory(), Permissions::from_mode(0o755)).expect("the directory is ours");
}
