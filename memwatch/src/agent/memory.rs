//! What the agent's allocator keeps of memory that it has no use for.

use std::time::{Duration, Instant};

/// Between two times at which memory that lies free among blocks in use goes back.
const TRIM_EVERY: Duration = Duration::from_secs(10);

/// Settings of mallopt(3), and their values.
///
/// glibc gives threads heaps of their own, up to eight for each processor, and a heap stays as large as it ever was, the more so the larger the blocks
/// that were given back at once: it learns from them to keep twice as much. An agent takes some MiB for a moment again and again, for a state in the
/// journal or an answer, in several threads. After half an hour under which 6,600 containers came and went, 17 MB were in use and 50 MB more kept.
const SETTINGS: [(libc::c_int, libc::c_int); 3] =
    [(libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, 1 << 20), (libc::M_MMAP_THRESHOLD, 1 << 20)];

/// From now on what is free at the end of a heap goes back to the system, and what takes a MiB or more is never part of one. To be called before there is
/// a second thread.
pub(super) fn give_back() {
    for (setting, value) in SETTINGS {
        // SAFETY: mallopt has no preconditions.
        if unsafe { libc::mallopt(setting, value) } == 0 {
            log::info!("the allocator knows no setting {setting}: it keeps more memory than it needs");
        }
    }
}

/// Gives back, now and then, what lies free among blocks in use: the settings reach only what is at the end of a heap. After a user had started processes
/// without end, 36 MiB of 68 lay there.
#[derive(Debug, Default)]
pub(super) struct Trim {
    last: Option<Instant>,
}

impl Trim {
    /// To be called in a rhythm. It takes milliseconds, so a thread of its own does it.
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
