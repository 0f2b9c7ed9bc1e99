//! Writes the part of a recording that one user may see.

use std::io::Write;

use memwatch_core::Pipeline;
use memwatch_core::pipeline::excerpt::Excerpt;
use memwatch_core::pipeline::saved::STATE;
use memwatch_core::recording::{Encoder, FORMAT_OF_STATES, Front, Keyframe, KeyframeFront, RecordingPart, Stopped};

use crate::watch::joined::{JoinedReader, RecordingFile};
use crate::watch::replay::{ReplayRequest, ReplaySpan, load};

/// Writes a recording that begins with the state at the last keyframe before the period, and ends
/// with the period or with what is complete of the recording.
///
/// # Errors
/// A file cannot be read, has no data of the period, or is of another version; or writing fails.
pub(crate) fn write_excerpt(
    files: Vec<RecordingFile>,
    request: ReplayRequest,
    uid: u32,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let span = ReplaySpan::of(request, &files)?;
    let (apart_ns, states_until_ns) = states_in(&files, &span);
    let mut reader = JoinedReader::begin(files, span.first, span.last)?;
    let front = reader.front().clone();
    let mut part = reader.next_part()?;
    // What stands before the first keyframe is nobody's.
    let (mut excerpt, own) = Excerpt::begin(uid, &Pipeline::new(!front.everybody));
    let (format, command) = (FORMAT_OF_STATES, Vec::new());
    out.write_all(&Encoder::front(&Front { format, command, apart_ns, states_until_ns, ..front }))?;
    if !matches!(part, Some(RecordingPart::Keyframe(_))) {
        write_state(KeyframeFront::default(), &own, out)?;
    }
    let (mut encoder, mut is_over) = (Encoder::default(), false);
    while let Some(found) = part.take() {
        match found {
            RecordingPart::Keyframe(keyframe) if keyframe.front.time_ns > span.until_ns => is_over = true,
            RecordingPart::Keyframe(keyframe) => {
                let own;
                (excerpt, own) = Excerpt::begin(uid, &load(&keyframe, reader.front())?);
                write_state(keyframe.front, &own, out)?;
            }
            RecordingPart::Chunk(chunk) => {
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
                is_over |= read.is_err();
            }
        }
        if is_over {
            break;
        }
        part = reader.next_part()?;
    }
    out.write_all(&encoder.end(Stopped::Asked))?;
    Ok(out.flush()?)
}

/// Returns the time between two states, and the time of the last one, of the part of the period of
/// which only states are recorded.
fn states_in(files: &[RecordingFile], span: &ReplaySpan) -> (Option<u64>, Option<u64>) {
    let first = span.first.map_or(0, |first| first.file);
    let times = |file: &RecordingFile| {
        let keyframes = file.places.iter().filter_map(|place| Some(place.keyframe?.time_ns));
        keyframes.filter(|time_ns| *time_ns <= span.until_ns).max()
    };
    let thinned = files.iter().skip(first).filter(|file| file.front.apart_ns.is_some() && times(file).is_some());
    (thinned.clone().filter_map(|file| file.front.apart_ns).max(), thinned.filter_map(times).max())
}

fn write_state(front: KeyframeFront, own: &Pipeline, out: &mut impl Write) -> anyhow::Result<()> {
    Ok(out.write_all(&Keyframe::pack(KeyframeFront { layout: STATE, inputs: 0, ..front }, &own.save())?)?)
}

fn write_chunk(encoder: &mut Encoder, boottime_to_unix_ns: i64, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(chunk) = encoder.chunk(boottime_to_unix_ns)? {
        out.write_all(&chunk)?;
    }
    Ok(())
}
