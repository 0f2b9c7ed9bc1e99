//! Reports by call site, phase or module, compared with measurements of hooks in the program.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::gpu::SimulatedGpu;
use crate::torch_job::TorchJob;

/// A running memwatch that writes one report by call site, phase or module over the job's lifetime.
#[derive(Debug)]
pub struct AttributionWatch {
    child: Child,
}

impl AttributionWatch {
    /// Starts `memwatch where` by line, phase or module for these jobs.
    pub fn start(gpu: &SimulatedGpu, by: &str, jobs: &[&TorchJob]) -> Self {
        let words = ["--no-agent", "where", "--by", by, "--stacks=all", "--json", "--duration", "10m"];
        let mut command = gpu.memwatch(&[&words[..], &["--top", "100000"]].concat());
        for job in jobs {
            command.arg("--pid").arg(job.tgid().to_string());
        }
        Self::of(command)
    }

    /// Starts a command that writes its report when the job exits, and waits until it has found the
    /// job's PyTorch.
    ///
    /// # Panics
    /// When memwatch does not start.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("memwatch starts");
        let mut errors = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let mut line = String::new();
        while !line.contains("; press Ctrl-C to stop") {
            line.clear();
            assert!(errors.read_line(&mut line).expect("text") > 0, "memwatch has ended");
        }
        // Standard error is read on: later messages must not fail with a broken pipe.
        std::thread::spawn(move || errors.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Self { child }
    }

    /// Waits until memwatch exits, which it does after the job.
    ///
    /// # Panics
    /// When memwatch fails.
    pub fn wait(mut self) {
        assert!(self.child.wait().expect("it is ours").success(), "memwatch failed");
    }

    /// Waits until memwatch exits and returns its report.
    ///
    /// # Panics
    /// When memwatch fails or writes no JSON.
    pub fn ended(self) -> Value {
        let text = self.written(0);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// Interrupts memwatch and returns its report.
    ///
    /// # Panics
    /// When memwatch fails or writes no JSON.
    pub fn interrupt(self) -> Value {
        self.interrupt_with(0)
    }

    /// Interrupts memwatch, expects this exit code and returns its report.
    ///
    /// # Panics
    /// When memwatch exits with another code or writes no JSON.
    pub fn interrupt_with(self, code: i32) -> Value {
        let text = self.stop_with(code);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// Interrupts memwatch and returns its output.
    ///
    /// # Panics
    /// When memwatch fails.
    pub fn stop(self) -> String {
        self.stop_with(0)
    }

    fn stop_with(self, code: i32) -> String {
        let tgid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: the child has not been waited for, so the number is its own.
        unsafe { libc::kill(tgid, libc::SIGINT) };
        self.written(code)
    }

    /// Waits until memwatch exits with this code and returns its output.
    fn written(mut self, code: i32) -> String {
        let mut text = String::new();
        let mut out = self.child.stdout.take().expect("standard output is piped");
        out.read_to_string(&mut text).expect("text");
        assert_eq!(self.child.wait().expect("it is ours").code(), Some(code), "{text}");
        text
    }
}

impl Drop for AttributionWatch {
    fn drop(&mut self) {
        // Fails if memwatch has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes by phase, model and module name.
pub type AttributedBytes = BTreeMap<(String, Option<String>, Option<String>), u64>;

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Returns the bytes that hooks in the program measured: the rows of
/// `tests/workloads/attribution.py`.
pub fn measured(rows: &Value) -> AttributedBytes {
    let mut shares = AttributedBytes::new();
    for row in rows.as_array().into_iter().flatten() {
        let place = (text(&row["stage"]).unwrap_or_default(), text(&row["model"]), text(&row["name"]));
        *shares.entry(place).or_default() += row["bytes"].as_u64().unwrap_or(0);
    }
    shares
}

/// Returns the entry of a process on one device, in a report of any of these commands.
///
/// # Panics
/// When the report has no such entry.
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

/// Returns the bytes that memwatch attributes to a process on one device, in a report by module.
///
/// # Panics
/// When the report has no such entry.
pub fn seen(report: &Value, tgid: u32, device: usize) -> AttributedBytes {
    let mut shares = AttributedBytes::new();
    for module in on_device(report, tgid, device)["modules"].as_array().into_iter().flatten() {
        for (phase, sums) in module["phases"].as_object().into_iter().flatten() {
            let place = (phase.clone(), text(&module["model"]), text(&module["name"]));
            *shares.entry(place).or_default() += sums["total_bytes"].as_u64().expect("bytes");
        }
    }
    shares
}

/// Returns how many of a thousand measured bytes memwatch attributes to the measured place.
fn agreement(truth: &AttributedBytes, seen: &AttributedBytes) -> u64 {
    let same: u64 = truth.iter().map(|(place, bytes)| *bytes.min(seen.get(place).unwrap_or(&0))).sum();
    same * 1000 / truth.values().sum::<u64>()
}

/// Asserts that memwatch attributes at least 990 of 1000 bytes to the measured place.
///
/// # Panics
/// When it attributes fewer.
pub fn assert_agreement(what: &str, truth: &AttributedBytes, seen: &AttributedBytes) {
    let of_thousand = agreement(truth, seen);
    let places = truth.keys().chain(seen.keys().filter(|place| !truth.contains_key(*place)));
    let differences: Vec<String> = places
        .map(|place| (place, truth.get(place).unwrap_or(&0), seen.get(place).unwrap_or(&0)))
        .filter(|(_, measured, seen)| measured != seen)
        .map(|(place, measured, seen)| format!("{place:?}: measured {measured}, seen {seen}"))
        .collect();
    assert!(of_thousand >= 990, "{what} agree in {of_thousand} of 1000: {differences:#?}");
}

/// Sums the bytes by phase, without models and modules.
pub fn by_phase(shares: &AttributedBytes) -> AttributedBytes {
    let mut phases = AttributedBytes::new();
    for ((phase, ..), bytes) in shares {
        *phases.entry((phase.clone(), None, None)).or_default() += bytes;
    }
    phases
}
