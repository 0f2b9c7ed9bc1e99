use super::*;
use crate::render::fixture;

fn reported(snapshot: &Snapshot) -> String {
    let mut out = Vec::new();
    write(&mut out, snapshot, &fixture::clock(), &TableOptions::default()).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn the_numbers_stand_as_pytorch_prints_them_with_what_is_not_exact() {
    assert_eq!(reported(&fixture::training_node()), include_str!("training.txt"));
}

#[test]
fn a_machine_without_a_framework_says_so() {
    let reported = reported(&fixture::quiet_node());
    assert!(reported.starts_with("No allocator of PyTorch, JAX, TensorFlow or ONNX Runtime found.\n"), "{reported}");
}

#[test]
fn every_reason_has_its_sentence() {
    use memwatch_core::allocators::pytorch::Doubt;
    let unseen = why("unseen");
    for doubt in Doubt::ALL {
        let is_reported = matches!(doubt, Doubt::Unseen | Doubt::NotCounted) || why(doubt.name()) != unseen;
        assert!(is_reported, "{}", doubt.name());
    }
}
