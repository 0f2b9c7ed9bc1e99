//! Every command gives the same answer on a training that runs out of memory, whether it watches,
//! reads a recording, or reads what a killed recorder has left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator, until};
use serde_json::Value;

/// A command, and JSON pointers to the parts of its answer that do not depend on the start and the
/// duration of a watch. `*` matches each element of a list. If the command writes a file, the
/// whole file is compared.
type ComparedCommand = (&'static [&'static str], &'static [&'static str]);

const ASKED: [ComparedCommand; 12] = [
    (&["where", "--stacks=all"], &["/data/processes/*/devices/*/stacks"]),
    (&["where", "--by", "phase"], &["/data/processes/*/steps", "/data/processes/*/devices/*/phases"]),
    (&["where", "--by", "module"], &["/data/processes/*/devices/*/modules"]),
    (&["leak"], &["/data/processes/*/findings/0", "/data/processes/*/too_short"]),
    (&["oom"], &["/data/failures", "/data/forecast/processes/*/growing"]),
    (&["simulate"], &["/data/devices/*/measured", "/data/devices/*/policies", "/data/devices/*/advice"]),
    (&["fragment", "-r", "64M"], &["/data/devices/*/all", "/data/devices/*/request", "/data/devices/*/segments"]),
    (&["timeline"], &["/data/events"]),
    (
        &["report"],
        &[
            "/data/profile/processes/*/gpus/*/live/peak_bytes",
            "/data/profile/processes/*/gpus/*/reserved/current_bytes",
            "/data/oom",
            "/data/leak/processes/*/findings/0",
            "/data/fragment/devices/*/all",
            "/data/churn/kinds/*/sizes",
        ],
    ),
    (&["flamegraph", "-o", "flame.svg"], &[]),
    (&["export", "-o", "stacks.folded"], &[]),
    (&["snapshot", "-o", "snapshot.pickle"], &[]),
];

/// Fields that differ between watches: times and NVML readings, samples chosen by each watch, such
/// as the native stacks that are copied, and what a watch with fewer probes than a recording does
/// not see. Retainers of growing memory depend on the time of reading, and so do causes, which are
/// derived from them. Whether a program survives a failure is known only some seconds later.
const ITS_OWN: [&str; 29] = [
    "ages",
    "bytes_per_minute",
    "causes",
    "failure_time",
    "first_bytes",
    "held_bytes",
    "host_duration_seconds",
    "is_survived",
    "last_bytes",
    "late_bytes_per_minute",
    "late_p",
    "longest_lifetime_seconds",
    "mean_lifetime_seconds",
    "native",
    "nearby_split_bytes",
    "p",
    "points",
    "reason",
    "replaced_seconds",
    "retainers",
    "rounding_bytes",
    "sampled_time",
    "seconds",
    "since",
    "time",
    "time_ns",
    "total_rounding_bytes",
    "until",
    "used_bytes",
];

/// Returns a value without the fields that differ between watches.
fn comparable(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(key, _)| !ITS_OWN.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), comparable(value)))
            .collect(),
        Value::Array(list) => list.iter().map(comparable).collect(),
        other => other.clone(),
    }
}

/// Returns the values that a pointer with `*` leads to.
fn at<'a>(value: &'a Value, pointer: &str) -> Vec<&'a Value> {
    match pointer.split_once("/*") {
        None => value.pointer(pointer).into_iter().collect(),
        Some((list, rest)) => {
            let list = value.pointer(list).and_then(Value::as_array);
            list.into_iter().flatten().flat_map(|one| at(one, rest)).collect()
        }
    }
}

/// A command, and the reader whose answer to it is examined.
struct CommandReader<'a> {
    gpu: &'a SimulatedGpu,
    asked: &'a ComparedCommand,
    /// Name of the reader: a watch or the reader of a recording.
    who: &'a str,
}

impl CommandReader<'_> {
    fn file(&self) -> Option<PathBuf> {
        let name = self.asked.0.iter().skip_while(|word| **word != "-o").nth(1)?;
        Some(self.gpu.directory().join(format!("{}-{name}", self.who)))
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = self.gpu.memwatch(&[]);
        match self.file() {
            None => command.arg("--json").args(self.asked.0),
            Some(file) => command.arg(self.asked.0[0]).arg("-o").arg(file),
        };
        command.args(more);
        command
    }

    fn answer(&self, stated: &str) -> Vec<Value> {
        let Some(file) = self.file() else {
            let stated: Value = serde_json::from_str(stated).unwrap_or_else(|error| panic!("{error} in {stated}"));
            let answers: Vec<_> =
                self.asked.1.iter().flat_map(|pointer| at(&stated, pointer)).map(comparable).collect();
            assert!(answers.len() >= self.asked.1.len(), "{stated:#}");
            return answers;
        };
        let bytes = if file.extension().is_some_and(|extension| extension == "pickle") {
            unpickled(&file)
        } else {
            fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        };
        assert!(bytes.len() > 100, "{}", file.display());
        vec![String::from_utf8(bytes).expect("it is text").into()]
    }
}

/// Returns a snapshot without its times.
fn unpickled(file: &Path) -> Vec<u8> {
    const SCRIPT: &str = "import json, pickle, sys\n\
            seen = pickle.load(open(sys.argv[1], 'rb'))\n\
            [line.pop('time_us') for lines in seen['device_traces'] for line in lines]\n\
            print(json.dumps([seen['segments'], seen['device_traces']]))";
    let read = Command::new("python3").args(["-c", SCRIPT]).arg(file).output().expect("Python starts");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    read.stdout
}

/// Waits until a recording in progress has everything that the program holds now.
fn until_written(gpu: &SimulatedGpu, file: &str, checkpoint: &Value) {
    let held = &checkpoint["devices"][0]["memory_stats"];
    let [allocated, freed] = ["allocation.all.allocated", "allocation.all.freed"];
    until(&format!("{} allocations and {} frees in {file}", held[allocated], held[freed]), || {
        let read = CommandOutcome::of(gpu.memwatch(&["stats", "--json", "--in", file]));
        let stated: Value = serde_json::from_str(&read.stdout).unwrap_or_default();
        let written = &stated["data"]["processes"][0]["devices"][0]["statistics"];
        [allocated, freed].iter().all(|field| written[field] == held[field]).then_some(())
    });
}

#[test]
fn live_watch_recording_and_killed_recording_give_the_same_answers() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &1_000);
    let words = ["courses.py", "linear", "--seconds", "60", "--seed", "1", "--rate", "36", "--pace", "8"];
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &words);
    let tgid = job.tgid().to_string();
    let place = |name: &str| gpu.directory().join(name).display().to_string();
    let recordings = [place("whole.mwr"), place("killed.mwr")];
    let [whole, killed] = recordings.each_ref().map(|file| {
        AttributionWatch::of(gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", file]))
    });
    let watched: Vec<_> = ASKED
        .iter()
        .map(|asked| CommandReader { gpu: &gpu, asked, who: "live" })
        .map(|asking| {
            let watch = AttributionWatch::of(asking.command(&["--no-agent", "-d", "10m", "--pid", &tgid]));
            (asking, watch)
        })
        .collect();
    job.go_on();
    let refused = job.next_checkpoint().expect("it comes to its end");
    assert_eq!(refused["label"], "refused");
    until_written(&gpu, &recordings[1], &refused);
    drop(killed);
    whole.interrupt();
    for (live, watch) in watched {
        let name = live.asked.0.join(" ");
        let stated = live.answer(&watch.stop());
        for (who, file) in ["whole", "killed"].into_iter().zip(&recordings) {
            let reading = CommandReader { who, ..live };
            let outcome = CommandOutcome::of(reading.command(&["--in", file]));
            outcome.assert_ended_with(0, &[]);
            assert_eq!(reading.answer(&outcome.stdout), stated, "{name}, {who}");
        }
    }
}
