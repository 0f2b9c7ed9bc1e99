//! Arguments of `memwatch agent`.

use crate::options::{Checked, DEFAULT_SOCKET, values};
use crate::sources::kernel::pins::BPFFS;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::push::args::Otlp;

/// The agent of this machine.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Agent")]
pub(crate) struct AgentArgs {
    /// Socket that memwatch commands connect to
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Serve Prometheus metrics, and the page of memwatch web, on this address, such as 127.0.0.1:9747 (default: off)
    #[arg(long, value_name = "ADDR", env = "MEMWATCH_LISTEN")]
    pub(crate) listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) transport: Transport,
    /// Keep a history in this directory, for --since and --until of other commands (default: off)
    #[arg(long, value_name = "DIR", env = "MEMWATCH_HISTORY")]
    pub(crate) history: Option<PathBuf>,
    /// Maximum size of the history, of which older parts keep fewer details: 256M, 2G; at least 1M
    #[arg(long, value_name = "SIZE", default_value = "64M", env = "MEMWATCH_HISTORY_SIZE")]
    #[arg(value_parser = values::history_bytes)]
    pub(crate) history_size: u64,
    #[command(flatten)]
    pub(crate) otlp: Otlp,
    #[command(flatten)]
    pub(crate) events: EventArgs,
    /// What to read of PyTorch's tensors every few minutes, at new peaks and after failed allocations, for oom and explain: names, or off
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "names",
        env = "MEMWATCH_FLIGHT_RECORDER",
        hide_possible_values = true
    )]
    pub(crate) flight_recorder: FlightRecorderMode,
    #[command(flatten)]
    pub(crate) left: SurvivalArgs,
    /// Run without NVML, on a machine that has none: /readyz does not wait for it
    #[arg(long, conflicts_with = "nvml_lib")]
    pub(crate) no_nvml: bool,
    /// Also serve metrics of the N largest processes: off, or N up to 1000
    #[arg(long, value_name = "N", default_value = "off", value_parser = process_metrics)]
    pub(crate) process_metrics: ProcessMetrics,
}

/// What the flight recorder keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FlightRecorderMode {
    /// Nothing.
    Off,
    /// Names of tensors, without a probe.
    Names,
}

/// What the agent does on an event.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct EventArgs {
    /// On each event (a failed allocation, a change of a forecast, memory left behind) run this shell command, with it as JSON on its
    /// standard input
    #[arg(long, value_name = "CMD", env = "MEMWATCH_ON_EVENT")]
    pub(crate) on_event: Option<String>,
    /// Timeout of that command
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub(crate) on_event_timeout: Duration,
    /// Post the same JSON to this address: http://host:port/path
    #[arg(long, value_name = "URL", env = "MEMWATCH_EVENT_WEBHOOK", value_parser = values::webhook)]
    pub(crate) event_webhook: Option<String>,
}

/// Options of the transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Transport {
    /// Serve through TLS with this certificate, in PEM with what has signed it
    #[arg(long, value_name = "FILE", env = "MEMWATCH_TLS_CERT", requires_all = ["listen", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", env = "MEMWATCH_TLS_KEY", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Serve without TLS on addresses other than loopback, where others can read the traffic: =metrics all but the page, =page everything
    #[arg(long, value_name = "WHAT", env = "MEMWATCH_INSECURE", requires = "listen", hide_possible_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "page")]
    pub(crate) insecure: Option<Insecure>,
}

/// What may be served without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Insecure {
    /// Metrics, and whether the agent is well.
    Metrics,
    /// The page of `memwatch web`, too.
    Page,
}

impl Transport {
    /// The certificate and the key.
    pub(crate) fn files(&self) -> Option<(&Path, &Path)> {
        self.tls_cert.as_deref().zip(self.tls_key.as_deref())
    }

    fn check(&self, listen: Option<SocketAddr>) -> Result<(), String> {
        let reached = listen.filter(|address| !address.ip().to_canonical().is_loopback());
        match reached {
            Some(address) if self.files().is_none() && self.insecure.is_none() => Err(format!(
                "--listen {address}: others can read the traffic on this address. Encrypt it with --tls-cert FILE --tls-key FILE, or allow plain HTTP: \
                 --insecure=metrics for all but the page, --insecure=page for everything (or MEMWATCH_INSECURE)"
            )),
            _ => Ok(()),
        }
    }
}

/// What an agent leaves.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct SurvivalArgs {
    /// Leave the probes, and what is known, for the agent that is started next; without it nothing stays at the end
    #[arg(long)]
    pub(crate) keep: bool,
    /// Take out what agents have left that do not run, and end; with --socket only what the agent on that socket has left
    #[arg(long, conflicts_with_all = ["keep", "listen", "history"])]
    pub(crate) uninstall: bool,
    /// The bpf file system in which probes outlive an agent that is killed
    #[arg(long, value_name = "DIR", default_value = BPFFS)]
    pub(crate) bpffs: PathBuf,
}

/// Maximum number of pairs of a process and a GPU that get separate metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMetrics(pub(crate) usize);

/// Parses the number of processes that get separate metrics.
///
/// # Errors
/// The text is neither `off` nor a number from 1 to 1000, which Prometheus can handle.
fn process_metrics(text: &str) -> Result<ProcessMetrics, String> {
    match text.parse() {
        _ if text == "off" => Ok(ProcessMetrics(0)),
        Ok(number @ 1..=1000) => Ok(ProcessMetrics(number)),
        _ => Err("off, or a number from 1 to 1000".to_owned()),
    }
}

impl Checked for AgentArgs {
    fn check(&self) -> Result<(), String> {
        self.otlp.check()?;
        self.transport.check(self.listen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_beyond_loopback_needs_an_explicit_option() {
        let address = |text: &str| Some(text.parse().expect("an address"));
        let plain = Transport::default();
        for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(plain.check(address(loopback)), Ok(()), "{loopback}");
        }
        assert_eq!(plain.check(None), Ok(()));
        let insecure = |what| Transport { insecure: Some(what), ..Transport::default() };
        let encrypted = Transport { tls_cert: Some("a".into()), tls_key: Some("b".into()), ..Transport::default() };
        for network in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let why = plain.check(address(network)).expect_err("it is not chosen");
            for way in [network, "--tls-cert FILE --tls-key FILE", "--insecure=metrics", "MEMWATCH_INSECURE"] {
                assert!(why.contains(way), "{way}: {why}");
            }
            for chosen in [insecure(Insecure::Metrics), insecure(Insecure::Page), encrypted.clone()] {
                assert_eq!(chosen.check(address(network)), Ok(()), "{network}");
            }
        }
    }
}
