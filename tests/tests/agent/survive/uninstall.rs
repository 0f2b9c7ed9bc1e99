//! What `--uninstall` removes from bpffs, and what it leaves.

use super::*;
use memwatch_tests::test;

#[test(alone)]
fn uninstall_removes_what_a_killed_agent_left_but_not_a_running_one() {
    let machine = RestartMachine::new(PrologueShape::Push);
    let agent = machine.agent(&[]);
    let before = machine.pinned();
    let outcome = machine.uninstall();
    outcome.assert_ended_with(0, &[]);
    assert!(outcome.stdout.contains("kept those of 1 agent"), "{outcome:?}");
    assert_eq!(machine.pinned(), before);
    killed(agent);
    assert_eq!(machine.pinned(), before);
    let outcome = machine.uninstall();
    outcome.assert_ended_with(0, &[]);
    assert!(outcome.stdout.contains("the pinned BPF objects of 1 agent"), "{outcome:?}");
    machine.assert_clean();
    machine.uninstall().assert_ended_with(0, &[]);
}

#[test(alone)]
fn bpffs_writable_by_others_is_not_used_and_links_in_it_not_followed() {
    const MALLORY: u32 = 65_534;
    let machine = RestartMachine::new(PrologueShape::Push);
    let (bpf, victim) = (machine.bpf.path(), machine.gpu.directory().join("victim"));
    fs::create_dir(&victim).and_then(|()| fs::write(victim.join("key"), "precious")).expect("it is ours");
    let open = |mode| fs::set_permissions(bpf, fs::Permissions::from_mode(mode)).expect("it is ours");
    open(0o1777);
    let place = bpf.join("memwatch/agent-00000001");
    fs::create_dir_all(&place).expect("it is ours");
    std::os::unix::fs::symlink(&victim, place.join("x")).expect("it is ours");
    for path in [bpf.join("memwatch"), place.clone()] {
        std::os::unix::fs::chown(path, Some(MALLORY), Some(MALLORY)).expect("root may");
    }
    let agent = machine.agent(&[]);
    let workload = begun(&machine.gpu);
    assert_agrees(&machine.gpu, &mut machine.watch(&agent), &workload, Agreement::CallsOnly);
    stop(agent);
    CommandOutcome::of(machine.uninstaller()).assert_ended_with(1, &["memwatch in it is owned by user 65534"]);
    assert!(place.join("x").is_symlink() && victim.join("key").exists());
    // If root owns the link, the link is removed and its target stays.
    std::os::unix::fs::chown(bpf.join("memwatch"), Some(0), Some(0)).expect("root may");
    std::os::unix::fs::chown(&place, Some(0), Some(0)).expect("root may");
    machine.uninstall().assert_ended_with(0, &[]);
    assert!(place.exists(), "it is another agent's");
    CommandOutcome::of(machine.uninstaller()).assert_ended_with(0, &[]);
    assert!(!place.exists() && victim.join("key").exists());
    open(0o700);
    let agent = machine.agent(&[]);
    assert_ne!(machine.pinned(), Vec::<PathBuf>::new());
    stop(agent);
}
