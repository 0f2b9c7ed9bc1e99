use memwatch_core::features::forecast::view::ForecastsView;
use memwatch_core::features::oom::view::CacheView;
use memwatch_core::input::held_names::{HeldGroup, HeldNames};
use memwatch_core::input::holdings::HoldingClass;
use memwatch_core::kernel_driver::decode::Lies;
use memwatch_core::kernel_driver::labels::MemoryPurpose;
use memwatch_core::snapshot::RefusedView;
use memwatch_core::words::{Framework, Ordinal, Tgid, Tid};

use super::*;
use crate::commands::oom::words::Unseen;
use crate::render::fixture;

fn failed(snapshot: Snapshot, tgid: Tgid, cache: Option<CacheView>, wanted_bytes: u64) -> OomView {
    OomView {
        time_ns: snapshot.time_ns,
        tgid,
        level: "tensor".into(),
        device: Some(0),
        uuid: snapshot.gpus.first().map(|gpu| gpu.uuid.clone()),
        framework: Some(Framework::PyTorch),
        symbol: None,
        wanted_bytes,
        whose: None,
        cache,
        more: 0,
        ended_ns: None,
        is_survived: false,
        exited_ns: None,
        refused: Vec::new(),
        names: Vec::new(),
        snapshot: Box::new(snapshot),
    }
}

fn reported(ooms: &[&OomView]) -> String {
    reported_at_end_of(&fixture::busy_node(), ooms)
}

fn reported_at_end_of(snapshot: &Snapshot, ooms: &[&OomView]) -> String {
    let mut out = Vec::new();
    let forecasts = ForecastsView::default();
    let failed = Failed { ooms: ooms.iter().copied().cloned().collect(), forgotten: 3, ..Failed::default() };
    let report = OomReport { failed: &failed, forecasts: &forecasts, changes: &[] };
    write(&mut out, &report, snapshot, &fixture::clock(), &TableOptions::default()).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

const GIB: u64 = 1 << 30;

#[test]
fn oom_text_recommends_simulate_if_free_pieces_would_have_sufficed() {
    let snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let cache =
        CacheView { split_bytes: 3 * GIB, largest_free_bytes: GIB, reserved_bytes: 9 * GIB, ..CacheView::default() };
    let reported_of = |cache| reported(&[&failed(snapshot.clone(), tgid, Some(cache), 2 * GIB)]);
    let text = reported_of(cache);
    assert!(text.contains("3.00 GiB were free but split (inactive split), largest block 1.00 GiB"), "{text}");
    assert!(text.contains("To find a setting that fits: memwatch simulate"), "{text}");
    assert!(text.contains("\n  top         ") && text.contains("and 3 more before these"), "{text}");
    let text = reported_of(CacheView { is_expandable: true, ..cache });
    assert!(!text.contains("memwatch simulate"), "{text}");
}

#[test]
fn oom_text_prints_the_largest_fitting_request_below_the_free_bytes() {
    let mut snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let mut refused = fixture::busy_node().processes[0].failures[0].clone();
    refused.time_ns = snapshot.time_ns;
    snapshot.processes[0].failures.push(refused);
    let cache = CacheView { largest_free_bytes: 5 << 20, ..CacheView::default() };
    let oom = failed(snapshot, tgid, Some(cache), 500 * GIB);
    let (fits, free) = (oom.largest_fitting_bytes().expect("it is known"), oom.free_bytes().expect("it is known"));
    assert!(fits > 5 << 20 && fits <= free, "{fits} {free}");
    let text = reported(&[&oom]);
    let line = format!("\n  fits        {:>10}  at most would have been granted instead\n", bytes(fits));
    assert!(text.contains(&line), "{text}");
    let unknown = OomView { cache: None, ..oom };
    assert!(!reported(&[&unknown]).contains("  fits  "));
}

#[test]
fn oom_text_states_the_outcome_and_unseen_failures() {
    let snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let mut oom = failed(snapshot.clone(), tgid, None, GIB);
    oom.is_survived = true;
    assert!(reported(&[&oom]).contains("outcome     survived: the process continued\n"));
    oom.exited_ns = Some(oom.time_ns + 5_000_000_000);
    assert!(reported(&[&oom]).contains("outcome     survived: the process continued, and ended 5.0 s later\n"));
    (oom.is_survived, oom.exited_ns) = (false, None);
    oom.ended_ns = Some(oom.time_ns + 2_000_000_000);
    assert!(reported(&[&oom]).contains("outcome     the process ended 2.0 s after it"));
    let mut page = TextPage { text: String::new(), options: TableOptions::default() };
    let failed = Failed { unseen: vec![Unseen { tgid, ooms: 1 }], ..Failed::default() };
    section(&mut page, &failed, &fixture::clock());
    assert!(page.text.contains("PyTorch has counted 1 out-of-memory error that no event showed"), "{}", page.text);
    assert!(!page.text.contains("No out-of-memory failure.\n"), "{}", page.text);
}

#[test]
fn oom_text_lists_what_the_process_held_by_name_and_what_grew() {
    let snapshot = fixture::training_node();
    let (tgid, now_ns) = (snapshot.processes[0].tgid, snapshot.time_ns);
    let group = |class, name: &str, kept_by: Option<&str>, mib: u64| HeldGroup {
        ordinal: Ordinal(0),
        class,
        is_kv_cache: false,
        name: Some(name.to_owned()),
        kept_by: kept_by.map(str::to_owned),
        dtype: None,
        bytes: mib << 20,
        blocks: mib / 8,
    };
    let reading = |seconds_before: u64, losses_mib: u64| HeldNames {
        tgid,
        time_ns: now_ns - seconds_before * 1_000_000_000,
        groups: vec![
            group(HoldingClass::SavedForBackward, "MulBackward0", Some("train.py:main: losses[*]"), losses_mib / 2),
            group(HoldingClass::SavedForBackward, "AddBackward0", Some("train.py:main: losses[*]"), losses_mib / 2),
            group(HoldingClass::Parameter, "h.*.weight\x1b[2J", None, 512),
        ],
        ..HeldNames::default()
    };
    let mut oom = failed(snapshot, tgid, None, GIB);
    assert!(!reported(&[&oom]).contains("holds"));
    oom.names = vec![reading(90, 1024), reading(60, 2048), reading(30, 4096)];
    let text = reported(&[&oom]);
    for line in [
        "\n  holds         4.50 GiB  by name, read 30 s before it\n",
        "\n                4.00 GiB   88.9 %  saved for backward, kept by train.py:main: losses[*]  512 blocks\n",
        "\n               512.0 MiB   11.1 %  parameters: h.*.weight\\x1b[2J  64 blocks\n",
        "\n  grew         +3.00 GiB  in 1 min 0 s (+3.00 GiB/min): train.py:main: losses[*]\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    oom.names = vec![HeldNames { without_names: Some("it ends".to_owned()), ..reading(0, 64) }];
    assert!(reported(&[&oom]).contains("  holds       names were not read, 0.0 s before it: it ends\n"));
}

#[test]
fn without_a_forecast_the_reason_is_stated() {
    let mut snapshot = fixture::training_node();
    assert!(reported_at_end_of(&snapshot, &[]).contains("No forecast: NVML does not say"));
    for process in &mut snapshot.processes {
        process.ended_ns = Some(snapshot.time_ns);
    }
    assert!(reported_at_end_of(&snapshot, &[]).contains("No forecast: the program has ended."));
    snapshot.processes.clear();
    assert!(reported_at_end_of(&snapshot, &[]).contains("or no process uses them"));
}

#[test]
fn oom_text_names_other_processes_that_hold_enough() {
    let snapshot = fixture::busy_node();
    let process = snapshot.processes.iter().find(|process| !process.gpus.is_empty()).expect("somebody has memory");
    let tgid = process.tgid;
    let mut oom = failed(snapshot.clone(), Tgid(u32::MAX), None, 1);
    oom.uuid.clone_from(&process.gpus[0].uuid);
    let text = reported(&[&oom]);
    assert!(text.contains("other processes held") && text.contains(&format!("PID {}", tgid.0)), "{text}");
}

#[test]
fn oom_text_states_a_request_larger_than_the_gpu_or_no_failure() {
    let snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let text = reported(&[&failed(snapshot, tgid, None, u64::MAX)]);
    assert!(text.contains("is more than the whole GPU has"), "{text}");
    assert!(reported(&[]).contains("No out-of-memory failure.\n"));
}

#[test]
fn oom_text_compares_unwatched_memory_with_its_nvml_reading() {
    let mut snapshot = fixture::training_node();
    let (tgid, uuid) = (snapshot.processes[0].tgid, snapshot.gpus[0].uuid.clone());
    snapshot.processes.truncate(1);
    let own = snapshot.processes[0].gpus.iter_mut().find(|own| own.uuid.as_ref() == Some(&uuid)).expect("it trains");
    // NVML's reading is from before the process allocated another 40 GiB.
    (own.used_bytes, own.attributed_bytes, own.live_bytes) = (Some(30 * GIB), 29 * GIB, 70 * GIB);
    own.unattributed_bytes = Some(GIB.cast_signed());
    (snapshot.gpus[0].total_bytes, snapshot.gpus[0].used_bytes) = (Some(80 * GIB), Some(36 * GIB));
    snapshot.gpus[0].unwatched_processes = Some(2);
    snapshot.gpus.truncate(1);
    let text = reported(&[&failed(snapshot.clone(), tgid, None, 5 * GIB)]);
    assert!(text.contains("  6.00 GiB  2 processes outside this watch, and the driver\n"), "{text}");
    assert!(text.contains("  free          3.00 GiB  at most, by the calls traced\n"), "{text}");
    assert!(
        text.contains("processes outside this watch held 6.00 GiB of this GPU: without them the request fits"),
        "{text}"
    );
    assert!(!text.contains("the program itself uses the memory"), "{text}");
    let text = reported(&[&failed(snapshot, tgid, None, 7 * GIB)]);
    assert!(text.contains("the program itself uses the memory"), "{text}");
}

#[test]
fn of_a_job_that_died_the_failure_comes_first_and_no_forecast_is_made() {
    let mut snapshot = fixture::training_node();
    for process in &mut snapshot.processes {
        process.ended_ns = Some(snapshot.time_ns);
    }
    let oom = failed(fixture::training_node(), snapshot.processes[0].tgid, None, GIB);
    let text = reported_at_end_of(&snapshot, &[&oom]);
    assert!(text.starts_with("CUDA OUT OF MEMORY  ") && !text.contains("orecast"), "{text}");
}

fn request(mib: u64, function: Option<&str>, owner: Option<&str>) -> RefusedView {
    RefusedView {
        time_ns: 1,
        tid: Tid(7),
        uuid: None,
        lies: Lies::Video,
        asked_bytes: Some(mib << 20),
        function: function.map(str::to_owned),
        owner: owner.map(str::to_owned),
        label: MemoryPurpose::Requested,
        inside: None,
    }
}

#[test]
fn oom_text_prints_the_refused_rm_request_below_the_failed_call() {
    let snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let refused = vec![request(2048, Some("cuMemAlloc_v2"), Some("PyTorch")), request(20, None, None)];
    let mut oom = OomView { refused, ..failed(snapshot, tgid, None, GIB) };
    let text = reported(&[&oom]);
    let line = "\n  refused       20.0 MiB  by the kernel driver, after 1 other request\n";
    assert!(text.contains(line), "{text}");
    oom.refused.pop();
    let text = reported(&[&oom]);
    assert!(text.contains("\n  refused       2.00 GiB  by the kernel driver in cuMemAlloc_v2 by PyTorch\n"), "{text}");
}

#[test]
fn oom_text_lists_survived_refusals_with_their_outcome() {
    let one = |mib, status| SurvivedView { tgid: Tgid(7), refused: request(mib, Some("cuMemAlloc_v2"), None), status };
    let host = RefusedView { lies: Lies::PinnedHost, ..request(8, Some("cuMemHostAlloc"), None) };
    let survived =
        vec![SurvivedView { tgid: Tgid(9), refused: host, status: None }, one(128, Some(0)), one(64, Some(2))];
    let failed = Failed { survived, survived_forgotten: 4, ..Failed::default() };
    let mut page = TextPage { text: String::new(), options: TableOptions::default() };
    section(&mut page, &failed, &fixture::clock());
    assert!(page.text.contains("7 requests refused by the kernel driver without a failure\n"), "{}", page.text);
    for part in [
        "   64.0 MiB  ",
        "PID 7  cuMemAlloc_v2: the call failed with 2, and its caller continued\n",
        "PID 7  cuMemAlloc_v2: the call succeeded anyway\n",
        "8.0 MiB of host memory  ",
        "PID 9  cuMemHostAlloc: its result was not seen\n",
    ] {
        assert!(page.text.contains(part), "{part} is not in {}", page.text);
    }
}
