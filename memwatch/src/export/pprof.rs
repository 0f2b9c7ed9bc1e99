//! Heap profile for `go tool pprof` and Pyroscope: `profile.proto` of github.com/google/pprof,
//! compressed with gzip.
//!
//! The sample types and their order are those of Go's heap profiles (`profile/legacy_profile.go`),
//! because viewers know these names.

use std::collections::HashMap;
use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use memwatch_core::snapshot::SumView;
use prost::Message as _;

use super::{CallPathProfile, EXPORTER, ExportError, ProfileFrame, ProfilePart, ProfileWeight, Sample};
use crate::render::format::signed_bytes;

/// `perftools.profiles.CallPathProfile`, limited to the fields in use.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Proto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) sample: Vec<ProtoSample>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) mapping: Vec<PprofMapping>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) location: Vec<PprofLocation>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) function: Vec<PprofFunction>,
    #[prost(string, repeated, tag = "6")]
    pub(crate) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(crate) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(crate) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(crate) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(crate) period: i64,
    #[prost(int64, repeated, tag = "13")]
    pub(crate) comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    pub(crate) default_sample_type: i64,
}

/// `perftools.profiles.ValueType`. Like all texts, type and unit are indices into the string table.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(crate) kind: i64,
    #[prost(int64, tag = "2")]
    pub(crate) unit: i64,
}

/// `perftools.profiles.Sample`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoSample {
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(crate) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) label: Vec<PprofLabel>,
}

/// `perftools.profiles.PprofLabel` with a text.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct PprofLabel {
    #[prost(int64, tag = "1")]
    pub(crate) key: i64,
    #[prost(int64, tag = "2")]
    pub(crate) text: i64,
}

/// `perftools.profiles.PprofMapping`, one per process. The flags tell viewers that no symbols need to be
/// looked up.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct PprofMapping {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(int64, tag = "5")]
    pub(crate) filename: i64,
    #[prost(bool, tag = "7")]
    pub(crate) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(crate) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(crate) has_line_numbers: bool,
}

/// `perftools.profiles.PprofLocation`: a line of a function in a process.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PprofLocation {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) line: Vec<PprofLine>,
}

/// `perftools.profiles.PprofLine`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct PprofLine {
    #[prost(uint64, tag = "1")]
    pub(crate) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(crate) line: i64,
}

/// `perftools.profiles.PprofFunction`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct PprofFunction {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(int64, tag = "2")]
    pub(crate) name: i64,
    #[prost(int64, tag = "3")]
    pub(crate) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(crate) filename: i64,
}

/// Writes all parts, distinguished by labels. A viewer shows `weight` initially.
///
/// # Errors
/// If the weight is the peak, which heap profiles do not have.
pub(crate) fn write(profile: &CallPathProfile, weight: ProfileWeight) -> Result<Vec<u8>, ExportError> {
    let first = match weight {
        ProfileWeight::InUse | ProfileWeight::Leak => "inuse_space",
        ProfileWeight::Allocated => "alloc_space",
        ProfileWeight::Count => "alloc_objects",
        ProfileWeight::Peak => return Err(ExportError::NoPeak),
    };
    let proto = message(profile, first);
    // The gzip header has no name and no time, so that the same profile gives the same bytes.
    let mut packed = GzBuilder::new().write(Vec::new(), Compression::default());
    packed.write_all(&proto.encode_to_vec())?;
    Ok(packed.finish()?)
}

fn message(profile: &CallPathProfile, first: &'static str) -> Proto {
    let mut tables = Tables::default();
    tables.text("");
    let heap =
        [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")];
    let sample_type = heap.map(|(kind, unit)| tables.value_type(kind, unit)).to_vec();
    let period_type = Some(tables.value_type("space", "bytes"));
    let mut comment = vec![tables.text(EXPORTER)];
    let mut sample = Vec::new();
    for (number, part) in (1..).zip(&profile.parts) {
        tables.process(number, part);
        if part.unplaced_bytes != 0 {
            let bytes = signed_bytes(part.unplaced_bytes);
            comment.push(tables.text(&format!("{}: {bytes} in no sample: events were lost", part.name())));
        }
        sample.extend(part.samples.iter().map(|one| tables.sample(number, part, one)));
    }
    let default_sample_type = tables.text(first);
    Proto {
        sample_type,
        sample,
        mapping: tables.mapping,
        location: tables.location,
        function: tables.function,
        string_table: tables.texts,
        time_nanos: profile.unix_ns,
        duration_nanos: signed(profile.duration_ns),
        period_type,
        period: 1,
        comment,
        default_sample_type,
    }
}

/// Deduplicated tables that samples refer to by index.
#[derive(Default)]
struct Tables {
    texts: Vec<String>,
    text_numbers: HashMap<String, i64>,
    mapping: Vec<PprofMapping>,
    location: Vec<PprofLocation>,
    location_ids: HashMap<(u64, ProfileFrame), u64>,
    function: Vec<PprofFunction>,
    function_ids: HashMap<(i64, i64), u64>,
}

impl Tables {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(number) = self.text_numbers.get(text) {
            return *number;
        }
        let number = signed(self.texts.len() as u64);
        self.texts.push(text.to_owned());
        self.text_numbers.insert(text.to_owned(), number);
        number
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { kind: self.text(kind), unit: self.text(unit) }
    }

    fn process(&mut self, id: u64, part: &ProfilePart) {
        let filename = self.text(&part.program);
        let all_known = PprofMapping { id, filename, has_functions: true, has_filenames: true, has_line_numbers: true };
        self.mapping.push(all_known);
    }

    fn sample(&mut self, mapping_id: u64, part: &ProfilePart, sample: &Sample) -> ProtoSample {
        let innermost_first = sample.frames.iter().rev();
        let location_id = innermost_first.map(|frame| self.location(mapping_id, frame)).collect();
        let tgid = part.tgid.to_string();
        let mut label = vec![("gpu", part.gpu.as_str()), ("pid", &tgid), ("phase", &sample.phase)];
        label.extend(part.uuid.as_deref().map(|uuid| ("gpu_uuid", uuid)));
        let label =
            label.into_iter().map(|(key, text)| PprofLabel { key: self.text(key), text: self.text(text) }).collect();
        ProtoSample { location_id, value: values(&sample.sum).to_vec(), label }
    }

    fn location(&mut self, mapping_id: u64, frame: &ProfileFrame) -> u64 {
        let key = (mapping_id, frame.clone());
        if let Some(id) = self.location_ids.get(&key) {
            return *id;
        }
        let line = PprofLine { function_id: self.function(frame), line: frame.line.map_or(0, i64::from) };
        let id = self.location.len() as u64 + 1;
        self.location.push(PprofLocation { id, mapping_id, line: vec![line] });
        self.location_ids.insert(key, id);
        id
    }

    fn function(&mut self, frame: &ProfileFrame) -> u64 {
        let (name, filename) = (self.text(&frame.name), self.text(frame.file.as_deref().unwrap_or_default()));
        let next = self.function.len() as u64 + 1;
        let id = *self.function_ids.entry((name, filename)).or_insert(next);
        if id == next {
            self.function.push(PprofFunction { id, name, system_name: name, filename });
        }
        id
    }
}

/// Returns the values in the order of the sample types. Blocks from before the attach are not
/// counted, because their number is unknown.
fn values(sum: &SumView) -> [i64; 4] {
    let live = sum.allocations.saturating_sub(sum.frees);
    [sum.allocations, sum.total_bytes, live, sum.live_bytes].map(signed)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
