use super::*;
use crate::sinks::fixture;

fn told(snapshot: &Snapshot, which: Places, top: usize) -> String {
    let mut out = Vec::new();
    let options = TableOptions::default();
    write(&mut out, snapshot, (which, top), &fixture::clock(), &options).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn a_training_is_told_by_stage() {
    assert_eq!(told(&fixture::training_node(), Places::Stages, 20), include_str!("stages.txt"));
}

#[test]
fn a_training_is_told_by_layer() {
    assert_eq!(told(&fixture::training_node(), Places::Layers, 20), include_str!("layers.txt"));
}

#[test]
fn a_training_is_told_by_line() {
    assert_eq!(told(&fixture::training_node(), Places::Sites, 20), include_str!("sites.txt"));
}

#[test]
fn what_is_not_shown_is_in_the_last_row() {
    let told = told(&fixture::training_node(), Places::Sites, 1);
    assert!(told.contains("(before attach)\n") && told.contains("(all others)\n"), "{told}");
    assert!(!told.contains("net.py:17 Attention.forward\n  "), "{told}");
}

#[test]
fn a_machine_without_pytorch_says_so() {
    let told = told(&fixture::quiet_node(), Places::Stages, 20);
    assert!(told.starts_with("No memory of PyTorch has been seen.\n"), "{told}");
}
