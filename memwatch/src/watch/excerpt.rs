//! Writes the part of a recording that one user may see.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use anyhow::Context as _;
use memwatch_core::Pipeline;
use memwatch_core::pipeline::excerpt::Excerpt;
use memwatch_core::pipeline::saved::STATE;
use memwatch_core::recording::{
    Encoder, FORMAT_WITH_KEYFRAMES, Front, Keyframe, KeyframeFront, RecordingPart, RecordingReader, Stopped,
};

use crate::watch::replay::{ReplayRequest, ReplaySpan, load};

/// Writes a recording that begins with the state at the last keyframe before the period, and ends
/// with the period or with what is complete of the recording.
///
/// # Errors
/// The file cannot be read, has no data of the period, or is of another version; or writing fails.
pub(crate) fn write_excerpt(path: &Path, request: ReplayRequest, uid: u32, out: &mut impl Write) -> anyhow::Result<()> {
    let mut file = File::open(path).context("the history cannot be read")?;
    // The file is read through a single descriptor, since it may be replaced at any time.
    let span = ReplaySpan::of(request, &mut file)?;
    let mut reader = RecordingReader::open(BufReader::with_capacity(1 << 20, file))?;
    let front = reader.front().clone();
    if let Some(byte) = span.byte {
        reader.go_to(byte)?;
    }
    let mut first = reader.next_part()?;
    let (mut state, mut everybody) = (KeyframeFront::default(), Pipeline::new(!front.everybody));
    if let Some(RecordingPart::Keyframe(keyframe)) = &first {
        (state, everybody) = (keyframe.front, load(keyframe, &front)?);
        first = None;
    }
    let (mut excerpt, own) = Excerpt::begin(uid, &everybody);
    drop(everybody);
    out.write_all(&Encoder::front(&Front { format: FORMAT_WITH_KEYFRAMES, command: Vec::new(), ..front }))?;
    out.write_all(&Keyframe::pack(KeyframeFront { layout: STATE, inputs: 0, ..state }, &own.save())?)?;
    let (mut encoder, mut is_over) = (Encoder::default(), false);
    while let Some(part) = first.take().map_or_else(|| reader.next_part(), |part| Ok(Some(part)))? {
        let RecordingPart::Chunk(chunk) = part else { continue };
        let boottime_to_unix_ns = chunk.front.boottime_to_unix_ns;
        let mut written = Ok(());
        let read = chunk.for_each(|input| {
            is_over |= input.time_ns().is_some_and(|time_ns| time_ns > span.until_ns);
            if is_over || written.is_err() {
                return;
            }
            if let Some(input) = excerpt.take(input) {
                encoder.push(&input);
            }
            if encoder.is_full() {
                written = write_chunk(&mut encoder, boottime_to_unix_ns, out);
            }
        });
        written?;
        // A chunk has one offset to the wall clock.
        write_chunk(&mut encoder, boottime_to_unix_ns, out)?;
        if is_over || read.is_err() {
            break;
        }
    }
    out.write_all(&encoder.end(Stopped::Asked))?;
    Ok(out.flush()?)
}

fn write_chunk(encoder: &mut Encoder, boottime_to_unix_ns: i64, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(chunk) = encoder.chunk(boottime_to_unix_ns)? {
        out.write_all(&chunk)?;
    }
    Ok(())
}
