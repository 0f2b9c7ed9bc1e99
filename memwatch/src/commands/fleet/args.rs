//! Arguments of `memwatch fleet`.

use std::path::PathBuf;
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};

use super::select::{Matcher, Matchers};
use crate::options::{Checked, headers, values};
use crate::sources::prometheus::{Authorities, Manner, PrometheusServer};

/// Many machines, by what their agents have reported to a Prometheus: a screen on a terminal, else a table.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// The Prometheus that scrapes the agents, or VictoriaMetrics, Thanos or Mimir: http://HOST:PORT, or https://
    #[arg(long, value_name = "URL", value_parser = PrometheusServer::parse)]
    pub(crate) prometheus: PrometheusServer,
    /// Rows: workload, node, gpu, or holder, which is a workload's part of a GPU
    #[arg(long, value_name = "WHAT", default_value = "workload", hide_possible_values = true)]
    pub(crate) by: FleetRowKind,
    /// Largest first: used, driver, cached, unattributed, imbalance, idle, growth, full or ooms, where rows have it
    #[arg(long, value_name = "COLUMN", default_value = "used", hide_possible_values = true)]
    pub(crate) sort: FleetSort,
    /// Maximum number of rows; 20 without a screen, 200 on it
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) top: Option<u32>,
    /// Only series with such a label: namespace=ml, 'pod=~train-.*'; may be repeated
    #[arg(long = "match", value_name = "MATCHER", value_parser = Matcher::parse)]
    pub(crate) matchers: Vec<Matcher>,
    /// Ask again after this time, until Ctrl-C: 10s, 1m; 15s on the screen
    #[arg(short, long, value_name = "TIME", value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Option<Duration>,
    /// Print one table, on a terminal, too
    #[arg(long, conflicts_with = "interval")]
    pub(crate) once: bool,
    /// A header that the server wants, such as 'X-Scope-OrgID: 7'; may be repeated
    #[arg(long, value_name = "HEADER", value_parser = headers::header)]
    pub(crate) header: Vec<(HeaderName, HeaderValue)>,
    /// A file with such headers, one per line, for secrets such as 'Authorization: Bearer …'
    #[arg(long, value_name = "FILE")]
    pub(crate) header_file: Option<PathBuf>,
    /// A PEM file with additional certificate authorities to trust for https://
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Timeout of each query
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum FleetRowKind {
    /// A pod's container, a Slurm job, a container, a systemd unit: on all its GPUs.
    Workload,
    /// A machine, by the address at which its agent is scraped.
    Node,
    /// A GPU.
    Gpu,
    /// What a workload has of a GPU.
    Holder,
}

/// What rows are in the order of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FleetSort {
    /// What NVML charges.
    Used,
    /// What driver calls have allocated.
    Driver,
    /// What PyTorch has and no tensor uses.
    Cached,
    /// What nobody accounts for.
    Unattributed,
    /// How uneven a workload's GPUs are.
    Imbalance,
    /// GPUs that are held and do nothing.
    Idle,
    /// Growth.
    Growth,
    /// The time until it is full.
    Full,
    /// Failures for want of memory within a day.
    Ooms,
}

impl FleetSort {
    /// All columns.
    pub(crate) const ALL: [Self; 9] = [
        Self::Used,
        Self::Driver,
        Self::Cached,
        Self::Unattributed,
        Self::Imbalance,
        Self::Idle,
        Self::Growth,
        Self::Full,
        Self::Ooms,
    ];

    /// Returns the column's name on the command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Driver => "driver",
            Self::Cached => "cached",
            Self::Unattributed => "unattributed",
            Self::Imbalance => "imbalance",
            Self::Idle => "idle",
            Self::Growth => "growth",
            Self::Full => "full",
            Self::Ooms => "ooms",
        }
    }

    /// Returns the columns that rows of this kind can be sorted by.
    pub(crate) fn of(by: FleetRowKind) -> Vec<Self> {
        Self::ALL.into_iter().filter(|sort| sort.fact(by).is_some()).collect()
    }
}

impl FleetArgs {
    /// Returns how to send requests to the server.
    ///
    /// # Errors
    /// A sentence, if a file cannot be read or its content is invalid.
    pub(crate) fn manner(&self) -> Result<Manner, String> {
        let mut headers = self.header.clone();
        if let Some(file) = &self.header_file {
            headers.extend(headers::of_file(file, "--header-file")?);
        }
        let is_https = self.prometheus.is_https();
        let authorities = if is_https { Some(Authorities::load(self.ca_file.as_deref(), "--ca-file")?) } else { None };
        Ok(Manner { headers, timeout: self.timeout, authorities })
    }

    /// Returns the conditions that apply to all series.
    pub(crate) fn matchers(&self) -> Matchers {
        Matchers(self.matchers.clone())
    }
}

impl Checked for FleetArgs {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_row_has_columns_to_sort_by() {
        let words = |by| FleetSort::of(by).into_iter().map(FleetSort::word).collect::<Vec<_>>().join(" ");
        assert_eq!(words(FleetRowKind::Workload), "used driver cached imbalance idle growth ooms");
        assert_eq!(words(FleetRowKind::Node), "used cached unattributed idle full ooms");
        assert_eq!(words(FleetRowKind::Gpu), "used cached unattributed idle full");
        assert_eq!(words(FleetRowKind::Holder), "used driver cached growth ooms");
    }
}
