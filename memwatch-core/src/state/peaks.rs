//! Resets of peaks, in memwatch's own counters only: memwatch does not write to other processes.

use crate::state::State;
use crate::words::Tgid;

impl State {
    /// Resets the peaks of all living processes. Later peaks cover the time from `time_ns`
    /// (`CLOCK_BOOTTIME`, nanoseconds).
    pub fn begin_window(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
        self.reset_peaks(None, time_ns);
    }

    /// Resets the peaks of this process, or of all living processes, to the current values.
    ///
    /// Workloads keep their peaks, which include the earlier peaks of their processes.
    pub(crate) fn reset_peaks(&mut self, tgid: Option<Tgid>, now_ns: u64) {
        let is_meant = |process: &Tgid| tgid.is_none_or(|tgid| tgid == *process);
        for (_, process) in self.processes.iter_mut().filter(|(tgid, _)| is_meant(tgid)) {
            self.workloads.keep_peaks(process, &self.reading.devices);
            process.reset_peaks(now_ns);
        }
    }
}
