//! `cargo xtask bench agent`: measures an idle agent with thousands of processes.

use super::DOCUMENT;
use super::crowd::{Crowd, PER_GROUP};
use super::report::AGENT;
use crate::args::TaskArgs;
use crate::binary;
use crate::child::OwnedChild;
use crate::document;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::setup;
use crate::table::MarkdownTable;
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Numbers of traced processes, one measurement after the other.
const CROWDS: [usize; 4] = [0, 3, 1_000, 10_000];
/// Thread in which the agent calls NVML. NVML is simulated here, so its CPU time is reported
/// separately.
const NVML_THREAD: &str = "nvml";
const MEASURED: Duration = Duration::from_secs(60);
/// Time until the agent has processed the new processes and finished its first sweep.
const SETTLED: Duration = Duration::from_secs(10);
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Resource use of the agent during one measurement.
#[derive(Debug)]
struct AgentBenchRow {
    processes: usize,
    keeps_history: bool,
    scraped: bool,
    /// CPU time in percent of one core, without the NVML thread; `nvml_percent` is that thread's.
    core_percent: f64,
    nvml_percent: f64,
    resident_bytes: u64,
    anonymous_bytes: u64,
    /// Duration and size of the last scrape.
    scrape: Option<(Duration, usize)>,
    tracked: u64,
}

/// Builds everything, measures, prints the table and writes it into the document.
pub(super) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let measured = args.duration("--duration")?.unwrap_or(MEASURED);
    let profile = if args.flag("--debug") { BuildProfile::Debug } else { BuildProfile::Release };
    let most = args.count("--processes")?.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    args.finish()?;
    if !setup::is_root() {
        bail!("uprobes need root: sudo --preserve-env=PATH,HOME cargo xtask bench agent");
    }
    allow_many_files()?;
    let memwatch = binary::build(repo, profile)?;
    let driver = integration::build_simulator(repo, Prologue::Cmp)?;
    let mut crowd = Crowd::new(&driver)?;
    // Both agents start before the processes, since they would not know the memory of earlier ones.
    // Each is measured by its own CPU time.
    let without = BenchAgent::start(&memwatch, &driver, &crowd, false)?;
    let with = BenchAgent::start(&memwatch, &driver, &crowd, true)?;
    let mut rows = Vec::new();
    for processes in CROWDS.into_iter().filter(|processes| *processes <= most) {
        let begin = Instant::now();
        crowd.grow(processes)?;
        eprintln!("{processes} processes are there after {:.1} s", begin.elapsed().as_secs_f64());
        std::thread::sleep(SETTLED);
        for (agent, scraped) in [(&without, false), (&without, true), (&with, false)] {
            let row = agent.measure(processes, scraped, measured)?;
            eprintln!("{row:?}");
            rows.push(row);
        }
    }
    let build = if profile == BuildProfile::Debug { "a build without optimization" } else { "release build" };
    let text = format!("{}; {build}.\n{}", document::machine()?, text(&rows, measured)?);
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &AGENT, &text)
}

/// Raises the limit on open files: each group has two pipes.
fn allow_many_files() -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live local.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    let written = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    if read != 0 || written != 0 {
        bail!("the limit on open files cannot be raised");
    }
    Ok(())
}

struct BenchAgent {
    program: OwnedChild,
    address: SocketAddr,
    /// Directory of its history, which is deleted afterwards.
    history: Option<PathBuf>,
}

impl Drop for BenchAgent {
    fn drop(&mut self) {
        // Remaining files are below target/ and are replaced by the next run.
        drop(self.program.interrupt(READY_LIMIT));
        if let Some(history) = &self.history {
            drop(fs::remove_dir_all(history));
        }
    }
}

impl BenchAgent {
    fn start(memwatch: &Path, driver: &Path, crowd: &Crowd, keeps_history: bool) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("no free port")?;
        let mut command = Command::new(memwatch);
        command.args(["agent", "--listen", &address.to_string(), "--socket"]);
        command.arg(driver.join(if keeps_history { "bench-history.sock" } else { "bench-agent.sock" }));
        command.arg("--nvml-lib").arg(driver.join("lib/libnvidia-ml.so.1"));
        command.arg("--libcuda").arg(driver.join("lib/libcuda.so.1"));
        command.env("GPUSIM_LEDGER", crowd.first_ledger()).env("GPUSIM_TOTAL_MB", "1000000");
        let history = keeps_history.then(|| driver.join("bench-history"));
        if let Some(history) = &history {
            command.arg("--history").arg(history);
        }
        let program = OwnedChild::start(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        let agent = Self { program, address, history };
        let begin = Instant::now();
        while agent.get("/readyz").is_none_or(|answer| !answer.starts_with("HTTP/1.1 200 ")) {
            if begin.elapsed() > READY_LIMIT {
                bail!("the agent did not get ready in {} s", READY_LIMIT.as_secs());
            }
            std::thread::sleep(POLL);
        }
        Ok(agent)
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        let accept = "application/openmetrics-text; version=1.0.0";
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: {accept}\r\n\r\n", self.address).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn measure(&self, processes: usize, scraped: bool, measured: Duration) -> Result<AgentBenchRow> {
        let mut scrape = None;
        let begin = Instant::now();
        let before = self.processor_time()?;
        while begin.elapsed() < measured {
            if scraped {
                let asked = Instant::now();
                let answer = self.get("/metrics").context("the agent does not answer")?;
                scrape = Some((asked.elapsed(), answer.len()));
            }
            std::thread::sleep(SCRAPE_EVERY.min(measured.saturating_sub(begin.elapsed())));
        }
        let elapsed = begin.elapsed();
        let used = self.processor_time()?;
        let percent =
            |part: usize| 100.0 * used[part].saturating_sub(before[part]).as_secs_f64() / elapsed.as_secs_f64();
        let [core_percent, nvml_percent] = [percent(0), percent(1)];
        let [resident_bytes, anonymous_bytes] = self.memory()?;
        // Requested after the measurement.
        let answer = self.get("/metrics").context("the agent does not answer")?;
        let tracked = answer.lines().find_map(|line| line.strip_prefix("memwatch_agent_tracked_processes "));
        let tracked = tracked.and_then(|number| number.parse().ok()).context("no number of tracked processes")?;
        Ok(AgentBenchRow {
            processes,
            keeps_history: self.history.is_some(),
            scraped,
            core_percent,
            nvml_percent,
            resident_bytes,
            anonymous_bytes,
            scrape,
            tracked,
        })
    }

    /// Returns the CPU time of the agent's threads so far: of all but the NVML thread, and of that
    /// one. All threads live as long as the agent.
    fn processor_time(&self) -> Result<[Duration; 2]> {
        let mut taken = [Duration::ZERO; 2];
        let threads = fs::read_dir(format!("/proc/{}/task", self.program.tgid())).context("the agent has ended")?;
        for thread in threads {
            let thread = thread.context("the agent has ended")?.path();
            let read = |file: &str| fs::read_to_string(thread.join(file)).context("a thread of the agent has ended");
            let is_nvml = read("comm")?.trim_end() == NVML_THREAD;
            // Nanoseconds from the scheduler: `stat` has a resolution of 10 ms.
            let schedstat = read("schedstat")?;
            let ran_ns =
                schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).context("schedstat is not as expected")?;
            taken[usize::from(is_nvml)] += Duration::from_nanos(ran_ns);
        }
        Ok(taken)
    }

    fn memory(&self) -> Result<[u64; 2]> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.program.tgid())).context("the agent has ended")?;
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
        };
        value("VmRSS:").zip(value("RssAnon:")).map(Into::into).context("status is not as expected")
    }
}

fn text(rows: &[AgentBenchRow], measured: Duration) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "{} s each; {PER_GROUP} processes to a control group.\n", measured.as_secs())?;
    let mut table = MarkdownTable::new(&[
        "processes",
        "tracked",
        "history",
        "scrape",
        "% of a core",
        "and NVML's",
        "resident MB",
        "of that heap MB",
        "scrape ms",
        "scrape kB",
    ]);
    for row in rows {
        let scrape = row.scrape.map(|(time, bytes)| [time.as_millis().to_string(), (bytes / 1000).to_string()]);
        let [scrape_ms, scrape_kb] = scrape.unwrap_or_default();
        let megabytes = |bytes: u64| format!("{:.1}", Duration::from_micros(bytes).as_secs_f64());
        table.row(vec![
            row.processes.to_string(),
            row.tracked.to_string(),
            if row.keeps_history { "kept" } else { "none" }.to_owned(),
            if row.scraped { format!("every {} s", SCRAPE_EVERY.as_secs()) } else { "none".to_owned() },
            format!("{:.2}", row.core_percent),
            format!("{:.2}", row.nvml_percent),
            megabytes(row.resident_bytes),
            megabytes(row.anonymous_bytes),
            scrape_ms,
            scrape_kb,
        ]);
    }
    text.push_str(&table.text());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_in_megabytes_and_percent() {
        let row = AgentBenchRow {
            processes: 1000,
            keeps_history: true,
            scraped: true,
            core_percent: 0.0834,
            nvml_percent: 0.0101,
            resident_bytes: 21_450_000,
            anonymous_bytes: 9_000_000,
            scrape: Some((Duration::from_millis(7), 123_456)),
            tracked: 1000,
        };
        let text = text(&[row], Duration::from_secs(60)).unwrap();
        let numbers: Vec<&str> = text.lines().last().unwrap_or_default().split('|').map(str::trim).collect();
        assert_eq!(numbers[1..11], ["1000", "1000", "kept", "every 15 s", "0.08", "0.01", "21.4", "9.0", "7", "123"]);
    }
}
