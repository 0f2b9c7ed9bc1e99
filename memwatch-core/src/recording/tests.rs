//! Recordings written and read back, cut off, and damaged.

use std::sync::Arc;

use memwatch_common::loss::Loss;
use memwatch_common::record::{CallRecord, ProcessRecord, RecordKind, RingRecord};
use memwatch_common::rm::{FLAG_ARGUMENT_UNREADABLE, FLAG_WRAPPED, PAYLOAD_BYTES};
use memwatch_common::tensor::{STATISTICS_WORDS, TEXT_BYTES, TensorRecord, TextRecord};
use proptest::prelude::*;

use super::chunk::NoChunk;
use super::{
    Chunk, ChunkFront, Encoder, EndMark, Ending, FORMAT, FORMAT_OF_STATES, FORMAT_WITH_KEYFRAMES, Front, Keyframe,
    KeyframeFront, RecordingError, RecordingPart, RecordingReader, Stopped, column,
};
use crate::input::rm::{Inside, RmCall};
use crate::input::{DeviceReading, Input, NvmlState, ProbeCoverage, ProcessFacts};
use crate::stack::native::{NativeEnd, NativeFrame, NativeRole, NativeStack};
use crate::stack::{PythonCode, PythonFrame, PythonModule, PythonStack};
use crate::test_calls::rm;
use crate::words::{Tgid, Tid};

fn front() -> Front {
    let command = vec!["memwatch".to_owned(), "record".to_owned()];
    Front {
        format: FORMAT,
        version: "0.1.0".to_owned(),
        host: "node-7".to_owned(),
        everybody: false,
        command,
        ..Front::default()
    }
}

/// Returns the bytes of a recording of these chunks without an end mark, and the end mark.
fn recorded(chunks: &[&[Input]]) -> (Vec<u8>, Vec<u8>) {
    let mut encoder = Encoder::default();
    let mut bytes = Encoder::front(&front());
    for inputs in chunks {
        inputs.iter().for_each(|input| encoder.push(input));
        bytes.extend(encoder.chunk(7).expect("it is packed").expect("there are inputs"));
    }
    let end = encoder.end(Stopped::Asked);
    (bytes, end)
}

fn read(bytes: &[u8]) -> (Vec<Input>, Option<Ending>) {
    let mut reader = RecordingReader::open(bytes).expect("it is a recording");
    assert_eq!(reader.front(), &front());
    let mut inputs = Vec::new();
    while let Some(part) = reader.next_part().expect("memory can be read") {
        let RecordingPart::Chunk(chunk) = part else { continue };
        assert_eq!(chunk.front.boottime_to_unix_ns, 7);
        chunk.for_each(|input| inputs.push(input)).expect("what was written is read");
    }
    (inputs, reader.ending())
}

fn tick(time_ns: u64) -> Input {
    Input::Tick { time_ns }
}

/// A row that this version does not know. All of its registers are kept.
const UNKNOWN_ROW: u16 = 900;

/// Returns one input of every kind.
fn one_of_each() -> Vec<Input> {
    let tensor = |probe, time_ns| {
        let kind = RecordKind::Tensor as u8;
        let (args, extra, stack) = ([1, u64::MAX, 3, 4, 5, 6], [7, 8], 0xfeed_beef_dead_cafe);
        TensorRecord { kind, flags: 3, probe, tid: 10, tgid: 9, reserved: 0, time_ns, args, extra, stack }
    };
    let call = CallRecord {
        kind: RecordKind::Call as u8,
        flags: 1,
        probe: 5,
        status: -2,
        tgid: 9,
        tid: 10,
        entered_ns: 1_000,
        returned_ns: 1_500,
        args: [1, 2, u64::MAX, 4, 5, 6],
        out: [7, 8],
        peek: [9, 10, 11, 12, 13],
    };
    let comm = *b"python3\0behind\0\0";
    let process =
        ProcessRecord { kind: 2, event: 4, tgid: 9, time_ns: 5, comm, uid: 1000, life: 3, ..Default::default() };
    let mut text = [0; TEXT_BYTES];
    text[..5].copy_from_slice(b"range");
    let text = TextRecord { kind: 4, flags: 0, probe: 3, tid: 10, tgid: 9, chunk: 7, time_ns: 80, text };
    let name = || Some(Arc::from("layers.0"));
    let inner = PythonModule { address: 1, class: "Linear".into(), name: name(), wraps: None };
    let module = PythonModule { address: 2, class: "DDP".into(), name: None, wraps: Some(Box::new(inner)) };
    let code = PythonCode { function: "step".into(), file: "/a b/\u{fffd}.py".into(), line: Some(7) };
    let frames = vec![PythonFrame { code: Some(code), module: Some(module) }, PythonFrame { code: None, module: None }];
    let function: Option<Arc<str>> = Some("_PyEval_EvalFrameDefault".into());
    let library = "/usr/lib/libpython3.11.so".into();
    let native = NativeFrame { name: function.clone(), function, library, address: 77, role: NativeRole::Loop };
    let statistics = std::array::from_fn(|index| index as u64 * 512);
    vec![
        Input::Coverage(ProbeCoverage { mechanism: "uprobe_multi".into(), ..ProbeCoverage::default() }),
        Input::Attached { time_ns: 1 },
        Input::Process(ProcessFacts { tgid: 9, comm: "a\"b\n".to_owned(), ..ProcessFacts::default() }),
        Input::Record(RingRecord::Process(process)),
        Input::Record(RingRecord::Call(call)),
        Input::Stack { tgid: Tgid(9), id: u64::MAX, stack: PythonStack { frames, truncated: true, borders: vec![1] } },
        Input::NativeStack { tgid: Tgid(9), id: 5, stack: NativeStack::new(vec![native], NativeEnd::CopyEnds) },
        Input::Record(RingRecord::Tensor(tensor(UNKNOWN_ROW, 60))),
        Input::Record(RingRecord::Tensor(tensor(UNKNOWN_ROW + 1, 70))),
        Input::Record(RingRecord::Text(text)),
        Input::Statistics { tgid: Tgid(9), allocator: 77, time_ns: 90, words: Box::new(statistics) },
        Input::Lost { tgid: None, loss: Loss::RingFull, count: 3 },
        Input::Devices(DeviceReading { begin_ns: 1, end_ns: 2, state: NvmlState::Ok, devices: Vec::new() }),
        Input::PeaksReset { tgid: Some(Tgid(9)), time_ns: 91 },
        Input::KernelDriver { version: Some("580.159.04".to_owned()) },
        rm::video(rm::NEWEST, (0xc1d0_0001, 2, 3), 1, 4096).inside("cuMemAlloc_v2", 89).at(90, 92).input(),
        tick(100),
    ]
}

/// Returns ioctls with the extremes of every field, and payloads that no recorder writes.
fn diverse_ioctls() -> Vec<Input> {
    let full = [0xa5; PAYLOAD_BYTES].to_vec();
    let inside = |probe, entered_ns| Some(Inside { probe, entered_ns });
    let usual = rm::video(rm::NEWEST, (0xc1d0_0001, 2, 3), 1, 4096).inside("cuMemAlloc_v2", 89).at(90, 92).stack(5).0;
    let empty = RmCall { payload: Vec::new(), ..usual.clone() };
    let calls = [
        RmCall::default(),
        RmCall { inside: None, answer: -1, flags: FLAG_WRAPPED | FLAG_ARGUMENT_UNREADABLE, ..usual.clone() },
        RmCall {
            answer: i32::MIN,
            flags: u8::MAX,
            nr: u8::MAX,
            size: u16::MAX,
            payload: full.clone(),
            ..usual.clone()
        },
        RmCall { inside: inside(0, 90), entered_ns: 90, returned_ns: 80, ..empty.clone() },
        RmCall { inside: inside(u16::MAX, u64::MAX), entered_ns: u64::MAX, returned_ns: 0, ..usual.clone() },
        RmCall { inside: inside(1, 0), tgid: Tgid(u32::MAX), tid: Tid(u32::MAX), stack: u64::MAX, ..empty.clone() },
        RmCall { asked_bytes: u64::MAX, payload: vec![1], ..usual.clone() },
        RmCall { payload: vec![0, 0, 0, 0, 0, 0, 0, 0, 1], ..usual.clone() },
        RmCall { payload: vec![1, 2, 3, 4, 5, 6, 7, 8], ..usual.clone() },
        RmCall { payload: vec![0], ..usual.clone() },
        RmCall { payload: vec![1, 2, 0, 0, 0, 0, 0, 0, 0], ..usual.clone() },
        RmCall { payload: [&full[..], &[0]].concat(), ..usual.clone() },
        RmCall { payload: [&full[..], &[1]].concat(), ..usual },
        empty,
    ];
    calls.map(|call| Input::Rm(Box::new(call))).into()
}

#[test]
fn ioctls_of_every_shape_come_back_as_they_were() {
    let inputs: Vec<Input> = diverse_ioctls().into_iter().flat_map(|ioctl| [ioctl.clone(), tick(100), ioctl]).collect();
    let (bytes, _) = recorded(&[&inputs, &diverse_ioctls()]);
    assert_eq!(read(&bytes).0, [inputs, diverse_ioctls()].concat());
}

/// Reads a chunk with this number of inputs, which unpacks to these bytes.
fn read_unpacked(inputs: u32, unpacked: &[u8]) -> Result<Vec<Input>, NoChunk> {
    let chunk = Chunk::read(ChunkFront { inputs, ..ChunkFront::default() }, unpacked)?;
    let mut read = Vec::new();
    chunk.for_each(|input| read.push(input)).expect("every row is an input");
    Ok(read)
}

#[test]
fn ioctls_stored_as_text_are_read() {
    let ioctls = diverse_ioctls();
    // One lane of others without columns, and every input is in it.
    let mut unpacked = vec![1, 0xff, 1, 0, 0, 0, 0];
    for ioctl in &ioctls {
        let text = serde_json::to_vec(ioctl).expect("it can be written as text");
        unpacked.extend(u32::try_from(text.len()).expect("it is short").to_le_bytes());
        unpacked.extend(text);
    }
    assert_eq!(read_unpacked(14, &unpacked), Ok(ioctls));
}

/// Returns a chunk of one input in a lane with these numbers, whose columns are all 0.
fn one_lane(kind: u8, row: u64, width: usize) -> Vec<u8> {
    let mut unpacked = vec![1, kind];
    column::write_number(&mut unpacked, row);
    unpacked.push(1);
    unpacked.resize(unpacked.len() + 2 * width, 0);
    [&unpacked[..], &[0, 0]].concat()
}

#[test]
fn lanes_of_an_unknown_kind_or_too_long_a_payload_are_refused() {
    let ioctl = Input::Rm(Box::new(RmCall { nr: 0x2b, ..RmCall::default() }));
    assert_eq!(read_unpacked(1, &one_lane(8, 0x2b + (22 << 8), 11 + 22)), Ok(vec![ioctl]));
    for (kind, row, width) in [(8, 0x2b + (23 << 8), 11 + 23), (8, 1 << 16, 11), (5, 0, 1), (9, 0, 1)] {
        assert_eq!(read_unpacked(1, &one_lane(kind, row, width)), Err(NoChunk), "{kind} {row}");
    }
}

#[test]
fn every_kind_of_input_comes_back_as_it_was_and_in_order() {
    let inputs = one_of_each();
    let (mut bytes, end) = recorded(&[&inputs, &[tick(200)], &inputs]);
    bytes.extend(end);
    let all: Vec<Input> = [&inputs[..], &[tick(200)], &inputs].concat();
    let stopped = Stopped::Asked;
    assert_eq!(read(&bytes), (all.clone(), Some(Ending::Whole(EndMark { stopped, inputs: all.len() as u64 }))));
}

#[test]
fn recording_chunk_stays_within_its_announced_size() {
    let mut encoder = Encoder::default();
    let noise = (0..500).map(|index: u64| tick(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    for inputs in [one_of_each(), vec![tick(1)], noise.collect()] {
        for input in &inputs {
            encoder.push(input);
        }
        assert_eq!(encoder.pending(), inputs.len() as u64);
        let most_bytes = encoder.most_bytes();
        let chunk = encoder.chunk(0).expect("it is packed").expect("there are inputs");
        assert!(chunk.len() as u64 <= most_bytes, "{} of {most_bytes}", chunk.len());
        assert_eq!(encoder.pending(), 0);
    }
    assert_eq!(encoder.inputs(), 518);
    encoder.leave_out(500);
    assert_eq!(encoder.inputs(), 18);
}

#[test]
fn one_input_that_is_longer_than_other_chunks_is_a_chunk_of_its_own() {
    let version = Some("5".repeat(40 << 20));
    let inputs = [tick(1), Input::KernelDriver { version }, tick(2)];
    let mut encoder = Encoder::default();
    assert!(!inputs[..2].iter().any(|input| {
        let was_full = encoder.is_full();
        encoder.push(input);
        was_full
    }));
    assert!(encoder.is_full(), "so that nothing comes into its chunk any more");
    let (bytes, _) = recorded(&[&inputs[..2], &inputs[2..]]);
    assert!(read(&bytes).0 == inputs, "all of them come back");
}

#[test]
fn a_chunk_says_from_when_to_when_it_is() {
    let (bytes, _) = recorded(&[&one_of_each()]);
    let mut reader = RecordingReader::open(&bytes[..]).expect("it is a recording");
    let Some(RecordingPart::Chunk(chunk)) = reader.next_part().expect("memory can be read") else {
        panic!("there is one")
    };
    let front = chunk.front;
    assert_eq!((front.first_ns, front.last_ns, front.inputs), (5, 1_000, 17));
}

#[test]
fn a_recording_cut_off_anywhere_has_its_complete_chunks() {
    let (first, second) = (one_of_each(), vec![tick(200), tick(300)]);
    let (bytes, end) = recorded(&[&first, &second]);
    let (one, _) = recorded(&[&first]);
    let front = Encoder::front(&front()).len();
    let whole = [&bytes[..], &end].concat();
    for length in front..whole.len() {
        let (inputs, ending) = read(&whole[..length]);
        let expected = match length {
            length if length < one.len() => 0,
            length if length < bytes.len() => first.len(),
            _ => first.len() + second.len(),
        };
        assert_eq!((inputs.len(), ending), (expected, Some(Ending::Cut)), "{length} bytes");
    }
}

#[test]
fn recording_with_a_changed_byte_is_not_read_past_it() {
    let (one, _) = recorded(&[&one_of_each()]);
    let (two, end) = recorded(&[&one_of_each(), &[tick(200)]]);
    let whole = [&two[..], &end].concat();
    for byte in one.len()..two.len() {
        let mut changed = whole.clone();
        changed[byte] ^= 0x10;
        let (inputs, ending) = read(&changed);
        assert_eq!(inputs.len(), 17, "byte {byte}");
        assert!(!matches!(ending, Some(Ending::Whole(_))), "byte {byte}: {ending:?}");
    }
}

/// Returns a recording that keeps the newest events: a keyframe, a chunk, another keyframe and
/// another chunk.
fn with_keyframes() -> Vec<u8> {
    let mut bytes = Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..front() });
    let mut encoder = Encoder::default();
    for time_ns in [200, 300] {
        let about = KeyframeFront { layout: 9, time_ns, inputs: encoder.inputs(), ..KeyframeFront::default() };
        bytes.extend(Keyframe::pack(about, &[7; 1000]).expect("it is packed"));
        encoder.push(&tick(time_ns));
        bytes.extend(encoder.chunk(7).expect("it is packed").expect("there are inputs"));
    }
    bytes
}

#[test]
fn a_keyframe_comes_back_whole_or_not_at_all() {
    let bytes = with_keyframes();
    let mut reader = RecordingReader::open(&bytes[..]).expect("it is a recording");
    let mut parts = Vec::new();
    while let Some(part) = reader.next_part().expect("memory can be read") {
        parts.push(part);
    }
    let [
        RecordingPart::Keyframe(first),
        RecordingPart::Chunk(chunk),
        RecordingPart::Keyframe(second),
        RecordingPart::Chunk(_),
    ] = &parts[..]
    else {
        panic!("{parts:?}")
    };
    assert_eq!((first.front.layout, first.front.time_ns, second.front.inputs), (9, 200, 1));
    assert_eq!((first.state(), chunk.front.last_ns), (Some(vec![7; 1000]), 200));
    let lies = Keyframe { front: KeyframeFront { unpacked_bytes: 999, ..first.front }, ..first.clone() };
    assert_eq!(lies.state(), None);
    for byte in Encoder::front(&front()).len()..bytes.len() {
        let mut changed = bytes.clone();
        changed[byte] ^= 0x10;
        let mut reader = RecordingReader::open(&changed[..]).expect("its front is whole");
        let mut count = 0;
        while reader.next_part().expect("memory can be read").is_some() {
            count += 1;
        }
        assert!(count < 4, "byte {byte}");
    }
}

#[test]
fn recording_parts_are_located_without_unpacking_and_can_be_sought() {
    let bytes = with_keyframes();
    let mut reader = RecordingReader::open(std::io::Cursor::new(&bytes)).expect("it is a recording");
    let places = reader.places().expect("memory can be read");
    let kinds: Vec<_> = places.iter().map(|place| (place.keyframe.is_some(), place.chunk.is_some())).collect();
    assert_eq!(kinds, [(true, false), (false, true), (true, false), (false, true)]);
    assert!(matches!(reader.next_part(), Ok(Some(RecordingPart::Keyframe(first))) if first.front.time_ns == 200));
    reader.go_to(places[2].byte).expect("it is there");
    assert!(matches!(reader.next_part(), Ok(Some(RecordingPart::Keyframe(second))) if second.front.time_ns == 300));
    let cut = &bytes[..bytes.len() - 1];
    let mut reader = RecordingReader::open(std::io::Cursor::new(cut)).expect("it is a recording");
    assert_eq!(reader.places().expect("memory can be read"), places[..3], "the last one is not whole");
}

#[test]
fn keyframes_are_of_a_format_of_their_own() {
    let newer = with_keyframes();
    let (old, new) = (Encoder::front(&front()), Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..front() }));
    let bytes = [&old[..], &newer[new.len()..]].concat();
    let mut reader = RecordingReader::open(&bytes[..]).expect("it is a recording");
    assert_eq!(reader.next_part().expect("memory can be read"), None);
    assert_eq!(reader.ending(), Some(Ending::Damaged { byte: old.len() as u64 }));
}

#[test]
fn recording_of_another_format_or_version_is_refused() {
    let refused = |bytes: &[u8]| RecordingReader::open(bytes).err().expect("it is refused").to_string();
    for bytes in [&b""[..], b"\x89MWR", b"{\"schema\":\"memwatch.ps/1\"}"] {
        assert_eq!(refused(bytes), RecordingError::NoRecording.to_string());
    }
    let newer = Encoder::front(&Front { format: FORMAT_OF_STATES + 1, ..front() });
    assert!(refused(&newer).contains("format 6 is not supported"), "{}", refused(&newer));
    let front = Encoder::front(&front());
    assert_eq!(refused(&front[..front.len() - 1]), RecordingError::Front.to_string());
}

#[test]
fn recording_keeps_only_the_used_argument_bits_of_tensor_events() {
    let [.., tensor] = &one_of_each()[..9] else { panic!("the ninth is a tensor event") };
    let Input::Record(RingRecord::Tensor(tensor)) = tensor else { panic!("{tensor:?}") };
    let event = |args| Input::Record(RingRecord::Tensor(TensorRecord { probe: 1, args, ..*tensor }));
    let (bytes, _) = recorded(&[&[event([1, 2, 3, 4, 0xdead_beef_0101, 6])]]);
    assert_eq!(read(&bytes).0, [event([1, 2, 3, 4, 0x0101, 0])]);
}

#[test]
fn steady_events_take_few_bytes_each() {
    let event = |index: u64| {
        let (step, place) = (index / 100, index % 100);
        Input::Record(RingRecord::Tensor(TensorRecord {
            kind: RecordKind::Tensor as u8,
            flags: 0,
            probe: 4,
            tid: 10,
            tgid: 9,
            reserved: 0,
            time_ns: step * 5_000_000 + place * 40_000 + (index * 7_919) % 1_000,
            args: [0x7f00_0000_0000 + place * 0x20_0000, 512 * (place + 1), 0, 0, 3, 0],
            extra: [place * 4096, 0],
            stack: place.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }))
    };
    let inputs: Vec<Input> = (0..20_000).map(event).collect();
    let (bytes, _) = recorded(&[&inputs]);
    assert!(bytes.len() < 20_000 * 6, "{} bytes", bytes.len());
}

#[test]
fn steady_ioctls_take_few_bytes_each() {
    let ioctl = |index: u64| {
        let object = 0x5c00_0070 + u32::try_from(index / 4 % 20).expect("below 20");
        let entered_ns = index * 40_000 + (index * 7_919) % 1_000;
        let ioctl = match index % 4 {
            0 => rm::video(rm::NEWEST, (0xc1d0_0001, 0x5c00_0001, object), 2 << 20, 2 << 20),
            1 => rm::mapped((0xc1d0_0001, object), u64::from(object) << 21, 2 << 20),
            2 => rm::unmapped(34, u64::from(object) << 21, 2 << 20),
            _ => rm::free(0xc1d0_0001, object),
        };
        ioctl.inside("cuMemAlloc_v2", entered_ns - 9).at(entered_ns, entered_ns + 9_000 + (index * 6_131) % 500).input()
    };
    let inputs: Vec<Input> = (1..20_000).map(ioctl).collect();
    let (bytes, _) = recorded(&[&inputs]);
    assert!(bytes.len() < 20_000 * 6, "{} bytes", bytes.len());
    assert_eq!(read(&bytes).0, inputs);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn recording_round_trips_arbitrary_numbers(
        rows in prop::collection::vec((any::<[u64; 6]>(), any::<[u64; 2]>(), any::<[u64; 5]>(), any::<[u32; 4]>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..PAYLOAD_BYTES + 4)), 1..40)
    ) {
        let inputs: Vec<Input> = rows.iter().flat_map(|(args, out, peek, small, probe, payload)| {
            let [tgid, tid, status, reserved] = *small;
            let (kind, flags) = (RecordKind::Call as u8, probe.to_le_bytes()[0]);
            let (entered_ns, returned_ns) = (args[5], out[0]);
            let status = status.cast_signed();
            let call = CallRecord {
                kind, flags, probe: *probe, status, tgid, tid, entered_ns, returned_ns, args: *args, out: *out, peek: *peek,
            };
            let kind = RecordKind::Tensor as u8;
            let (time_ns, stack) = (peek[0], peek[1]);
            let tensor = TensorRecord {
                kind, flags, probe: probe.saturating_add(UNKNOWN_ROW), tid, tgid, reserved, time_ns, args: *args, extra: *out, stack,
            };
            let words = Box::new([peek[2]; STATISTICS_WORDS]);
            let [_, nr] = probe.to_le_bytes();
            let inside = (out[1] % 2 == 0).then_some(Inside { probe: *probe, entered_ns: peek[3] });
            let (asked_bytes, size, payload) = (args[1], *probe, payload.clone());
            let (tgid, tid) = (Tgid(tgid), Tid(tid));
            let ioctl = RmCall {
                tgid, tid, flags, nr, size, answer: status, entered_ns, returned_ns, inside, asked_bytes, stack, payload,
            };
            [
                Input::Record(RingRecord::Call(call)),
                Input::Record(RingRecord::Tensor(tensor)),
                Input::Statistics { tgid, allocator: args[0], time_ns, words },
                Input::Rm(Box::new(ioctl)),
            ]
        }).collect();
        let (bytes, _) = recorded(&[&inputs]);
        prop_assert_eq!(read(&bytes), (inputs, Some(Ending::Cut)));
    }

    #[test]
    fn bytes_of_any_kind_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400), keeps in 0_usize..200
    ) {
        let (mut whole, _) = recorded(&[&one_of_each()]);
        whole.truncate(keeps);
        whole.extend(bytes);
        if let Ok(mut reader) = RecordingReader::open(&whole[..]) {
            while let Ok(Some(part)) = reader.next_part() {
                match part {
                    RecordingPart::Chunk(chunk) => drop(chunk.for_each(drop)),
                    RecordingPart::Keyframe(keyframe) => drop(keyframe.state()),
                }
            }
        }
    }
}
