//! Idle programs of many kinds: the allocator state read from each equals PyTorch's in every field,
//! and so do the names of everything that PyTorch names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use memwatch_tests::harness::cannot_run;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

use super::late_state::{compared, run_until};

/// Environment variable with a folder of Hugging Face's transformers, for tests that are not run by
/// default.
const TRANSFORMERS: &str = "TRANSFORMERS_PACKAGES";

/// A job at its first checkpoint.
struct KindJob {
    what: String,
    job: TorchJob,
    checkpoint: Value,
}

impl KindJob {
    fn of(what: String, command: Command) -> Self {
        let mut job = TorchJob::start(command);
        let checkpoint = job.next_checkpoint().expect("it holds something");
        Self { what, job, checkpoint }
    }

    /// Compares the segments and blocks of `memwatch snapshot` with the checkpoint.
    fn assert_allocator_state(&self, gpu: &SimulatedGpu) {
        let tgid = self.job.tgid().to_string();
        let [snapshot, truth] =
            ["kind.pickle", "kind.json"].map(|name| gpu.directory().join(name).display().to_string());
        std::fs::write(&truth, self.checkpoint.to_string()).expect("a file in the temporary directory");
        let words = ["--no-agent", "snapshot", &tgid, "--force", "-o", &snapshot];
        let ended = run_until(gpu, &words, |ended| ended.code == 0 && compared(&snapshot, &truth)["differ"] == 0);
        ended.assert_ended_with(0, &["is written"]);
        let compared = compared(&snapshot, &truth);
        assert_eq!(compared["differ"], 0, "{}: {compared:#}", self.what);
        println!("{}: {} fields are equal", self.what, compared["fields"]);
    }

    /// Compares the names of `memwatch holdings` with the names that the job reports afterwards.
    fn assert_names(&mut self, gpu: &SimulatedGpu) {
        let ended = gpu.run_memwatch(&["--json", "holdings", "--pid", &self.job.tgid().to_string()]);
        ended.assert_ended_with(0, &[]);
        let report: Value = serde_json::from_str(&ended.stdout).expect("it prints JSON");
        let process = &report["data"]["processes"][0];
        self.job.go_on();
        let truth = self.job.next_checkpoint().expect("it says what it held");
        let mut expected = BTreeMap::<(u64, &str), BTreeSet<&str>>::new();
        for row in truth["names"].as_array().expect("names") {
            let (address, class, name) = (row[0].as_u64(), row[1].as_str(), row[2].as_str());
            let key = (address.expect("one"), class.expect("one"));
            expected.entry(key).or_default().insert(name.expect("one"));
        }
        let found: BTreeMap<_, _> = process["blocks"].as_array().expect("blocks").iter().map(of_block).collect();
        let what = &self.what;
        for (key, names) in &expected {
            let near = found.iter().find(|((address, _), _)| *address == key.0);
            assert_eq!(found.get(key), Some(names), "{what}: at {key:?} is {near:?}");
        }
        for key in found.keys().filter(|(_, class)| PYTORCHS.contains(class)) {
            assert!(expected.contains_key(key), "{what}: PyTorch does not know {key:?}: {:?}", found[key]);
        }
        assert!(expected.len() > 3, "{truth}");
        let (named, all) = (&process["named_bytes"], &process["allocated_bytes"]);
        println!("{what}: {} names are equal; {named} of {all} bytes are named", expected.len());
    }
}

/// Classes whose names PyTorch knows.
const PYTORCHS: [&str; 4] = ["parameter", "gradient", "buffer", "optimizer_state"];

fn of_block(block: &Value) -> ((u64, &str), BTreeSet<&str>) {
    let others = block["other_names"].as_array().into_iter().flatten();
    let names = others.chain([&block["name"]]).filter_map(Value::as_str).collect();
    ((block["address"].as_u64().expect("one"), block["class"].as_str().expect("one")), names)
}

fn are_read_as_they_are(version: &str, kind: &str, settings: &[(&str, PathBuf)]) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut command = gpu.torch_command(version, TorchAllocator::Native, &["kinds.py", kind]);
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    let mut held = KindJob::of(format!("{kind} on {version}"), command);
    held.assert_allocator_state(&gpu);
    held.assert_names(&gpu);
}

fn two_ranks_are_read_as_they_are(version: &str, kind: &str) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_DEVICES", &2);
    let store = gpu.directory().join("store").display().to_string();
    let command = |rank: u32| {
        let words = ["kinds.py", kind, "--store", &store];
        let mut command = gpu.torch_command(version, TorchAllocator::Native, &words);
        command.env("RANK", rank.to_string());
        command
    };
    // Each process waits for the other before its first checkpoint.
    let started: Vec<_> = (0..2).map(command).map(TorchJob::start).collect();
    let held = started.into_iter().enumerate().map(|(rank, mut job)| {
        let checkpoint = job.next_checkpoint().expect("it holds something");
        KindJob { what: format!("rank {rank} of {kind} on {version}"), job, checkpoint }
    });
    let mut held: Vec<_> = held.collect();
    for one in &held {
        one.assert_allocator_state(&gpu);
    }
    for one in &mut held {
        one.assert_names(&gpu);
    }
}

#[test]
fn cuda_graphs_with_pools_of_their_own_are_read_as_they_are() {
    are_read_as_they_are("2.8", "graphs", &[]);
    are_read_as_they_are("2.15", "graphs", &[]);
}

#[test]
fn two_models_of_one_class_have_different_names() {
    are_read_as_they_are("2.8", "two_models", &[]);
}

#[test]
fn two_ranks_of_distributed_data_parallel_are_read_as_they_are() {
    two_ranks_are_read_as_they_are("2.8", "ddp");
}

#[test]
fn two_ranks_of_fully_sharded_data_parallel_are_read_as_they_are() {
    two_ranks_are_read_as_they_are("2.8", "fsdp");
    two_ranks_are_read_as_they_are("2.8", "fully_shard");
}

/// Another malloc gives no information on the sizes of its allocations.
#[test]
fn a_program_with_another_malloc_is_read_as_it_is() {
    let usual = ["/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "/usr/lib64/libjemalloc.so.2"].map(PathBuf::from);
    let named = std::env::var_os("JEMALLOC").map(PathBuf::from);
    let Some(library) = named.into_iter().chain(usual).find(|path| path.exists()) else {
        cannot_run("no libjemalloc.so.2 (Debian: libjemalloc2), and JEMALLOC names none");
    };
    for kind in ["graphs", "two_models"] {
        are_read_as_they_are("2.8", kind, &[("LD_PRELOAD", library.clone())]);
    }
}

/// Setup: `pip install --no-deps --target DIR transformers==4.57.1 tokenizers
/// huggingface-hub==0.36.2 safetensors regex requests pyyaml tqdm numpy urllib3 idna certifi
/// charset-normalizer packaging filelock`, then `TRANSFORMERS_PACKAGES=DIR cargo xtask test
/// integration hugging_face`.
#[test]
fn models_of_hugging_face_are_read_as_they_are() {
    let Some(packages) = std::env::var_os(TRANSFORMERS).map(PathBuf::from) else {
        cannot_run(format!("{TRANSFORMERS} names no folder with transformers"));
    };
    for kind in ["gpt2", "llama"] {
        are_read_as_they_are("2.8", kind, &[("PYTHONPATH", packages.clone())]);
    }
}
