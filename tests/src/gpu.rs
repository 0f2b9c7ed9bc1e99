//! A simulated machine with GPUs: a driver build, its own ledger and simulator settings.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::harness::cannot_run;
use crate::ledger::Ledger;
use crate::newer_system::NewerSystem;
use crate::report::ReportLine;
use crate::torch_job::{TorchAllocator, TorchJob};
use crate::wait::TIMEOUT;
use crate::watch::{CommandOutcome, RunningWatch};
use crate::workload::SimulatedWorkload;

/// Instructions at the start of the driver's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrologueShape {
    /// `cmp [rip+x], imm; je; push rbp`: drivers 470 to 595, except 580.
    Cmp,
    /// `push rbp`: driver 580.
    Push,
}

/// Framework release under test. Tests that take a release run with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameworkRelease {
    /// The newest release that memwatch was compared with.
    Newest,
    /// The oldest release that memwatch was compared with.
    Oldest,
}

impl FrameworkRelease {
    /// Returns the suffix of the release's environment variables.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Newest => "",
            Self::Oldest => "_OLDEST",
        }
    }
}

/// Folders of a driver build: the libraries, and the library that they are linked with.
const LIBRARIES: &str = "lib";
const DEVICE: &str = "device";

/// A simulated machine. Its ledger is deleted when it is dropped.
#[derive(Debug)]
pub struct SimulatedGpu {
    directory: TempDir,
    driver: PathBuf,
    libraries: PathBuf,
    memwatch: PathBuf,
    nvml: PathBuf,
    settings: Vec<(&'static str, String)>,
}

impl SimulatedGpu {
    /// Creates a machine with one 80 GB GPU.
    ///
    /// # Panics
    /// When no temporary directory can be made. Ignores the test without root or a driver build.
    pub fn new(shape: PrologueShape) -> Self {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            cannot_run("uprobes need root");
        }
        let variable = match shape {
            PrologueShape::Cmp => "GPUSIM_CMP",
            PrologueShape::Push => "GPUSIM_PUSH",
        };
        let (Some(driver), Some(memwatch)) = (path_in(variable), path_in("MEMWATCH_BIN")) else {
            cannot_run("run through `cargo xtask test`, which builds memwatch and the simulated GPU");
        };
        let directory = TempDir::with_prefix("memwatch-test-").expect("a temporary directory");
        let libraries = if is_for_all(&driver) { driver.join(LIBRARIES) } else { copied(&driver, directory.path()) };
        let nvml = libraries.join("libnvidia-ml.so.1");
        Self { directory, driver, libraries, memwatch, nvml, settings: Vec::new() }
    }

    /// Adds a setting of the simulator, such as `GPUSIM_DEVICES`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &impl ToString) -> Self {
        self.settings.push((name, value.to_string()));
        self
    }

    /// Gives the machine its own copy of libcuda, as in a container, so that no other test has
    /// probes in the file.
    ///
    /// # Panics
    /// When the file cannot be copied.
    #[must_use]
    pub fn with_own_libcuda(mut self) -> Self {
        let libraries = self.directory.path().join("libraries");
        std::fs::create_dir(&libraries).expect("a directory in the temporary one");
        self.copy_libcuda(&libraries);
        self.libraries = libraries;
        self
    }

    /// Copies the driver library and the library that it is linked with into a folder.
    ///
    /// # Panics
    /// When a file cannot be copied.
    pub fn copy_libcuda(&self, folder: &Path) {
        std::fs::copy(self.libcuda(), folder.join("libcuda.so.1")).expect("a copy of the driver library");
        copy_files(&self.driver.join(DEVICE), folder);
    }

    /// Selects a build of libcuda that calls the kernel driver differently: `noplt` has no stub for
    /// `ioctl`, `two` has two stubs.
    #[must_use]
    pub fn with_variant(mut self, variant: &str) -> Self {
        self.libraries = self.driver.join(LIBRARIES).join(variant);
        self
    }

    /// Makes memwatch use another NVML library.
    #[must_use]
    pub fn with_nvml(mut self, path: impl Into<PathBuf>) -> Self {
        self.nvml = path.into();
        self
    }

    /// Opens the simulator's ledger.
    ///
    /// # Panics
    /// When no job has created the ledger yet.
    pub fn ledger(&self) -> Ledger {
        Ledger::open(self.ledger_path()).expect("a job has made the ledger")
    }

    /// Starts the simulator's workload program.
    pub fn workload(&self) -> SimulatedWorkload {
        SimulatedWorkload::start(self.workload_command())
    }

    /// Returns the command of the workload program.
    pub fn workload_command(&self) -> Command {
        let mut command = Command::new(self.workload_program());
        self.apply(&mut command);
        command
    }

    /// Returns the path of the workload program.
    pub fn workload_program(&self) -> PathBuf {
        self.driver.join("bin/gpusim-workload")
    }

    /// Starts a script of `tests/workloads` on real PyTorch, which waits at each checkpoint.
    /// Ignores the test if that version is not installed.
    pub fn torch(&self, version: &str, allocator: TorchAllocator, words: &[&str]) -> TorchJob {
        TorchJob::start(self.torch_command(version, allocator, words))
    }

    /// Returns the command that runs a script of `tests/workloads` on real PyTorch. Ignores the
    /// test if that version is not installed.
    ///
    /// # Panics
    /// When a path of the build contains a colon.
    pub fn torch_command(&self, version: &str, allocator: TorchAllocator, words: &[&str]) -> Command {
        let name = version.replace('.', "_");
        let path = |what: &str| path_in(&format!("TORCH_{name}_{what}"));
        let newer = path("ROOT").zip(path("PACKAGES")).map(|(root, packages)| NewerSystem { root, packages });
        let python = newer.as_ref().map(NewerSystem::python).or_else(|| Some(Command::new(path("PYTHON")?)));
        let (Some(mut command), Some(runtime)) = (python, path("RUNTIME")) else {
            cannot_run(format!("PyTorch {version} is not installed: run through `cargo xtask test`"));
        };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
        self.apply(&mut command);
        let libraries = std::env::join_paths([&self.libraries, &runtime]).expect("these paths hold no colon");
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONWARNINGS", "ignore")
            .envs(versions_of(version));
        keep_bytecode(&mut command);
        command.arg(scripts.join(words[0])).args(&words[1..]);
        if let Some(setting) = allocator.setting() {
            command.env("PYTORCH_CUDA_ALLOC_CONF", setting);
        }
        match newer {
            None => command,
            Some(newer) => {
                // The driver library is linked with the libraries in this folder.
                let device = self.driver.join(DEVICE);
                let folders: [&Path; 5] = [&scripts, &self.libraries, &device, &runtime, self.directory()];
                newer.inside(&folders, &command)
            }
        }
    }

    /// Returns the command that runs a script of `tests/workloads` on real JAX. Ignores the test if
    /// JAX is not installed.
    ///
    /// # Panics
    /// When a path of the build contains a colon.
    pub fn jax_command(&self, release: FrameworkRelease, words: &[&str]) -> Command {
        let path = |what: &str| path_in(&format!("JAX{}_{what}", release.suffix()));
        let (Some(root), Some(packages), Some(runtime)) = (path("ROOT"), path("PACKAGES"), path("RUNTIME")) else {
            cannot_run(format!("{release:?} JAX is not installed: run through `cargo xtask test`"));
        };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
        let libraries = std::env::join_paths([&self.libraries, &runtime]).expect("these paths hold no colon");
        // XLA runs `ptxas` to assemble code; the wheel contains it.
        let assembler = packages.join("nvidia/cu13/bin");
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let programs = [assembler].into_iter().chain(std::env::split_paths(&usual));
        let newer = NewerSystem { root, packages };
        let mut command = newer.python();
        self.apply(&mut command);
        command
            .env("PATH", std::env::join_paths(programs).expect("these paths hold no colon"))
            .env("LD_LIBRARY_PATH", libraries)
            .env("PYTHONUNBUFFERED", "1")
            .env("JAX_PLATFORMS", "cuda")
            .env("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
            .env("XLA_FLAGS", "--xla_gpu_autotune_level=0")
            .env("TF_CPP_MIN_LOG_LEVEL", "3")
            .env("GPUSIM_DRIVER_VERSION", "13020");
        keep_bytecode(&mut command);
        command.arg(scripts.join(words[0])).args(&words[1..]);
        // The driver library is linked with the libraries in this folder.
        let device = self.driver.join(DEVICE);
        newer.inside(&[&scripts, &self.libraries, &device, &runtime, self.directory()], &command)
    }

    /// Returns the command that runs a script of `tests/workloads` on real ONNX Runtime. Ignores
    /// the test if ONNX Runtime is not installed.
    ///
    /// # Panics
    /// When a path of the build contains a colon.
    pub fn onnx_command(&self, words: &[&str]) -> Command {
        self.script_on(("ONNX", "ONNX Runtime"), words)
    }

    /// Returns the command that runs a script of `tests/workloads` on real TensorFlow. Ignores the
    /// test if TensorFlow is not installed. `cargo xtask matrix tensorflow` installs it.
    ///
    /// # Panics
    /// When a path of the build contains a colon.
    pub fn tensorflow_command(&self, words: &[&str]) -> Command {
        let mut command =
            self.script_on(("TENSORFLOW", "TensorFlow (`cargo xtask matrix tensorflow` installs it)"), words);
        command.env("TF_CPP_MIN_LOG_LEVEL", "3").env("TF_ENABLE_ONEDNN_OPTS", "0");
        command
    }

    /// Returns the command that runs a script of `tests/workloads` on real ggml, as llama.cpp uses
    /// it. Ignores the test if ggml is not installed.
    ///
    /// # Panics
    /// When a path of the build contains a colon.
    pub fn ggml_command(&self, release: FrameworkRelease, words: &[&str]) -> Command {
        self.script_on((&format!("GGML{}", release.suffix()), "llama.cpp"), words)
    }

    /// Returns the command that runs a script of `tests/workloads` with the files of RAPIDS' memory
    /// manager and CuPy. Ignores the test if those are not installed.
    ///
    /// # Panics
    /// When a path of the build contains a colon.
    pub fn pools_command(&self, words: &[&str]) -> Command {
        self.script_on(("POOLS", "RAPIDS' memory manager with CuPy"), words)
    }

    /// Compiles a C++ library of `tests/workloads` to a file of this name in the machine's folder.
    /// Ignores the test if there is no compiler.
    ///
    /// # Panics
    /// When the source does not compile.
    pub fn compiled_library(&self, source: &str, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(source);
        let library = self.directory().join(name);
        std::fs::create_dir_all(library.parent().expect("a folder")).expect("a folder in the temporary one");
        let mut compiler = Command::new("c++");
        // The compilers that built the packages did not vectorise straight-line code.
        compiler.args(["-std=c++17", "-O2", "-fno-tree-slp-vectorize", "-shared", "-fPIC", "-o"]);
        match compiler.arg(&library).arg(&source).status() {
            Ok(status) => assert!(status.success(), "{compiler:?}"),
            Err(error) => cannot_run(format!("no C++ compiler ({error}): run through `cargo xtask test`")),
        }
        library
    }

    /// Reads a recording, while it is written, until its report fulfils a condition.
    ///
    /// # Panics
    /// When the report does not fulfil the condition in time.
    pub fn until_recorded(&self, recording: &str, holds: impl Fn(&ReportLine) -> bool) {
        let begin = Instant::now();
        let mut last = None;
        while begin.elapsed() < TIMEOUT {
            // The file does not exist at first, and then has no header yet.
            let outcome = self.run_memwatch(&["report", "--only", "where", "--json", recording]);
            if outcome.code == 0 {
                let report = ReportLine::parse(&outcome.stdout);
                if holds(&report) {
                    return;
                }
                last = Some(report);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the recording was never as expected; last: {last:#?}")
    }

    /// Returns the command that runs a script on a framework in the newer system. `variable` is the
    /// prefix of the framework's environment variables, `name` its name in messages.
    fn script_on(&self, (variable, name): (&str, &str), words: &[&str]) -> Command {
        let path = |what: &str| path_in(&format!("{variable}_{what}"));
        let (Some(root), Some(packages), Some(runtime)) = (path("ROOT"), path("PACKAGES"), path("RUNTIME")) else {
            cannot_run(format!("{name} is not here: run through `cargo xtask test`"));
        };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
        let newer = NewerSystem { root, packages };
        let mut command = newer.python();
        self.apply(&mut command);
        let libraries = std::env::join_paths([&self.libraries, &runtime]).expect("these paths hold no colon");
        command.env("LD_LIBRARY_PATH", libraries).env("PYTHONUNBUFFERED", "1").envs(versions_of("2.15"));
        keep_bytecode(&mut command);
        command.arg(scripts.join(words[0])).args(&words[1..]);
        // The driver library is linked with the libraries in this folder.
        let device = self.driver.join(DEVICE);
        newer.inside(&[&scripts, &self.libraries, &device, &runtime, self.directory()], &command)
    }

    /// Starts memwatch with `--json` and waits until it has attached.
    pub fn watch(&self, words: &[&str]) -> RunningWatch {
        RunningWatch::start(self.memwatch(words))
    }

    /// Runs memwatch until it exits.
    pub fn run_memwatch(&self, words: &[&str]) -> CommandOutcome {
        CommandOutcome::of(self.memwatch(words))
    }

    /// Returns the command of memwatch with this machine's libraries.
    pub fn memwatch(&self, words: &[&str]) -> Command {
        let mut command = self.searching_memwatch(&[]);
        command.arg("--libcuda").arg(self.libcuda()).args(words);
        command
    }

    /// Returns the command of memwatch without `--libcuda`, so that memwatch has to find the driver
    /// library itself.
    pub fn searching_memwatch(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.memwatch);
        self.apply(&mut command);
        // The jobs get their driver from this path; memwatch itself must not need it.
        command.env_remove("LD_LIBRARY_PATH");
        command.arg("--nvml-lib").arg(&self.nvml).args(words);
        command
    }

    /// Returns the command `memwatch run` for a job. The job finds its driver through
    /// `LD_LIBRARY_PATH`.
    pub fn memwatch_run(&self, options: &[&str], job: &Command) -> Command {
        let mut command = self.searching_memwatch(&["run", "--tensors=modules"]);
        command.args(options).arg("--").arg(job.get_program()).args(job.get_args());
        command.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// Returns the path of the simulated driver library.
    pub fn libcuda(&self) -> PathBuf {
        self.libraries.join("libcuda.so.1")
    }

    /// Returns the machine's directory, which is deleted with the machine.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Sets a command's environment so that it runs on this machine.
    pub fn apply(&self, command: &mut Command) {
        command
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env("GPUSIM_LEDGER", self.ledger_path())
            // memwatch stores state for its later runs here.
            .env("STATE_DIRECTORY", self.directory.path())
            .envs(self.settings.iter().map(|(name, value)| (*name, value)));
    }

    fn ledger_path(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }
}

/// Lets Python cache bytecode for the next job, whatever the caller's environment says. With cached
/// bytecode the import of PyTorch takes half the time.
///
/// The cache is next to the sources: with a separate cache folder (`PYTHONPYCACHEPREFIX`), Python
/// 3.13 cannot import a module that PyTorch 2.10 has only in memory.
fn keep_bytecode(command: &mut Command) {
    // An empty value counts as unset, and is passed on with the command wherever it is started.
    command.env("PYTHONDONTWRITEBYTECODE", "");
}

/// Returns the versions that the simulated driver must report to fit a PyTorch version. Environment
/// variables override them when the tests run with another release.
fn versions_of(version: &str) -> Vec<(&'static str, String)> {
    let known = match version {
        "2.6" => vec![("GPUSIM_DRIVER_VERSION", "12040")],
        "2.8" | "2.9" | "2.10" => vec![("GPUSIM_DRIVER_VERSION", "12080")],
        "2.11" => vec![("GPUSIM_DRIVER_VERSION", "13000")],
        _ => vec![("GPUSIM_DRIVER_VERSION", "13020"), ("GPUSIM_CUDNN_VERSION", "92600")],
    };
    let value = |name: &str, known: &str| std::env::var(name).unwrap_or_else(|_unset| known.to_owned());
    known.into_iter().map(|(name, known)| (name, value(name, known))).collect()
}

/// Returns whether every user can enter a folder. Some tests run as other users, and home
/// directories are often closed to others.
fn is_for_all(folder: &Path) -> bool {
    let mode = |folder: &Path| std::fs::metadata(folder).map_or(0, |metadata| metadata.permissions().mode());
    folder.ancestors().all(|folder| mode(folder) & 0o001 != 0)
}

/// Copies a build's libraries to a directory that every user can enter. The libraries find their
/// dependencies in the same directory.
fn copied(driver: &Path, directory: &Path) -> PathBuf {
    let libraries = directory.join(LIBRARIES);
    std::fs::create_dir(&libraries).expect("a directory in the temporary one");
    copy_files(&driver.join(LIBRARIES), &libraries);
    copy_files(&driver.join(DEVICE), &libraries);
    libraries
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the driver was built") {
        let entry = entry.expect("a file");
        // A copied symbolic link would become a second library.
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy of the driver");
        }
    }
}

fn path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}
