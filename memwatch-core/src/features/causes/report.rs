//! Collects the evidence for causes recorded failures and growth.

use crate::attribution::process::Process;
use crate::features::causes::{Cause, CauseEvidence, causes, grown, held_names};
use crate::features::leak::model::Leaks;
use crate::features::leak::view::LeaksView;
use crate::features::oom::OomLog;
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
    let is_own = |time_ns: u64| time_ns >= since_ns && process.ended.is_none_or(|ended| time_ns <= ended.time_ns);
    let failures = ooms.into_iter().flat_map(|log| log.failures().0);
    let failure = failures.filter(|oom| oom.tgid == tgid && is_own(oom.time_ns)).last();
    // Live objects explain a failure; in a program that still runs they may be intended.
    let whole = failure.and_then(|_| process.tensors.as_ref()?.held());
    let whole = whole.map(|held| held_names(held, &[]));
    let readings = failure.map_or(&[][..], |failure| failure.names_then());
    causes(&CauseEvidence {
        tgid,
        growing: own.map_or(&[], |own| &own.findings),
        cached: own.map_or(&[], |own| &own.cached),
        held: whole.as_ref().or_else(|| readings.last()),
        grown: &grown(readings),
        failure,
        kv_cache: None,
        kv_cache_peak: None,
    })
}
