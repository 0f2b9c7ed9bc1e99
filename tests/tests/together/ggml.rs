//! ggml's buffers, as llama.cpp has them: what memwatch says of them equals what ggml says itself.

use memwatch_tests::{Gpu, Outcome, Shape, TorchJob};

#[test]
fn a_process_of_llama_cpp_is_listed_with_its_framework() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(command) = gpu.ggml_command(&["ggml_job.py"]) else { return };
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("the first checkpoint");
    let listed = Outcome::of(gpu.memwatch(&["--no-agent", "ps"]));
    assert!(listed.stdout.contains("FRAMEWORK") && listed.stdout.contains(" ggml "), "{}", listed.stdout);
}
