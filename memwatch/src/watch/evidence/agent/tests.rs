use super::*;
use crate::render::fixture::crowded_node;
use memwatch_core::owner::Ancestor;

/// This process exists for as long as the test runs, and no process has the highest number.
fn own() -> u32 {
    std::process::id()
}

fn made(processes: &[(u32, u64, &[u32])]) -> Snapshot {
    let mut snapshot = crowded_node(u32::try_from(processes.len()).expect("few"));
    for (process, (tgid, start_ns, ancestors)) in snapshot.processes.iter_mut().zip(processes) {
        (process.tgid, process.start_ns, process.target) = (Tgid(*tgid), Some(*start_ns), false);
        let ancestor = |tgid: &u32| Ancestor { tgid: Tgid(*tgid), comm: "sh".to_owned() };
        process.ancestors = ancestors.iter().map(ancestor).collect();
    }
    snapshot
}

fn shown(family: &mut TargetFamily, mut snapshot: Snapshot) -> Vec<(u32, bool)> {
    family.apply(&mut snapshot);
    snapshot.processes.iter().map(|process| (process.tgid.0, process.target)).collect()
}

fn family() -> TargetFamily {
    TargetFamily::new(&[Tgid(own())], Viewer::Everything, None).unwrap_or_else(|failure| panic!("{failure:?}"))
}

#[test]
fn source_without_targets_shows_all_processes() {
    let mut family = TargetFamily::new(&[], Viewer::User(1), None).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert_eq!(shown(&mut family, made(&[(7, 1, &[]), (8, 1, &[])])), [(7, false), (8, false)]);
    assert!(family.is_anybody_left() && family.unseen().count() == 0);
}

#[test]
fn a_targets_children_are_shown_also_when_it_is_gone() {
    let mut family = family();
    let child = own() + 1;
    assert_eq!(family.unseen().collect::<Vec<_>>(), [own()]);
    let both = made(&[(own(), 5, &[1]), (child, 9, &[own(), 1]), (7, 1, &[1])]);
    assert_eq!(shown(&mut family, both.clone()), [(own(), true), (child, false)]);
    assert_eq!(family.unseen().count(), 0);
    let mut later = both;
    later.processes[0].ended_ns = Some(later.time_ns);
    later.processes[1].ancestors.clear();
    assert_eq!(shown(&mut family, later.clone()), [(own(), true), (child, false)]);
    assert!(family.is_anybody_left(), "the child");
    later.processes[1].ended_ns = Some(later.time_ns);
    shown(&mut family, later);
    assert!(!family.is_anybody_left());
}

#[test]
fn target_pid_reused_by_another_process_is_not_shown() {
    let mut before = made(&[(own(), 2, &[])]);
    before.processes[0].ended_ns = Some(3);
    let mut family = family();
    assert_eq!(shown(&mut family, before), [], "it had ended before anybody asked");
    assert_eq!(shown(&mut family, made(&[(own(), 5, &[])])), [(own(), true)]);
    assert_eq!(shown(&mut family, made(&[(own(), 9, &[])])), []);
    assert!(!family.is_anybody_left(), "the target has gone");
}

#[test]
fn targets_that_are_not_there_or_anothers_are_refused() {
    let highest = Tgid(i32::MAX.cast_unsigned());
    let refused = |tgid, viewer| TargetFamily::new(&[tgid], viewer, None).expect_err("it cannot be shown").exit;
    assert_eq!(refused(highest, Viewer::Everything), Exit::NoTarget);
    assert_eq!(refused(Tgid(1), Viewer::User(64_000)), Exit::NotPermitted);
    assert_eq!(refused(Tgid(u32::MAX), Viewer::Everything), Exit::NoTarget);
}
