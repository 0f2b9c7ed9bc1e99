//! The subset of OpenTelemetry's protocol messages for metrics.
//!
//! Source: <https://github.com/open-telemetry/opentelemetry-proto/tree/v1.9.0/opentelemetry/proto>,
//! `metrics/v1`, `resource/v1`, `common/v1` and `collector/metrics/v1`. The crate
//! opentelemetry-proto provides them too, but depends on OpenTelemetry's SDK.

/// `ExportMetricsServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_metrics: Vec<ResourceMetrics>,
}

/// `ExportMetricsServiceResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<PartialSuccess>,
}

/// `ExportMetricsPartialSuccess`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(crate) rejected_data_points: i64,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}

/// `ResourceMetrics`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_metrics: Vec<ScopeMetrics>,
}

/// `Resource`: the source of the metrics.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

/// `ScopeMetrics`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) metrics: Vec<Metric>,
}

/// `InstrumentationScope`: the instrumented part of a program.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// `Metric`: a family.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Metric {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) description: String,
    /// UCUM unit: `By` for bytes, `s` for seconds.
    #[prost(string, tag = "3")]
    pub(crate) unit: String,
    #[prost(oneof = "Points", tags = "5, 7")]
    pub(crate) points: Option<Points>,
}

/// `Metric.data`: the type of a metric and its points.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Points {
    /// A gauge, which can go up and down.
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    /// A sum, used for counters.
    #[prost(message, tag = "7")]
    Sum(CumulativeSum),
}

/// `Gauge`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<NumberDataPoint>,
}

/// `CumulativeSum`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CumulativeSum {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<NumberDataPoint>,
    #[prost(enumeration = "Temporality", tag = "2")]
    pub(crate) temporality: i32,
    #[prost(bool, tag = "3")]
    pub(crate) is_monotonic: bool,
}

/// `AggregationTemporality`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Temporality {
    Unspecified = 0,
    /// Since the previous report.
    Delta = 1,
    /// Since a fixed start time.
    Cumulative = 2,
}

/// `NumberDataPoint`: the value of one series.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NumberDataPoint {
    #[prost(message, repeated, tag = "7")]
    pub(crate) attributes: Vec<KeyValue>,
    /// Start of the counting in nanoseconds since 1970; 0 for a gauge.
    #[prost(fixed64, tag = "2")]
    pub(crate) start_time_unix_nano: u64,
    /// Time of the value in nanoseconds since 1970.
    #[prost(fixed64, tag = "3")]
    pub(crate) time_unix_nano: u64,
    #[prost(oneof = "DataPointValue", tags = "4, 6")]
    pub(crate) value: Option<DataPointValue>,
}

/// `NumberDataPoint.value`.
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(crate) enum DataPointValue {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

/// `KeyValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

/// `AnyValue`, limited to text.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AnyValue {
    #[prost(string, optional, tag = "1")]
    pub(crate) string_value: Option<String>,
}

impl KeyValue {
    /// Creates a text attribute.
    pub(crate) fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: Some(AnyValue { string_value: Some(value.into()) }) }
    }
}
