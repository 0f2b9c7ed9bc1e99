//! Lists of places, and how far they agree with what hooks in the program have measured.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::gpu::Gpu;
use crate::torch_job::TorchJob;

/// A list of places, from before the job's first allocation to its end.
#[derive(Debug)]
pub struct PlacesWatch {
    child: Child,
}

impl PlacesWatch {
    /// One of `sites`, `stages` or `layers`, of these jobs.
    pub fn start(gpu: &Gpu, list: &str, jobs: &[&TorchJob]) -> Self {
        let mut command =
            gpu.memwatch(&["--no-agent", list, "--stacks=all", "--json", "--duration", "10m", "--top", "100000"]);
        for job in jobs {
            command.arg("--pid").arg(job.tgid().to_string());
        }
        Self::of(command)
    }

    /// One that writes when the job has ended, as soon as it sees the job's PyTorch.
    ///
    /// # Panics
    /// When it does not start.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("memwatch starts");
        let mut errors = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let mut line = String::new();
        while !line.contains(" traced from now on;") && !line.contains(" read from now on;") {
            line.clear();
            assert!(errors.read_line(&mut line).expect("text") > 0, "memwatch has ended");
        }
        // Kept open: what it has to say later must not end it.
        std::thread::spawn(move || errors.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Self { child }
    }

    /// It leaves once the job has ended.
    ///
    /// # Panics
    /// When it has failed.
    pub fn wait(mut self) {
        assert!(self.child.wait().expect("it is ours").success(), "memwatch failed");
    }

    /// What it says when it ends by itself.
    ///
    /// # Panics
    /// When it has failed or says no JSON.
    pub fn ended(self) -> Value {
        let text = self.written(0);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// What it says when it is asked to end.
    ///
    /// # Panics
    /// When it has failed or says no JSON.
    pub fn interrupt(self) -> Value {
        self.interrupt_with(0)
    }

    /// The same of one that then ends with this code.
    ///
    /// # Panics
    /// When it ends with another, or says no JSON.
    pub fn interrupt_with(self, code: i32) -> Value {
        let text = self.stop_with(code);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// Reports it to end: what it has written then.
    ///
    /// # Panics
    /// When it has failed.
    pub fn stop(self) -> String {
        self.stop_with(0)
    }

    fn stop_with(self, code: i32) -> String {
        let tgid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: the child has not been waited for, so the number is its own.
        unsafe { libc::kill(tgid, libc::SIGINT) };
        self.written(code)
    }

    /// What it has written once it has ended with this code.
    fn written(mut self, code: i32) -> String {
        let mut text = String::new();
        let mut out = self.child.stdout.take().expect("standard output is piped");
        out.read_to_string(&mut text).expect("text");
        assert_eq!(self.child.wait().expect("it is ours").code(), Some(code), "{text}");
        text
    }
}

impl Drop for PlacesWatch {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes by stage, model and name of the module.
pub type Shares = BTreeMap<(String, Option<String>, Option<String>), u64>;

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// What hooks in the program have measured: the rows of `tests/workloads/attribution.py`.
pub fn measured(rows: &Value) -> Shares {
    let mut shares = Shares::new();
    for row in rows.as_array().into_iter().flatten() {
        let place = (text(&row["stage"]).unwrap_or_default(), text(&row["model"]), text(&row["name"]));
        *shares.entry(place).or_default() += row["bytes"].as_u64().unwrap_or(0);
    }
    shares
}

/// A process on one device, in any list.
///
/// # Panics
/// When it is not in the report.
pub fn on_device(report: &Value, tgid: u32, device: usize) -> &Value {
    let find = |list: &'_ Value, key: &str, number: u64| {
        list.as_array().and_then(|rows| rows.iter().position(|row| row[key] == number))
    };
    let processes = &report["data"]["processes"];
    let process = find(processes, "pid", tgid.into()).unwrap_or_else(|| panic!("process {tgid} is not in {report:#}"));
    let devices = &processes[process]["devices"];
    let place = find(devices, "device", device as u64).unwrap_or_else(|| panic!("no device {device} in {devices:#}"));
    &devices[place]
}

/// What memwatch has seen of a process on one of its devices, in a list of layers.
///
/// # Panics
/// When it is not in the report.
pub fn seen(report: &Value, tgid: u32, device: usize) -> Shares {
    let mut shares = Shares::new();
    for layer in on_device(report, tgid, device)["layers"].as_array().into_iter().flatten() {
        for (stage, sums) in layer["stages"].as_object().into_iter().flatten() {
            let place = (stage.clone(), text(&layer["model"]), text(&layer["name"]));
            *shares.entry(place).or_default() += sums["total_bytes"].as_u64().expect("bytes");
        }
    }
    shares
}

/// How much of what was measured is where memwatch says, of a thousand.
fn agreement(truth: &Shares, seen: &Shares) -> u64 {
    let same: u64 = truth.iter().map(|(place, bytes)| *bytes.min(seen.get(place).unwrap_or(&0))).sum();
    same * 1000 / truth.values().sum::<u64>()
}

/// Of a thousand bytes, nine hundred and ninety are where memwatch says.
///
/// # Panics
/// Otherwise.
pub fn assert_agreement(what: &str, truth: &Shares, seen: &Shares) {
    let of_thousand = agreement(truth, seen);
    let places = truth.keys().chain(seen.keys().filter(|place| !truth.contains_key(*place)));
    let differences: Vec<String> = places
        .map(|place| (place, truth.get(place).unwrap_or(&0), seen.get(place).unwrap_or(&0)))
        .filter(|(_, measured, seen)| measured != seen)
        .map(|(place, measured, seen)| format!("{place:?}: measured {measured}, seen {seen}"))
        .collect();
    assert!(of_thousand >= 990, "{what} agree in {of_thousand} of 1000: {differences:#?}");
}

/// The same without modules.
pub fn by_stage(shares: &Shares) -> Shares {
    let mut stages = Shares::new();
    for ((stage, ..), bytes) in shares {
        *stages.entry((stage.clone(), None, None)).or_default() += bytes;
    }
    stages
}
