//! The driver library files of this machine, and what probing each of them comes to.

mod requesters;

use std::collections::BTreeMap;
use std::path::PathBuf;

use memwatch_common::probes::When;
use memwatch_core::input::{KernelCalls, LibraryCoverage};
use serde::Serialize;

pub(crate) use self::requesters::RequesterReport;
use super::check::{Barrier, Check, State, Topic, count};
use super::nvml::Traces;
use super::permission::{security_module_line, ways};
use super::privilege::{CHECKPOINT_RESTORE, DAC_READ_SEARCH, Privilege, SYS_PTRACE};
use crate::backends::{backend, scan};
use crate::sources::kernel::attach::{self, Plan, PlannedProbe, attach, plan};
use crate::sources::kernel::exports::{Export, LeftOut as LeftOutExport};
use crate::sources::kernel::load::chain;
use crate::sources::kernel::load::{Kernel, Mechanism};
use crate::sources::kernel::site::{KernelVersion, SiteReason};
use crate::sources::library::{Discovery, LeftOut, LeftOutReason, LibraryFile, LibraryScan};

/// What single-stepping adds to a call: the same pair of probes at a first `cmp [rip+x], imm` and at the `je` after it took 12.2 µs
/// and 2.8 µs (Linux 6.18, AMD EPYC, in a virtual machine).
const SINGLE_STEP_COST: &str = "12.2 µs per call instead of 2.8 µs, measured in a virtual machine";
/// Names in one list before it is cut short.
const NAMES_SHOWN: usize = 8;

/// Every library file found, and those left out.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    /// Files that can be probed, and the ones that turned out not to be.
    pub(crate) files: Vec<LibraryReport>,
    /// Files with the name that are no 64-bit libraries, or cannot be read.
    pub(crate) left_out: Vec<LeftOut>,
    /// The driver's other files that ask the kernel driver for memory.
    pub(crate) requesters: Vec<RequesterReport>,
    /// Processes whose mappings were read.
    pub(crate) processes: usize,
    /// Processes whose mappings this user may not read.
    pub(crate) processes_denied: usize,
}

/// One library file.
#[derive(Debug, Serialize)]
pub(crate) struct LibraryReport {
    /// Where it was found, its build, and what was attached for the trial.
    #[serde(flatten)]
    pub(crate) coverage: LibraryCoverage,
    /// It has been removed or replaced since it was mapped.
    pub(crate) deleted: bool,
    /// The processes that execute it.
    #[serde(rename = "pids")]
    pub(crate) tgids: Vec<u32>,
    /// The functions it exports, each with its site.
    pub(crate) functions: Vec<FunctionReport>,
    /// The functions of the table that it does not export.
    pub(crate) missing: Vec<MissingFunction>,
    /// Exports that deal with memory and are neither in the table nor known to be none of its concern.
    pub(crate) unknown_exports: Vec<String>,
    /// Exports that are not probed on purpose: why, and how many.
    #[serde(skip)]
    pub(crate) left_out_exports: BTreeMap<LeftOutExport, usize>,
}

/// One function and where its probes go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FunctionReport {
    /// Exported symbol.
    pub(crate) symbol: &'static str,
    /// Bytes from the function's entry to the probed instruction.
    pub(crate) offset_bytes: u64,
    /// The probed instruction; empty where it could not be decoded.
    pub(crate) instruction: String,
    /// Why there.
    pub(crate) reason: String,
    /// Every call is single-stepped; `None` where it is not known.
    pub(crate) single_stepped: Option<bool>,
}

/// One function of the table that a file does not export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MissingFunction {
    /// The symbol.
    pub(crate) symbol: &'static str,
    /// First CUDA version whose driver has it.
    pub(crate) since: &'static str,
}

/// Scans the machine, plans every file, and attaches to it for a moment where that is quick.
pub(crate) fn examine(named: &[PathBuf], kernel: Option<&mut Kernel>, version: Option<KernelVersion>) -> Libraries {
    let scan = named.iter().fold(scan(), LibraryScan::with_named);
    let Discovery { files, left_out, processes, processes_denied, .. } = scan.scan_all();
    // Classic uprobes take a tenth of a second each to detach: a diagnosis must not.
    let mut kernel = kernel.filter(|kernel| kernel.mechanism == Mechanism::UprobeMulti);
    // Without a version nothing counts as emulated, and every site is the entry.
    let version = version.unwrap_or(KernelVersion { major: 0, minor: 0 });
    let files = files.iter().map(|file| report(file, kernel.as_deref_mut(), version)).collect();
    Libraries { files, left_out, requesters: requesters::examine(scan, version), processes, processes_denied }
}

fn report(file: &LibraryFile, kernel: Option<&mut Kernel>, version: KernelVersion) -> LibraryReport {
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
        Ok(plan @ Plan { probes, missing, exports, build_id, stubs }) => {
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
            // The probes go with the kernel half.
            (report.coverage, _) = attach(kernel, file, planned.as_ref());
        }
        _ => {}
    }
    report
}

impl LibraryReport {
    fn sort_exports(&mut self, exports: Vec<(String, Export)>) {
        for (name, export) in exports {
            match export {
                Export::Probed => {}
                Export::LeftOut(reason) => *self.left_out_exports.entry(reason).or_default() += 1,
                Export::Unknown => self.unknown_exports.push(name),
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
    /// The judgements on every file, and on what could not be seen.
    pub(crate) fn checks(&self, privilege: &Privilege, verbose: bool) -> Vec<Check> {
        let mut checks: Vec<Check> = self.files.iter().map(|file| judge_file(file, verbose)).collect();
        checks.extend(self.files.iter().filter_map(|file| judge_exports(file, verbose)));
        checks.extend(self.requesters.iter().map(requesters::judge));
        checks.extend(self.left_out.iter().map(|left_out| judge_left_out(left_out, privilege)));
        checks.push(judge_processes(self.processes, self.processes_denied, privilege));
        checks
    }

    /// Files that can be probed as far as is known.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &LibraryReport> {
        self.files.iter().filter(|file| file.coverage.error.is_none())
    }

    /// Files in use that cannot be opened from here.
    fn closed(&self) -> impl Iterator<Item = &LeftOut> {
        self.left_out.iter().filter(|left_out| is_closed(left_out))
    }

    /// What there is of a driver, going by its library alone.
    pub(crate) fn traces(&self, privilege: &Privilege) -> Traces {
        // In a pid namespace of its own memwatch sees its own container's processes only.
        let blind =
            privilege.initial_pid_namespace == Some(false) || (self.processes_denied > 0 && !privilege.has(SYS_PTRACE));
        match () {
            () if !self.files.is_empty() => Traces::Found,
            () if blind || self.closed().next().is_some() => Traces::Unknown,
            () => Traces::None,
        }
    }

    /// Whether libcuda is there at all; `driver` says whether anything else of a driver is.
    pub(crate) fn judge(&self, driver: bool, privilege: &Privilege) -> Check {
        let check = |state, fact: String| Check::new(Topic::Driver, "libcuda", state, fact);
        let usable = self.usable().count();
        if usable > 0 {
            let mut tgids: Vec<u32> = self.files.iter().flat_map(|file| file.tgids.iter().copied()).collect();
            tgids.sort_unstable();
            tgids.dedup();
            return check(State::Ok, format!("{}, in use by {}", count(usable, "file"), count(tgids.len(), "process")));
        }
        if !self.files.is_empty() {
            return check(State::Missing(Barrier::Machine), "found, but not one file can be probed".to_owned())
                .fix("name a driver library: memwatch doctor --libcuda /path/to/libcuda.so.1");
        }
        if let Some(closed) = self.closed().next() {
            return check(
                State::Missing(Barrier::Permission),
                "in use, but not one file can be opened: see below".to_owned(),
            )
            .fixes(ways_to_file(closed, privilege));
        }
        let state = if driver { State::Degraded } else { State::NotChecked };
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
        return Check { details: vec![usage(file)], ..check(State::Degraded, format!("{name}: {error}")) };
    }
    let tried = if file.coverage.probes_attached > 0 { "probed" } else { "found" };
    let stepped: Vec<&str> = single_stepped(file).collect();
    let odd = older_than_others(file);
    let state = if stepped.is_empty() && odd.is_empty() { State::Ok } else { State::Degraded };
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

/// A driver newer than memwatch has ways to allocate that nobody here knows.
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
    (unknown > 0).then(|| Check::new(Topic::Driver, "exports", State::Degraded, fact).fix(fix))
}

/// How many exports are not probed, and why.
fn left_out_exports(file: &LibraryReport) -> Option<String> {
    let reasons = file.left_out_exports.iter().map(|(reason, number)| format!("{number} {}", reason.words()));
    let reasons: Vec<String> = reasons.collect();
    (!reasons.is_empty()).then(|| format!("not probed on purpose: {}", reasons.join(", ")))
}

/// The first names, and how many more there are.
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

/// Whether it is seen what the file asks the kernel driver for.
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

/// Missing functions that are older than one the file has: age does not explain them.
fn older_than_others(file: &LibraryReport) -> Vec<&'static str> {
    let there = file.functions.iter().map(|function| function.symbol);
    attach::older_than_others(there, file.missing.iter().map(|gone| gone.symbol))
}

/// One line per kind of instruction and reason, the most frequent first.
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

/// A file that matters to nobody is worth a line, but no concern.
fn judge_left_out(left_out: &LeftOut, privilege: &Privilege) -> Check {
    let LeftOut { display, reason, mapped_by, named: _ } = left_out;
    let concerns = !mapped_by.is_empty() || matches!(reason, LeftOutReason::Unreadable(_));
    let state = if concerns { State::Degraded } else { State::NotChecked };
    let users = match mapped_by.len() {
        0 => String::new(),
        users => format!(", in use by {}", count(users, "process")),
    };
    let check = |fact: String| Check::new(Topic::Driver, "left_out", state, fact);
    if is_closed(left_out) {
        return check(format!("{display}{users}: cannot be opened")).fixes(ways_to_file(left_out, privilege));
    }
    let check = check(format!("{display}{users}: {reason}"));
    // Nothing but a name on the command line brings such a file here.
    if matches!(reason, LeftOutReason::Unreadable(_)) {
        check.fix("correct the path given to --libcuda")
    } else {
        check
    }
}

fn is_closed(left_out: &LeftOut) -> bool {
    !left_out.mapped_by.is_empty() && matches!(left_out.reason, LeftOutReason::Unreadable(_))
}

/// How to open a file that a process has open. Without permission the kernel lets it look as if it were not there.
fn ways_to_file(left_out: &LeftOut, privilege: &Privilege) -> Vec<String> {
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
        return check(State::Ok, format!("the libraries of every process are readable ({seen} now)"));
    }
    let fact = format!("the libraries of {denied} of {} processes are not readable", seen + denied);
    if privilege.has(SYS_PTRACE) {
        return check(State::Degraded, format!("{fact}, even with {}", SYS_PTRACE.name)).fix(security_module_line());
    }
    check(State::Degraded, fact).fixes(ways(privilege))
}

#[cfg(test)]
mod tests;
