//! Reads the memory of each GPU from recordings. The reading runs once, on a thread of its own, and
//! reads only a part of long recordings.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use memwatch_core::input::Input;
use memwatch_core::recording::{ChunkFront, RecordingError, RecordingPart, RecordingReader};

use super::{AT_REST_NS, LOOKS, Trail};

/// Reads NVML's numbers from recordings, oldest first, each up to its first damaged part. Files that
/// cannot be read are skipped.
///
/// `boottime_to_unix_ns` is the machine's present offset. The recordings may be from earlier boots.
pub(crate) fn of_files(paths: &[PathBuf], boottime_to_unix_ns: i128) -> Trail {
    let now = |front: &ChunkFront, time_ns: u64| {
        let time_ns = i128::from(time_ns) + i128::from(front.boottime_to_unix_ns) - boottime_to_unix_ns;
        i64::try_from(time_ns).unwrap_or(i64::MIN)
    };
    let mut span: Option<(i64, i64)> = None;
    for (_, chunks) in paths.iter().filter_map(|path| chunks_of(path).ok()) {
        let times = chunks.iter().map(|(_, front)| (now(front, front.first_ns), now(front, front.last_ns)));
        for (first_ns, last_ns) in times {
            let (begin_ns, end_ns) = span.unwrap_or((first_ns, last_ns));
            span = Some((begin_ns.min(first_ns), end_ns.max(last_ns)));
        }
    }
    let Some((begin_ns, end_ns)) = span else { return Trail::default() };
    // Half of the points are reserved for the present agent.
    let apart_ns = (2 * end_ns.abs_diff(begin_ns) / LOOKS as u64).max(AT_REST_NS);
    let mut trail = Trail::default();
    for path in paths {
        if let Err(error) = read_into(&mut trail, path, apart_ns, now) {
            log::info!("{}: {error}", path.display());
        }
    }
    trail
}

type Chunks = (RecordingReader<BufReader<File>>, Vec<(u64, ChunkFront)>);

/// Opens a recording and finds its chunks with readings.
fn chunks_of(path: &Path) -> Result<Chunks, RecordingError> {
    let mut reader = RecordingReader::open(BufReader::new(File::open(path)?))?;
    let chunks = reader.places()?.into_iter().filter_map(|place| Some((place.byte, place.chunk?)));
    // A session records times between readings, so a chunk without any time contains no reading.
    let chunks = chunks.filter(|(_, front)| front.last_ns != 0).collect();
    Ok((reader, chunks))
}

fn read_into(
    trail: &mut Trail,
    path: &Path,
    apart_ns: u64,
    now: impl Fn(&ChunkFront, u64) -> i64,
) -> Result<(), RecordingError> {
    let (mut reader, chunks) = chunks_of(path)?;
    for (byte, front) in &chunks {
        let due_ns = trail.looks.last().map_or(i64::MIN, |look| look.time_ns.saturating_add_unsigned(apart_ns));
        if now(front, front.last_ns) < due_ns {
            continue;
        }
        reader.go_to(*byte)?;
        let Some(RecordingPart::Chunk(chunk)) = reader.next_part()? else { break };
        let read = chunk.for_each(|input| {
            if let Input::Devices(reading) = input {
                let gpus = reading.devices.iter().map(|device| (&device.uuid, [device.used_bytes, None]));
                trail.look(now(front, reading.end_ns), apart_ns, gpus);
            }
        });
        if read.is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use memwatch_core::input::{DeviceFacts, DeviceReading, NvmlState, Sensors};
    use memwatch_core::recording::{Encoder, FORMAT_WITH_KEYFRAMES, Front};
    use memwatch_core::words::GpuUuid;
    use tempfile::NamedTempFile;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn device() -> DeviceFacts {
        let (uuid, name, sensors) = (GpuUuid::new("GPU-1"), String::new(), Sensors::default());
        let (total_bytes, used_bytes, processes) = (None, None, None);
        DeviceFacts {
            uuid,
            nvml_index: 0,
            name,
            pci_bus_id: None,
            mig: None,
            cores: None,
            total_bytes,
            used_bytes,
            processes,
            sensors,
        }
    }

    /// Writes a recording with one chunk per list of seconds and one reading at each second. Its
    /// clock is that of a machine booted at that moment.
    fn recording(chunks: &[&[u64]], started_unix_ns: i64) -> NamedTempFile {
        let mut file = NamedTempFile::new().expect("a temporary file");
        let mut encoder = Encoder::default();
        let front = Front { format: FORMAT_WITH_KEYFRAMES, ..Front::default() };
        file.write_all(&Encoder::front(&front)).expect("it is ours");
        for seconds in chunks {
            for second in *seconds {
                let time_ns = second * SECOND_NS;
                let devices = vec![DeviceFacts { used_bytes: Some(second << 20), ..device() }];
                let reading = DeviceReading { begin_ns: time_ns, end_ns: time_ns, state: NvmlState::Ok, devices };
                encoder.push(&Input::Devices(reading));
                encoder.push(&Input::Tick { time_ns });
            }
            let chunk = encoder.chunk(started_unix_ns).expect("it is packed").expect("it has inputs");
            file.write_all(&chunk).expect("it is ours");
        }
        file
    }

    fn times(file: &NamedTempFile, boottime_to_unix_ns: i128) -> Vec<i64> {
        let trail = of_files(&[file.path().to_owned()], boottime_to_unix_ns);
        let used = |look: &super::super::GpuMemoryPoint| look.bytes[0][0].is_some_and(|bytes| bytes > 0);
        assert!(trail.looks.iter().all(used) && trail.looks.len() < LOOKS, "{trail:?}");
        trail.looks.iter().map(|look| look.time_ns / 1_000_000_000).collect()
    }

    #[test]
    fn readings_of_an_earlier_start_of_the_machine_are_before_this_one() {
        let file = recording(&[&[1, 5, 11], &[12, 30]], 1_000 * 1_000_000_000);
        assert_eq!(times(&file, 1_000 * 1_000_000_000), [1, 11, 30], "ten seconds apart");
        assert_eq!(times(&file, 1_100 * 1_000_000_000), [-99, -89, -70]);
    }

    #[test]
    fn history_of_a_long_recording_is_thinned_from_start_to_end() {
        let chunks: Vec<Vec<u64>> = (0..4_000).map(|chunk| vec![1 + chunk * 60, 31 + chunk * 60]).collect();
        let chunks: Vec<&[u64]> = chunks.iter().map(Vec::as_slice).collect();
        let times = times(&recording(&chunks, 0), 0);
        assert!(times.is_sorted() && times.len() > LOOKS / 4 && times.len() <= LOOKS / 2 + 1, "{}", times.len());
        assert!(times[0] == 1 && times[times.len() - 1] > 3_900 * 60);
    }

    #[test]
    fn history_refuses_other_files_and_reads_a_damaged_recording_partly() {
        let file = recording(&[&[1, 20], &[40]], 0);
        let mut bytes = std::fs::read(file.path()).expect("it is ours");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(file.path(), &bytes).expect("it is ours");
        assert_eq!(times(&file, 0), [1, 20]);
        std::fs::write(file.path(), "something").expect("it is ours");
        assert!(of_files(&[file.path().to_owned()], 0).looks.is_empty());
    }
}
