//! `memwatch holdings` of memory whose owner is not a plain variable: graphs, storages, modules in
//! cycles, masters of optimizers, buckets of DDP. Also of a program that moves the references to
//! its tensors during the reading.

use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

fn report(gpu: &SimulatedGpu, job: &TorchJob, words: &[&str]) -> Value {
    let tgid = job.tgid().to_string();
    let all = [&["--json", "holdings", "--pid", &tgid, "--top", "100"], words].concat();
    let ended = gpu.run_memwatch(&all);
    ended.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&ended.stdout).expect("it prints JSON");
    report["data"]["processes"][0].clone()
}

fn blocks(process: &Value) -> &Vec<Value> {
    process["blocks"].as_array().expect("blocks")
}

fn block_at<'v>(process: &'v Value, address: &Value) -> &'v Value {
    let mut blocks = blocks(process).iter();
    blocks.find(|block| block["address"] == *address).unwrap_or_else(|| panic!("no block is at {address}"))
}

fn assert_owners_at_rest(gpu: &SimulatedGpu, job: &TorchJob, checkpoint: &Value) {
    let process = report(gpu, job, &[]);
    assert_eq!(process["dropped_names"], 0);
    for expected in checkpoint["expected"].as_array().expect("rows") {
        let [address, class, name, kept_by] = &expected.as_array().expect("a row")[..] else { panic!("{expected}") };
        let block = block_at(&process, address);
        assert_eq!((&block["class"], &block["kept_by"]), (class, kept_by), "{expected}: {block:#}");
        assert!(name.is_null() || block["name"] == *name, "{expected}: {block:#}");
    }
    for address in checkpoint["states"].as_array().expect("addresses") {
        let block = block_at(&process, address);
        let kept_by = block["kept_by"].as_str().unwrap_or_default();
        assert!(kept_by.ends_with("owners.py:states: state"), "only the generator of a loop keeps it: {block:#}");
    }
    let groups = process["groups"].as_array().expect("groups");
    let lost: Vec<_> = groups.iter().filter(|group| group["lost_models"] != 0).collect();
    assert_eq!(lost.len(), 1, "equal models are one row: {lost:#?}");
    assert_eq!(
        (&lost[0]["name"], &lost[0]["lost_models"], &lost[0]["count"]),
        (&"<Policy>".into(), &3.into(), &6.into())
    );
    let is_bucket = |block: &&Value| block["name"] == "gradient buckets of DistributedDataParallel";
    assert_eq!(blocks(&process).iter().filter(is_bucket).count(), 1);
    let classes: Vec<_> = process["classes"].as_array().expect("classes").iter().map(|sum| &sum["class"]).collect();
    for class in ["no_python_object", "cpp_only", "changed", "not_read"] {
        assert!(!classes.contains(&&Value::from(class)), "everything has an owner: {classes:?}");
    }
    let kept = report(gpu, job, &["--by", "retainer"]);
    let kept = kept["groups"].as_array().expect("groups").iter().find(|group| group["name"] == "means[*].sum");
    assert!(kept.expect("a retainer")["count"].as_u64() >= Some(3), "with what its graph has saved: {kept:#?}");
}

#[test]
fn retainers_that_are_not_plain_variables_are_named_even_while_moving() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["owners.py"]);
    let checkpoint = job.next_checkpoint().expect("it holds something");
    assert_owners_at_rest(&gpu, &job, &checkpoint);
    job.go_on();
    let checkpoint = job.next_checkpoint().expect("it moves");
    let mut is_named = false;
    for _ in 0..20 {
        let process = report(&gpu, &job, &[]);
        let is_edit = |block: &&Value| block["block_bytes"] == 28_160;
        let edits: Vec<_> = blocks(&process).iter().filter(is_edit).collect();
        assert!(edits.len() as u64 >= checkpoint["list"].as_u64().expect("a number"), "{}", edits.len());
        for edit in &edits {
            assert!(edit["class"] == "tensor" || edit["class"] == "changed", "a variable leads to it: {edit:#}");
        }
        let name = |block: &Value| block["name"].as_str().unwrap_or_default().to_owned();
        // On a busy machine each reading may see another stroke.
        is_named = edits.iter().all(|edit| name(edit).contains("canvas"));
        if is_named {
            break;
        }
    }
    assert!(is_named, "the list is found where it is by then");
}
