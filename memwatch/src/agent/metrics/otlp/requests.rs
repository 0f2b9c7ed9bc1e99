//! Splits metrics into OTLP requests that receivers accept, and adds the resource attributes.

use prost::Message as _;

use super::messages::{
    ExportRequest, InstrumentationScope, KeyValue, Metric, Points, Resource, ResourceMetrics, ScopeMetrics,
};

/// Maximum size of a request's points in bytes. gRPC receivers accept messages of 4 MiB by default.
const REQUEST_BYTES: usize = 2 << 20;

/// Resource attributes of the reporting agent
/// (<https://opentelemetry.io/docs/specs/semconv/resource/>).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reporter(Vec<(String, String)>);

impl Reporter {
    /// Creates the attributes of an agent from its host name and the content of `/etc/machine-id`.
    pub(crate) fn of(host: &str, machine: &str) -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let all = [
            ("service.name", "memwatch"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", host),
            ("host.name", host),
            ("host.id", machine.trim()),
            ("host.arch", architecture),
            ("os.type", std::env::consts::OS),
        ];
        let known = all.into_iter().filter(|(_, value)| !value.is_empty());
        Self(known.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// Adds attributes from a text such as `k8s.node.name=a,deployment.environment.name=b%2C`, the
    /// format of the environment variable that all OpenTelemetry programs use
    /// (<https://opentelemetry.io/docs/specs/otel/resource/sdk/>, section "Specifying resource
    /// information via an environment variable").
    ///
    /// # Errors
    /// If the text does not have this format.
    pub(crate) fn with(mut self, text: &str) -> Result<Self, String> {
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let read =
                pair.split_once('=').and_then(|(key, value)| Some((decoded(key.trim())?, decoded(value.trim())?)));
            let Some((key, value)) = read.filter(|(key, _)| !key.is_empty()) else {
                return Err(format!("{pair:?} is not an attribute: expected k8s.node.name=a,team=b"));
            };
            self.0.retain(|(known, _)| *known != key);
            self.0.push((key, value));
        }
        Ok(self)
    }
}

/// Decodes percent-encoded UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Splits metrics into requests of a limited size. A metric with many series may span several
/// requests.
pub(crate) fn requests(metrics: Vec<Metric>, reporter: &Reporter) -> Vec<ExportRequest> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    for mut metric in metrics {
        let points = metric.points.as_mut().map(points_mut).map(std::mem::take).unwrap_or_default();
        let head = metric.clone();
        bytes += head.encoded_len();
        part.push(metric);
        for point in points {
            let more = point.encoded_len();
            if bytes + more > REQUEST_BYTES {
                parts.push(std::mem::replace(&mut part, vec![head.clone()]));
                bytes = head.encoded_len();
            }
            bytes += more;
            let last = part.last_mut().and_then(|metric: &mut Metric| metric.points.as_mut());
            points_mut(last.expect("a metric that was just put there")).push(point);
        }
    }
    parts.push(part);
    parts.into_iter().map(|metrics| request(metrics, reporter)).collect()
}

fn points_mut(points: &mut Points) -> &mut Vec<super::messages::NumberDataPoint> {
    match points {
        Points::Gauge(gauge) => &mut gauge.data_points,
        Points::Sum(sum) => &mut sum.data_points,
    }
}

fn request(metrics: Vec<Metric>, Reporter(attributes): &Reporter) -> ExportRequest {
    let attributes = attributes.iter().map(|(key, value)| KeyValue::new(key, value)).collect();
    let scope = InstrumentationScope { name: "memwatch".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
    ExportRequest { resource_metrics: vec![ResourceMetrics { resource: Some(Resource { attributes }), scope_metrics }] }
}
