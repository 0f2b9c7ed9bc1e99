use super::*;
use crate::stack::PythonCode;

/// Returns a native stack of frames written as `function@library`.
fn native(frames: &[&str], end: NativeEnd) -> NativeStack {
    let frame = |text: &&str| {
        let (function, library) = text.split_once('@').expect("a function and its library");
        let name: Option<Arc<str>> = Some(function.into()).filter(|name: &Arc<str>| !name.is_empty());
        NativeFrame { function: name.clone(), name, library: library.into(), address: 0, role: NativeRole::Code }
    };
    NativeStack::new(frames.iter().map(frame).collect(), end)
}

/// Returns a Python stack of functions, with the number of frames within each call of the loop.
fn python(functions: &[&str], borders: &[u16]) -> PythonStack {
    let frame = |function: &&str| {
        let code = PythonCode { function: (*function).into(), file: "train.py".into(), line: Some(1) };
        PythonFrame { code: Some(code), module: None }
    };
    PythonStack { frames: functions.iter().map(frame).collect(), truncated: false, borders: borders.to_vec() }
}

fn words(merged: &MergedStack<'_>) -> String {
    let word = |frame: &MergedFrame<'_>| match frame {
        MergedFrame::Python(frame) => format!("*{}", frame.code.as_ref().expect("each has code").function),
        MergedFrame::Native(frame) => frame.name.as_deref().unwrap_or("?").to_owned(),
    };
    let mut words: Vec<_> = merged.frames.iter().map(word).collect();
    if let Some(cut) = merged.cut {
        words.insert(cut, "...".into());
    }
    words.join(" ")
}

const LOOP_FRAME: &str = "_PyEval_EvalFrameDefault@/usr/lib/libpython3.11.so.1.0";
const CALL: &str = "_PyObject_Vectorcall@/usr/lib/libpython3.11.so.1.0";

#[test]
fn merged_stack_puts_python_frames_at_their_interpreter_loop() {
    let native = native(
        &["at::empty@libtorch.so", LOOP_FRAME, CALL, "apply@own.so", LOOP_FRAME, "main@python"],
        NativeEnd::Complete,
    );
    let python = python(&["c", "b", "a"], &[2, 3]);
    let merged = merge(&python, &native);
    assert_eq!(words(&merged), "at::empty *c *b _PyObject_Vectorcall apply *a main");
    assert!(!merged.mismatched);
    let roles: Vec<_> = native.frames.iter().map(|frame| frame.role).collect();
    let (code, inner) = (NativeRole::Code, NativeRole::Interpreter);
    assert_eq!(roles, [code, NativeRole::Loop, inner, code, NativeRole::Loop, code]);
}

#[test]
fn a_part_of_the_loop_that_the_compiler_has_split_off_is_the_loop() {
    let native =
        native(&["_PyEval_EvalFrameDefault.cold@python", "_PyEval_EvalFrameDefaults@python"], NativeEnd::Complete);
    assert_eq!(native.frames[0].role, NativeRole::Loop);
    assert_eq!(native.frames[1].role, NativeRole::Interpreter);
}

#[test]
fn a_native_stack_that_ends_early_says_where_and_keeps_all_of_python() {
    let native = native(&["at::empty@libtorch.so", LOOP_FRAME, CALL], NativeEnd::CopyEnds);
    let merged_stack = python(&["c", "b", "a"], &[1, 3]);
    let merged = merge(&merged_stack, &native);
    assert_eq!(words(&merged), "at::empty *c _PyObject_Vectorcall ... *b *a");
    assert!(!merged.mismatched);
}

#[test]
fn loops_that_do_not_fit_show_no_native_frame_beyond_the_first() {
    let twice = native(&["at::empty@libtorch.so", LOOP_FRAME, CALL, LOOP_FRAME, "main@python"], NativeEnd::Complete);
    for borders in [&[2][..], &[1, 2, 2], &[3, 2], &[1, 9], &[]] {
        let python = python(&["b", "a"], borders);
        let merged = merge(&python, &twice);
        assert_eq!((words(&merged).as_str(), merged.mismatched), ("at::empty ... *b *a", true), "{borders:?}");
    }
}

#[test]
fn merged_stack_is_truncated_where_the_python_stack_was_cut() {
    let native = native(&["at::empty@libtorch.so", LOOP_FRAME, CALL, LOOP_FRAME, "main@python"], NativeEnd::Complete);
    let python = PythonStack { truncated: true, ..python(&["c", "b"], &[1]) };
    let merged = merge(&python, &native);
    assert_eq!(words(&merged), "at::empty *c _PyObject_Vectorcall *b main ...");
}

#[test]
fn native_call_site_is_the_program_function_or_the_first_telling_frame() {
    let allocator =
        ["c10::report@libc10.so", "Native::malloc@libc10_cuda.so", "at::detail::empty_cuda@libtorch_cuda.so"];
    let backward = ["at::native::empty_cuda@/w/libtorch_cuda.so", "@libtorch_cpu.so", "start_thread@/lib/libc.so.6"];
    let name = |frames: &[&str]| {
        let stack = native(frames, NativeEnd::Complete);
        stack.site().map(|frame| frame.name.clone().expect("only named ones").to_string())
    };
    assert_eq!(name(&[&allocator[..], &backward].concat()).as_deref(), Some("at::native::empty_cuda"));
    let own = [&allocator[..], &backward[..2], &["serve@/srv/serve"]].concat();
    assert_eq!(name(&own).as_deref(), Some("serve"));
    let node = "torch::autograd::generated::AddmmBackward0::apply@libtorch_cpu.so";
    let of_node = name(&[&allocator[..], &backward[..1], &[node]].concat());
    assert_eq!(of_node.as_deref(), Some("torch::autograd::generated::AddmmBackward0::apply"));
    assert_eq!(name(&allocator), None);
    assert_eq!(name(&[]), None);
}
