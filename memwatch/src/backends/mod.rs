//! The drivers whose memory is watched: libraries, probes on demand, device readings.

pub(crate) mod cuda;
