//! Checks of the driver library files of this machine, and of probing each of them.

mod requesters;

use std::collections::BTreeMap;
use std::path::PathBuf;

use memwatch_common::probes::When;
use memwatch_core::input::{KernelCalls, LibraryCoverage};
use serde::Serialize;

pub(crate) use self::requesters::RequesterReport;
use super::check::{Barrier, Check, CheckState, Topic, count};
use super::nvml::Traces;
use super::permission::{security_module_line, ways};
use super::privilege::{CHECKPOINT_RESTORE, DAC_READ_SEARCH, Privilege, SYS_PTRACE};
use crate::backends::{backend, scan};
use crate::sources::kernel::attach::{self, AttachPlan, PlannedProbe, attach, plan};
use crate::sources::kernel::exports::{ExportStatus, SkipReason as LeftOutExport};
use crate::sources::kernel::load::chain;
use crate::sources::kernel::load::{KernelHalf, Mechanism};
use crate::sources::kernel::site::{KernelVersion, SiteReason};
use crate::sources::library::{Discovery, LeftOutReason, LibraryFile, LibraryScan, SkippedLibrary};

/// Cost of a single-stepped probe: the same pair of probes took 12.2 µs per call at a first `cmp
/// [rip+x], imm` and 2.8 µs at the `je` after it (Linux 6.18, AMD EPYC, in a virtual machine).
const SINGLE_STEP_COST: &str = "12.2 µs per call instead of 2.8 µs, measured in a virtual machine";
/// Maximum number of names in a list.
const NAMES_SHOWN: usize = 8;

/// Library files that were found.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    /// Files that can be probed, and files that failed to be probed.
    pub(crate) files: Vec<LibraryReport>,
    /// Files with a library's name that are not 64-bit libraries or cannot be read.
    pub(crate) left_out: Vec<SkippedLibrary>,
    /// Other files of the driver that request memory from the kernel driver.
    pub(crate) requesters: Vec<RequesterReport>,
    /// Number of processes with readable mappings.
    pub(crate) processes: usize,
    /// Number of processes with mappings that this user may not read.
    pub(crate) processes_denied: usize,
}

/// A library file.
#[derive(Debug, Serialize)]
pub(crate) struct LibraryReport {
    /// Path, build, and the probes attached for the trial run.
    #[serde(flatten)]
    pub(crate) coverage: LibraryCoverage,
    /// The file was removed or replaced after it was mapped.
    pub(crate) deleted: bool,
    /// Processes that map the file as executable.
    #[serde(rename = "pids")]
    pub(crate) tgids: Vec<u32>,
    /// Exported functions of the probe table, with their attach offsets.
    pub(crate) functions: Vec<FunctionReport>,
    /// Functions of the probe table that the file does not export.
    pub(crate) missing: Vec<MissingFunction>,
    /// Memory-related exports that are neither in the table nor known to be irrelevant.
    pub(crate) unknown_exports: Vec<String>,
    /// Number of exports that are deliberately not probed, by reason.
    #[serde(skip)]
    pub(crate) left_out_exports: BTreeMap<LeftOutExport, usize>,
}

/// A function and the place of its probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FunctionReport {
    /// Exported symbol.
    pub(crate) symbol: &'static str,
    /// Attach offset: bytes from the function's entry to the probed instruction.
    pub(crate) offset_bytes: u64,
    /// The probed instruction; empty if it could not be decoded.
    pub(crate) instruction: String,
    /// Why the probe is at this instruction.
    pub(crate) reason: String,
    /// Whether every call is single-stepped; `None` if unknown.
    pub(crate) single_stepped: Option<bool>,
}

/// A function of the table that a file does not export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MissingFunction {
    /// The symbol.
    pub(crate) symbol: &'static str,
    /// First CUDA version with the function in its driver.
    pub(crate) since: &'static str,
}

/// Scans the machine, plans the probes of every file, and attaches them briefly if that is fast.
pub(crate) fn examine(named: &[PathBuf], kernel: Option<&mut KernelHalf>, version: Option<KernelVersion>) -> Libraries {
    let scan = named.iter().fold(scan(), LibraryScan::with_named);
    let Discovery { files, left_out, processes, processes_denied, .. } = scan.scan_all();
    // A classic uprobe takes a tenth of a second to detach, which is too slow for a diagnosis.
    let mut kernel = kernel.filter(|kernel| kernel.mechanism == Mechanism::UprobeMulti);
    // Without a version no instruction counts as emulated, and every attach offset is the entry.
    let version = version.unwrap_or(KernelVersion { major: 0, minor: 0 });
    let files = files.iter().map(|file| report(file, kernel.as_deref_mut(), version)).collect();
    Libraries { files, left_out, requesters: requesters::examine(scan, version), processes, processes_denied }
}

fn report(file: &LibraryFile, kernel: Option<&mut KernelHalf>, version: KernelVersion) -> LibraryReport {
    let mut report = LibraryReport {
        deleted: file.deleted,
        tgids: file.mapped_by.clone(),
        functions: Vec::new(),
        missing: Vec::new(),
        unknown_exports: Vec::new(),
        left_out_exports: BTreeMap::new(),
        coverage: LibraryCoverage { path: file.display.clone(), ..LibraryCoverage::default() },
    };
    let planned = plan(file, version, (backend().probes(), When::Always));
    match &planned {
        Ok(plan @ AttachPlan { probes, missing, exports, build_id, stubs }) => {
            report.sort_exports(exports.clone());
            report.functions = probes.iter().map(function).collect();
            report.coverage.build_id.clone_from(build_id);
            report.coverage.kernel_calls = stubs.as_ref().err().cloned();
            let since =
                |symbol| backend().probes().iter().find(|probe| probe.symbol == symbol).map_or("", |probe| probe.since);
            report.missing = missing.iter().map(|&symbol| MissingFunction { symbol, since: since(symbol) }).collect();
            let odd = plan.older_than_others();
            let newer = missing.iter().filter(|symbol| !odd.contains(symbol));
            report.coverage.newer_functions = newer.map(|&symbol| symbol.to_owned()).collect();
        }
        Err(error) => report.coverage.error = Some(chain(error)),
    }
    if report.functions.is_empty() && report.coverage.error.is_none() {
        report.coverage.error = Some("exports none of the functions that memwatch probes".to_owned());
    }
    match kernel {
        Some(kernel) if report.coverage.error.is_none() => {
            // Dropping the kernel half detaches the probes.
            (report.coverage, _) = attach(kernel, file, planned.as_ref());
        }
        _ => {}
    }
    report
}

impl LibraryReport {
    fn sort_exports(&mut self, exports: Vec<(String, ExportStatus)>) {
        for (name, export) in exports {
            match export {
                ExportStatus::Probed => {}
                ExportStatus::LeftOut(reason) => *self.left_out_exports.entry(reason).or_default() += 1,
                ExportStatus::Unknown => self.unknown_exports.push(name),
            }
        }
    }
}

fn function(probe: &PlannedProbe) -> FunctionReport {
    let site = &probe.site;
    let known = !matches!(site.reason, SiteReason::UnsupportedMachine | SiteReason::CodeUnknown);
    FunctionReport {
        symbol: probe.symbol,
        offset_bytes: site.offset_in_function,
        instruction: site.instruction.clone(),
        reason: site.reason.to_string(),
        single_stepped: known.then_some(!site.emulated),
    }
}

impl Libraries {
    /// Returns the checks of all files, and of what could not be examined.
    pub(crate) fn checks(&self, privilege: &Privilege, verbose: bool) -> Vec<Check> {
        let mut checks: Vec<Check> = self.files.iter().map(|file| judge_file(file, verbose)).collect();
        checks.extend(self.files.iter().filter_map(|file| judge_exports(file, verbose)));
        checks.extend(self.requesters.iter().map(requesters::judge));
        checks.extend(self.left_out.iter().map(|left_out| judge_left_out(left_out, privilege)));
        checks.push(judge_processes(self.processes, self.processes_denied, privilege));
        checks
    }

    /// Returns the files that can be probed as far as is known.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &LibraryReport> {
        self.files.iter().filter(|file| file.coverage.error.is_none())
    }

    /// Returns the files in use that cannot be opened from here.
    fn closed(&self) -> impl Iterator<Item = &SkippedLibrary> {
        self.left_out.iter().filter(|left_out| is_closed(left_out))
    }

    /// Returns the traces of a driver, judging by libcuda only.
    pub(crate) fn traces(&self, privilege: &Privilege) -> Traces {
        // In a separate pid namespace, memwatch sees only the processes of its own container.
        let blind =
            privilege.initial_pid_namespace == Some(false) || (self.processes_denied > 0 && !privilege.has(SYS_PTRACE));
        match () {
            () if !self.files.is_empty() => Traces::Found,
            () if blind || self.closed().next().is_some() => Traces::Unknown,
            () => Traces::None,
        }
    }

    /// Checks whether libcuda was found; `driver` is whether any other trace of a driver was found.
    pub(crate) fn judge(&self, driver: bool, privilege: &Privilege) -> Check {
        let check = |state, fact: String| Check::new(Topic::Driver, "libcuda", state, fact);
        let usable = self.usable().count();
        if usable > 0 {
            let mut tgids: Vec<u32> = self.files.iter().flat_map(|file| file.tgids.iter().copied()).collect();
            tgids.sort_unstable();
            tgids.dedup();
            return check(
                CheckState::Ok,
                format!("{}, in use by {}", count(usable, "file"), count(tgids.len(), "process")),
            );
        }
        if !self.files.is_empty() {
            return check(CheckState::Missing(Barrier::Machine), "found, but not one file can be probed".to_owned())
                .fix("name a driver library: memwatch doctor --libcuda /path/to/libcuda.so.1");
        }
        if let Some(closed) = self.closed().next() {
            return check(
                CheckState::Missing(Barrier::Permission),
                "in use, but not one file can be opened: see below".to_owned(),
            )
            .fixes(ways_to_file(closed, privilege));
        }
        let state = if driver { CheckState::Degraded } else { CheckState::NotChecked };
        check(state, "no libcuda found: nothing to watch yet".to_owned())
            .fix("start the job: a library inside a container is found through the processes that use it")
            .fix("name the file: memwatch doctor --libcuda /path/to/libcuda.so.1")
    }
}

fn judge_file(file: &LibraryReport, verbose: bool) -> Check {
    let all = file.functions.len() + file.missing.len();
    let deleted = if file.deleted { " (replaced since it was loaded)" } else { "" };
    let name = format!("{}{deleted}", file.coverage.path);
    let check = |state, fact| Check::new(Topic::Driver, "library", state, fact);
    if let Some(error) = &file.coverage.error {
        return Check { details: vec![usage(file)], ..check(CheckState::Degraded, format!("{name}: {error}")) };
    }
    let tried = if file.coverage.probes_attached > 0 { "probed" } else { "found" };
    let stepped: Vec<&str> = single_stepped(file).collect();
    let odd = older_than_others(file);
    let state = if stepped.is_empty() && odd.is_empty() { CheckState::Ok } else { CheckState::Degraded };
    let mut check = check(state, format!("{name}: {} of {all} functions {tried}", file.functions.len()));
    check.details.push(usage(file));
    check.details.extend(file.coverage.kernel_calls.as_ref().map(kernel_calls));
    check.details.extend(if verbose { every_site(file) } else { grouped_sites(file) });
    let shown = if verbose { usize::MAX } else { NAMES_SHOWN };
    if !stepped.is_empty() {
        check.details.push(format!("single-stepped, {SINGLE_STEP_COST}: {}", listed(&stepped, shown)));
    }
    let newer = file.missing.iter().filter(|gone| !odd.contains(&gone.symbol));
    let newer: Vec<String> = newer.map(|gone| format!("{} (CUDA {})", gone.symbol, gone.since)).collect();
    if !newer.is_empty() {
        check.details.push(format!("newer than this driver: {}", listed(&newer, shown)));
    }
    if !odd.is_empty() {
        check
            .details
            .push(format!("missing though the driver has newer ones, so calls may go unseen: {}", listed(&odd, shown)));
    }
    check.details.extend(left_out_exports(file).filter(|_| verbose));
    check
}

/// Checks for unknown exports: a driver newer than memwatch may have other allocation functions.
fn judge_exports(file: &LibraryReport, verbose: bool) -> Option<Check> {
    let unknown = file.unknown_exports.len();
    let shown = if verbose { usize::MAX } else { NAMES_SHOWN };
    let (exports, they) = if unknown == 1 { ("export", "it allocates") } else { ("exports", "they allocate") };
    let fact = format!(
        "{}: {unknown} {exports} of this driver unknown to this version: {}; totals may miss what {they}",
        file.coverage.path,
        listed(&file.unknown_exports, shown)
    );
    let fix = "use a newer memwatch, where there is one";
    (unknown > 0).then(|| Check::new(Topic::Driver, "exports", CheckState::Degraded, fact).fix(fix))
}

/// Describes how many exports are not probed, and why.
fn left_out_exports(file: &LibraryReport) -> Option<String> {
    let reasons = file.left_out_exports.iter().map(|(reason, number)| format!("{number} {}", reason.words()));
    let reasons: Vec<String> = reasons.collect();
    (!reasons.is_empty()).then(|| format!("not probed on purpose: {}", reasons.join(", ")))
}

/// Joins the first names, with the number of the remaining ones.
fn listed(names: &[impl AsRef<str>], shown: usize) -> String {
    let rest = names.len().saturating_sub(shown);
    let names: Vec<&str> = names.iter().take(shown).map(AsRef::as_ref).collect();
    let names = names.join(", ");
    if rest == 0 { names } else { format!("{names} and {rest} more (-v names them)") }
}

fn usage(file: &LibraryReport) -> String {
    let users = match file.tgids.len() {
        0 => "not in use now".to_owned(),
        users => format!("in use by {}", count(users, "process")),
    };
    match &file.coverage.build_id {
        Some(build_id) => format!("{users}; build id {build_id}"),
        None => users,
    }
}

/// Describes whether the file's requests to the kernel driver are probed.
fn kernel_calls(calls: &KernelCalls) -> String {
    match calls {
        KernelCalls::Probed { stubs } => format!("requests to the kernel driver: probed at {}", count(*stubs, "stub")),
        KernelCalls::None => "requests to the kernel driver: it makes none".to_owned(),
        KernelCalls::Refused { reason } => format!("requests to the kernel driver: not seen, {reason}"),
    }
}

fn single_stepped(file: &LibraryReport) -> impl Iterator<Item = &'static str> {
    file.functions.iter().filter(|function| function.single_stepped == Some(true)).map(|function| function.symbol)
}

/// Returns missing functions that are older than a function that the file has: the age of the
/// driver does not explain these.
fn older_than_others(file: &LibraryReport) -> Vec<&'static str> {
    let there = file.functions.iter().map(|function| function.symbol);
    attach::older_than_others(there, file.missing.iter().map(|gone| gone.symbol))
}

/// Describes the attach offsets: one line per kind of instruction and reason, the most frequent
/// first.
fn grouped_sites(file: &LibraryReport) -> Vec<String> {
    let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for function in &file.functions {
        let mnemonic = function.instruction.split(' ').next().unwrap_or_default();
        *groups.entry((mnemonic, &function.reason)).or_default() += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|((instruction, _), number)| (usize::MAX - number, *instruction));
    let width = groups.iter().map(|((instruction, _), _)| instruction.len()).max().unwrap_or(0);
    let digits = groups.first().map_or(0, |(_, number)| number.to_string().len());
    let line = |((instruction, reason), number): ((&str, &str), usize)| {
        let functions = if number == 1 { "function " } else { "functions" };
        format!("{number:>digits$} {functions} at {instruction:<width$}  {reason}")
    };
    groups.into_iter().map(line).collect()
}

fn every_site(file: &LibraryReport) -> Vec<String> {
    let width = |text: fn(&FunctionReport) -> usize| file.functions.iter().map(text).max().unwrap_or(0);
    let (symbols, instructions) = (width(|one| one.symbol.len()), width(|one| one.instruction.len()));
    let line = |one: &FunctionReport| {
        let FunctionReport { symbol, offset_bytes, instruction, reason, single_stepped: _ } = one;
        format!("{symbol:<symbols$}  +{offset_bytes:<3} {instruction:<instructions$}  {reason}")
    };
    file.functions.iter().map(line).collect()
}

/// Judges a file that cannot be probed. Unless a process uses it or the user named it, the state is
/// `NotChecked`.
fn judge_left_out(left_out: &SkippedLibrary, privilege: &Privilege) -> Check {
    let SkippedLibrary { display, reason, mapped_by, named: _ } = left_out;
    let concerns = !mapped_by.is_empty() || matches!(reason, LeftOutReason::Unreadable(_));
    let state = if concerns { CheckState::Degraded } else { CheckState::NotChecked };
    let users = match mapped_by.len() {
        0 => String::new(),
        users => format!(", in use by {}", count(users, "process")),
    };
    let check = |fact: String| Check::new(Topic::Driver, "left_out", state, fact);
    if is_closed(left_out) {
        return check(format!("{display}{users}: cannot be opened")).fixes(ways_to_file(left_out, privilege));
    }
    let check = check(format!("{display}{users}: {reason}"));
    // Only `--libcuda` on the command line leads to such a file.
    if matches!(reason, LeftOutReason::Unreadable(_)) {
        check.fix("correct the path given to --libcuda")
    } else {
        check
    }
}

fn is_closed(left_out: &SkippedLibrary) -> bool {
    !left_out.mapped_by.is_empty() && matches!(left_out.reason, LeftOutReason::Unreadable(_))
}

/// Returns ways to open a file that a process uses. Without permission, the kernel reports such a
/// file as missing.
fn ways_to_file(left_out: &SkippedLibrary, privilege: &Privilege) -> Vec<String> {
    if !privilege.has(SYS_PTRACE) || !privilege.has(DAC_READ_SEARCH) {
        return ways(privilege);
    }
    if !privilege.has(CHECKPOINT_RESTORE) {
        return vec![
            format!("sudo {} doctor", privilege.program()),
            format!("grant {} as well, which {}", CHECKPOINT_RESTORE.name, CHECKPOINT_RESTORE.purpose),
        ];
    }
    let users: Vec<String> = left_out.mapped_by.iter().map(u32::to_string).collect();
    vec![format!("restart what uses it: {}", users.join(", "))]
}

fn judge_processes(seen: usize, denied: usize, privilege: &Privilege) -> Check {
    let check = |state, fact| Check::new(Topic::Driver, "processes", state, fact);
    if denied == 0 {
        return check(CheckState::Ok, format!("the libraries of every process are readable ({seen} now)"));
    }
    let fact = format!("the libraries of {denied} of {} processes are not readable", seen + denied);
    if privilege.has(SYS_PTRACE) {
        return check(CheckState::Degraded, format!("{fact}, even with {}", SYS_PTRACE.name))
            .fix(security_module_line());
    }
    check(CheckState::Degraded, fact).fixes(ways(privilege))
}

#[cfg(test)]
mod tests;
