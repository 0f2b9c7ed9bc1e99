//! `memwatch holdings`: what a PyTorch process holds, by name. It only reads: no probe, no eBPF, and the process runs on.

pub(crate) mod args;
mod json;
mod text;

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use memwatch_core::features::holdings::view;
use memwatch_core::features::holdings::view::HoldingsView;
use memwatch_core::input::holdings::Holding;

use crate::exit::{Exit, Failure};
use crate::frameworks::pytorch::{BooksError, HoldingsReader};
use crate::options::Common;
use crate::render::output::{style, unless_closed};
use crate::sources::procfs::ProcReader;
use crate::watch::one_shot::{TakenAt, tgids_of};
use args::Names;

/// For how long a whole reading is tried of a process whose allocator is at work; then the blocks that stand still are read.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two tries.
const BETWEEN: Duration = Duration::from_millis(10);

/// What one process holds, with its command line.
pub(crate) struct Found {
    pub(crate) command: String,
    pub(crate) view: HoldingsView,
    pub(crate) blocks: Vec<Holding>,
}

/// Reads what processes hold, and prints it.
///
/// # Errors
/// When none of them has PyTorch, or they cannot be read.
pub(crate) async fn run(args: &Names, common: &Common) -> Result<Exit, Failure> {
    let named: BTreeSet<u32> = tgids_of(&args.selected, common).await?.into_iter().map(|tgid| tgid.0).collect();
    let mut processes = ProcReader::new("/proc");
    let children = processes.descendants(&named);
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for tgid in named.iter().chain(&children) {
        match holdings(*tgid, args) {
            Ok(Some((view, blocks))) => {
                let command = processes.facts(*tgid, false).map(|facts| facts.command).unwrap_or_default();
                found.push(Found { command, view, blocks });
            }
            Ok(None) => {}
            Err(error) => failures.push((*tgid, error)),
        }
    }
    if found.is_empty() {
        return Err(failure(failures.into_iter().next()));
    }
    for (tgid, error) in failures {
        eprintln!("memwatch: process {tgid} is left out: {error}");
    }
    let mut out = io::stdout().lock();
    let written = if common.json {
        json::write(&mut out, &found, &TakenAt::here())
    } else {
        text::write(&mut out, &found, &style(common, false))
    };
    unless_closed(written)?;
    Ok(Exit::Ok)
}

/// `None` where the process has no PyTorch, or holds nothing of it yet.
fn holdings(tgid: u32, args: &Names) -> Result<Option<(HoldingsView, Vec<Holding>)>, BooksError> {
    let Some(mut reader) = HoldingsReader::open(tgid)? else { return Ok(None) };
    let until = Instant::now() + PATIENCE;
    let (holdings, totals) = loop {
        break match reader.read() {
            Ok(read) => read,
            Err(BooksError::Refused(refusal)) if refusal.is_passing() && Instant::now() < until => {
                std::thread::sleep(BETWEEN);
                continue;
            }
            Err(BooksError::Refused(refusal)) if refusal.is_passing() => reader.read_standing()?,
            Err(error) => return Err(error),
        };
    };
    let view = view(&holdings, &totals, args.by.into(), args.top);
    Ok(Some((view, holdings.rows)))
}

fn failure(failure: Option<(u32, BooksError)>) -> Failure {
    match failure {
        None => Failure::new(Exit::NoTarget, "no PyTorch with CUDA in these processes"),
        Some((tgid, error @ BooksError::Unreadable(io::ErrorKind::PermissionDenied))) => {
            let failure = Failure::new(Exit::NotPermitted, format!("process {tgid}: {error}"));
            failure.advise("Reading the memory of a process needs root: sudo memwatch holdings")
        }
        Some((tgid, error @ BooksError::Unreadable(_))) => {
            Failure::new(Exit::NoTarget, format!("process {tgid}: {error}"))
        }
        Some((tgid, error)) => {
            let is_busy = matches!(&error, BooksError::Refused(refusal) if refusal.is_passing());
            let failure = Failure::new(Exit::Unsupported, format!("process {tgid}: {error}"));
            let advice = "It allocates without a pause: try again, or trace it: memwatch where PID";
            if is_busy { failure.advise(advice) } else { failure }
        }
    }
}
