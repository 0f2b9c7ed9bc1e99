//! Reports processes that map a driver library, from the kernel's records of executable mappings.
//!
//! A dummy perf event per processor records every executable file mapping in a ring that memwatch
//! polls. The records cause no wake-up. A wake-up per record costs each mapping of every process
//! 7.4 µs, and a process start 65 to 115 µs of 565 µs; without wake-ups it is 0.4 µs and 5 to 15 µs
//! (docs/project/overhead.md). A sleeping reader is woken by the first mapping through separate
//! events (`bells`). An fentry program on `uprobe_mmap` could filter by name inside the kernel, but
//! some kernels refuse it where perf events work (EPERM, on the development machine).

mod bells;

use std::io;

use aya::util::online_cpus;
use perf_event::data::{Lost, Mmap2, RecordMetadata, Visitor, parse::Parser};
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};

use self::bells::Bells;
use super::library::{LIBRARY_STEM, REQUESTERS, is_library};

/// Ring size per processor in bytes. A record has about 120 bytes, so 540 executable mappings fit
/// between two reads.
const RING_BYTES: usize = 64 << 10;

/// Libraries of NVIDIA and PyTorch that load the driver library, or that are usually loaded
/// together with one that does.
pub(crate) const HERALDS: [&str; 4] = ["libcudart.so", "libc10.so", "libcublas.so", "libnvrtc.so"];

/// Size of `struct perf_event_header`.
const HEADER_BYTES: usize = 8;
/// The kernel's placeholders for an unavailable path.
const WITHOUT_PATH: [&[u8]; 2] = [b"//enomem", b"//toolong"];

/// An executable mapping of a driver library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewMapping {
    /// Process that mapped the library, in the initial pid namespace.
    pub(crate) tgid: u32,
    /// Time of the mapping: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) time_ns: u64,
    /// The mapped file.
    pub(crate) inode: MappedInode,
}

/// File identity in the kernel's mapping records. A file that is mounted several times has several
/// identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MappedInode {
    /// Major and minor number of the device.
    pub(crate) device: (u32, u32),
    /// Inode number.
    pub(crate) number: u64,
    /// Inode generation, which distinguishes reused inode numbers.
    pub(crate) generation: u64,
}

/// Mappings since the last poll.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NewMappings {
    /// Mappings of driver libraries, in time order.
    pub(crate) libraries: Vec<NewMapping>,
    /// Processes that mapped another library of the driver that sends requests to the kernel
    /// driver.
    pub(crate) requesters: Vec<u32>,
    /// Processes that mapped a library that CUDA programs map before the driver library.
    pub(crate) heralds: Vec<u32>,
    /// Whether mappings may have been missed.
    pub(crate) incomplete: bool,
}

/// Executable mapping records of all processors.
pub(crate) struct MappingRecords {
    rings: Vec<Sampler>,
    /// `None` if the kernel provides no events for waking.
    bells: Option<Bells>,
}

impl MappingRecords {
    /// Starts recording. Needs `cap_perfmon`.
    ///
    /// # Errors
    /// The kernel refuses the events, or memory for their rings.
    pub(crate) fn open() -> io::Result<Self> {
        let processors = online_cpus().map_err(|(_, error)| error)?;
        let bells = Bells::open(&processors)
            .inspect_err(|error| log::info!("new mappings are polled, since no event can wake memwatch: {error}"));
        let rings = processors.into_iter().map(|processor| {
            let mut builder = Builder::new(Software::DUMMY);
            builder.any_pid().one_cpu(usize::try_from(processor).map_err(io::Error::other)?);
            // A watermark above the ring size disables wake-ups.
            builder.mmap2(true).sample_id_all(true).sample(SampleFlag::TIME).wakeup_watermark(RING_BYTES);
            builder.mmap(true).clockid(Clock::BOOTTIME).enabled(true);
            builder.build()?.sampled(RING_BYTES)
        });
        Ok(Self { rings: rings.collect::<io::Result<_>>()?, bells: bells.ok() })
    }

    /// Whether a mapping can wake the reader; otherwise the reader must poll.
    pub(crate) fn wakes(&self) -> bool {
        self.bells.is_some()
    }

    /// Arms [`Self::rings`] for the next mapping of any library. An earlier mapping may have been
    /// recorded without a wake-up.
    pub(crate) fn want_next(&mut self) {
        self.bells.iter_mut().for_each(Bells::want_next);
    }

    /// Disarms [`Self::rings`].
    pub(crate) fn hush(&mut self) {
        self.bells.iter_mut().for_each(Bells::hush);
    }

    /// Completes when a library is mapped while armed. Cancel safe.
    pub(crate) fn rings(&self) -> impl Future<Output = ()> + use<> {
        let rings = self.bells.as_ref().map(Bells::rings);
        async move {
            match rings {
                Some(rings) => rings.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Takes the records since the last call.
    pub(crate) fn take(&mut self) -> NewMappings {
        let mut new = NewMappings::default();
        let mut bytes = Vec::new();
        for ring in &mut self.rings {
            let config = ring.config().clone();
            while let Some(record) = ring.next_record() {
                // The crate parses complete records, but returns them without their header.
                bytes.clear();
                bytes.extend(record.ty().to_ne_bytes());
                bytes.extend(record.misc().to_ne_bytes());
                bytes.extend(u16::try_from(HEADER_BYTES + record.len()).unwrap_or(u16::MAX).to_ne_bytes());
                record.data().iter().for_each(|part| bytes.extend_from_slice(part));
                let parsed = Parser::new(&bytes[..], config.clone()).parse_record(&mut new);
                new.incomplete |= parsed.is_err();
            }
        }
        new.libraries.sort_by_key(|mapping| mapping.time_ns);
        new
    }
}

impl<'a> Visitor<'a> for &mut NewMappings {
    type Output = ();

    fn visit_unimplemented(self, _: RecordMetadata) {}

    fn visit_lost(self, _: Lost, _: RecordMetadata) {
        self.incomplete = true;
    }

    fn visit_mmap2(self, record: Mmap2<'a>, metadata: RecordMetadata) {
        self.incomplete |= WITHOUT_PATH.contains(&&*record.filename);
        if HERALDS.iter().any(|stem| is_library(&record.filename, stem)) {
            self.heralds.push(record.pid);
        }
        if REQUESTERS.iter().any(|stem| is_library(&record.filename, stem)) {
            self.requesters.push(record.pid);
        }
        if !is_library(&record.filename, LIBRARY_STEM) {
            return;
        }
        let (Some(major), Some(minor), Some(number)) = (record.maj(), record.min(), record.ino()) else { return };
        let inode =
            MappedInode { device: (major, minor), number, generation: record.ino_generation().unwrap_or_default() };
        let time_ns = metadata.sample_id().time().unwrap_or_default();
        self.libraries.push(NewMapping { tgid: record.pid, time_ns, inode });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::linux::fs::MetadataExt;
    use std::path::Path;

    use super::{MappingRecords, NewMappings};
    use crate::sources::clock;

    /// Maps and unmaps the first page of a file, which must have one.
    fn map(path: &Path, protection: libc::c_int) {
        let file = File::open(path).expect("the file is there");
        // SAFETY: a new mapping of an open file affects no other mapping, and nothing reads it
        // before it is unmapped.
        unsafe {
            let address = libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
            assert_ne!(address, libc::MAP_FAILED);
            assert_eq!(libc::munmap(address, 4096), 0);
        }
    }

    fn of_this_process(new: NewMappings) -> Vec<(u64, u64)> {
        let own = new.libraries.into_iter().filter(|mapping| mapping.tgid == std::process::id());
        own.map(|mapping| (mapping.inode.number, mapping.time_ns)).collect()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn mapping_record_wakes_a_sleeping_reader_only() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("libx.so");
        std::fs::write(&path, [0; 4096]).expect("a file");
        let Some(mut records) = MappingRecords::open().ok().filter(MappingRecords::wakes) else {
            eprintln!("SKIPPED: mapping records need cap_perfmon");
            return;
        };
        let has_rung = async |records: &MappingRecords| {
            tokio::time::timeout(std::time::Duration::from_millis(100), records.rings()).await.is_ok()
        };
        for _ in 0..3 {
            // Other processes may map files meanwhile, so pending wake-ups are consumed first.
            while has_rung(&records).await {}
            map(&path, libc::PROT_READ | libc::PROT_EXEC);
            assert!(!has_rung(&records).await);
            records.want_next();
            map(&path, libc::PROT_READ | libc::PROT_EXEC);
            records.rings().await;
            records.hush();
        }
    }

    #[test]
    fn mapping_record_reports_inode_and_time_of_a_driver_library() {
        let Ok(mut records) = MappingRecords::open() else {
            eprintln!("SKIPPED: mapping records need cap_perfmon");
            return;
        };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name| directory.path().join(name);
        for name in ["libcuda.so.580.95", "libcudart.so.12"] {
            std::fs::write(path(name), [0; 4096]).expect("a file");
        }
        map(&path("libcudart.so.12"), libc::PROT_READ | libc::PROT_EXEC);
        map(&path("libcuda.so.580.95"), libc::PROT_READ);
        assert_eq!(of_this_process(records.take()), []);
        let before_ns = clock::boottime_ns();
        map(&path("libcuda.so.580.95"), libc::PROT_READ | libc::PROT_EXEC);
        let inode = std::fs::metadata(path("libcuda.so.580.95")).expect("the file is there").st_ino();
        let reported = of_this_process(records.take());
        assert!(matches!(reported[..], [(number, time_ns)] if number == inode && time_ns >= before_ns), "{reported:?}");
        assert!(reported[0].1 <= clock::boottime_ns());
        assert_eq!(of_this_process(records.take()), []);
    }
}
