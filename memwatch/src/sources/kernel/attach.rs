//! Probes onto a library file: which functions it exports, where in them the probes go, and one attach for the whole table.

use std::fs::File;
use std::num::NonZeroU32;

use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};
use memwatch_common::probes::{PROBES, When};
use memwatch_core::input::LibraryCoverage;
use object::ReadCache;

use super::exports::{Export, classify};
use super::load::{Kernel, Mechanism, uprobe};
use super::resolve::{ResolveError, SymbolTable};
use super::site::{KernelVersion, Site, SiteReason, select};
use crate::sources::clock;
use crate::sources::library::LibraryFile;

/// Where the probes of one row go in one file.
#[derive(Debug, Clone)]
pub(crate) struct PlannedProbe {
    /// Exported symbol.
    pub(crate) symbol: &'static str,
    /// The attach cookie of the row.
    cookie: u64,
    /// Offset of the probed instruction from the start of the file.
    file_offset: u64,
    /// Why there.
    pub(crate) site: Site,
}

/// What attaching to a file would do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// One entry per row that the file exports.
    pub(crate) probes: Vec<PlannedProbe>,
    /// Rows it does not export: the driver is older than they are.
    pub(crate) missing: Vec<&'static str>,
    /// What is known of its exports that deal with memory.
    pub(crate) exports: Vec<(String, Export)>,
    /// GNU build id, if it has one.
    pub(crate) build_id: Option<String>,
}

/// The file cannot be planned for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// It cannot be opened.
    #[error("cannot be opened")]
    Open(#[source] std::io::Error),
    /// It cannot be understood.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

/// Finds the function of every row that is probed at such times, and chooses its site.
pub(crate) fn plan(file: &LibraryFile, kernel: KernelVersion, when: When) -> Result<Plan, PlanError> {
    let cache = ReadCache::new(File::open(file.path()).map_err(PlanError::Open)?);
    let symbols = SymbolTable::parse(&cache)?;
    let mut plan = Plan {
        probes: Vec::new(),
        missing: Vec::new(),
        exports: symbols.names().filter_map(|name| Some((name.to_owned(), classify(name)?))).collect(),
        build_id: symbols.build_id().map(str::to_owned),
    };
    for probe in PROBES.iter().filter(|probe| probe.when == when) {
        let Some(function) = symbols.function(probe.symbol) else {
            plan.missing.push(probe.symbol);
            continue;
        };
        let site = select(symbols.code(&function), function.address, symbols.machine(), kernel);
        let file_offset = function.file_offset + site.offset_in_function;
        plan.probes.push(PlannedProbe { symbol: probe.symbol, cookie: probe.cookie(), file_offset, site });
    }
    Ok(plan)
}

/// Attaches all rows to a file and says what is covered. Never fails: what went wrong stands in the coverage.
pub(crate) fn attach(kernel: &mut Kernel, file: &LibraryFile, version: KernelVersion) -> LibraryCoverage {
    let mut coverage = LibraryCoverage { path: file.display.clone(), ..LibraryCoverage::default() };
    let plan = match plan(file, version, When::Always) {
        Ok(plan) => plan,
        Err(error) => {
            coverage.error = Some(chain(&error));
            return coverage;
        }
    };
    coverage.build_id.clone_from(&plan.build_id);
    coverage.probes_missing = plan.missing.iter().map(|&symbol| symbol.to_owned()).collect();
    if plan.probes.is_empty() {
        coverage.error = Some("exports none of the functions that memwatch probes".to_owned());
        return coverage;
    }
    match attach_points(kernel, file, &plan, UProbeScope::AllProcesses) {
        Ok(_) => {
            coverage.probes_attached = plan.probes.len();
            let moved = |probe: &&PlannedProbe| matches!(probe.site.reason, SiteReason::MovedPast { .. });
            coverage.probes_moved = plan.probes.iter().filter(moved).count();
        }
        Err(error) => coverage.error = Some(error),
    }
    coverage
}

/// Probes in one process, until they are taken out of it.
#[derive(Debug)]
pub(crate) struct ProcessProbes(Vec<(&'static str, UProbeLinkId)>);

/// Attaches the rows that are probed on demand to one process's file.
///
/// # Errors
/// A sentence that says why nothing is attached.
pub(crate) fn attach_to_process(
    kernel: &mut Kernel,
    file: &LibraryFile,
    version: KernelVersion,
    (tgid, when): (NonZeroU32, When),
) -> Result<ProcessProbes, String> {
    let plan = plan(file, version, when).map_err(|error| chain(&error))?;
    if plan.probes.is_empty() {
        return Err("exports none of these functions".to_owned());
    }
    attach_points(kernel, file, &plan, UProbeScope::OneProcess(tgid)).map(ProcessProbes)
}

/// Takes the probes out. A call that is inside then leaves no record and is no loss.
///
/// # Errors
/// A sentence that says why a probe may still be there.
pub(crate) fn detach(kernel: &mut Kernel, probes: ProcessProbes) -> Result<(), String> {
    rearming(kernel, |kernel| {
        let detach = |(program, link)| {
            let loaded = uprobe(&mut kernel.ebpf, program).map_err(|error| chain(&error))?;
            loaded.detach(link).map_err(|error| chain(&error))
        };
        // All of them, also after one that fails.
        probes.0.into_iter().map(detach).fold(Ok(()), Result::and)
    })
}

type Links = Vec<(&'static str, UProbeLinkId)>;

fn attach_points(kernel: &mut Kernel, file: &LibraryFile, plan: &Plan, scope: UProbeScope) -> Result<Links, String> {
    rearming(kernel, |kernel| attach_pairs(kernel, file, plan, scope))
}

/// Changes probes while the kernel half knows that calls may straddle it, and arms it again whether that works or not.
fn rearming<T>(kernel: &mut Kernel, change: impl FnOnce(&mut Kernel) -> Result<T, String>) -> Result<T, String> {
    kernel.arm(0).map_err(|error| chain(&error))?;
    let changed = change(kernel);
    kernel.arm(clock::boottime_ns()).map_err(|error| chain(&error))?;
    changed
}

/// Entry before return, so that a return probe never fires for a call whose entry was not seen. Classic probes take milliseconds
/// each, so there each function gets its pair at once.
fn attach_pairs(kernel: &mut Kernel, file: &LibraryFile, plan: &Plan, scope: UProbeScope) -> Result<Links, String> {
    let (entry, leave) = kernel.mechanism.programs();
    let batch = match kernel.mechanism {
        Mechanism::UprobeMulti => plan.probes.len(),
        Mechanism::Classic => 1,
    };
    let path = file.path();
    let mut links = Vec::new();
    for probes in plan.probes.chunks(batch) {
        for program in [entry, leave] {
            let points = probes.iter().map(|probe| UProbeAttachPoint {
                location: UProbeAttachLocation::AbsoluteOffset(probe.file_offset),
                cookie: Some(probe.cookie),
            });
            let loaded = uprobe(&mut kernel.ebpf, program).map_err(|error| chain(&error))?;
            links.push((program, loaded.attach(points, &path, scope).map_err(|error| chain(&error))?));
        }
    }
    Ok(links)
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
