//! A simulated machine with GPUs: a driver build, a ledger of its own, and settings.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::ledger::Ledger;
use crate::newer_system::NewerSystem;
use crate::report::Report;
use crate::torch_job::{Allocator, TorchJob};
use crate::wait::TIMEOUT;
use crate::watch::{Outcome, Watch};
use crate::workload::Workload;

/// How the driver's functions begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `cmp [rip+x], imm; je; push rbp`: drivers 470 to 595, but 580.
    Cmp,
    /// `push rbp`: driver 580.
    Push,
}

/// Which release of a framework, of the ones that all tests run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The newest that memwatch was compared with.
    Newest,
    /// The oldest.
    Oldest,
}

impl Release {
    /// How the names of its variables differ.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Newest => "",
            Self::Oldest => "_OLDEST",
        }
    }
}

/// Where a build of the driver has its libraries, and the one that they are linked with.
const LIBRARIES: &str = "lib";
const DEVICE: &str = "device";

/// A simulated machine; its ledger goes with it.
#[derive(Debug)]
pub struct Gpu {
    directory: TempDir,
    driver: PathBuf,
    libraries: PathBuf,
    memwatch: PathBuf,
    nvml: PathBuf,
    settings: Vec<(&'static str, String)>,
}

impl Gpu {
    /// A machine with one 80 GB GPU; `None`, with the reason on standard error, where the tests cannot run.
    ///
    /// # Panics
    /// When no temporary directory can be made.
    pub fn new(shape: Shape) -> Option<Self> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return skip("uprobes need root");
        }
        let variable = match shape {
            Shape::Cmp => "GPUSIM_CMP",
            Shape::Push => "GPUSIM_PUSH",
        };
        let (Some(driver), Some(memwatch)) = (path_in(variable), path_in("MEMWATCH_BIN")) else {
            return skip("run through `cargo xtask test`, which builds memwatch and the simulated GPU");
        };
        let directory = TempDir::with_prefix("memwatch-test-").expect("a temporary directory");
        let libraries = if is_for_all(&driver) { driver.join(LIBRARIES) } else { copied(&driver, directory.path()) };
        let nvml = libraries.join("libnvidia-ml.so.1");
        Some(Self { directory, driver, libraries, memwatch, nvml, settings: Vec::new() })
    }

    /// The same with a setting of the simulator, such as `GPUSIM_DEVICES`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &impl ToString) -> Self {
        self.settings.push((name, value.to_string()));
        self
    }

    /// The same with a libcuda of its own, as a container has one: nobody else has probes in that file.
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

    /// Copies the driver library into a folder, and what it is linked with.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn copy_libcuda(&self, folder: &Path) {
        std::fs::copy(self.libcuda(), folder.join("libcuda.so.1")).expect("a copy of the driver library");
        copy_files(&self.driver.join(DEVICE), folder);
    }

    /// The same with a build of libcuda that calls the kernel driver otherwise: `noplt`, without a stub for `ioctl`, or `two`, with two.
    #[must_use]
    pub fn with_variant(mut self, variant: &str) -> Self {
        self.libraries = self.driver.join(LIBRARIES).join(variant);
        self
    }

    /// The same with another NVML library for memwatch.
    #[must_use]
    pub fn with_nvml(mut self, path: impl Into<PathBuf>) -> Self {
        self.nvml = path.into();
        self
    }

    /// The simulator's ledger.
    ///
    /// # Panics
    /// When no job has made them yet.
    pub fn ledger(&self) -> Ledger {
        Ledger::open(self.ledger_path()).expect("a job has made the ledger")
    }

    /// Starts the driver's own workload program.
    pub fn workload(&self) -> Workload {
        Workload::start(self.workload_command())
    }

    /// The same as a command that was not started.
    pub fn workload_command(&self) -> Command {
        let mut command = Command::new(self.workload_program());
        self.apply(&mut command);
        command
    }

    /// The file of the workload program.
    pub fn workload_program(&self) -> PathBuf {
        self.driver.join("bin/gpusim-workload")
    }

    /// Starts a script of `tests/workloads` on real PyTorch; it waits at each checkpoint. `None` where that version is not installed.
    pub fn torch(&self, version: &str, allocator: Allocator, words: &[&str]) -> Option<TorchJob> {
        let command = self.torch_command(version, allocator, words)?;
        Some(TorchJob::start(command))
    }

    /// The same as a command that was not started.
    ///
    /// # Panics
    /// When a path of the build holds a colon.
    pub fn torch_command(&self, version: &str, allocator: Allocator, words: &[&str]) -> Option<Command> {
        let name = version.replace('.', "_");
        let path = |what: &str| path_in(&format!("TORCH_{name}_{what}"));
        let newer = path("ROOT").zip(path("PACKAGES")).map(|(root, packages)| NewerSystem { root, packages });
        let python = newer.as_ref().map(NewerSystem::python).or_else(|| Some(Command::new(path("PYTHON")?)));
        let (Some(mut command), Some(runtime)) = (python, path("RUNTIME")) else {
            return skip(&format!("PyTorch {version} is not installed: run through `cargo xtask test`"));
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
            None => Some(command),
            Some(newer) => {
                // What the driver library is linked with.
                let device = self.driver.join(DEVICE);
                let folders: [&Path; 5] = [&scripts, &self.libraries, &device, &runtime, self.directory()];
                newer.inside(&folders, &command)
            }
        }
    }

    /// A script of `tests/workloads` on real JAX, not started. `None` where that is not installed.
    ///
    /// # Panics
    /// When a path of the build holds a colon.
    pub fn jax_command(&self, release: Release, words: &[&str]) -> Option<Command> {
        let path = |what: &str| path_in(&format!("JAX{}_{what}", release.suffix()));
        let (Some(root), Some(packages), Some(runtime)) = (path("ROOT"), path("PACKAGES"), path("RUNTIME")) else {
            return skip(&format!("{release:?} JAX is not installed: run through `cargo xtask test`"));
        };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
        let libraries = std::env::join_paths([&self.libraries, &runtime]).expect("these paths hold no colon");
        // XLA asks the program `ptxas` to assemble; the wheel brings it.
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
        // What the driver library is linked with.
        let device = self.driver.join(DEVICE);
        newer.inside(&[&scripts, &self.libraries, &device, &runtime, self.directory()], &command)
    }

    /// A script of `tests/workloads` on real ONNX Runtime, not started. `None` where that is not installed.
    ///
    /// # Panics
    /// When a path of the build holds a colon.
    pub fn onnx_command(&self, words: &[&str]) -> Option<Command> {
        self.script_on(("ONNX", "ONNX Runtime"), words)
    }

    /// A script of `tests/workloads` on real TensorFlow, not started. `None` where that is not installed: `cargo xtask matrix tensorflow` does that.
    ///
    /// # Panics
    /// When a path of the build holds a colon.
    pub fn tensorflow_command(&self, words: &[&str]) -> Option<Command> {
        let mut command = self.script_on(("TENSORFLOW", "TensorFlow"), words)?;
        command.env("TF_CPP_MIN_LOG_LEVEL", "3").env("TF_ENABLE_ONEDNN_OPTS", "0");
        Some(command)
    }

    /// A script of `tests/workloads` on real ggml, as llama.cpp uses it, not started. `None` where that is not installed.
    ///
    /// # Panics
    /// When a path of the build holds a colon.
    pub fn ggml_command(&self, release: Release, words: &[&str]) -> Option<Command> {
        self.script_on((&format!("GGML{}", release.suffix()), "llama.cpp"), words)
    }

    /// A script of `tests/workloads` beside the files of RAPIDS' memory manager and CuPy, not started. `None` where those are not installed.
    ///
    /// # Panics
    /// When a path of the build holds a colon.
    pub fn pools_command(&self, words: &[&str]) -> Option<Command> {
        self.script_on(("POOLS", "RAPIDS' memory manager with CuPy"), words)
    }

    /// A library of `tests/workloads` in C++, compiled to a file of this name in this machine's folder; `None`, with the reason on standard error, where there
    /// is no compiler.
    ///
    /// # Panics
    /// When it does not compile.
    pub fn compiled_library(&self, source: &str, name: &str) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(source);
        let library = self.directory().join(name);
        std::fs::create_dir_all(library.parent().expect("a folder")).expect("a folder in the temporary one");
        let mut compiler = Command::new("c++");
        // As compilers built the packages: they did not join what is no array.
        compiler.args(["-std=c++17", "-O2", "-fno-tree-slp-vectorize", "-shared", "-fPIC", "-o"]);
        match compiler.arg(&library).arg(&source).status() {
            Ok(status) => assert!(status.success(), "{compiler:?}"),
            Err(error) => return skip(&format!("no C++ compiler ({error}): run through `cargo xtask test`")),
        }
        Some(library)
    }

    /// Waits until a recording, which is read while it is written, shows this.
    ///
    /// # Panics
    /// When it never does.
    pub fn until_recorded(&self, recording: &str, holds: impl Fn(&Report) -> bool) {
        let begin = Instant::now();
        let mut last = None;
        while begin.elapsed() < TIMEOUT {
            // At first there is no file, and then one without its front.
            let outcome = self.run_memwatch(&["report", "--json", recording]);
            if outcome.code == 0 {
                let report = Report::parse(&outcome.stdout);
                if holds(&report) {
                    return;
                }
                last = Some(report);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the recording was never as expected; last: {last:#?}")
    }

    /// A script on a framework in the newer system: what its variables begin with, and its name for people.
    fn script_on(&self, (variable, name): (&str, &str), words: &[&str]) -> Option<Command> {
        let path = |what: &str| path_in(&format!("{variable}_{what}"));
        let (Some(root), Some(packages), Some(runtime)) = (path("ROOT"), path("PACKAGES"), path("RUNTIME")) else {
            return skip(&format!("{name} is not installed: run through `cargo xtask test`"));
        };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
        let newer = NewerSystem { root, packages };
        let mut command = newer.python();
        self.apply(&mut command);
        let libraries = std::env::join_paths([&self.libraries, &runtime]).expect("these paths hold no colon");
        command.env("LD_LIBRARY_PATH", libraries).env("PYTHONUNBUFFERED", "1").envs(versions_of("2.15"));
        keep_bytecode(&mut command);
        command.arg(scripts.join(words[0])).args(&words[1..]);
        // What the driver library is linked with.
        let device = self.driver.join(DEVICE);
        newer.inside(&[&scripts, &self.libraries, &device, &runtime, self.directory()], &command)
    }

    /// Starts memwatch with `--json`, and waits until it has attached.
    pub fn watch(&self, words: &[&str]) -> Watch {
        Watch::start(self.memwatch(words))
    }

    /// Runs memwatch to its end.
    pub fn run_memwatch(&self, words: &[&str]) -> Outcome {
        Outcome::of(self.memwatch(words))
    }

    /// memwatch with this machine's libraries, not started.
    pub fn memwatch(&self, words: &[&str]) -> Command {
        let mut command = self.searching_memwatch(&[]);
        command.arg("--libcuda").arg(self.libcuda()).args(words);
        command
    }

    /// The same, but memwatch has to find the driver library by itself.
    pub fn searching_memwatch(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.memwatch);
        self.apply(&mut command);
        // The jobs get their driver from this path; memwatch itself must not need it.
        command.env_remove("LD_LIBRARY_PATH");
        command.arg("--nvml-lib").arg(&self.nvml).args(words);
        command
    }

    /// `memwatch run` of a job, which finds its driver where `LD_LIBRARY_PATH` says.
    pub fn memwatch_run(&self, options: &[&str], job: &Command) -> Command {
        let mut command = self.searching_memwatch(&["run", "--tensors=layers"]);
        command.args(options).arg("--").arg(job.get_program()).args(job.get_args());
        command.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// The simulated driver library.
    pub fn libcuda(&self) -> PathBuf {
        self.libraries.join("libcuda.so.1")
    }

    /// The directory that goes with this machine.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Sets a command's environment so that it runs on this machine.
    pub fn apply(&self, command: &mut Command) {
        command
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env("GPUSIM_LEDGER", self.ledger_path())
            // What memwatch keeps for later runs of it.
            .env("STATE_DIRECTORY", self.directory.path())
            .envs(self.settings.iter().map(|(name, value)| (*name, value)));
    }

    fn ledger_path(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }
}

/// What Python compiles is kept for the next job, which takes half the time to import PyTorch, whatever the environment says of that.
///
/// Beside the sources: with a folder of its own for that (`PYTHONPYCACHEPREFIX`), Python 3.13 cannot import a module that PyTorch 2.10 has only in memory.
fn keep_bytecode(command: &mut Command) {
    // Empty is as good as not set, and goes with the command wherever it is started.
    command.env("PYTHONDONTWRITEBYTECODE", "");
}

/// What the simulated driver must say of itself to fit a PyTorch version. Where the tests run with another release in its place, the environment says it.
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

/// Whether every user can go into a folder: some tests are other users', and a home is often its owner's alone.
fn is_for_all(folder: &Path) -> bool {
    let mode = |folder: &Path| std::fs::metadata(folder).map_or(0, |metadata| metadata.permissions().mode());
    folder.ancestors().all(|folder| mode(folder) & 0o001 != 0)
}

/// Copies a build's libraries to where everybody may be let in. They find what they are linked with beside them.
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
        // A link would become a second library.
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy of the driver");
        }
    }
}

fn path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

fn skip<T>(reason: &str) -> Option<T> {
    eprintln!("SKIPPED: {reason}");
    None
}
