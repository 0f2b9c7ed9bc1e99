//! A recording: a file that anybody may have made, played into the pipeline.

use memwatch_core::Pipeline;
use memwatch_core::recording::{Encoder, FORMAT, Front, Reader};

/// Longer chunks than a target's bytes come to are not made.
const LONGEST_BYTES: u32 = 1 << 16;

/// Plays the bytes as a recording; and again as what stands packed in one, behind a sum that is right.
///
/// # Panics
/// When playing it contradicts what it says of itself.
pub fn run(data: &[u8]) {
    play(data);
    if let Some((&[low, high], unpacked)) = data.split_first_chunk() {
        play(&recording(u32::from(u16::from_le_bytes([low, high])), unpacked));
    }
}

fn play(bytes: &[u8]) {
    let Ok(mut reader) = Reader::open(bytes) else { return };
    let mut pipeline = Pipeline::new(!reader.front().everybody);
    while let Ok(Some(chunk)) = reader.next_chunk() {
        let said = chunk.front.inputs as usize;
        let mut inputs = 0;
        let read = chunk.for_each(|input| {
            inputs += 1;
            pipeline.step(input);
        });
        assert_eq!(read.map_or_else(|done| done, |()| said), inputs, "every input is counted once");
    }
    assert!(reader.ending().is_some() && reader.bytes() <= bytes.len() as u64);
    pipeline.snapshot();
}

/// A recording of one chunk that unpacks to these bytes.
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
