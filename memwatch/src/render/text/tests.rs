use super::*;
use crate::render::fixture;
use memwatch_core::snapshot::groups::OwnerGrouping;

fn text(snapshot: &Snapshot, options: TableOptions) -> String {
    let mut out = Vec::new();
    write(&mut out, snapshot, &TableSelection::default(), &fixture::clock(), &options).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn a_busy_node_is_reported_in_full() {
    assert_eq!(text(&fixture::busy_node(), TableOptions::default()), include_str!("busy_node.txt"));
}

#[test]
fn a_quiet_node_is_reported_in_short() {
    let options = TableOptions { repeated: true, ..TableOptions::default() };
    assert_eq!(text(&fixture::quiet_node(), options), include_str!("quiet_node.txt"));
}

#[test]
fn ps_text_lists_mig_instances_with_profile_instead_of_their_gpu() {
    let reported = text(&fixture::divided_node(), TableOptions::default());
    let heads: Vec<_> = reported.lines().filter(|line| line.starts_with("GPU ")).collect();
    assert_eq!(heads.len(), 3, "{reported}");
    assert!(
        heads[1].starts_with("GPU 1:0  NVIDIA H100 80GB HBM3 MIG 1g.10gb  MIG-30aa41c8  used 1.00 GiB of 10.00 GiB"),
        "{reported}"
    );
    assert!(reported.contains("1234  alice  1:1  "), "{reported}");
    assert!(reported.contains("cuMemAlloc_v2 requested 38.00 GiB on GPU 1:1"), "{reported}");
    assert!(reported.contains("PID 1234: MPS client"), "{reported}");
}

#[test]
fn a_machine_without_a_gpu_says_so() {
    let reported = text(&fixture::empty_node(), TableOptions::default());
    assert!(reported.starts_with("No process with GPU memory.\n"), "{reported}");
}

#[test]
fn a_narrow_terminal_cuts_rows_and_a_pipe_does_not() {
    let narrow = text(&fixture::quiet_node(), TableOptions { columns: Some(100), ..TableOptions::default() });
    assert!(narrow.lines().all(|line| line.chars().count() <= 100), "{narrow}");
    assert!(narrow.contains("python3 train.py") && !narrow.contains("KINDS"), "{narrow}");
    let eighty = text(&fixture::busy_node(), TableOptions { columns: Some(80), ..TableOptions::default() });
    assert!(eighty.contains("COMMAND") && eighty.contains("python3 train.py --mod"), "{eighty}");
}

#[test]
fn ps_text_ascii_prints_ascii_only() {
    let mut snapshot = fixture::busy_node();
    snapshot.processes[1].command = "vllm".to_owned();
    let reported = text(&snapshot, TableOptions { ascii: true, ..TableOptions::default() });
    assert!(reported.is_ascii(), "{reported}");
}

#[test]
fn nothing_steers_the_terminal_unless_colours_are_wanted() {
    assert!(!text(&fixture::busy_node(), TableOptions::default()).contains('\x1b'));
    let colored = text(&fixture::busy_node(), TableOptions { color: true, ..TableOptions::default() });
    assert!(colored.contains("\x1b[31m") && !colored.contains("\x1b[2J"));
}

#[test]
fn a_target_without_memory_has_a_row() {
    let mut snapshot = fixture::quiet_node();
    snapshot.processes[0].gpus.clear();
    let reported = text(&snapshot, TableOptions::default());
    assert!(reported.contains("1234  alice    -     -       -     -"), "{reported}");
}

#[test]
fn workloads_have_a_column_where_a_process_has_one() {
    let reported = text(&fixture::owned_node(), TableOptions::default());
    let starts = |start: &str| reported.lines().any(|line| line.starts_with(start));
    assert!(starts(" PID  USER   WORKLOAD         GPU"), "{reported}");
    assert!(starts("1234  alice  train              0"), "{reported}");
    assert!(starts("2002  bob    ml/serve-0/vllm    1"), "{reported}");
    assert!(starts("4321  -      job 42.0           1"), "{reported}");
}

fn summed(by: OwnerGrouping) -> String {
    let mut out = Vec::new();
    groups::write(&mut out, &fixture::owned_node(), by, &fixture::clock(), &TableOptions::default())
        .expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn ps_text_sums_by_owner_include_memory_charged_to_no_process() {
    let reported: String =
        [OwnerGrouping::Container, OwnerGrouping::Pod, OwnerGrouping::Job, OwnerGrouping::User, OwnerGrouping::Gpu]
            .map(summed)
            .concat();
    let rows = reported.lines().filter(|line| !line.starts_with("GPU ") && !line.starts_with("observed"));
    assert_eq!(rows.collect::<Vec<_>>().join("\n") + "\n", include_str!("groups.txt"));
}
