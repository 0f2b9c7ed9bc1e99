//! The ways of tracing to compare.

use super::workload::BenchWorkload;
use crate::child::OwnedChild;
use crate::run::line;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const ATTACH_LIMIT: Duration = Duration::from_secs(60);
/// bpftrace prints "Attaching" before it attaches, so its probes count as attached once it has
/// opened no further ones for this time.
const QUIET: Duration = Duration::from_millis(700);
const POLL: Duration = Duration::from_millis(50);
const GRACE: Duration = Duration::from_secs(60);

/// What traces the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatcherMode {
    /// Nothing.
    None,
    /// Entry and return probes that do nothing: the cost of the kernel's mechanism.
    Bare,
    /// memwatch.
    Memwatch,
    /// A bpftrace script that keeps the same ledger.
    Bpftrace,
    /// A bpftrace script that assumes that frees succeed, which saves a probe.
    BpftraceWithoutResults,
}

/// All modes, in the order of a round and of the table.
pub(super) const MODES: [WatcherMode; 5] = [
    WatcherMode::None,
    WatcherMode::Bare,
    WatcherMode::Memwatch,
    WatcherMode::Bpftrace,
    WatcherMode::BpftraceWithoutResults,
];

impl WatcherMode {
    /// Returns the name in the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::None => "no probe",
            Self::Bare => "bare uprobe and uretprobe",
            Self::Memwatch => "memwatch",
            Self::Bpftrace => "bpftrace, same job",
            Self::BpftraceWithoutResults => "bpftrace, frees taken to succeed",
        }
    }

    /// Attaches to the workload, and returns when every probe is attached.
    ///
    /// # Errors
    /// The watcher cannot be started, exits, or is not ready in time.
    pub(super) fn attach(self, memwatch: &Path, driver: &Path, workload: &BenchWorkload) -> Result<Option<Watcher>> {
        let library = driver.join("lib/libcuda.so.1");
        let library = fs::canonicalize(&library).with_context(|| format!("{} is missing", library.display()))?;
        let bpftrace = |frees| attach_bpftrace(&ledger_script(&library, workload.tgid(), frees), workload.tgid());
        match self {
            Self::None => Ok(None),
            Self::Bare => attach_bpftrace(&bare_script(&library), workload.tgid()).map(Some),
            Self::Bpftrace => bpftrace(FREES).map(Some),
            Self::BpftraceWithoutResults => bpftrace(FREES_WITHOUT_RESULTS).map(Some),
            Self::Memwatch => {
                attach_memwatch_with(memwatch, driver, (workload.tgid(), workload.ledger()), &["--budget=none"])
                    .map(Some)
            }
        }
    }
}

/// A running watcher with attached probes.
pub(super) struct Watcher {
    program: OwnedChild,
    /// Thread that reads memwatch's reports, so that a full pipe does not block memwatch. Returns
    /// the last report.
    last_report: Option<JoinHandle<String>>,
}

impl Watcher {
    /// Starts a watcher and discards its output.
    ///
    /// # Errors
    /// The watcher cannot be started.
    pub(super) fn silent(command: &mut Command) -> Result<Self> {
        let program = OwnedChild::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        Ok(Self { program, last_report: None })
    }

    /// Returns the watcher's CPU time so far.
    ///
    /// # Errors
    /// The watcher has exited.
    pub(super) fn processor_time(&self) -> Result<Duration> {
        self.program.processor_time()
    }

    /// Ends the watcher, waits until its probes are detached, and returns its last report, if it
    /// makes reports.
    ///
    /// # Errors
    /// The watcher does not end on SIGINT, or its last report is not JSON.
    pub(super) fn detach(mut self) -> Result<Option<Value>> {
        if self.program.interrupt(GRACE)?.is_none() {
            bail!("the watcher did not exit {} s after SIGINT", GRACE.as_secs());
        }
        // The kernel removes a closed probe from the program's text a little later.
        std::thread::sleep(QUIET);
        let Some(reader) = self.last_report else { return Ok(None) };
        let report = reader.join().unwrap_or_default();
        serde_json::from_str(&report).map(Some).with_context(|| format!("its last report was '{report}'"))
    }
}

/// Returns a script with empty probe bodies: the cheapest that bpftrace can attach.
fn bare_script(library: &Path) -> String {
    let probe = |kind: &str, function: &str| format!("{kind}:{}:{function} {{ }}\n", library.display());
    ["cuMemAlloc_v2", "cuMemFree_v2"]
        .iter()
        .flat_map(|function| [probe("uprobe", function), probe("uretprobe", function)])
        .collect()
}

/// A free removes its address, and restores it on failure, so that the live bytes stay correct.
const FREES: &str = "
uprobe:LIBRARY:cuMemFree_v2 /pid == TGID && @live[pid, arg0]/ {
    @freed[tid] = arg0;
    @freed_bytes[tid] = @live[pid, arg0];
    @live_bytes[pid] = @live_bytes[pid] - @live[pid, arg0];
    delete(@live[pid, arg0]);
}
uretprobe:LIBRARY:cuMemFree_v2 /pid == TGID && @freed[tid]/ {
    if (retval != 0) {
        @live[pid, @freed[tid]] = @freed_bytes[tid];
        @live_bytes[pid] = @live_bytes[pid] + @freed_bytes[tid];
    }
    delete(@freed[tid]);
    delete(@freed_bytes[tid]);
}
";
/// A free removes its address, without checking the result.
const FREES_WITHOUT_RESULTS: &str = "
uprobe:LIBRARY:cuMemFree_v2 /pid == TGID && @live[pid, arg0]/ {
    @live_bytes[pid] = @live_bytes[pid] - @live[pid, arg0];
    delete(@live[pid, arg0]);
}
";

/// Returns a script that keeps the allocation map of one process: live bytes by address, and their
/// sum.
fn ledger_script(library: &Path, tgid: u32, frees: &str) -> String {
    const SCRIPT: &str = "
uprobe:LIBRARY:cuMemAlloc_v2 /pid == TGID/ { @out[tid] = arg0; @requested[tid] = arg1; }
uretprobe:LIBRARY:cuMemAlloc_v2 /pid == TGID && @out[tid]/ {
    if (retval == 0) {
        $address = *(uint64 *)@out[tid];
        @live[pid, $address] = @requested[tid];
        @live_bytes[pid] = @live_bytes[pid] + @requested[tid];
    }
    delete(@out[tid]);
    delete(@requested[tid]);
}
FREES
END { clear(@out); clear(@requested); clear(@live); }
";
    let script = SCRIPT.replace("FREES", frees);
    script.replace("LIBRARY", &library.display().to_string()).replace("TGID", &tgid.to_string())
}

/// Attaches a script to a process.
///
/// # Errors
/// bpftrace cannot be started, exits, or is not ready in time.
pub(super) fn attach_bpftrace(script: &str, tgid: u32) -> Result<Watcher> {
    let mut command = Command::new("bpftrace");
    command.arg("-p").arg(tgid.to_string()).arg("-e").arg(script);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut watcher = OwnedChild::start(&mut command)?;
    let start = Instant::now();
    let mut probes = 0;
    let mut since = Instant::now();
    while probes == 0 || since.elapsed() < QUIET {
        if let Some(status) = watcher.ended()? {
            bail!("bpftrace ended at once ({status}): {}", line(&command));
        }
        if start.elapsed() > ATTACH_LIMIT {
            bail!("bpftrace attached nothing in {} s", ATTACH_LIMIT.as_secs());
        }
        let now = open_probes(watcher.tgid());
        if now != probes {
            (probes, since) = (now, Instant::now());
        }
        std::thread::sleep(POLL);
    }
    Ok(Watcher { program: watcher, last_report: None })
}

/// Returns the number of open perf events of a process; every probe of bpftrace is one.
fn open_probes(tgid: u32) -> usize {
    let Ok(entries) = fs::read_dir(format!("/proc/{tgid}/fd")) else { return 0 };
    let is_event = |path: PathBuf| fs::read_link(path).is_ok_and(|link| link.ends_with("anon_inode:[perf_event]"));
    entries.flatten().filter(|entry| is_event(entry.path())).count()
}

/// Attaches memwatch with these options to a process that runs on the simulated GPUs of this
/// ledger.
///
/// # Errors
/// memwatch cannot be started, or exits before its first report.
pub(super) fn attach_memwatch_with(
    memwatch: &Path,
    driver: &Path,
    (tgid, ledger): (u32, &Path),
    options: &[&str],
) -> Result<Watcher> {
    let mut command = Command::new(memwatch);
    command
        .args(["--pid", &tgid.to_string(), "--json", "-i", "1", "--nvml-lib"])
        .arg(driver.join("lib/libnvidia-ml.so.1"))
        .args(options)
        .env("GPUSIM_LEDGER", ledger)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut program = OwnedChild::start(&mut command)?;
    let output = program.pipes().1.context("memwatch has no output")?;
    let mut lines = BufReader::new(output).lines();
    if lines.next().transpose().context("memwatch cannot be read")?.is_none() {
        bail!("memwatch ended before its first report: {}", line(&command));
    }
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).last().unwrap_or_default());
    Ok(Watcher { program, last_report: Some(reader) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_scripts_name_the_library_and_nothing_is_left_to_fill_in() {
        let library = Path::new("/opt/libcuda.so.1");
        for script in
            [bare_script(library), ledger_script(library, 42, FREES), ledger_script(library, 42, FREES_WITHOUT_RESULTS)]
        {
            assert!(script.contains("uprobe:/opt/libcuda.so.1:cuMemAlloc_v2"), "{script}");
            assert!(!script.contains("LIBRARY") && !script.contains("TGID"), "{script}");
        }
    }
}
