use super::*;
use crate::allocators::test_stacks::stack;

/// Reads a stack of a process without other known stacks.
fn read(stack: &PythonStack) -> StackReading<'_> {
    let mut packages = PackageFolders::default();
    packages.learn(stack);
    super::read(stack, &packages)
}

fn line_of(frames: &[&str]) -> (String, u32) {
    let stack = stack(frames);
    let line = read(&stack).line.expect("a line");
    (line.file.to_string(), line.line.expect("a number"))
}

/// Returns the line numbers of the program's and of the library's frame.
fn lines_of(frames: &[&str]) -> (u32, Option<u32>) {
    let stack = stack(frames);
    let reading = read(&stack);
    (reading.line.and_then(|code| code.line).expect("a line"), reading.library.and_then(|code| code.line))
}

fn doing_of(frames: &[&str]) -> Doing {
    read(&stack(frames)).doing
}

#[test]
fn a_stack_belongs_to_the_programs_innermost_line() {
    let linear = ["torch/nn/modules/linear.py Linear.forward:134", "nn Linear 0x20 fc", "train.py main:7"];
    assert_eq!(line_of(&linear), ("train.py".to_owned(), 7));
    let generated = ["/tmp/torchinductor_root/ab/cab.py call:40", "torch/_dynamo/eval_frame.py _fn:1", "train.py f:3"];
    assert_eq!(line_of(&generated), ("train.py".to_owned(), 3));
    let checkout = ["/home/u/pytorch/torch/nn/modules/linear.py Linear.forward:1", "/home/u/torch/mine.py f:4"];
    assert_eq!(line_of(&checkout).1, 4);
}

#[test]
fn library_line_comes_after_the_line_of_the_program() {
    let vit = "/env/lib/python3.11/site-packages/timm/vit.py Block.forward:9";
    assert_eq!(lines_of(&["torch/nn/functional.py linear:1", vit, "train.py main:7"]), (7, Some(9)));
    let copy = ["torch/storage.py UntypedStorage.clone:257", "torch/_tensor.py Tensor.__deepcopy__:130"];
    let python = "/usr/lib/python3.11/copy.py deepcopy:153";
    assert_eq!(lines_of(&[copy[0], copy[1], python, "best.py keep:6"]), (6, Some(257)));
    assert_eq!(lines_of(&["train.py main:7", "torch/nn/modules/module.py apply:1", "train.py run:9"]), (7, None));
    // If the stack has no other frames, a package counts as the program.
    assert_eq!(lines_of(&["torch/nn/functional.py linear:1", vit]), (9, Some(1)));
}

#[test]
fn torch_is_found_in_any_folder_by_what_is_in_it() {
    for file in ["_utils.py", "storage.py", "_compile.py", "cuda/graphs.py", "serialization.py"] {
        let own = format!("/opt/job/packages/torch/{file} f:1");
        assert_eq!(lines_of(&[&own, "/opt/job/train.py main:7"]), (7, Some(1)), "{file}");
    }
    // The folder that contains torch has packages; a file next to them belongs to the program.
    let torch = "/opt/job/packages/torch/nn/modules/linear.py Linear.forward:1";
    let timm = "/opt/job/packages/timm/vit.py Block.forward:9";
    assert_eq!(lines_of(&[torch, timm, "/opt/job/train.py main:7"]), (7, Some(9)));
    assert_eq!(lines_of(&[torch, timm, "/opt/job/packages/train.py main:7"]), (7, Some(9)));
    assert_eq!(line_of(&["/home/u/torch/mine.py f:4", "/home/u/run.py g:5"]).1, 4);
    let wheel = "/home/ann/.pex/wheels/ab/torch-2.8.0.whl/torch/_utils.py f:1";
    assert_eq!(lines_of(&[wheel, "/app/train.py main:7"]), (7, Some(1)));
}

#[test]
fn frames_that_only_pass_a_call_on_are_passed_over() {
    let vllm = |place: &str| format!("/env/lib/python3.11/site-packages/vllm/{place}");
    let (parameter, loader) = (vllm("parameter.py P.__torch_function__:126"), vllm("loader.py load_weights:51"));
    let (decorated, serve) = (vllm("utils.py f.<locals>.inner:80"), vllm("engine.py serve:33"));
    let run = "<frozen runpy> _run_module_as_main:198";
    assert_eq!(line_of(&[&parameter, &decorated, &loader, &serve, run]).1, 51);
    // Launchers of a package's program do not count as the program.
    assert_eq!(line_of(&[&parameter, &loader, "/env/bin/vllm <module>:8"]).1, 51);
    let spawn = "/usr/lib/python3.11/multiprocessing/spawn.py spawn_main:122";
    assert_eq!(line_of(&[&loader, spawn, "<string> <module>:1"]).1, 51);
    assert_eq!(line_of(&[&loader, "<string> <module>:1"]).1, 1);
    let text = ["torch/functional.py einsum:1", "<string> Batch.__init__:3", "data.py collate:14"];
    assert_eq!(lines_of(&text), (14, Some(1)));
    // The program's own decorator around a function of torch.
    assert_eq!(line_of(&["torch/functional.py einsum:1", "own.py timed.<locals>.wrapper:4", "own.py f:9"]).1, 9);
    assert_eq!(line_of(&["torch/functional.py einsum:1", "own.py timed.<locals>.wrapper:4"]).1, 4);
}

#[test]
fn pythons_own_library_and_torch_are_named_where_nothing_else_is() {
    let decorated = ["/usr/lib/python3.11/contextlib.py inner:81", "a.py f:2"];
    assert_eq!(line_of(&decorated), ("a.py".to_owned(), 2));
    assert_eq!(line_of(&["torch/utils/data.py f:5", "/usr/lib/python3.11/threading.py run:982"]).1, 982);
    assert_eq!(line_of(&["torch/utils/data.py f:5"]).1, 5);
    assert_eq!(read(&stack(&[])).line, None);
}

#[test]
fn innermost_frame_decides_the_phase() {
    let step = ["torch/optim/adamw.py AdamW.step:220", "torch/optim/optimizer.py wrapper:493", "train.py <module>:9"];
    assert_eq!(doing_of(&step), Doing::Optimizer);
    assert_eq!(doing_of(&["own.py Lion.step:9", "torch/optim/optimizer.py wrapper:493"]), Doing::Optimizer);
    assert_eq!(doing_of(&["nn Linear 0x20 fc", "nn Net 0x10 -", "train.py main:3"]), Doing::Forward);
    let energy = ["torch/autograd/__init__.py grad:496", "nn Potential 0x10 -", "train.py main:3"];
    assert_eq!(doing_of(&energy), Doing::Backward);
    assert_eq!(
        doing_of(&["torch/autograd/__init__.py _make_grads:199", "torch/_tensor.py backward:1"]),
        Doing::Backward
    );
    assert_eq!(doing_of(&["torch/optim/lr_scheduler.py StepLR.step:4", "train.py main:3"]), Doing::Nothing);
    assert_eq!(doing_of(&["mine.py backward:1", "train.py main:3"]), Doing::Nothing);
}

#[test]
fn optimizer_closure_is_not_the_optimizer_phase() {
    let outer = ["torch/optim/lbfgs.py LBFGS.step:333", "torch/optim/optimizer.py wrapper:493", "train.py main:3"];
    let with = |inner: &[&'static str]| doing_of(&[inner, &["train.py closure:5"], &outer].concat());
    assert_eq!(with(&[]), Doing::Closure);
    assert_eq!(with(&["nn Net 0x10 -"]), Doing::Forward);
    assert_eq!(with(&["torch/autograd/graph.py _engine_run_backward:829"]), Doing::Backward);
}

#[test]
fn a_module_called_by_a_backward_pass_computes_again() {
    let engine =
        ["torch/autograd/graph.py _engine_run_backward:829", "torch/_tensor.py backward:647", "train.py main:3"];
    let again = ["nn Block 0x10 -", "torch/utils/checkpoint.py CheckpointFunction.backward:290"];
    assert_eq!(doing_of(&[&again[..], &engine].concat()), Doing::Recomputation);
    assert_eq!(doing_of(&again), Doing::Forward);
}

#[test]
fn a_compiled_graph_says_its_direction() {
    let file = "torch/_functorch/_aot_autograd/runtime_wrappers.py";
    let generated = "/tmp/torchinductor_root/ab/cab.py call:40";
    let forward = format!("{file} AOTDispatchAutograd.post_compile.<locals>.CompiledFunction.forward:1900");
    let backward = format!("{file} CompiledFunction.backward:2100");
    assert_eq!(doing_of(&[generated, &forward, "train.py main:3"]), Doing::Forward);
    assert_eq!(doing_of(&[generated, &backward]), Doing::Backward);
}

#[test]
fn only_a_whole_stack_of_known_frames_shows_that_no_optimizer_runs() {
    let mut own = stack(&["train.py f:1", "train.py <module>:2"]);
    assert!(read(&own).without_optimizer && read(&own).from_the_start);
    own.truncated = true;
    assert!(!read(&own).without_optimizer && !read(&own).from_the_start);
    own.truncated = false;
    own.frames[0].code = None;
    assert!(!read(&own).without_optimizer);
    assert!(!read(&stack(&["torch/optim/sgd.py SGD.step:1", "train.py <module>:2"])).without_optimizer);
    assert!(!read(&stack(&["torch/utils/checkpoint.py unpack_hook:1"])).from_the_start);
}

#[test]
fn only_the_call_of_the_engine_itself_is_within_it() {
    assert!(read(&stack(&["torch/autograd/graph.py _engine_run_backward:829"])).in_engine);
    assert!(!read(&stack(&["torch/autograd/__init__.py _make_grads:1", "torch/_tensor.py backward:1"])).in_engine);
    assert!(!read(&stack(&["train.py f:1", "torch/_tensor.py backward:1"])).in_engine);
}

#[test]
fn names_are_those_of_the_model_without_its_wrappers() {
    assert_eq!(own_name("module.layers.0", "DistributedDataParallel"), "layers.0");
    assert_eq!(own_name("module.layers.0", "Net"), "module.layers.0");
    assert_eq!(own_name("_orig_mod.module.fc", "OptimizedModule"), "module.fc");
    assert_eq!(
        own_name("_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.fc", "FullyShardedDataParallel"),
        "layers.0.fc"
    );
    assert_eq!(own_name("layers.1._checkpoint_wrapped_module.fc", "Net"), "layers.1.fc");
    assert_eq!(own_name("", "Net"), "");
}
