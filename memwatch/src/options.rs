//! Command-line options. Parses values without acting on them.

pub(crate) mod checked;
pub(crate) mod choice;
pub(crate) mod headers;
pub(crate) mod looks;
pub(crate) mod moment;
pub(crate) mod recording;
pub(crate) mod selected;
pub(crate) mod tensors;
pub(crate) mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::sources::containers::RuntimeSockets;

pub(crate) use self::checked::Checked;
pub(crate) use self::choice::{Choice, RowKind};
pub(crate) use self::looks::Looks;
pub(crate) use self::moment::{Past, RecordingTime, TimeWindow};
pub(crate) use self::recording::{RecorderArgs, ReportSubject};
pub(crate) use self::selected::Selected;
pub(crate) use self::tensors::TensorArgs;

/// Heading of rarely used options. Only `memwatch help advanced` lists them.
pub(crate) const ADVANCED: &str = "Advanced options";

/// Default socket of this machine's agent.
pub(crate) const DEFAULT_SOCKET: &str = "/run/memwatch/memwatch.sock";

/// Which processes and GPUs to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct TargetArgs {
    #[command(flatten)]
    pub(crate) selected: Selected,
    /// Show only these GPUs: index, UUID (or its beginning) or PCI bus id; 0:1 is a MIG instance of GPU 0
    #[arg(short, long = "gpu", value_name = "GPU", value_delimiter = ',', value_parser = values::gpu)]
    #[arg(help_heading = "Which processes")]
    pub(crate) gpus: Vec<String>,
}

impl TargetArgs {
    /// Returns targets that select these processes on all GPUs.
    pub(crate) fn of(selected: &Selected) -> Self {
        Self { selected: selected.clone(), gpus: Vec::new() }
    }

    /// Returns whether neither processes nor GPUs are selected, which means all of both.
    pub(crate) fn are_all(&self) -> bool {
        self.selected.is_everybody() && self.gpus.is_empty()
    }
}

/// How often and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Time")]
pub(crate) struct IntervalArgs {
    /// Refresh interval: 500ms, 2s, 1m; a bare number is seconds; at least 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Duration,
    /// Stop after this time (default: at Ctrl-C, or when the processes have ended)
    #[arg(short, long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
}

/// What every command takes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Output")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct CommonArgs {
    /// Write JSON: one object per report
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to use colours: auto, always or never; auto obeys NO_COLOR and CLICOLOR_FORCE
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub(crate) color: ColorWhen,
    /// Draw with ASCII characters only
    #[arg(long, global = true)]
    pub(crate) ascii: bool,
    /// Write amounts as binary (KiB, MiB, GiB), si (kB, MB, GB) or bytes; JSON and CSV always have bytes
    #[arg(long, global = true, value_name = "UNITS", default_value = "binary", hide_possible_values = true)]
    pub(crate) units: Units,
    /// Attach to this libcuda file, too; may be repeated
    #[arg(long, global = true, value_name = "FILE", hide = true, help_heading = ADVANCED)]
    pub(crate) libcuda: Vec<PathBuf>,
    /// Load NVML from this file
    #[arg(long, global = true, value_name = "FILE", hide = true, help_heading = ADVANCED)]
    pub(crate) nvml_lib: Option<PathBuf>,
    /// Use the agent at this socket (default: /run/memwatch/memwatch.sock, if an agent is running)
    #[arg(long, global = true, value_name = "PATH", env = "MEMWATCH_AGENT", hide = true, help_heading = ADVANCED)]
    pub(crate) agent: Option<PathBuf>,
    /// Attach directly, even if an agent is running
    #[arg(long, global = true, hide = true, help_heading = ADVANCED)]
    pub(crate) no_agent: bool,
    #[command(flatten)]
    pub(crate) sockets: Sockets,
    /// Show more detail and log to stderr; may be repeated
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Size of the ring buffer between kernel and memwatch: a power of two
    #[arg(long, global = true, hide = true, value_name = "SIZE", value_parser = values::ring_bytes)]
    pub(crate) ring_bytes: Option<u32>,
    /// Attach one uprobe per function, as kernels without uprobe_multi need it
    #[arg(long, global = true, hide = true)]
    pub(crate) classic_uprobes: bool,
    /// Look for new driver libraries now and then, as kernels that do not report mappings need it
    #[arg(long, global = true, hide = true)]
    pub(crate) poll_libraries: bool,
}

/// Where names of containers and pods come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Sockets {
    /// Docker or Podman socket to read container names from (default: the usual sockets, rootless
    /// ones included); may be repeated
    #[arg(long = "docker-socket", global = true, value_name = "FILE", hide = true, help_heading = ADVANCED)]
    docker: Vec<PathBuf>,
    /// Kubernetes runtime socket to read pod names from (default: the usual sockets of containerd,
    /// CRI-O and others); may be repeated
    #[arg(long = "cri-socket", global = true, value_name = "FILE", hide = true, help_heading = ADVANCED)]
    cri: Vec<PathBuf>,
    /// Kubelet socket to read GPU assignments from (default: /var/lib/kubelet/pod-resources/kubelet.sock)
    #[arg(long = "kubelet-socket", global = true, value_name = "FILE", hide = true, help_heading = ADVANCED)]
    kubelet: Option<PathBuf>,
}

impl Sockets {
    /// Returns the socket paths for the session.
    pub(crate) fn places(&self) -> RuntimeSockets {
        RuntimeSockets { docker: self.docker.clone(), cri: self.cri.clone(), kubelet: self.kubelet.clone() }
    }
}

/// In which units screens write amounts of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Units {
    /// KiB, MiB, GiB: powers of 1024
    #[default]
    Binary,
    /// kB, MB, GB: powers of 1000
    Si,
    /// Bytes
    Bytes,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorWhen {
    /// Returns whether to use colours on an output. `variable` reads an environment variable.
    ///
    /// The flag overrides the environment. `NO_COLOR` overrides `CLICOLOR_FORCE`, and empty values
    /// count as unset.
    pub(crate) fn decide(self, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
        let set = |name| variable(name).is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto if set("NO_COLOR") => false,
            Self::Auto if variable("CLICOLOR_FORCE").is_some_and(|value| !matches!(value.as_str(), "" | "0")) => true,
            Self::Auto => is_terminal && variable("TERM").as_deref() != Some("dumb"),
        }
    }
}
