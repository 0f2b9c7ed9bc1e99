//! `memwatch holdings`: lists the live objects of a PyTorch process by name, or those in a
//! recording. It only reads memory: no probe, no eBPF, and the process keeps running.

pub(crate) mod args;
mod json;
mod recorded;
mod text;

use std::collections::BTreeSet;
use std::io;

use memwatch_core::features::causes::{self, Cause, CauseEvidence};
use memwatch_core::features::checks;
use memwatch_core::features::holdings::view;
use memwatch_core::features::holdings::view::HoldingsView;
use memwatch_core::input::holdings::Holding;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::pytorch::{HoldingsReader, NAMES_TIME, StateReadError};
use crate::options::CommonArgs;
use crate::render::contradictions;
use crate::render::output::{style, unless_closed};
use crate::sources::procfs::ProcReader;
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::streamed::{STREAMED, Streamed, read_only};
use crate::watch::one_shot::tgids_to_read;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::taken_at::TakenAt;
use args::HoldingsArgs;

/// Live objects of one process, with its command line.
pub(crate) struct HoldingsReading {
    pub(crate) command: String,
    pub(crate) view: HoldingsView,
    pub(crate) blocks: Vec<Holding>,
    /// Number of searches for the layout of this PyTorch build; `None` in a recording.
    pub(crate) layout_searches: Option<u32>,
    /// Addresses of its allocators; empty in a recording.
    allocators: Vec<u64>,
    /// Process that this one was forked from, if their allocators have the same addresses: its live
    /// objects are a copy of that process's.
    pub(crate) copy_of: Option<u32>,
}

impl HoldingsReading {
    /// Returns the causes of memory that should not be there, or could be less.
    fn causes(&self) -> Vec<Cause> {
        // A copy has no GPU memory.
        if self.copy_of.is_some() {
            return Vec::new();
        }
        let held = Some(&causes::names_of_blocks(&self.blocks, &self.view.advice));
        causes::causes(&CauseEvidence { tgid: self.view.tgid, held, ..CauseEvidence::default() })
    }
}

/// Reads the live objects of processes or of a recording, and prints them.
///
/// # Errors
/// None of them uses PyTorch, or they cannot be read.
pub(crate) async fn run(args: &HoldingsArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let past = RecordedPeriod::named(&args.subject.past, Needs::Tensors, common).await?;
    let (found, taken_at) = match past {
        Some(recording) => recorded::found(&recording, args)?,
        None => match read(args, common).await {
            Ok(found) => (found, TakenAt::here()),
            Err(refused) => {
                let tgids = tgids_to_read(&args.subject.selected, common).await?;
                let watch = Streamed { tgids: &tgids, tensors: read_only(), duration: Some(STREAMED) };
                recorded::found(&watch.instead(refused, common).await?, args)?
            }
        },
    };
    contradictions::report(&found.iter().flat_map(|found| checks::of_holdings(&found.view)).collect::<Vec<_>>());
    let mut out = io::stdout().lock();
    let written = if common.json {
        json::write(&mut out, &found, &taken_at)
    } else {
        text::write(&mut out, &found, &taken_at.clock, &style(common, false))
    };
    unless_closed(written)?;
    Ok(Exit::Ok)
}

/// Reads the live objects of running processes.
async fn read(args: &HoldingsArgs, common: &CommonArgs) -> Result<Vec<HoldingsReading>, ExitFailure> {
    let named: BTreeSet<u32> =
        tgids_to_read(&args.subject.selected, common).await?.into_iter().map(|tgid| tgid.0).collect();
    let mut processes = ProcReader::new("/proc");
    let children = processes.descendants(&named);
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for tgid in named.iter().chain(&children) {
        match holdings(*tgid, args) {
            Ok(Some(read)) => {
                let command = processes.facts(*tgid, false).map(|facts| facts.command).unwrap_or_default();
                found.push(HoldingsReading { command, ..read });
            }
            Ok(None) => {}
            Err(error) => failures.push((*tgid, error)),
        }
    }
    if found.is_empty() {
        return Err(failure(failures.into_iter().next(), "holdings"));
    }
    for (tgid, error) in failures {
        eprintln!("memwatch: process {tgid} is left out: {error}");
    }
    note_copies(&mut found, &processes);
    // Helpers of a program load PyTorch and hold nothing.
    if found.iter().any(|read| !read.blocks.is_empty()) {
        found.retain(|read| !read.blocks.is_empty());
    }
    Ok(found)
}

/// Marks copies: a process that was forked after its parent initialised CUDA has the parent's
/// allocator state, and no GPU memory.
fn note_copies(found: &mut [HoldingsReading], processes: &ProcReader) {
    for parent in 0..found.len() {
        let tgid = found[parent].view.tgid.0;
        let allocators = found[parent].allocators.clone();
        let children = processes.descendants(&BTreeSet::from([tgid]));
        let is_copy = |child: &&mut HoldingsReading| {
            child.view.tgid.0 != tgid && children.contains(&child.view.tgid.0) && child.allocators == allocators
        };
        for child in found.iter_mut().filter(is_copy).filter(|child| !child.allocators.is_empty()) {
            child.copy_of.get_or_insert(tgid);
        }
    }
}

/// Reads the live objects of a process; `None` if it does not use PyTorch, or has none yet.
fn holdings(tgid: u32, args: &HoldingsArgs) -> Result<Option<HoldingsReading>, StateReadError> {
    let Some(mut reader) = HoldingsReader::open(tgid, NAMES_TIME)? else { return Ok(None) };
    let (holdings, totals) = reader.read_patiently()?;
    let view = view(&holdings, &totals, args.by.into(), args.top);
    let layout_searches = Some(reader.searches());
    let allocators = reader.allocators().to_vec();
    Ok(Some(HoldingsReading {
        command: String::new(),
        view,
        blocks: holdings.rows,
        layout_searches,
        allocators,
        copy_of: None,
    }))
}

/// Makes the error of a command that found nothing to read, from the first process that could not
/// be read.
pub(crate) fn failure(failure: Option<(u32, StateReadError)>, command: &str) -> ExitFailure {
    match failure {
        None => ExitFailure::new(Exit::NoTarget, "no PyTorch with CUDA in these processes"),
        Some((tgid, error @ StateReadError::Unreadable(io::ErrorKind::PermissionDenied))) => {
            let failure = ExitFailure::new(Exit::NotPermitted, format!("process {tgid}: {error}"));
            failure.advise(format!(
                "Reading the memory of a process needs root: sudo memwatch {command}\n\
                 or an agent, which reads it for you: sudo systemctl start memwatch-agent"
            ))
        }
        Some((tgid, error @ StateReadError::Unreadable(_))) => {
            ExitFailure::new(Exit::NoTarget, format!("process {tgid}: {error}"))
        }
        Some((tgid, error)) => {
            let is_busy = matches!(&error, StateReadError::Refused(refusal) if refusal.is_passing());
            let failure = ExitFailure::new(Exit::Unsupported, format!("process {tgid}: {error}"));
            let advice = "It allocates without a pause: try again, or trace it: memwatch where PID";
            if is_busy { failure.advise(advice) } else { failure }
        }
    }
}
