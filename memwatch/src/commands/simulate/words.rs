//! What a replay under other settings says.

use memwatch_core::features::simulate::view::{PolicyView, SimulationView};

use crate::render::format::{bytes, count, plural, ratio};

/// The model is believed where it says of the program's own setting what was measured, but for this part.
const BELIEVED: f64 = 0.01;
/// A setting is named where it saves this part at least.
const WORTH_NAMING: f64 = 0.01;

/// `PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128`; nothing for PyTorch's default, and for what is not PyTorch's.
pub(crate) fn setting(policy: &PolicyView) -> Option<String> {
    let setting = policy.setting.as_ref().filter(|setting| !setting.is_empty())?;
    Some(format!("PYTORCH_CUDA_ALLOC_CONF={setting}"))
}

/// The setting, or what it is in words.
pub(crate) fn name(policy: &PolicyView) -> String {
    let of_others =
        || if policy.setting.is_some() { "PyTorch's default" } else { "size classes below 1 MiB, else the driver" };
    setting(policy).unwrap_or_else(|| of_others().to_owned())
}

/// What of all requests was replayed: nothing is missing.
pub(crate) fn is_whole(view: &SimulationView) -> bool {
    view.lost == 0 && view.older_reserved_bytes == Some(0)
}

/// By how much a policy's peak is another than what was measured, as a part of that; `None` where these are not of the same requests.
pub(crate) fn change(view: &SimulationView, policy: &PolicyView) -> Option<f64> {
    let measured = view.measured.peak_reserved_bytes;
    let is_comparable = is_whole(view) && measured > 0 && policy.failure.is_none() && !policy.begins_otherwise;
    is_comparable.then(|| ratio(policy.peak_reserved_bytes, measured) - 1.0)
}

/// Sentences on what the rows say, and on what they do not.
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

/// The setting of PyTorch's that would have taken least.
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

/// Where the model does not say of the program's own setting what was measured.
fn doubt(view: &SimulationView, policy: &PolicyView) -> Option<String> {
    let off = change(view, policy).filter(|off| policy.as_it_ran && off.abs() > BELIEVED)?;
    Some(format!(
        "for the program's own setting the replay differs from what was measured by {:+.1} %: another setting is in force, or the model is wrong",
        off * 100.0
    ))
}
