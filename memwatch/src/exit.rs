//! How the program ends: one exit code per kind of end, with a sentence that says what to do.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use crate::output_file;
use crate::printable::printable_lines;
use crate::sources::kernel::load::LoadError;

/// The exit codes of `memwatch`; `run` passes the command's own on. A wrong command line ends with 2 inside clap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It worked.
    Ok,
    /// It did not.
    Error,
    /// It worked, and found what `--fail-on` names.
    Found,
    /// Not permitted.
    NotPermitted,
    /// This kernel or driver cannot do it.
    Unsupported,
    /// The target is gone, or never was.
    NoTarget,
    /// Of the command that `run` started, or why it did not start: 125, 126, 127.
    Command(u8),
}

impl Exit {
    /// The number for the parent process.
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

/// An end that is an error: an exit code and what to tell the person.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// What went wrong.
    pub(crate) error: anyhow::Error,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

impl Failure {
    /// An error of this kind.
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, error: anyhow::anyhow!("{message}"), advice: None }
    }

    /// The same with the way out.
    #[must_use]
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Says it on standard error.
    pub(crate) fn tell(&self) {
        eprintln!("memwatch: {}", printable_lines(&format!("{:#}", self.error)));
        if let Some(advice) = &self.advice {
            eprintln!("{}", printable_lines(advice));
        }
    }

    /// No such process.
    pub(crate) fn no_process(tgid: u32) -> Self {
        Self::new(Exit::NoTarget, format_args!("there is no process {tgid}"))
            .advise("Name a running process: `nvidia-smi` and `memwatch ps` list those that use a GPU.")
    }

    /// Process ids here are not those of the kernel half.
    pub(crate) fn foreign_pid_namespace() -> Self {
        Self::new(
            Exit::Unsupported,
            "process ids in this container are not the machine's, so no process could be named",
        )
        .advise("Run memwatch in the host's pid namespace: docker run --pid=host …, or hostPID: true in a pod.")
    }

    /// A file that is to be written is there already, or cannot be made.
    pub(crate) fn cannot_make(path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            let there = Self::new(Exit::Error, format_args!("{} is there already", path.display()));
            return there.advise("Give another name with -o, or --force to replace it.");
        }
        Self::new(Exit::Error, format_args!("{}: {error}", output_file::name(path)))
    }

    /// A binary file is to be written to a terminal.
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

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { exit: Exit::Error, error, advice: None }
    }
}

/// The exact line to run.
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
