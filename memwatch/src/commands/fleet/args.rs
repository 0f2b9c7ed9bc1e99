//! What `memwatch fleet` takes.

use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};

use crate::options::{Checked, values};
use crate::sources::prometheus::{Manner, Server};

/// Many machines, by what their agents have reported to a Prometheus.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Fleet {
    /// The Prometheus that scrapes the agents, or VictoriaMetrics, Thanos or Mimir: http://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = Server::parse)]
    pub(crate) prometheus: Server,
    /// Rows: workload, node or gpu
    #[arg(long, value_name = "WHAT", default_value = "workload", hide_possible_values = true)]
    pub(crate) by: By,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// Ask again after this time, until Ctrl-C: 10s, 1m
    #[arg(short, long, value_name = "TIME", value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Option<Duration>,
    /// A header that the server wants, such as 'X-Scope-OrgID: 7'; may be repeated
    #[arg(long, value_name = "HEADER", value_parser = header)]
    pub(crate) header: Vec<(HeaderName, HeaderValue)>,
    /// Each query has so long to be answered
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// A pod's container, a Slurm job, a container, a systemd unit: on all its GPUs.
    Workload,
    /// A machine, by the address at which its agent is scraped.
    Node,
    /// A GPU.
    Gpu,
}

impl Fleet {
    /// How the server is asked.
    pub(crate) fn manner(&self) -> Manner {
        Manner { headers: self.header.clone(), timeout: self.timeout }
    }
}

impl Checked for Fleet {}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parsed = text.split_once(':').and_then(|(name, value)| {
        let value = HeaderValue::from_str(value.trim()).ok()?;
        Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value))
    });
    parsed.ok_or_else(|| format!("{text}: a header is 'Name: value'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name_and_a_value() {
        let (name, value) = header("X-Scope-OrgID: a:7 ").expect("a header");
        assert_eq!((name.as_str(), value.as_bytes()), ("x-scope-orgid", &b"a:7"[..]));
        assert!(header("nothing").is_err() && header("a b: c").is_err() && header("a: b\u{1}c").is_err());
    }
}
