//! An untrusted recording, played into the pipeline.

use std::io::Cursor;
use std::panic::{self, AssertUnwindSafe};

use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::{
    Encoder, Ending, FORMAT, FORMAT_WITH_KEYFRAMES, Front, Keyframe, KeyframeFront, RecordingPart, RecordingReader,
    thin,
};

/// Largest chunk that is built. Inputs of a fuzz target are shorter.
const LONGEST_BYTES: u32 = 1 << 16;

/// Plays the bytes as a recording, as the packed contents of a chunk with a correct checksum, and
/// as a saved state to continue from.
///
/// # Panics
/// When the recording contradicts its own header.
pub fn run(data: &[u8]) {
    play(data);
    if let Some((&[low, high], unpacked)) = data.split_first_chunk() {
        play(&recording(u32::from(u16::from_le_bytes([low, high])), unpacked));
    }
    go_on(data);
    play(&beginning_with(data));
}

fn play(bytes: &[u8]) {
    let Ok(mut reader) = RecordingReader::open(bytes) else { return };
    let mut pipeline = Pipeline::new(!reader.front().everybody);
    while let Ok(Some(part)) = reader.next_part() {
        let chunk = match part {
            RecordingPart::Chunk(chunk) => chunk,
            RecordingPart::Keyframe(keyframe) => {
                drop(keyframe.state());
                continue;
            }
        };
        let stated = chunk.front.inputs as usize;
        let mut inputs = 0;
        let read = chunk.for_each(|input| {
            inputs += 1;
            pipeline.step(input);
        });
        assert_eq!(read.map_or_else(|done| done, |()| stated), inputs, "every input is counted once");
    }
    assert!(reader.ending().is_some() && reader.bytes() <= bytes.len() as u64);
    pipeline.snapshot();
    shorten(bytes);
}

/// Thins the recording, as an agent does with a part of its history.
fn shorten(bytes: &[u8]) {
    let mut thinned = Vec::new();
    if thin(vec![Cursor::new(bytes)], 1_000_000_000, &mut thinned).is_err() {
        return;
    }
    let mut reader = RecordingReader::open(&thinned[..]).expect("it was just written");
    while reader.next_part().expect("memory can be read").is_some() {}
    assert!(matches!(reader.ending(), Some(Ending::Whole(_))), "{:?}", reader.ending());
}

/// Loads the bytes as a saved state, runs all queries on it, and continues from it.
fn go_on(bytes: &[u8]) {
    let Ok(mut pipeline) = Pipeline::load(bytes) else { return };
    tolerating_sums(|| {
        for time_ns in [0, 1 << 40] {
            let snapshot = pipeline.snapshot();
            for process in &snapshot.processes {
                let _ = (pipeline.state.call_paths(process), pipeline.state.history(process.tgid, true));
            }
            let _ = (pipeline.leaks(1.0), pipeline.ooms().1, pipeline.state.to_anchor());
            pipeline.state.list_tensors_from(1);
            pipeline.step(Input::Tick { time_ns });
        }
    });
}

/// Runs a closure that may overflow totals: a forged state may have numbers whose sums overflow. A
/// release build wraps around and reports wrong totals in this case. No other panic is tolerated.
fn tolerating_sums(work: impl FnOnce()) {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    panic::set_hook(hook);
    if let Err(payload) = outcome {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        let is_of_a_sum = text.starts_with("attempt to ") || text.contains("only what was added is ever taken");
        assert!(is_of_a_sum, "{text}");
    }
}

/// Returns a recording that starts with a keyframe of this state.
fn beginning_with(state: &[u8]) -> Vec<u8> {
    let mut bytes = Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, ..Front::default() });
    bytes.extend(Keyframe::pack(KeyframeFront::default(), state).expect("little is packed"));
    bytes
}

/// Returns a recording with one chunk that unpacks to these bytes.
fn recording(inputs: u32, unpacked: &[u8]) -> Vec<u8> {
    let front = Front { format: FORMAT, ..Front::default() };
    let mut bytes = Encoder::front(&front);
    let packed = zstd::bulk::compress(unpacked, 1).expect("little is packed");
    let mut chunk = Vec::new();
    for length in [packed.len(), unpacked.len()] {
        let length = u32::try_from(length).ok().filter(|length| *length <= LONGEST_BYTES);
        chunk.extend_from_slice(&length.unwrap_or(0).to_le_bytes());
    }
    chunk.extend_from_slice(&inputs.to_le_bytes());
    chunk.extend_from_slice(&[0; 24]);
    let mut sum = crc32fast::Hasher::new();
    sum.update(&chunk);
    sum.update(&packed);
    bytes.extend_from_slice(b"MWCH");
    bytes.extend_from_slice(&chunk);
    bytes.extend_from_slice(&sum.finalize().to_le_bytes());
    bytes.extend_from_slice(&packed);
    bytes
}
