//! Attaches probes to a library file: finds its exported functions, chooses an attach offset in
//! each, and attaches all rows at once.

mod changes;

use std::num::NonZeroU32;
use std::path::Path;

use aya::maps::{HashMap, MapData};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use memwatch_common::arming::ArmGroup;
use memwatch_common::plan::ONLY_LISTED;
use memwatch_common::probes::{PROBES, Probe, When};
use memwatch_core::input::{KernelCalls, LibraryCoverage};

use self::changes::ChangeProbes;
pub(crate) use self::changes::LibraryProbes;
use super::exports::{ExportStatus, classify};
use super::load::{HeldLink, KernelHalf, LoadError, Mechanism, TakenLink, chain, loaded_uprobe};
use super::pins::{ENTRY, RETURN, whole_with_handle};
use super::resolve::{ResolveError, SymbolTable};
use super::site::{AttachOffset, KernelVersion, SiteReason, select};
use super::stub::{self, NoStub};
use crate::sources::clock;
use crate::sources::library::LibraryFile;
use crate::stranger_file::ElfReader;

/// Attach offset of one row in one file.
#[derive(Debug, Clone)]
pub(crate) struct PlannedProbe {
    /// Exported symbol.
    pub(crate) symbol: &'static str,
    /// The attach cookie of the row.
    cookie: u64,
    /// Offset of the probed instruction from the start of the file.
    file_offset: u64,
    /// Why this offset was chosen.
    pub(crate) site: AttachOffset,
    when: When,
}

/// Attach plan of a file.
#[derive(Debug, Clone)]
pub(crate) struct AttachPlan {
    /// One entry per row that the file exports.
    pub(crate) probes: Vec<PlannedProbe>,
    /// Rows that the file does not export, mostly because the driver is older than these functions.
    pub(crate) missing: Vec<&'static str>,
    /// Classification of its exports that concern memory.
    pub(crate) exports: Vec<(String, ExportStatus)>,
    /// GNU build id, if the file has one.
    pub(crate) build_id: Option<String>,
    /// File offsets of the stubs that call `ioctl`; empty in a plan for one process.
    pub(crate) stubs: Result<Vec<u64>, KernelCalls>,
}

/// Why no plan can be made for a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// The file cannot be opened.
    #[error("cannot be opened")]
    Open(#[source] std::io::Error),
    /// The file is larger than any driver library.
    #[error("larger than 1 GiB")]
    TooLarge,
    /// The file cannot be parsed.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

impl PlanError {
    /// Whether the owner holds a lease on the file. The file may then be readable later.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Open(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// Maximum size of a driver library. One of 2025 has 110 MB.
const LARGEST_FILE_BYTES: u64 = 1 << 30;

/// Finds the function of each row that is to be probed at this time, and chooses its attach offset.
pub(crate) fn plan(
    file: &LibraryFile,
    kernel: KernelVersion,
    (table, when): (&[Probe], When),
) -> Result<AttachPlan, PlanError> {
    let opened = file.open().map_err(PlanError::Open)?;
    if opened.metadata().map_err(PlanError::Open)?.len() > LARGEST_FILE_BYTES {
        return Err(PlanError::TooLarge);
    }
    let stubs = match when {
        When::Always => stub::find(&opened, stub::IOCTL).map_err(|error| not_probed(&error)),
        When::ContextChanges | When::DeviceUnknown | When::GraphMemory => Ok(Vec::new()),
    };
    let cache = ElfReader::new(opened);
    let symbols = SymbolTable::parse(&cache)?;
    let mut plan = AttachPlan {
        probes: Vec::new(),
        missing: Vec::new(),
        exports: symbols.names().filter_map(|name| Some((name.to_owned(), classify(name)?))).collect(),
        build_id: symbols.build_id().map(str::to_owned),
        stubs,
    };
    // Probes on context changes are attached with the others, and removed if they cost too much.
    let is_wanted = |probe: &&Probe| probe.when == when || (when, probe.when) == (When::Always, When::ContextChanges);
    for probe in table.iter().filter(is_wanted) {
        let Some(function) = symbols.function(probe.symbol) else {
            plan.missing.push(probe.symbol);
            continue;
        };
        let site = select(symbols.code(&function), function.address, symbols.machine(), kernel);
        let file_offset = function.file_offset + site.offset_in_function;
        let (symbol, cookie, when) = (probe.symbol, probe.cookie(), probe.when);
        plan.probes.push(PlannedProbe { symbol, cookie, file_offset, site, when });
    }
    Ok(plan)
}

impl AttachPlan {
    /// Returns missing rows that are older than a row that the file has. The age of the driver does
    /// not explain them.
    pub(crate) fn older_than_others(&self) -> Vec<&'static str> {
        older_than_others(self.probes.iter().map(|probe| probe.symbol), self.missing.iter().copied())
    }
}

/// Returns missing rows that are not newer than the newest row present.
pub(crate) fn older_than_others(
    there: impl Iterator<Item = &'static str>,
    missing: impl Iterator<Item = &'static str>,
) -> Vec<&'static str> {
    let newest = there.filter_map(since).max();
    missing.filter(|symbol| since(symbol) <= newest).collect()
}

/// Returns the first CUDA version whose driver exports a function.
fn since(symbol: &str) -> Option<(u32, u32)> {
    let (major, minor) = PROBES.iter().find(|probe| probe.symbol == symbol)?.since.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Attaches all rows of a plan to its file. Returns the coverage, which includes errors.
pub(crate) fn attach(
    kernel: &mut KernelHalf,
    file: &LibraryFile,
    plan: Result<&AttachPlan, &PlanError>,
) -> (LibraryCoverage, LibraryProbes) {
    let mut coverage = LibraryCoverage { path: file.display.clone(), ..LibraryCoverage::default() };
    let mut probes = LibraryProbes::default();
    match plan {
        Err(error) => coverage.error = Some(chain(error)),
        Ok(plan) => {
            coverage.build_id.clone_from(&plan.build_id);
            let odd = plan.older_than_others();
            let newer = plan.missing.iter().filter(|symbol| !odd.contains(symbol));
            coverage.newer_functions = newer.map(|&symbol| symbol.to_owned()).collect();
            coverage.probes_refused = odd.iter().map(|&symbol| symbol.to_owned()).collect();
            if !kernel.places_probes {
                coverage.error = Some("the budget is 0".to_owned());
            } else if plan.probes.is_empty() {
                coverage.error = Some("exports none of the functions that memwatch probes".to_owned());
            } else {
                probes = attach_plan(kernel, file, plan, &mut coverage);
                coverage.kernel_calls = Some(attach_stubs(kernel, file, &plan.stubs, &mut probes.links));
            }
        }
    }
    (coverage, probes)
}

fn attach_plan(
    kernel: &mut KernelHalf,
    file: &LibraryFile,
    plan: &AttachPlan,
    coverage: &mut LibraryCoverage,
) -> LibraryProbes {
    let (changes, always): (Vec<_>, Vec<_>) =
        plan.probes.iter().cloned().partition(|probe| probe.when == When::ContextChanges);
    // The links attached last are those by which the next memwatch recognizes a fully probed file.
    let (changes, first) = ChangeProbes::attach(kernel, file, changes);
    let label = whole_with_handle(&file.identity);
    let mut attempt = attach_points(kernel, file, &always, (UProbeScope::AllProcesses, &label));
    attempt.refused.extend(first.refused);
    attempt.error = attempt.error.or(first.error);
    attempt.note(plan, coverage);
    LibraryProbes { links: attempt.links, changes }
}

/// Probes only the requests of a file to the kernel driver. Returns the outcome.
pub(crate) fn attach_requests(
    kernel: &mut KernelHalf,
    file: &LibraryFile,
    plan: Result<&AttachPlan, &PlanError>,
) -> (KernelCalls, LibraryProbes) {
    let mut probes = LibraryProbes::default();
    let calls = match plan {
        Err(error) => KernelCalls::Refused { reason: chain(error) },
        Ok(_) if !kernel.places_probes => KernelCalls::Refused { reason: "the budget is 0".to_owned() },
        Ok(plan) => attach_stubs(kernel, file, &plan.stubs, &mut probes.links),
    };
    (calls, probes)
}

/// Removes probes from unmapped files, in a thread. At each link the kernel waits up to 200 ms
/// until no processor is inside one of its probes (see `detach_beside` of the tensor probes), so
/// the libraries of 30 containers at once would keep the ring from being read for seconds. No call
/// spans the removal, since no process maps the file.
pub(crate) fn detach_from_unused(kernel: &mut KernelHalf, files: Vec<LibraryProbes>) {
    let links: Links = files.into_iter().flat_map(|probes| probes.into_links(kernel)).collect();
    let mut taken = Vec::new();
    for link in links {
        match kernel.take(link) {
            Ok(link) => taken.push(link),
            Err(error) => log::warn!("cannot remove an unused probe: {error}"),
        }
    }
    // The links are removed one after the other, since this is not urgent.
    let ending = move || taken.into_iter().for_each(TakenLink::end);
    if let Err(error) = std::thread::Builder::new().name("detach".to_owned()).spawn(ending) {
        log::warn!("cannot start a thread to remove unused probes; pinned ones stay: {error}");
    }
}

/// Probes in one process, until they are removed.
#[derive(Debug)]
pub(crate) struct ProcessProbes {
    links: Links,
    /// Group of the file.
    group: ArmGroup,
    /// The process, if the probes are attached to all processes and the kernel half therefore lists
    /// this one.
    listed: Option<u32>,
}

/// Attaches the rows that are probed on demand to a file in one process.
///
/// # Errors
/// A sentence with the reason why nothing is attached.
pub(crate) fn attach_to_process(
    kernel: &mut KernelHalf,
    (file, plan): (&LibraryFile, &Result<AttachPlan, PlanError>),
    tgid: NonZeroU32,
) -> Result<ProcessProbes, String> {
    let plan = plan.as_ref().map_err(|error| chain(error))?;
    let one_process = kernel.mechanism.attaches_to_processes();
    attach_to(kernel, file, plan, (tgid, one_process))
}

/// Attaches the probes of a plan for one process. On kernels that would attach to a single thread
/// of the process, the probes are attached to all processes that map the file, and only calls of
/// listed processes are recorded.
fn attach_to(
    kernel: &mut KernelHalf,
    file: &LibraryFile,
    plan: &AttachPlan,
    (tgid, one_process): (NonZeroU32, bool),
) -> Result<ProcessProbes, String> {
    if plan.probes.is_empty() {
        return Err("exports none of these functions".to_owned());
    }
    let (scope, listed) = if one_process {
        (UProbeScope::OneProcess(tgid), None)
    } else {
        list(kernel, tgid.get(), 1).map_err(|error| chain(&error))?;
        (UProbeScope::AllProcesses, Some(tgid.get()))
    };
    let mut plan = plan.clone();
    if listed.is_some() {
        plan.probes.iter_mut().for_each(|probe| probe.cookie |= ONLY_LISTED);
    }
    // Probes in a single process do not mark the file as probed for other processes.
    let Attempt { links, error, .. } = attach_points(kernel, file, &plan.probes, (scope, RETURN));
    let probes = ProcessProbes { links, group: file.identity.group(), listed };
    match error {
        Some(error) if probes.links.is_empty() => {
            detach(kernel, probes)?;
            Err(error)
        }
        _ => Ok(probes),
    }
}

/// Removes the probes. A call in flight leaves no record and is not a loss.
///
/// # Errors
/// A sentence with the reason why a probe may still be attached.
pub(crate) fn detach(kernel: &mut KernelHalf, probes: ProcessProbes) -> Result<(), String> {
    let detached = detach_links(kernel, probes.group, probes.links);
    let unlisted = probes.listed.map_or(Ok(()), |tgid| list(kernel, tgid, -1).map_err(|error| chain(&error)));
    detached.and(unlisted)
}

/// Changes the number of machine-wide sets of probes that serve this process. At 0, and on the
/// process's exit, the process is removed from the kernel half's list.
fn list(kernel: &mut KernelHalf, tgid: u32, change: i32) -> Result<(), LoadError> {
    const TABLE: &str = "CALL_TARGETS";
    let in_table = |cause| LoadError::Table { table: TABLE, cause };
    let map = kernel.ebpf.map_mut(TABLE).ok_or(LoadError::Missing(TABLE))?;
    let mut targets: HashMap<&mut MapData, u32, u32> = HashMap::try_from(map).map_err(in_table)?;
    let sets = targets.get(&tgid, 0).unwrap_or(0).saturating_add_signed(change);
    if sets > 0 {
        return targets.insert(&tgid, &sets, 0).map_err(in_table);
    }
    // The entry may already be absent.
    let _ = targets.remove(&tgid);
    Ok(())
}

type Links = Vec<HeldLink>;

/// Outcome of an attach.
#[derive(Default)]
struct Attempt {
    links: Links,
    /// Functions without a probe.
    refused: Vec<&'static str>,
    /// Error of the first of these functions.
    error: Option<String>,
}

impl Attempt {
    /// Writes the outcome to the coverage: the error if no probe is attached, otherwise the
    /// functions without probes.
    fn note(&self, plan: &AttachPlan, coverage: &mut LibraryCoverage) {
        coverage.probes_attached = plan.probes.len() - self.refused.len();
        coverage.probes_refused.extend(self.refused.iter().map(|&symbol| symbol.to_owned()));
        let there = plan.probes.iter().filter(|probe| !self.refused.contains(&probe.symbol));
        coverage.probes_moved = there.filter(|probe| matches!(probe.site.reason, SiteReason::MovedPast { .. })).count();
        match &self.error {
            Some(error) if self.refused.len() == plan.probes.len() => coverage.error = Some(error.clone()),
            Some(error) => log::warn!("{}: {} functions have no probes: {error}", coverage.path, self.refused.len()),
            None => {}
        }
    }
}

/// Attaches the probes. `label` names the return link if all functions share one link.
fn attach_points(
    kernel: &mut KernelHalf,
    file: &LibraryFile,
    probes: &[PlannedProbe],
    (scope, label): (UProbeScope, &str),
) -> Attempt {
    let mut attempt = Attempt::default();
    let group = file.identity.group();
    let attached = rearming(kernel, group, |kernel| {
        attach_pairs(kernel, AttachTarget { path: &file.path(), group, scope, label }, probes, &mut attempt);
        Ok(())
    });
    if let Err(error) = attached {
        attempt.error.get_or_insert(error);
        if attempt.links.is_empty() {
            attempt.refused = probes.iter().map(|probe| probe.symbol).collect();
        }
    }
    attempt
}

fn detach_links(kernel: &mut KernelHalf, group: ArmGroup, links: Links) -> Result<(), String> {
    rearming(kernel, group, |kernel| {
        // An error does not end the loop.
        links.into_iter().map(|link| kernel.release(link)).fold(Ok(()), Result::and)
    })
}

/// Changes probes of a group of files. Calls that may span the change are not losses. The group is
/// armed again even after an error.
fn rearming<T>(
    kernel: &mut KernelHalf,
    group: ArmGroup,
    change: impl FnOnce(&mut KernelHalf) -> Result<T, String>,
) -> Result<T, String> {
    kernel.arm(group, 0).map_err(|error| chain(&error))?;
    let changed = change(kernel);
    kernel.arm(group, clock::boottime_ns()).map_err(|error| chain(&error))?;
    changed
}

/// Attaches all functions with one link if the kernel supports that, and one by one if it refuses.
/// Classic probes take milliseconds each, so each function gets its entry and return probe
/// together.
fn attach_pairs(kernel: &mut KernelHalf, target: AttachTarget<'_>, probes: &[PlannedProbe], attempt: &mut Attempt) {
    let programs = kernel.mechanism.programs();
    let points: Vec<AttachPoint> = probes.iter().map(|probe| (probe.file_offset, probe.cookie)).collect();
    let together = kernel.mechanism == Mechanism::UprobeMulti && points.len() > 1;
    if together && let Ok(links) = attach_pair(kernel, target, programs, &points) {
        attempt.links.extend(links);
        return;
    }
    for (probe, point) in probes.iter().zip(points) {
        match attach_pair(kernel, AttachTarget { label: RETURN, ..target }, programs, &[point]) {
            Ok(links) => attempt.links.extend(links),
            Err(error) => {
                attempt.refused.push(probe.symbol);
                attempt.error.get_or_insert(error);
            }
        }
    }
}

/// Target of an attach, and the label of its return links.
#[derive(Clone, Copy)]
struct AttachTarget<'a> {
    path: &'a Path,
    group: ArmGroup,
    scope: UProbeScope,
    label: &'a str,
}

/// An offset in a file, and the cookie of the probe there.
type AttachPoint = (u64, u64);

/// Probes the requests of a file to the kernel driver. Nothing else depends on these probes, so a
/// failure is not an error of the file.
fn attach_stubs(
    kernel: &mut KernelHalf,
    file: &LibraryFile,
    stubs: &Result<Vec<u64>, KernelCalls>,
    links: &mut Links,
) -> KernelCalls {
    let stubs = match stubs {
        Ok(stubs) => stubs,
        Err(none) => return none.clone(),
    };
    let group = file.identity.group().of_requests();
    let target = AttachTarget { path: &file.path(), group, scope: UProbeScope::AllProcesses, label: RETURN };
    let programs = kernel.mechanism.ioctl_programs();
    let attached = rearming(kernel, group, |kernel| {
        let mut links = Links::new();
        for &stub in stubs {
            match attach_pair(kernel, target, programs, &[(stub, 0)]) {
                Ok(pair) => links.extend(pair),
                Err(error) => {
                    // With probes on only some of the stubs, the sums would always be wrong.
                    links.into_iter().try_for_each(|link| kernel.release(link))?;
                    return Err(error);
                }
            }
        }
        Ok(links)
    });
    match attached {
        Ok(pairs) => {
            links.extend(pairs);
            KernelCalls::Probed { stubs: stubs.len() }
        }
        Err(reason) => {
            log::warn!("{}: calls of ioctl are not seen: {reason}", file.display);
            KernelCalls::Refused { reason }
        }
    }
}

/// Returns the coverage of a file without a stub.
fn not_probed(reason: &NoStub) -> KernelCalls {
    match reason {
        NoStub::NotImported(_) => KernelCalls::None,
        reason => KernelCalls::Refused { reason: chain(reason) },
    }
}

/// Attaches the entry before the return, so that a return probe never fires without its entry.
fn attach_pair(
    kernel: &mut KernelHalf,
    target: AttachTarget<'_>,
    (entry, leave): (&'static str, &'static str),
    points: &[AttachPoint],
) -> Result<Links, String> {
    let mut links = Links::new();
    for program in [entry, leave] {
        let points = points.iter().map(|&(file_offset, cookie)| UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(file_offset),
            cookie: Some(target.group.in_cookie(cookie)),
        });
        let loaded = loaded_uprobe(&mut kernel.ebpf, program).map_err(|error| chain(&error))?;
        let attached = loaded.attach(points, target.path, target.scope).map_err(|error| chain(&error));
        let label = if program == leave { target.label } else { ENTRY };
        let held = attached.and_then(|link| kernel.hold(program, link, label).map_err(|error| chain(&error)));
        match held {
            Ok(link) => links.push(link),
            Err(error) => {
                // The entry probe alone would leave calls without a return.
                links.into_iter().try_for_each(|link| kernel.release(link))?;
                return Err(error);
            }
        }
    }
    Ok(links)
}

#[cfg(test)]
mod tests;
