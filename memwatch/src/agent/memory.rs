//! Settings and calls that return unused heap memory to the system.

use std::time::{Duration, Instant};

/// Interval at which free memory between used blocks is returned.
const TRIM_EVERY: Duration = Duration::from_secs(10);

/// Settings for mallopt(3).
///
/// glibc creates up to eight heaps per processor, and a heap keeps its maximum size. Large freed
/// blocks make it keep more, since glibc raises its threshold to twice their size. The agent
/// repeatedly needs some MiB for a short time, for a state in the journal or an answer, in several
/// threads. After half an hour with 6,600 short containers, 17 MB were in use and glibc kept
/// another 50 MB.
const SETTINGS: [(libc::c_int, libc::c_int); 3] =
    [(libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, 1 << 20), (libc::M_MMAP_THRESHOLD, 1 << 20)];

/// Makes glibc return free memory at the end of a heap, and keep blocks of 1 MiB and more out of
/// heaps. Must be called before there is a second thread.
pub(super) fn give_back() {
    for (setting, value) in SETTINGS {
        // SAFETY: mallopt has no preconditions.
        if unsafe { libc::mallopt(setting, value) } == 0 {
            log::info!("the allocator does not support setting {setting}: it keeps more memory than needed");
        }
    }
}

/// Returns free memory between used blocks at intervals, since the settings affect only the end of
/// a heap. After a test in which a user kept starting processes, 36 of 68 MiB were free between
/// used blocks.
#[derive(Debug, Default)]
pub(super) struct Trim {
    last: Option<Instant>,
}

impl Trim {
    /// Returns free memory if due. Call regularly. The work takes milliseconds and runs in a
    /// thread.
    pub(super) fn tend(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() < TRIM_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        // SAFETY: malloc_trim has no preconditions.
        let trim = || _ = unsafe { libc::malloc_trim(0) };
        if let Err(error) = std::thread::Builder::new().name("memory".to_owned()).spawn(trim) {
            log::debug!("memory is not given back: {error}");
        }
    }
}
