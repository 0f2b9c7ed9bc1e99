//! Collects the evidence for causes recorded failures and growth.

use crate::attribution::process::Process;
use crate::features::causes::{Cause, CauseEvidence, causes};
use crate::features::leak::model::Leaks;
use crate::features::leak::view::LeaksView;
use crate::features::oom::OomLog;
use crate::input::holdings::Holdings;
use crate::state::State;
use crate::words::Tgid;

/// Minimum growth that counts as a cause, in bytes per minute.
const THRESHOLD: f64 = 1_048_576.0;

/// Returns the causes of each process's last failure, else of its growth. A detector that is not
/// turned on provides no evidence.
pub fn report(state: &State, leaks: Option<&Leaks>, ooms: Option<&OomLog>) -> Vec<Cause> {
    let leaks = leaks.map_or_else(Vec::new, |leaks| leaks.report(state, THRESHOLD));
    let all = state.ended.iter().chain(state.processes.values());
    all.flat_map(|process| causes_of(process, &leaks, ooms)).collect()
}

fn causes_of(process: &Process, leaks: &[LeaksView], ooms: Option<&OomLog>) -> Vec<Cause> {
    let (tgid, since_ns): (Tgid, u64) = (process.tgid, process.observed_since_ns);
    let own = leaks.iter().find(|leaks| (leaks.tgid, leaks.observed_since_ns) == (tgid, since_ns));
    let held: Option<&Holdings> = process.tensors.as_ref().and_then(|tensors| tensors.held());
    let is_own = |time_ns: u64| time_ns >= since_ns && process.ended.is_none_or(|ended| time_ns <= ended.time_ns);
    let failures = ooms.into_iter().flat_map(|log| log.failures().0);
    let failure = failures.filter(|oom| oom.tgid == tgid && is_own(oom.time_ns)).last();
    causes(&CauseEvidence {
        tgid,
        growing: own.map_or(&[], |own| &own.findings),
        cached: own.map_or(&[], |own| &own.cached),
        // Live objects explain a failure; in a program that still runs they may be intended.
        rows: held.filter(|_| failure.is_some()).map_or(&[], |held| &held.rows),
        advice: held.filter(|_| failure.is_some()).map_or(&[], |held| &held.advice),
        failure,
        kv_cache: None,
        kv_cache_peak: None,
    })
}
