//! Sentences on a simulation.

use memwatch_core::features::simulate::view::{PolicyView, SimulationView};

use crate::render::format::{bytes, count, plural, ratio};

/// Maximum deviation at which the model is trusted: predicted peak of the program's own setting,
/// relative to the measured one.
const BELIEVED: f64 = 0.01;
/// Minimum relative saving at which a setting is mentioned.
const WORTH_NAMING: f64 = 0.01;

/// Formats `PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128`; `None` for PyTorch's default, and for
/// policies other than PyTorch's.
pub(crate) fn setting(policy: &PolicyView) -> Option<String> {
    let setting = policy.setting.as_ref().filter(|setting| !setting.is_empty())?;
    Some(format!("PYTORCH_CUDA_ALLOC_CONF={setting}"))
}

/// Returns the setting, or its description.
pub(crate) fn name(policy: &PolicyView) -> String {
    let of_others =
        || if policy.setting.is_some() { "PyTorch's default" } else { "size classes below 1 MiB, else the driver" };
    setting(policy).unwrap_or_else(|| of_others().to_owned())
}

/// Whether all requests were replayed.
pub(crate) fn is_whole(view: &SimulationView) -> bool {
    view.lost == 0 && view.older_reserved_bytes == Some(0)
}

/// Returns the relative difference of a policy's peak from the measured peak; `None` if they are
/// not of the same requests.
pub(crate) fn change(view: &SimulationView, policy: &PolicyView) -> Option<f64> {
    let measured = view.measured.peak_reserved_bytes;
    let is_comparable = is_whole(view) && measured > 0 && policy.failure.is_none() && !policy.begins_otherwise;
    is_comparable.then(|| ratio(policy.peak_reserved_bytes, measured) - 1.0)
}

/// Returns sentences on the results and their limits.
pub(crate) fn advice(view: &SimulationView) -> Vec<String> {
    let mut advice = Vec::new();
    if !view.traced {
        return vec![
            "this PyTorch does not report its allocator's requests (2.4 and later do): nothing was replayed".to_owned(),
        ];
    }
    advice.extend(best(view));
    advice.extend(view.policies.iter().filter_map(|policy| doubt(view, policy)));
    if let Some(older) = view.older_reserved_bytes.filter(|bytes| *bytes > 0) {
        let held = bytes(view.older_allocated_bytes.unwrap_or(0));
        advice.push(format!(
            "pre-existing: {} reserved, {held} of it allocated, is in the first row only; a recording from the start has all",
            bytes(older)
        ));
    }
    if let Some(begun_with) = view.begun_with_bytes {
        advice.push(format!(
            "all rows begin with the {} that PyTorch had before; where the setting makes other segments (≥), how many it would have made for that is not known",
            bytes(begun_with)
        ));
    }
    if let Some(available_bytes) = view.available_bytes.filter(|_| view.context_bytes.is_none()) {
        advice.push(format!(
            "the size of the CUDA context is unknown (NVML shows it for a process traced from its start): PyTorch would have less than {}",
            bytes(available_bytes)
        ));
    }
    if view.lost > 0 {
        advice.push(format!("{} dropped: the replay is incomplete", plural(view.lost, "event", "events")));
    }
    advice
}

/// Describes the PyTorch setting with the lowest peak.
fn best(view: &SimulationView) -> Option<String> {
    let base = view.policies.iter().find(|policy| policy.as_it_ran);
    let base_bytes = base.filter(|base| base.failure.is_none()).map(|base| base.peak_reserved_bytes)?;
    let is_candidate = |policy: &&PolicyView| policy.failure.is_none() && !policy.begins_otherwise;
    let candidates = view.policies.iter().filter(|policy| policy.setting.is_some()).filter(is_candidate);
    let rank = |policy: &&PolicyView| (u64::MAX - policy.granted_refused, policy.peak_reserved_bytes);
    let best = candidates.filter(|policy| !policy.as_it_ran).min_by_key(rank)?;
    if best.granted_refused > 0 && base.is_some_and(|base| base.granted_refused < best.granted_refused) {
        let refused = plural(best.granted_refused, "request that failed", "requests that failed");
        return Some(format!("{} would have had room for {refused}", name(best)));
    }
    let saved = base_bytes.checked_sub(best.peak_reserved_bytes)?;
    if ratio(saved, base_bytes) < WORTH_NAMING {
        let are_all_known = !view.policies.iter().any(|policy| policy.begins_otherwise);
        return are_all_known.then(|| "none of these settings would have taken 1 % less".to_owned());
    }
    let calls = (best.driver_allocations + best.driver_frees)
        .checked_sub(view.measured.driver_allocations + view.measured.driver_frees);
    let cost = calls.filter(|calls| *calls > 0);
    let cost = cost.map_or_else(String::new, |calls| format!(", for {} more calls of the driver", count(calls)));
    Some(format!("{} would have taken {} less at the peak{cost}", name(best), bytes(saved)))
}

/// Describes a deviation of the model from the measurement for the program's own setting.
fn doubt(view: &SimulationView, policy: &PolicyView) -> Option<String> {
    let off = change(view, policy).filter(|off| policy.as_it_ran && off.abs() > BELIEVED)?;
    Some(format!(
        "for the program's own setting the replay differs from what was measured by {:+.1} %: another setting is in force, or the model is wrong",
        off * 100.0
    ))
}
