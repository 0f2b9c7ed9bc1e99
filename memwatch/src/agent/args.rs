//! What `memwatch agent` takes.

use crate::options::{Checked, DEFAULT_SOCKET, values};
use crate::sources::kernel::pins::BPFFS;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The agent of this machine.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Agent")]
pub(crate) struct Agent {
    /// Socket that memwatch commands connect to
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Serve Prometheus metrics, and the page of memwatch web, on this address, such as 127.0.0.1:9747 (default: off)
    #[arg(long, value_name = "ADDR", env = "MEMWATCH_LISTEN")]
    pub(crate) listen: Option<SocketAddr>,
    /// Serve the page of memwatch web on other addresses than loopback, too: what it shows can be read on the way
    #[arg(long, requires = "listen")]
    pub(crate) insecure: bool,
    /// Keep a history in this directory, for --since and --until of other commands (default: off)
    #[arg(long, value_name = "DIR", env = "MEMWATCH_HISTORY")]
    pub(crate) history: Option<PathBuf>,
    /// Maximum size of the history; the oldest events go first: 256M, 2G; at least 1M. The previous run keeps as much again
    #[arg(long, value_name = "SIZE", default_value = "64M", env = "MEMWATCH_HISTORY_SIZE")]
    #[arg(value_parser = values::history_bytes)]
    pub(crate) history_size: u64,
    #[command(flatten)]
    pub(crate) left: Left,
    /// Run without NVML, on a machine that has none: /readyz does not wait for it
    #[arg(long, conflicts_with = "nvml_lib")]
    pub(crate) no_nvml: bool,
    /// Also serve metrics of the N largest processes: off, or N up to 1000
    #[arg(long, value_name = "N", default_value = "off", value_parser = process_metrics)]
    pub(crate) process_metrics: ProcessMetrics,
}

/// What an agent leaves.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Left {
    /// Leave the probes, and what is known, for the agent that is started next; without it nothing stays at the end
    #[arg(long)]
    pub(crate) keep: bool,
    /// Take out what agents have left that do not run, and end
    #[arg(long, conflicts_with_all = ["keep", "listen", "history"])]
    pub(crate) uninstall: bool,
    /// The bpf file system in which probes outlive an agent that is killed
    #[arg(long, value_name = "DIR", default_value = BPFFS)]
    pub(crate) bpffs: PathBuf,
}

/// So many pairs of process and GPU have metrics of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMetrics(pub(crate) usize);

/// How many processes have metrics of their own.
///
/// # Errors
/// When it is neither `off` nor a number of series that a Prometheus can bear.
fn process_metrics(text: &str) -> Result<ProcessMetrics, String> {
    match text.parse() {
        _ if text == "off" => Ok(ProcessMetrics(0)),
        Ok(number @ 1..=1000) => Ok(ProcessMetrics(number)),
        _ => Err("off, or a number from 1 to 1000".to_owned()),
    }
}

impl Checked for Agent {}
