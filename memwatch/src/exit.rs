//! Exit codes and errors: one exit code per kind of end, with a sentence that advises what to do.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use crate::output_file;
use crate::printable::printable_lines;
use crate::sources::kernel::load::LoadError;

/// Exit codes of `memwatch`; `run` passes on the command's own. On a wrong command line, clap exits
/// with 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Ok,
    /// Failure.
    Error,
    /// Success, and a finding that `--fail-on` names.
    Found,
    /// Missing permission.
    NotPermitted,
    /// This kernel or driver does not support the request.
    Unsupported,
    /// The target exited or never existed.
    NoTarget,
    /// Exit code of the command that `run` started, or 125, 126 or 127 if the command did not
    /// start.
    Command(u8),
}

impl Exit {
    /// Returns the number for the parent process.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Error => 1,
            Self::Found => 3,
            Self::NotPermitted => 4,
            Self::Unsupported => 5,
            Self::NoTarget => 6,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

/// An error that ends the program: exit code, message and advice.
#[derive(Debug)]
pub(crate) struct ExitFailure {
    /// Exit code.
    pub(crate) exit: Exit,
    /// The error.
    pub(crate) error: anyhow::Error,
    /// What to do about the error.
    pub(crate) advice: Option<String>,
}

impl ExitFailure {
    /// Makes an error with this exit code.
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, error: anyhow::anyhow!("{message}"), advice: None }
    }

    /// Adds advice.
    #[must_use]
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Prints the error on standard error.
    pub(crate) fn report(&self) {
        eprintln!("memwatch: {}", printable_lines(&format!("{:#}", self.error)));
        if let Some(advice) = &self.advice {
            eprintln!("{}", printable_lines(advice));
        }
    }

    /// The process does not exist.
    pub(crate) fn no_process(tgid: u32) -> Self {
        Self::new(Exit::NoTarget, format_args!("there is no process {tgid}"))
            .advise("Name a running process: `nvidia-smi` and `memwatch ps` list the ones that use a GPU.")
    }

    /// Process ids here differ from the ids that the kernel half sees.
    pub(crate) fn foreign_pid_namespace() -> Self {
        Self::new(
            Exit::Unsupported,
            "process ids in this container differ from the host's, so processes cannot be identified",
        )
        .advise("Run memwatch in the host's pid namespace: docker run --pid=host …, or hostPID: true in a pod.")
    }

    /// An output file exists already, or cannot be created.
    pub(crate) fn cannot_make(path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            let there = Self::new(Exit::Error, format_args!("{} already exists", path.display()));
            return there.advise("Give another name with -o, or --force to replace it.");
        }
        Self::new(Exit::Error, format_args!("{}: {error}", output_file::name(path)))
    }

    /// Standard output is a terminal, but the output is a binary file.
    pub(crate) fn binary_on_terminal() -> Self {
        Self::new(Exit::Error, "standard output is a terminal, which cannot show a binary file")
            .advise("Name a file with -o FILE, or pipe it on: -o - | zstd > FILE.zst")
    }

    /// The kernel half could not be loaded.
    pub(crate) fn from_load(error: LoadError) -> Self {
        let permission = error.is_permission();
        let no_btf = matches!(error, LoadError::NoBtf(_) | LoadError::Btf(_));
        let failure = Self { exit: Exit::Error, error: error.into(), advice: None };
        if permission {
            Self { exit: Exit::NotPermitted, ..failure }.advise(permission_advice())
        } else if no_btf {
            Self { exit: Exit::Unsupported, ..failure }.advise(
                "memwatch needs a kernel built with CONFIG_DEBUG_INFO_BTF=y (every current distribution's is), version 5.15 or later.",
            )
        } else {
            failure.advise("`memwatch doctor` says for each requirement what works and what to change.")
        }
    }
}

impl From<anyhow::Error> for ExitFailure {
    fn from(error: anyhow::Error) -> Self {
        Self { exit: Exit::Error, error, advice: None }
    }
}

/// Returns the exact command line to run for more permission.
pub(crate) fn permission_advice() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().map_or_else(|| "memwatch".into(), Path::to_string_lossy);
    let mut advice = format!(
        "Run it as root: sudo {program} …\n\
         or give the file the capabilities it needs: sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep {program}\n\
         or start the agent once, which shows every user their own processes: sudo systemctl start memwatch-agent\n\
         (where that is not installed: sudo {program} agent)"
    );
    if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
        advice.push_str(
            "\nIn a container: --pid=host --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH.",
        );
    }
    advice
}
