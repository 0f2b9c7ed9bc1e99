//! Collects the evidence for causes from the pipeline: recorded failures and growth.

use crate::Pipeline;
use crate::attribution::process::Process;
use crate::features::causes::{Cause, CauseEvidence, causes};
use crate::features::leak::view::LeaksView;
use crate::input::holdings::Holdings;
use crate::words::Tgid;

/// Minimum growth that counts as a cause, in bytes per minute.
const THRESHOLD: f64 = 1_048_576.0;

impl Pipeline {
    /// Returns the causes of each process's last failure, else of its growth. Analyses that are not
    /// turned on provide no evidence.
    pub fn causes(&self) -> Vec<Cause> {
        let leaks = self.leaks(THRESHOLD);
        let all = self.ended.iter().chain(self.processes.values());
        all.flat_map(|process| self.causes_of(process, &leaks)).collect()
    }

    fn causes_of(&self, process: &Process, leaks: &[LeaksView]) -> Vec<Cause> {
        let (tgid, since_ns): (Tgid, u64) = (process.tgid, process.observed_since_ns);
        let own = leaks.iter().find(|leaks| (leaks.tgid, leaks.observed_since_ns) == (tgid, since_ns));
        let held: Option<&Holdings> = process.tensors.as_ref().and_then(|tensors| tensors.held());
        let is_own = |time_ns: u64| time_ns >= since_ns && process.ended.is_none_or(|ended| time_ns <= ended.time_ns);
        let failure = self.ooms().0.filter(|oom| oom.tgid == tgid && is_own(oom.time_ns)).last();
        causes(&CauseEvidence {
            tgid,
            growing: own.map_or(&[], |own| &own.findings),
            cached: own.map_or(&[], |own| &own.cached),
            // Live objects explain a failure; in a program that still runs they may be intended.
            rows: held.filter(|_| failure.is_some()).map_or(&[], |held| &held.rows),
            advice: held.filter(|_| failure.is_some()).map_or(&[], |held| &held.advice),
            failure,
        })
    }
}
