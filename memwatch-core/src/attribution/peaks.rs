//! Peaks that begin again: in memwatch's own counters, since it writes into no process.

use crate::Pipeline;
use crate::words::Tgid;

impl Pipeline {
    /// Peaks of this process begin again at what it has; of every living process, if none is named.
    ///
    /// A workload keeps its peak: its processes' peaks so far are part of that.
    pub(crate) fn reset_peaks(&mut self, tgid: Option<Tgid>, now_ns: u64) {
        let is_meant = |process: &Tgid| tgid.is_none_or(|tgid| tgid == *process);
        for (_, process) in self.processes.iter_mut().filter(|(tgid, _)| is_meant(tgid)) {
            self.workloads.keep_peaks(process, &self.reading.devices);
            process.reset_peaks(now_ns);
        }
    }
}
