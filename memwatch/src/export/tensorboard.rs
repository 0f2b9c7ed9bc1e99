//! Memory over time as scalars for TensorBoard: an event file in the framing of TensorFlow's
//! records.
//!
//! Sources: `tensorflow/core/util/event.proto`, `tensorflow/core/framework/summary.proto` and
//! `tensorflow/core/lib/io/record_writer.cc`. TensorBoard reads every file in its log directory
//! whose name contains `tfevents`.

use crc::{CRC_32_ISCSI, Crc};
use memwatch_core::features::timeline::view::{PointView, TimelineView, TrackView};
use memwatch_core::snapshot::Snapshot;
use prost::Message as _;

use super::plot::label;
use crate::render::format::printable;
use crate::render::sentences;
use crate::render::wall_clock::WallClock;

/// Version in the first event of a file.
const VERSION: &str = "brain.Event:2";
/// CRC-32C, and the mask delta that allows a record to contain a checksum (`kMaskDelta` in
/// `crc32c.h`).
const CHECKSUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
const MASK: u32 = 0xa282_ead8;

/// `tensorflow.TensorBoardEvent`, limited to the fields in use.
#[derive(Clone, PartialEq, prost::Message)]
struct TensorBoardEvent {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<TensorBoardSummary>,
}

/// `tensorflow.TensorBoardSummary`.
#[derive(Clone, PartialEq, prost::Message)]
struct TensorBoardSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<ScalarValue>,
}

/// `tensorflow.TensorBoardSummary.ScalarValue`.
#[derive(Clone, PartialEq, prost::Message)]
struct ScalarValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// Writes all counters of a timeline in MiB. An `f32` has a resolution of 8 KiB at 128 GiB. A step
/// is a millisecond since the beginning.
pub(crate) fn write(timeline: &TimelineView, snapshot: &Snapshot, clock: &WallClock) -> Vec<u8> {
    let first = TensorBoardEvent {
        wall_time: seconds(clock.unix_ns(timeline.begun_ns)),
        file_version: Some(VERSION.to_owned()),
        ..TensorBoardEvent::default()
    };
    let mut bytes = record(&first);
    let mut points: Vec<(u64, ScalarValue)> =
        timeline.tracks.iter().flat_map(|track| values(track, &tag(track, snapshot))).collect();
    points.sort_by_key(|(time_ns, _)| *time_ns);
    for of_one_look in points.chunk_by(|one, next| one.0 == next.0) {
        let time_ns = of_one_look[0].0;
        let event = TensorBoardEvent {
            wall_time: seconds(clock.unix_ns(time_ns)),
            step: i64::try_from(time_ns.saturating_sub(timeline.begun_ns) / 1_000_000).unwrap_or(i64::MAX),
            summary: Some(TensorBoardSummary { value: of_one_look.iter().map(|(_, value)| value.clone()).collect() }),
            ..TensorBoardEvent::default()
        };
        bytes.extend(record(&event));
    }
    bytes
}

/// `PID 1234 python/GPU 0 allocated by PyTorch`. TensorBoard groups tags by the part in front of
/// the first slash.
fn tag(track: &TrackView, snapshot: &Snapshot) -> String {
    let gpu = sentences::gpu_number(snapshot, track.uuid.as_ref());
    let label = label(&track.measure);
    match track.tgid {
        Some(tgid) => {
            let comm = printable(&track.comm).replace('/', "_");
            let place = if track.measure == "pinned" { String::new() } else { format!("GPU {gpu} ") };
            format!("PID {} {comm}/{place}{label}", tgid.0)
        }
        None => format!("GPU {gpu}/{label}"),
    }
}

/// Returns the values at each poll. If any maximum between polls exceeds the value at the poll, the
/// maxima form a second series.
fn values(track: &TrackView, tag: &str) -> Vec<(u64, ScalarValue)> {
    let of = |tag: String, bytes: fn(&PointView) -> u64| {
        let value = |point: &PointView| {
            let value = ScalarValue { tag: tag.clone(), simple_value: mib(bytes(point)) };
            (point.time_ns, value)
        };
        track.points.iter().map(value).collect::<Vec<_>>()
    };
    let mut values = of(format!("{tag}, MiB"), |point| point.bytes);
    if track.points.iter().any(|point| point.most_bytes > point.bytes) {
        values.extend(of(format!("{tag}, peak since the point before, MiB"), |point| point.most_bytes));
    }
    values
}

#[expect(clippy::cast_precision_loss, reason = "it is what the format has; sizes of memory are far below 2^53 bytes")]
#[expect(clippy::cast_possible_truncation, reason = "as above")]
fn mib(bytes: u64) -> f32 {
    (bytes as f64 / f64::from(1 << 20)) as f32
}

#[expect(clippy::cast_precision_loss, reason = "a quarter of a microsecond, of what is drawn")]
fn seconds(unix_ns: i64) -> f64 {
    unix_ns as f64 / 1e9
}

/// Frames a message as length, checksum of the length, message, checksum of the message.
fn record(event: &TensorBoardEvent) -> Vec<u8> {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), &message, &masked(&message)].concat()
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    CHECKSUM.checksum(bytes).rotate_right(15).wrapping_add(MASK).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use memwatch_core::words::Tgid;

    use super::*;
    use crate::render::fixture;

    fn track(measure: &'static str, tgid: Option<Tgid>, points: &[(u64, u64, u64)]) -> TrackView {
        let point = |&(time_ns, bytes, most_bytes)| PointView { time_ns, bytes, most_bytes };
        TrackView {
            tgid,
            comm: "ray::a/b\x1b".to_owned(),
            uuid: Some(fixture::training_node().gpus[0].uuid.clone()),
            measure: measure.into(),
            points: points.iter().map(point).collect(),
            ..TrackView::default()
        }
    }

    /// Reads the events of a file and verifies the checksums.
    fn events(mut bytes: &[u8]) -> Vec<TensorBoardEvent> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_at(8);
            let count = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
            assert_eq!(rest[..4], masked(length));
            let message = &rest[4..4 + count];
            assert_eq!(rest[4 + count..8 + count], masked(message));
            events.push(TensorBoardEvent::decode(message).expect("a message"));
            bytes = &rest[8 + count..];
        }
        events
    }

    #[test]
    fn a_checksum_is_that_of_tensorflows_records() {
        // The first record of every file that TensorFlow writes is 24 bytes long. These are the
        // checksum bytes that follow that length in the files.
        assert_eq!(masked(&24_u64.to_le_bytes()), [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn each_look_is_an_event_with_all_numbers_of_it() {
        let gpu = track("used", None, &[(100, 2 << 20, 2 << 20), (5_000_100, 3 << 20, 3 << 20)]);
        let process = track("allocated", Some(Tgid(7)), &[(5_000_100, 1 << 19, 1 << 20)]);
        let timeline = TimelineView { begun_ns: 100, tracks: vec![gpu, process], ..TimelineView::default() };
        let events = events(&write(&timeline, &fixture::training_node(), &fixture::clock()));
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        let shown: Vec<_> = events[1..]
            .iter()
            .map(|event| {
                let values = event.summary.as_ref().expect("numbers").value.iter();
                (event.step, values.map(|value| format!("{} {}", value.tag, value.simple_value)).collect::<Vec<_>>())
            })
            .collect();
        let own = "PID 7 ray::a_b\\x1b/GPU 0 allocated by PyTorch";
        let second = vec![
            "GPU 0/used (NVML), MiB 3".to_owned(),
            format!("{own}, MiB 0.5"),
            format!("{own}, peak since the point before, MiB 1"),
        ];
        assert_eq!(shown, [(0, vec!["GPU 0/used (NVML), MiB 2".to_owned()]), (5, second)]);
    }

    #[test]
    fn a_timeline_without_numbers_is_a_file_that_can_be_read() {
        let bytes = write(&TimelineView::default(), &fixture::training_node(), &fixture::clock());
        assert_eq!(events(&bytes).len(), 1);
    }
}
