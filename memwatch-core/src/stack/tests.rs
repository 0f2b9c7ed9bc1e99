use super::native::{NativeFrame, NativeRole};
use super::*;

fn native(address: u64) -> NativeStack {
    let frame = NativeFrame {
        function: None,
        name: Some("f".into()),
        library: "libtorch.so".into(),
        address,
        role: NativeRole::Code,
    };
    NativeStack::new(vec![frame], NativeEnd::Complete)
}

fn python(frames: usize) -> PythonStack {
    PythonStack {
        frames: vec![PythonFrame { code: None, module: None }; frames],
        truncated: false,
        borders: Vec::new(),
    }
}

#[test]
fn native_stacks_of_threads_without_python_that_are_alike_are_kept_once() {
    let mut stacks = StackTable::default();
    assert!(stacks.learn_native(1, native(7)) && stacks.learn_native(2, native(8)));
    for id in 3..100_000 {
        assert!(!stacks.learn_native(id, native(7)));
        assert_eq!(stacks.kept_as(id), 1);
    }
    assert_eq!((stacks.native.len(), stacks.alike.len(), stacks.by_content.len()), (2, WAITING, 2));
    assert_eq!(stacks.ends().get(&NativeEnd::Complete), Some(&99_999), "all are counted");
    assert_eq!(stacks.kept_as(2), 2);
    // As after a keyframe.
    stacks.by_content.clear();
    assert!(!stacks.learn_native(100_000, native(8)));
    assert_eq!(stacks.kept_as(100_000), 2);
}

#[test]
fn native_stacks_of_python_stacks_are_each_their_own() {
    let mut stacks = StackTable::default();
    for id in [1, 2] {
        stacks.learn(id, python(3));
        assert!(stacks.learn_native(id, native(7)));
        assert_eq!(stacks.kept_as(id), id);
    }
    assert!(stacks.learn_native(1, native(9)), "another one from here on");
    assert_eq!(stacks.native(1).map(|stack| stack.frames[0].address), Some(9));
    assert_eq!(stacks.ends().get(&NativeEnd::Complete), Some(&2));
    assert!(stacks.learn_native(3, native(7)), "a thread without Python has another number");
}

#[test]
fn stack_table_keeps_the_first_stacks_and_counts_the_rest() {
    let mut stacks = StackTable::default();
    let each = MOST_FRAMES / 4;
    (0..6).for_each(|id| stacks.learn(id, python(each)));
    assert_eq!((stacks.len(), stacks.unkept()), (4, 2));
    assert!(stacks.get(3).is_some() && stacks.get(4).is_none());
    stacks.learn(2, python(1));
    assert_eq!(stacks.get(2).map(|stack| stack.frames.len()), Some(1), "a known one may be another from now on");
}
