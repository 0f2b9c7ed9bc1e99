//! Options of `memwatch agent` for pushing metrics.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::options::values;
use crate::sources::servers::{Address, NoAddress};

/// Path for OTLP over HTTP, relative to the receiver's URL.
const HTTP_PATH: &str = "/v1/metrics";
/// Path of the gRPC method, relative to the receiver's URL.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// Default port for OTLP over gRPC.
const GRPC_PORT: u16 = 4317;

/// Protocol of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// HTTP/2 with gRPC's frames.
    Grpc,
    /// HTTP/1.1 with a message as its body.
    Http,
}

/// Parses the URL of a receiver.
///
/// # Errors
/// If the text is not a valid URL. The error is a sentence.
pub(crate) fn address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|why| {
        let why = match why {
            NoAddress::Other => {
                "an address is http://HOST:4318 for OTLP over HTTP or http://HOST:4317 for gRPC, or begins with https://"
            }
            NoAddress::Secret => {
                "the address must not contain a user name and password: use --otlp-header-file with 'Authorization: Basic …'"
            }
        };
        why.to_owned()
    })
}

/// Where metrics are pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Otlp {
    /// Push metrics to this receiver of OpenTelemetry's OTLP, too: http://HOST:4318, or http://HOST:4317 for gRPC (default: off)
    #[arg(long, value_name = "URL", env = "MEMWATCH_OTLP", value_parser = address)]
    pub(crate) otlp: Option<Address>,
    /// What the receiver speaks: grpc or http; unless set, grpc where its port is 4317
    #[arg(long, value_name = "PROTOCOL", requires = "otlp", hide_possible_values = true)]
    pub(crate) otlp_protocol: Option<Protocol>,
    /// How often they are pushed: 10s, 1m; at least 1s
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = otlp_interval)]
    pub(crate) otlp_interval: Duration,
    /// A file with headers that the receiver wants, one a line, such as 'Authorization: Bearer …'
    #[arg(long, value_name = "FILE", requires = "otlp")]
    pub(crate) otlp_header_file: Option<PathBuf>,
    /// A PEM file with additional certificate authorities to trust for https://
    #[arg(long, value_name = "FILE", requires = "otlp")]
    pub(crate) otlp_ca_file: Option<PathBuf>,
}

impl Otlp {
    /// Checks that the options are compatible. Files are not checked, because they may be created
    /// later.
    ///
    /// # Errors
    /// If the options are incompatible. The error is a sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.otlp.as_ref().map_or(Ok(()), |address| self.target(address).map(drop))
    }

    /// Returns the protocol for a receiver, and the request path.
    ///
    /// # Errors
    /// As for [`Otlp::check`].
    pub(super) fn target(&self, address: &Address) -> Result<(Protocol, String), String> {
        let inferred = if address.port == GRPC_PORT { Protocol::Grpc } else { Protocol::Http };
        let protocol = self.otlp_protocol.unwrap_or(inferred);
        let path = match protocol {
            Protocol::Http if address.path.ends_with(HTTP_PATH) => address.path.clone(),
            Protocol::Http => format!("{}{HTTP_PATH}", address.path),
            Protocol::Grpc if address.path.is_empty() => GRPC_PATH.to_owned(),
            Protocol::Grpc => {
                return Err(format!(
                    "--otlp: gRPC has no paths, and {} ends with one: leave it out, or choose --otlp-protocol http",
                    address.root() + &address.path
                ));
            }
        };
        Ok((protocol, path))
    }
}

/// Parses the interval between pushes.
///
/// # Errors
/// If the text is not a duration, or shorter than 1 s.
fn otlp_interval(text: &str) -> Result<Duration, String> {
    let interval = values::interval(text)?;
    if interval < Duration::from_secs(1) {
        return Err("metrics are pushed once a second at most".to_owned());
    }
    Ok(interval)
}
