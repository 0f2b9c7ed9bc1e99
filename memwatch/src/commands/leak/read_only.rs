//! `memwatch leak --read-only`: reads the live objects by name periodically and compares them,
//! without attaching to or stopping a process.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::features::leak::by_name::{HowRead, NamedLeaks};
use memwatch_core::features::leak::view::LeaksView;
use memwatch_core::input::{DeviceReading, Input, NvmlState, ProcessFacts};
use memwatch_core::snapshot::Snapshot;
use tokio::time::Instant;

use super::args::Leak;
use super::print;
use crate::commands::holdings;
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::pytorch::{HoldingsReader, NAMES_TIME, StateReadError};
use crate::options::CommonArgs;
use crate::sources::clock::{boottime_ns, thread_ns};
use crate::sources::procfs::ProcReader;
use crate::watch::one_shot::tgids_to_read;
use crate::watch::signals::{TerminationSignals, at};
use crate::watch::taken_at::TakenAt;

/// Number of readings that fit into the duration: a verdict takes ten, and more raise its
/// confidence.
const READINGS: u32 = 30;
/// Minimum pause between readings, as a multiple of the CPU time of a reading.
const PAUSE_PER_COST: u32 = 10;
/// Minimum number of readings for a verdict.
const FEWEST: u32 = 10;
/// Time limit of a reading if the allocators changed during the previous one.
const IMPATIENCE: Duration = Duration::from_millis(50);

/// A process that is read.
struct ReadProcess {
    facts: ProcessFacts,
    reader: HoldingsReader,
    leaks: NamedLeaks,
    /// Whether its allocators changed during the last reading.
    is_busy: bool,
    is_over: bool,
    /// CPU time of the last reading.
    cost: Duration,
    /// Elapsed time of the slowest reading so far; the first one, which also searches for layouts and
    /// names, counts only until there is a second.
    took: Duration,
}

/// Reads for the requested duration and reports what grows.
///
/// # Errors
/// None of the processes uses PyTorch, they cannot be read, or the report cannot be written.
#[expect(clippy::cast_precision_loss, reason = "a threshold needs no sixteen digits")]
pub(super) async fn run(args: &Leak, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let tgids = tgids_to_read(&args.subject.selected, common).await?;
    let named: BTreeSet<u32> = tgids.into_iter().map(|tgid| tgid.0).collect();
    let mut signals = TerminationSignals::listen()?;
    let mut processes = ProcReader::new("/proc");
    let begin_ns = boottime_ns();
    let deadline = Instant::now() + args.duration;
    let mut read = open(&named, &mut processes)?;
    follow(&mut read, &mut processes, (deadline, args), &mut signals).await;
    report_newcomers(&named, &read, &processes);
    let snapshot = snapshot(&read, begin_ns);
    let view = |read: &ReadProcess| {
        let since_ns = snapshot.processes.iter().find(|process| process.tgid.0 == read.facts.tgid);
        let since_ns = since_ns.map_or(begin_ns, |process| process.observed_since_ns);
        read.leaks.view(&read.facts, since_ns, args.threshold as f64)
    };
    let mut leaks: Vec<LeaksView> = read.iter().map(view).collect();
    // Helpers of a program load PyTorch and hold nothing.
    if leaks.iter().any(holds_anything) {
        leaks.retain(holds_anything);
    }
    print((&leaks, &snapshot), &TakenAt::here(), (args, common))
}

/// Whether a process held memory at its first or last reading, or none was compared.
fn holds_anything(leaks: &LeaksView) -> bool {
    let readings = leaks.readings.as_ref();
    readings.is_none_or(|readings| readings.first_bytes != Some(0) || readings.last_bytes != Some(0))
}

/// Reads the processes and their children for the first time.
///
/// # Errors
/// None of them can be read.
fn open(named: &BTreeSet<u32>, processes: &mut ProcReader) -> Result<Vec<ReadProcess>, ExitFailure> {
    let children = processes.descendants(named);
    let (mut read, mut failures) = (Vec::new(), Vec::new());
    for tgid in named.iter().chain(&children) {
        // The process has exited by now.
        let Some(facts) = processes.facts(*tgid, true) else { continue };
        match ReadProcess::begin(facts) {
            Ok(begun) => read.extend(begun),
            Err(error) => failures.push((*tgid, error)),
        }
    }
    if read.is_empty() {
        return Err(holdings::failure(failures.into_iter().next(), "leak --read-only"));
    }
    for (tgid, error) in failures {
        eprintln!("memwatch: process {tgid} is left out: {error}");
    }
    Ok(read)
}

/// Reads periodically until the deadline, a signal, or the end of the last process.
async fn follow(
    read: &mut [ReadProcess],
    processes: &mut ProcReader,
    (deadline, args): (Instant, &Leak),
    signals: &mut TerminationSignals,
) {
    let mut last = Instant::now();
    if !io::stderr().is_terminal() {
        eprintln!("memwatch: reading PyTorch; press Ctrl-C to stop and print the report");
    }
    // What a reading costs is known from the second one on.
    if slowest(read) * (FEWEST + 1) > args.duration {
        read_all(read, processes);
    }
    let is_told = report_too_short(read, args);
    loop {
        // The last reading ends at the deadline.
        let last_begin = deadline.checked_sub(slowest(read)).unwrap_or(last);
        if last >= last_begin || read.iter().all(|read| read.is_over) {
            break;
        }
        let pause =
            args.interval.unwrap_or_else(|| pause(read, args.duration, last_begin.saturating_duration_since(last)));
        let next = last + pause;
        let next = if next + pause / 2 > last_begin { last_begin } else { next };
        show_progress(read, deadline, args.duration);
        tokio::select! {
            () = at(Some(next)) => {}
            _ = signals.any() => break,
        }
        last = Instant::now();
        read_all(read, processes);
    }
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    if !is_told && read.iter().any(|read| !read.is_over && read.leaks.readings() < u64::from(FEWEST)) {
        report_too_short(read, args);
    }
}

/// Reads each process once more.
fn read_all(read: &mut [ReadProcess], processes: &mut ProcReader) {
    for read in read.iter_mut().filter(|read| !read.is_over) {
        match read.again() {
            Ok(()) => {}
            // The failure is temporary: the next reading may succeed.
            Err(StateReadError::Refused(refusal)) if refusal.is_passing() => {}
            Err(error) => {
                read.is_over = true;
                read.leaks.end(why_over(&read.facts, &error, processes));
            }
        }
    }
}

/// Returns the time that the slowest readings of all running processes take together.
fn slowest(read: &[ReadProcess]) -> Duration {
    read.iter().filter(|read| !read.is_over).map(|read| read.took).sum()
}

/// Prints how long a verdict takes if the duration is too short for it. Returns whether it is.
fn report_too_short(read: &[ReadProcess], args: &Leak) -> bool {
    let sentence = too_short(read, args);
    if let Some(sentence) = &sentence {
        eprintln!("memwatch: {sentence}");
    }
    sentence.is_some()
}

/// Returns the pause until the next reading: long enough that reading takes at most a tenth of a
/// CPU, but short enough for a verdict.
fn pause(read: &[ReadProcess], duration: Duration, left: Duration) -> Duration {
    let running = || read.iter().filter(|read| !read.is_over);
    let cost = running().map(|read| read.cost).sum::<Duration>();
    let made = running().map(|read| read.leaks.readings()).min().unwrap_or(0);
    let rest = u64::from(FEWEST + 1).saturating_sub(made);
    let thrifty = (duration / READINGS).max(cost * PAUSE_PER_COST);
    match u32::try_from(rest) {
        Ok(rest) if rest > 0 => thrifty.min(left / rest),
        _ => thrifty,
    }
}

/// Returns `a verdict takes 10 readings, one each 8.1 s here: …`; `None` if the duration suffices.
fn too_short(read: &[ReadProcess], args: &Leak) -> Option<String> {
    let needed = slowest(read).max(args.interval.unwrap_or_default()) * (FEWEST + 1);
    (needed > args.duration).then(|| {
        let seconds = needed.as_secs() + 1;
        format!(
            "a verdict takes {FEWEST} readings, one each {:.1} s here: {} are too short for it; it needs -d {seconds}s",
            (needed / (FEWEST + 1)).as_secs_f64(),
            crate::render::format::duration(u64::try_from(args.duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    })
}

impl ReadProcess {
    /// Reads a process for the first time; `None` if it does not use PyTorch.
    fn begin(facts: ProcessFacts) -> Result<Option<Self>, StateReadError> {
        let Some(reader) = HoldingsReader::open(facts.tgid, NAMES_TIME)? else { return Ok(None) };
        let leaks = NamedLeaks::default();
        let mut read =
            Self { facts, reader, leaks, is_busy: false, is_over: false, cost: Duration::ZERO, took: Duration::ZERO };
        read.once()?;
        Ok(Some(read))
    }

    /// Reads the process again, after it continued.
    fn again(&mut self) -> Result<(), StateReadError> {
        self.reader.refresh()?;
        self.once()
    }

    fn once(&mut self) -> Result<(), StateReadError> {
        let (begun_ns, begun) = (thread_ns(), Instant::now());
        let read = if self.is_busy { self.reader.read_within(IMPATIENCE) } else { self.reader.read_patiently() };
        let (holdings, totals) = read?;
        self.is_busy = totals.iter().any(|device| device.changing_bytes.is_some());
        let processor_ns = thread_ns().saturating_sub(begun_ns);
        self.cost = Duration::from_nanos(processor_ns);
        let earlier = if self.leaks.readings() > 1 { self.took } else { Duration::ZERO };
        self.took = earlier.max(begun.elapsed());
        self.leaks.observe(&holdings, HowRead { is_standing: self.is_busy, processor_ns });
        Ok(())
    }
}

/// Returns the reason why a process can no longer be read.
fn why_over(facts: &ProcessFacts, error: &StateReadError, processes: &mut ProcReader) -> String {
    let now = processes.facts(facts.tgid, true).filter(|now| now.start_ns == facts.start_ns);
    match now.filter(|_| !processes.is_over(facts.tgid)) {
        None => "the process has ended".to_owned(),
        // The process called exec: its memory belongs to the new program.
        Some(now) if (&now.comm, &now.command) != (&facts.comm, &facts.command) => {
            format!("the process runs another program now (exec): {}", now.command)
        }
        Some(_) => error.to_string(),
    }
}

/// Prints the processes that were started meanwhile and use PyTorch's allocator as well.
fn report_newcomers(named: &BTreeSet<u32>, read: &[ReadProcess], processes: &ProcReader) {
    let is_read = |tgid: &u32| read.iter().any(|read| read.facts.tgid == *tgid);
    let new = processes.descendants(named).into_iter().filter(|tgid| !named.contains(tgid) && !is_read(tgid));
    for tgid in new.filter(|tgid| matches!(HoldingsReader::open(*tgid, NAMES_TIME), Ok(Some(_)))) {
        eprintln!(
            "memwatch: process {tgid} started during the readings and is not in the report; pass its PID to include it"
        );
    }
}

/// Returns the processes as a snapshot; GPUs were not queried.
fn snapshot(read: &[ReadProcess], begin_ns: u64) -> Snapshot {
    let mut pipeline = Pipeline::new(true);
    let end_ns = boottime_ns();
    pipeline.step(Input::Attached { time_ns: begin_ns });
    let state = NvmlState::Unavailable("not asked: --read-only".to_owned());
    pipeline.step(Input::Devices(DeviceReading { begin_ns, end_ns: begin_ns, state, devices: Vec::new() }));
    for read in read {
        pipeline.step(Input::Process(read.facts.clone()));
    }
    pipeline.step(Input::Tick { time_ns: end_ns });
    pipeline.snapshot()
}

/// Prints `reading 12/60 s` if stderr is a terminal.
fn show_progress(read: &[ReadProcess], deadline: Instant, length: Duration) {
    if io::stderr().is_terminal() {
        let elapsed = length.saturating_sub(deadline.saturating_duration_since(Instant::now()));
        let processes = read.iter().filter(|read| !read.is_over).count();
        eprint!(
            "\r\x1b[Kreading {processes} of {} processes: {}/{} s",
            read.len(),
            elapsed.as_secs(),
            length.as_secs()
        );
    }
}
