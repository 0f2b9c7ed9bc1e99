//! Detects the frameworks of a process by the names of its mapped libraries. Cheap enough for every
//! process with GPU memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use memwatch_core::words::Framework;

use super::FRAMEWORKS;
use crate::sources::library_look::owner_of;
use crate::sources::owner_queues::{Accepted, OwnerQueues};

/// First interval between two scans of a process, which may load another framework. Doubles after
/// each scan without a change, up to [`LONGEST_PAUSE`].
const AGAIN: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(160);
/// Maximum text read of a process's `maps`. A program with some thousand mappings has 1 MB.
const MOST_MAPS_BYTES: u64 = 32 << 20;
/// How long [`FrameworkNames::look`] waits for scans. A usual process takes a millisecond.
const WAIT: Duration = Duration::from_millis(50);

/// Frameworks of processes at their last scan. Reading `maps` takes a second for a hostile process,
/// and has no bound if the process holds its mmap lock, so each scan runs in the queue of the
/// process's owner.
#[derive(Debug)]
pub(crate) struct FrameworkNames {
    known: BTreeMap<u32, FrameworkScan>,
    queues: OwnerQueues,
    report: Sender<(u32, BTreeSet<Framework>)>,
    looked: Receiver<(u32, BTreeSet<Framework>)>,
    /// Processes with a queued or running scan.
    ordered: BTreeSet<u32>,
}

/// Result of a process's last scan, and the interval until the next.
#[derive(Debug)]
struct FrameworkScan {
    looked: Instant,
    pause: Duration,
    frameworks: BTreeSet<Framework>,
}

impl FrameworkNames {
    /// Starts without any scan.
    pub(crate) fn new() -> Self {
        let (report, looked) = channel();
        let queues = OwnerQueues::new("frameworks");
        Self { known: BTreeMap::new(), queues, report, looked, ordered: BTreeSet::new() }
    }

    /// Scans the processes that are due and returns those with changed frameworks. Forgets all
    /// processes not in `tgids`.
    pub(crate) fn look(&mut self, tgids: &BTreeSet<u32>) -> Vec<(u32, BTreeSet<Framework>)> {
        self.known.retain(|tgid, _| tgids.contains(tgid));
        let mut awaited: BTreeSet<u32> = tgids.iter().copied().filter(|tgid| self.order(*tgid)).collect();
        let (mut news, end) = (Vec::new(), Instant::now() + WAIT);
        loop {
            let left = if awaited.is_empty() { Duration::ZERO } else { end.saturating_duration_since(Instant::now()) };
            let Ok((tgid, frameworks)) = self.looked.recv_timeout(left) else { return news };
            self.ordered.remove(&tgid);
            awaited.remove(&tgid);
            if tgids.contains(&tgid) && self.note(tgid, &frameworks) {
                news.push((tgid, frameworks));
            }
        }
    }

    /// Queues a scan of a process if one is due. Returns whether to wait for the result: not if an
    /// earlier scan of the same owner is stuck.
    fn order(&mut self, tgid: u32) -> bool {
        let is_known = |known: &FrameworkScan| known.looked.elapsed() < known.pause;
        if self.known.get(&tgid).is_some_and(is_known) || self.ordered.contains(&tgid) {
            return false;
        }
        // The process has exited.
        let Some(owner) = owner_of(tgid) else { return false };
        let report = self.report.clone();
        let look = move || {
            // The receiver is gone once the session has ended.
            let _ = report.send((tgid, frameworks_of(tgid)));
        };
        let accepted = self.queues.order(owner, look);
        if accepted.is_ok() {
            self.ordered.insert(tgid);
        }
        accepted.is_ok_and(|accepted| accepted != Accepted::BehindStuck)
    }

    /// Records a scan. Returns whether the process's frameworks have changed.
    fn note(&mut self, tgid: u32, frameworks: &BTreeSet<Framework>) -> bool {
        let known = self.known.get(&tgid);
        let is_as_before = known.is_some_and(|known| known.frameworks == *frameworks);
        let is_new = !is_as_before && (known.is_some() || !frameworks.is_empty());
        let pause = known.filter(|_| is_as_before).map_or(AGAIN, |known| 2 * known.pause).clamp(AGAIN, LONGEST_PAUSE);
        self.known.insert(tgid, FrameworkScan { looked: Instant::now(), pause, frameworks: frameworks.clone() });
        is_new
    }

    /// Returns the processes that use this framework, as of their last scan.
    pub(crate) fn having(&self, framework: Framework) -> BTreeSet<u32> {
        let has_it = |named: &FrameworkScan| named.frameworks.contains(&framework);
        self.known.iter().filter(|(_, named)| has_it(named)).map(|(tgid, _)| *tgid).collect()
    }

    /// Makes a process due for its next scan and restarts its interval. Called when the process
    /// maps a library that frameworks use.
    pub(crate) fn hurry(&mut self, tgid: u32) {
        if let Some(known) = self.known.get_mut(&tgid) {
            known.pause = Duration::ZERO;
        }
    }
}

/// Reads the frameworks from `/proc/PID/maps`. Empty if the process has exited or its mappings are
/// not readable.
fn frameworks_of(tgid: u32) -> BTreeSet<Framework> {
    let Ok(maps) = File::open(format!("/proc/{tgid}/maps")) else { return BTreeSet::new() };
    let mut maps = BufReader::with_capacity(64 << 10, maps.take(MOST_MAPS_BYTES));
    let (mut line, mut found) = (Vec::new(), BTreeSet::new());
    while maps.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        found.extend(path_of(line.trim_ascii_end()).and_then(|path| FRAMEWORKS.marked_by(path)));
        line.clear();
    }
    found
}

/// Returns the path in a line of `maps`: everything from the first slash.
fn path_of(line: &[u8]) -> Option<&[u8]> {
    line.iter().position(|byte| *byte == b'/').map(|begin| &line[begin..])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::{FRAMEWORKS, FrameworkNames, frameworks_of, path_of};
    use memwatch_core::words::Framework;

    #[test]
    fn framework_scan_backs_off_until_a_process_maps_a_library() {
        let own = std::process::id();
        let mut names = FrameworkNames::new();
        let mut look = |hurried: bool| {
            if hurried {
                names.hurry(own);
            } else if let Some(known) = names.known.get_mut(&own) {
                known.looked -= known.pause;
            }
            // On a busy machine a scan may finish after the wait.
            while names.look(&BTreeSet::from([own])).is_empty() && !names.ordered.is_empty() {}
            names.known[&own].pause
        };
        let seconds = |pause: Duration| pause.as_secs();
        assert_eq!([(); 7].map(|()| seconds(look(false))), [10, 20, 40, 80, 160, 160, 160]);
        assert_eq!([look(true), look(false)].map(seconds), [10, 20]);
        assert!(names.having(Framework::PyTorch).is_empty());
        assert_eq!(names.look(&BTreeSet::new()), []);
        assert!(names.known.is_empty(), "it is forgotten with its process");
    }

    #[test]
    fn a_framework_is_known_by_its_librarys_name() {
        let line = b"7f0000-7f1000 r-xp 00000000 08:01 42     /opt/a b/libc10_cuda.so (deleted)";
        let marked_by = |path: &[u8]| FRAMEWORKS.marked_by(path);
        assert_eq!(path_of(line).and_then(marked_by), Some(Framework::PyTorch));
        let of = |path: &str| marked_by(path.as_bytes());
        assert_eq!(
            of("/s/onnxruntime/capi/onnxruntime_pybind11_state.cpython-313-x86_64-linux-gnu.so"),
            Some(Framework::OnnxRuntime)
        );
        assert_eq!(of("/s/cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so"), Some(Framework::CuPy));
        assert_eq!(of("/s/other/memory.cpython-312-x86_64-linux-gnu.so"), None);
        assert_eq!(of("/s/libc10.so"), None, "a program without CUDA has that too");
        assert_eq!(path_of(b"7f0000-7f1000 rw-p 00000000 00:00 0      [heap]"), None);
    }

    #[test]
    fn process_without_frameworks_has_none() {
        assert!(frameworks_of(std::process::id()).is_empty());
        assert!(frameworks_of(0).is_empty(), "there is none of this number");
    }
}
