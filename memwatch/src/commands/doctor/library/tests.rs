use memwatch_core::input::KernelCalls;

use super::{
    Barrier, CheckState, FunctionReport, LeftOutReason, Libraries, LibraryReport, MissingFunction, SkippedLibrary,
    count, examine, judge_exports, judge_file, judge_left_out, judge_processes, listed,
};
use crate::commands::doctor::nvml::Traces;
use crate::commands::doctor::privilege::Privilege;
use crate::commands::doctor::privilege::tests::{root, user};
use crate::commands::doctor::tests::library;

fn details(file: &LibraryReport, verbose: bool) -> String {
    judge_file(file, verbose).details.join("\n")
}

#[test]
fn a_file_in_good_order_is_reported_in_groups() {
    let check = judge_file(&library(), false);
    assert_eq!(check.state, CheckState::Ok);
    assert_eq!(check.fact, "/usr/lib/libcuda.so.1: 2 of 3 functions probed");
    assert_eq!(
        check.details,
        [
            "in use by 2 processes; build id abcd",
            "requests to the kernel driver: probed at 1 stub",
            "2 functions at je  moved past 1 instruction",
            "newer than this driver: cuCtxCreate_v4 (CUDA 12.5)"
        ]
    );
}

#[test]
fn doctor_accepts_a_library_with_unseen_requests() {
    let mut file = library();
    let reason = "it calls ioctl without a stub".to_owned();
    for (calls, line) in [
        (Some(KernelCalls::Refused { reason }), Some("not seen, it calls ioctl without a stub")),
        (Some(KernelCalls::None), Some("it makes none")),
        (None, None),
    ] {
        file.coverage.kernel_calls = calls;
        let check = judge_file(&file, false);
        assert_eq!(check.state, CheckState::Ok);
        let found = check.details.iter().find_map(|line| line.strip_prefix("requests to the kernel driver: "));
        assert_eq!(found, line);
    }
}

#[test]
fn doctor_verbose_lists_each_symbol_with_its_offset() {
    let text = details(&library(), true);
    assert!(text.contains("cuMemAlloc_v2  +10  je  moved past 1 instruction"), "{text}");
    assert!(text.contains("cuMemFree_v2   +10  je  moved past 1 instruction"), "{text}");
}

#[test]
fn single_stepped_functions_are_a_limit_with_its_price() {
    let mut file = library();
    let stays = |symbol, single_stepped| FunctionReport {
        symbol,
        offset_bytes: 0,
        instruction: "sub".to_owned(),
        reason: "the stack is written first".to_owned(),
        single_stepped,
    };
    file.functions.push(stays("cuMemCreate", Some(true)));
    let check = judge_file(&file, false);
    assert_eq!(check.state, CheckState::Degraded);
    let line =
        check.details.iter().find(|line| line.starts_with("single-stepped, 12.2 µs per call")).expect("the line");
    assert!(line.ends_with(": cuMemCreate"), "{line}");
    file.functions.pop();
    file.functions.push(stays("cuMemCreate", None));
    assert_eq!(judge_file(&file, false).state, CheckState::Ok);
}

#[test]
fn a_function_that_age_does_not_explain_is_a_limit() {
    let mut file = library();
    file.missing.push(MissingFunction { symbol: "cuMemAllocPitch_v2", since: "3.2" });
    let check = judge_file(&file, false);
    assert_eq!(check.state, CheckState::Degraded);
    assert!(details(&file, false).contains("may go unseen: cuMemAllocPitch_v2"), "{check:?}");
}

#[test]
fn a_file_that_cannot_be_probed_says_why() {
    let mut file = library();
    file.coverage.error = Some("damaged ELF file: section headers".to_owned());
    let check = judge_file(&file, false);
    assert_eq!(
        (check.state, check.fact.as_str()),
        (CheckState::Degraded, "/usr/lib/libcuda.so.1: damaged ELF file: section headers")
    );
    let none = Libraries { files: vec![file], ..Libraries::default() };
    assert_eq!(none.judge(true, &root()).state, CheckState::Missing(Barrier::Machine));
}

#[test]
fn doctor_missing_libcuda_is_degraded_at_most() {
    let none = Libraries::default();
    assert_eq!(none.judge(true, &root()).state, CheckState::Degraded);
    assert_eq!(none.judge(false, &root()).state, CheckState::NotChecked);
    assert_eq!(none.judge(true, &root()).fact, "no libcuda found: nothing to watch yet");
}

#[test]
fn processes_are_counted_once_over_all_files() {
    let two = Libraries { files: vec![library(), library()], ..Libraries::default() };
    assert_eq!(two.judge(true, &root()).fact, "2 files, in use by 2 processes");
}

#[test]
fn doctor_skipped_library_matters_only_if_mapped_or_named() {
    let state = |reason, mapped_by: &[u32]| {
        judge_left_out(
            &SkippedLibrary { display: "/x".to_owned(), reason, mapped_by: mapped_by.to_vec(), named: false },
            &root(),
        )
        .state
    };
    assert_eq!(state(LeftOutReason::ThirtyTwoBit, &[]), CheckState::NotChecked);
    assert_eq!(state(LeftOutReason::ThirtyTwoBit, &[7]), CheckState::Degraded);
    assert_eq!(state(LeftOutReason::Unreadable(std::io::ErrorKind::NotFound), &[]), CheckState::Degraded);
}

#[test]
fn a_library_in_use_that_cannot_be_opened_is_a_matter_of_permission() {
    let reason = LeftOutReason::Unreadable(std::io::ErrorKind::NotFound);
    let closed = SkippedLibrary { display: "/c/libcuda.so.1".to_owned(), reason, mapped_by: vec![7], named: false };
    let only = Libraries { left_out: vec![closed.clone()], ..Libraries::default() };
    assert_eq!(only.judge(false, &user()).state, CheckState::Missing(Barrier::Permission));
    assert_eq!(only.traces(&root()), Traces::Unknown);
    let check = judge_left_out(&closed, &user());
    assert_eq!(check.fact, "/c/libcuda.so.1, in use by 1 process: cannot be opened");
    assert_eq!(check.fixes[0], "sudo /usr/bin/memwatch doctor");
    let four = Privilege { effective: 1 << 39 | 1 << 38 | 1 << 19 | 1 << 2, ..user() };
    assert!(judge_left_out(&closed, &four).fixes[1].contains("cap_checkpoint_restore"));
    assert_eq!(judge_left_out(&closed, &root()).fixes, ["restart what uses it: 7"]);
}

#[test]
fn doctor_driver_traces_are_unknown_without_access_to_processes() {
    let denied = Libraries { processes_denied: 1, ..Libraries::default() };
    assert_eq!((denied.traces(&user()), denied.traces(&root())), (Traces::Unknown, Traces::None));
    let inside = Privilege { initial_pid_namespace: Some(false), ..root() };
    assert_eq!(Libraries::default().traces(&inside), Traces::Unknown);
    let found = Libraries { files: vec![library()], ..Libraries::default() };
    assert_eq!(found.traces(&user()), Traces::Found);
}

#[test]
fn processes_that_cannot_be_seen_are_counted_and_the_way_is_reported() {
    assert_eq!(judge_processes(9, 0, &root()).state, CheckState::Ok);
    let check = judge_processes(2, 7, &user());
    assert_eq!(
        (check.state, check.fact.as_str()),
        (CheckState::Degraded, "the libraries of 7 of 9 processes are not readable")
    );
    assert!(check.fixes[0].starts_with("sudo "));
    let as_root = judge_processes(2, 7, &root());
    assert!(as_root.fact.ends_with(", even with cap_sys_ptrace") && !as_root.fixes[0].contains("sudo "));
}

#[test]
fn a_long_list_is_cut_short_unless_everything_is_asked_for() {
    let names = ["a", "b", "c"];
    assert_eq!(listed(&names, 3), "a, b, c");
    assert_eq!(listed(&names, 1), "a and 2 more (-v names them)");
}

#[test]
fn doctor_named_file_that_is_not_a_driver_is_an_error_not_fatal() {
    let own = std::env::current_exe().expect("the test's own file");
    let libraries = examine(std::slice::from_ref(&own), None, None);
    let file = libraries.files.iter().find(|file| file.coverage.path == own.display().to_string()).expect("the file");
    assert_eq!(file.coverage.error.as_deref(), Some("exports none of the functions that memwatch probes"));
    assert!(libraries.processes > 0);
}

#[test]
fn numbers_and_nouns_agree() {
    let texts = [count(0, "file"), count(1, "process"), count(2, "process"), count(3, "GPU")];
    assert_eq!(texts, ["0 files", "1 process", "2 processes", "3 GPUs"]);
}

#[test]
fn doctor_names_unknown_exports_with_their_consequence() {
    let mut file = library();
    assert_eq!(judge_exports(&file, false), None);
    file.unknown_exports = vec!["cuMemAllocNew".to_owned()];
    let check = judge_exports(&file, false).expect("a fact");
    assert_eq!(
        (check.state, check.fact.as_str()),
        (
            CheckState::Degraded,
            "/usr/lib/libcuda.so.1: 1 export of this driver unknown to this version: cuMemAllocNew; totals may miss what it allocates"
        )
    );
    file.unknown_exports = (0..10).map(|number| format!("cuMemNew{number}")).collect();
    let many = judge_exports(&file, false).expect("a fact").fact;
    assert!(
        many.contains("10 exports") && many.contains("and 2 more") && many.ends_with("what they allocate"),
        "{many}"
    );
    assert!(judge_exports(&file, true).expect("a fact").fact.contains("cuMemNew9"));
}

#[test]
fn doctor_verbose_states_why_exports_are_not_probed() {
    let line = "not probed on purpose: 7 only read, 2 legacy forms";
    assert!(details(&library(), true).contains(line) && !details(&library(), false).contains(line));
}
