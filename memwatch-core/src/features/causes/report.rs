//! Collects the evidence for causes recorded failures and growth.

use std::collections::BTreeMap;

use crate::attribution::process::Process;
use crate::features::causes::{Cause, CauseEvidence, GrownName, causes, grown, grown_before, held_names};
use crate::features::leak::model::Leaks;
use crate::features::leak::view::LeaksView;
use crate::features::oom::OomLog;
use crate::features::oom::view::OomView;
use crate::state::State;
use crate::words::Tgid;

/// Minimum growth that counts as a cause, in bytes per minute.
const THRESHOLD: f64 = 1_048_576.0;

/// Returns the causes of each process's last failure, else of its growth. A detector that is not
/// turned on provides no evidence.
pub fn report(state: &State, leaks: Option<&Leaks>, ooms: Option<&OomLog>) -> Vec<Cause> {
    let leaks = leaks.map_or_else(Vec::new, |leaks| leaks.report(state, THRESHOLD));
    let all = || state.ended.iter().chain(state.processes.values());
    let mut found: Vec<Cause> = all().flat_map(|process| causes_of(process, &leaks, ooms)).collect();
    // Of a process from before a restart of the recorder, only its failures are known.
    let failures = ooms.into_iter().flat_map(|log| log.failures().0);
    let is_alone = |failure: &&OomView| !all().any(|process| is_of(process, failure));
    let last: BTreeMap<Tgid, &OomView> = failures.filter(is_alone).map(|failure| (failure.tgid, failure)).collect();
    for (tgid, failure) in last {
        found.extend(causes(&CauseEvidence { tgid, ..of_failure(failure, &grown_before(failure)) }));
    }
    found
}

fn is_of(process: &Process, failure: &OomView) -> bool {
    let is_before_its_end = process.ended.is_none_or(|ended| failure.time_ns <= ended.time_ns);
    process.tgid == failure.tgid && failure.time_ns >= process.observed_since_ns && is_before_its_end
}

/// Returns the evidence that a failure has itself.
fn of_failure<'a>(failure: &'a OomView, grown: &'a [GrownName]) -> CauseEvidence<'a> {
    CauseEvidence { failure: Some(failure), held: failure.names_then().last(), grown, ..CauseEvidence::default() }
}

fn causes_of(process: &Process, leaks: &[LeaksView], ooms: Option<&OomLog>) -> Vec<Cause> {
    let (tgid, since_ns): (Tgid, u64) = (process.tgid, process.observed_since_ns);
    let own = leaks.iter().find(|leaks| (leaks.tgid, leaks.observed_since_ns) == (tgid, since_ns));
    let failures = ooms.into_iter().flat_map(|log| log.failures().0);
    let failure = failures.filter(|oom| is_of(process, oom)).last();
    // Live objects explain a failure; in a program that still runs they may be intended.
    let whole = failure.and_then(|_| process.tensors.as_ref()?.held());
    let whole = whole.map(|held| held_names(held, &[]));
    let is_growing = own.is_some_and(|own| own.findings.iter().any(|finding| finding.verdict.grows()));
    let grown = match failure {
        Some(failure) => grown_before(failure),
        None if is_growing => grown(process.held_names.readings()),
        None => Vec::new(),
    };
    let known = failure.map(|failure| of_failure(failure, &grown)).unwrap_or_default();
    causes(&CauseEvidence {
        tgid,
        growing: own.map_or(&[], |own| &own.findings),
        cached: own.map_or(&[], |own| &own.cached),
        held: whole.as_ref().or(known.held),
        ..known
    })
}
