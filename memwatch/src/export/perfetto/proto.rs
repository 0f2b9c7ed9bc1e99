//! The subset of Perfetto's trace messages that memwatch writes. Source:
//! `protos/perfetto/trace/perfetto_trace.proto` of github.com/google/perfetto.

/// `Trace`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(crate) packet: Vec<TracePacket>,
}

/// `TracePacket`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(crate) clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(crate) trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(crate) track_event: Option<TraceEvent>,
    #[prost(uint32, optional, tag = "13")]
    pub(crate) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(crate) track_descriptor: Option<TrackDescriptor>,
}

/// `ClockSnapshot`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(crate) clocks: Vec<Clock>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Clock {
    #[prost(uint32, tag = "1")]
    pub(crate) clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) timestamp: u64,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(crate) uuid: u64,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(crate) counter: Option<CounterDescriptor>,
}

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pub(crate) tgid: i32,
    #[prost(string, repeated, tag = "2")]
    pub(crate) cmdline: Vec<String>,
    #[prost(string, tag = "6")]
    pub(crate) process_name: String,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CounterDescriptor {
    #[prost(int32, optional, tag = "3")]
    pub(crate) unit: Option<i32>,
    #[prost(string, optional, tag = "7")]
    pub(crate) y_axis_share_key: Option<String>,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TraceEvent {
    #[prost(message, repeated, tag = "4")]
    pub(crate) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub(crate) kind: i32,
    #[prost(uint64, tag = "11")]
    pub(crate) track_uuid: u64,
    #[prost(string, optional, tag = "23")]
    pub(crate) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(crate) counter_value: Option<i64>,
}

/// `DebugAnnotation`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DebugAnnotation {
    #[prost(string, optional, tag = "10")]
    pub(crate) name: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub(crate) string_value: Option<String>,
}
