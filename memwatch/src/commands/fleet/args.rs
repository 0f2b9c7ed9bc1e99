//! What `memwatch fleet` takes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};

use super::select::{Matcher, Matchers};
use crate::options::{Checked, values};
use crate::sources::prometheus::{Authorities, Manner, Server};

/// A file of headers is no longer.
const LONGEST_FILE_BYTES: u64 = 64 << 10;

/// Many machines, by what their agents have reported to a Prometheus: a screen on a terminal, else a table.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Fleet {
    /// The Prometheus that scrapes the agents, or VictoriaMetrics, Thanos or Mimir: http://HOST:PORT, or https://
    #[arg(long, value_name = "URL", value_parser = Server::parse)]
    pub(crate) prometheus: Server,
    /// Rows: workload, node, gpu, or holder, which is a workload's part of a GPU
    #[arg(long, value_name = "WHAT", default_value = "workload", hide_possible_values = true)]
    pub(crate) by: By,
    /// Largest first: used, driver, cached, unattributed, imbalance, idle, growth, full or ooms, where rows have it
    #[arg(long, value_name = "COLUMN", default_value = "used", hide_possible_values = true)]
    pub(crate) sort: Sort,
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
    #[arg(long, value_name = "HEADER", value_parser = header)]
    pub(crate) header: Vec<(HeaderName, HeaderValue)>,
    /// A file with such headers, one a line: for what others must not see, such as 'Authorization: Bearer …'
    #[arg(long, value_name = "FILE")]
    pub(crate) header_file: Option<PathBuf>,
    /// Certificates in PEM of authorities that https:// believes, too
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Each query has so long to be answered
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum By {
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
pub(crate) enum Sort {
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

impl Sort {
    /// All.
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

    /// As it is typed.
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

    /// The ones that rows of this kind have.
    pub(crate) fn of(by: By) -> Vec<Self> {
        Self::ALL.into_iter().filter(|sort| sort.fact(by).is_some()).collect()
    }
}

impl Fleet {
    /// How the server is asked.
    ///
    /// # Errors
    /// A sentence, when a file cannot be read or has something else.
    pub(crate) fn manner(&self) -> Result<Manner, String> {
        let mut headers = self.header.clone();
        if let Some(file) = &self.header_file {
            headers.extend(headers_of(file)?);
        }
        let is_https = self.prometheus.is_https();
        let authorities = if is_https { Some(Authorities::load(self.ca_file.as_deref())?) } else { None };
        Ok(Manner { headers, timeout: self.timeout, authorities })
    }

    /// The conditions on all series.
    pub(crate) fn matchers(&self) -> Matchers {
        Matchers(self.matchers.clone())
    }
}

impl Checked for Fleet {}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    parsed(text).ok_or_else(|| format!("{text}: a header is 'Name: value'"))
}

fn parsed(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value))
}

/// The headers of a file: its lines but for empty ones and comments. What a line has is in no message, for it is secret.
fn headers_of(file: &Path) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let name = file.display();
    let fails = |error: std::io::Error| format!("--header-file {name}: {error}");
    if std::fs::metadata(file).map_err(fails)?.len() > LONGEST_FILE_BYTES {
        return Err(format!(
            "--header-file {name}: it is longer than {} KiB, so it is no list of headers",
            LONGEST_FILE_BYTES >> 10
        ));
    }
    let text = std::fs::read_to_string(file).map_err(fails)?;
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let one = |(number, line): (u32, &str)| {
        parsed(line)
            .ok_or_else(|| format!("--header-file {name}: line {number} is not as in 'Authorization: Bearer TOKEN'"))
    };
    lines.map(one).collect()
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

    #[test]
    fn a_file_of_headers_keeps_its_secrets() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "# ours\n\nAuthorization: Bearer x:y\nX-Scope-OrgID: 7\n").expect("it is written");
        let headers = headers_of(file.path()).expect("headers");
        let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["authorization", "x-scope-orgid"]);
        assert!(!format!("{headers:?}").contains("Bearer"), "{headers:?}");
        std::fs::write(file.path(), "x: y\nsecret token\n").expect("it is written");
        let why = headers_of(file.path()).expect_err("no header");
        assert!(why.contains("line 2") && !why.contains("secret"), "{why}");
        assert!(headers_of(Path::new("/nowhere")).expect_err("no file").contains("/nowhere"));
    }

    #[test]
    fn every_kind_of_row_has_columns_to_sort_by() {
        let words = |by| Sort::of(by).into_iter().map(Sort::word).collect::<Vec<_>>().join(" ");
        assert_eq!(words(By::Workload), "used driver cached imbalance idle growth ooms");
        assert_eq!(words(By::Node), "used cached unattributed idle full ooms");
        assert_eq!(words(By::Gpu), "used cached unattributed idle full");
        assert_eq!(words(By::Holder), "used driver cached growth ooms");
    }
}
