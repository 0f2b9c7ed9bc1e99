use memwatch_core::features::simulate::view::MeasuredView;

use super::*;
use crate::render::fixture;

const GIB: u64 = 1 << 30;

fn policy(setting: &str, peak_reserved_bytes: u64) -> PolicyView {
    PolicyView {
        policy: "pytorch".into(),
        setting: Some(setting.to_owned()),
        as_it_ran: setting.is_empty(),
        begins_otherwise: false,
        peak_reserved_bytes,
        allocated_at_peak_bytes: GIB,
        peak_allocated_bytes: GIB,
        reserved_bytes: 0,
        allocated_bytes: 0,
        free_bytes: 0,
        largest_free_bytes: 0,
        hits: 999,
        misses: 1,
        driver_allocations: 7,
        driver_frees: 5,
        retries: 0,
        refused: 0,
        granted_refused: 0,
        failure: None,
    }
}

fn view(policies: Vec<PolicyView>) -> SimulationView {
    let snapshot = fixture::training_node();
    let process = &snapshot.processes[0];
    let measured =
        MeasuredView { peak_reserved_bytes: 2 * GIB, allocated_at_peak_bytes: GIB, ..MeasuredView::default() };
    SimulationView {
        tgid: process.tgid,
        observed_since_ns: process.observed_since_ns,
        device: 0,
        uuid: None,
        traced: true,
        lost: 0,
        operations: 12_345,
        older_allocated_bytes: Some(0),
        older_reserved_bytes: Some(0),
        begun_with_bytes: None,
        available_bytes: Some(20 * GIB),
        context_bytes: Some(512 << 20),
        measured,
        policies,
    }
}

fn reported(view: SimulationView, capacity_bytes: Option<u64>) -> String {
    let snapshot = fixture::training_node();
    let mut out = Vec::new();
    let options = TableOptions::default();
    write(&mut out, (&[view], capacity_bytes), &snapshot, &fixture::clock(), &options).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn simulate_text_recommends_the_cheapest_setting_with_its_cost() {
    let text = reported(view(vec![policy("", 2 * GIB), policy("expandable_segments:True", GIB)]), None);
    assert!(text.contains("12,345 requests and frees replayed"), "{text}");
    assert!(text.contains("-50.0 %"), "{text}");
    let advice = "so  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would have taken 1.00 GiB less at the peak, for 12 more calls";
    assert!(text.contains(advice), "{text}");
    let text = reported(view(vec![policy("", 2 * GIB), policy("expandable_segments:True", 2 * GIB - 1)]), None);
    assert!(text.contains("none of these settings would have taken 1 % less"), "{text}");
}

#[test]
fn simulate_text_warns_if_the_model_differs_from_the_measurement() {
    let text = reported(view(vec![policy("", 2 * GIB + GIB / 10)]), None);
    assert!(text.contains("differs from what was measured by +5.0 %"), "{text}");
}

#[test]
fn simulate_text_omits_comparisons_for_events_not_replayed() {
    let older = SimulationView {
        older_allocated_bytes: Some(GIB / 2),
        older_reserved_bytes: Some(GIB),
        begun_with_bytes: None,
        lost: 3,
        ..view(vec![policy("", GIB)])
    };
    let text = reported(older, None);
    assert!(!text.contains('%') || !text.contains("-50.0 %"), "{text}");
    assert!(text.contains("pre-existing: 1.00 GiB reserved, 512.0 MiB of it allocated"), "{text}");
    assert!(text.contains("3 events dropped"), "{text}");
    let blind = reported(SimulationView { traced: false, ..view(vec![policy("", 0)]) }, None);
    assert!(blind.contains("nothing was replayed") && !blind.contains("SETTING"), "{blind}");
}

#[test]
fn simulate_text_states_time_and_size_of_a_failure_on_a_smaller_card() {
    let failure = PredictedFailureView {
        time_ns: fixture::at(14, 5, 20),
        wanted_bytes: 512 << 20,
        reserved_bytes: GIB,
        allocated_bytes: GIB / 2,
    };
    let ended = PolicyView { failure: Some(failure), ..policy("", GIB) };
    let text = reported(view(vec![ended]), Some(24 * GIB));
    assert!(text.contains("on a card of 24.00 GiB, 20.00 GiB of it for PyTorch"), "{text}");
    let sentence = "with PyTorch's default: requested 512.0 MiB, reserved 1.00 GiB, allocated 512.0 MiB";
    assert!(text.contains("out of memory at ") && text.contains(sentence), "{text}");
}

#[test]
fn simulate_text_warns_if_the_context_size_is_unknown() {
    let text = reported(SimulationView { context_bytes: None, ..view(vec![policy("", GIB)]) }, Some(24 * GIB));
    assert!(text.contains("the size of the CUDA context is unknown"), "{text}");
    let text = reported(view(vec![policy("", GIB)]), Some(24 * GIB));
    assert!(!text.contains("context"), "{text}");
}

#[test]
fn simulate_text_prefers_a_setting_that_grants_a_failed_request() {
    let roomy = PolicyView { granted_refused: 1, ..policy("roundup_power2_divisions:4", 3 * GIB) };
    let failed = PolicyView { refused: 1, ..policy("", 2 * GIB) };
    let text = reported(view(vec![failed, policy("expandable_segments:True", GIB), roomy]), None);
    assert!(text.contains("roundup_power2_divisions:4 would have had room for 1 request that failed"), "{text}");
}
