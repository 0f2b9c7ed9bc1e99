//! Trial run: loads the kernel half, probes a function of memwatch's own, calls it, and reads the
//! record.
//!
//! Its result overrides the other checks. It does not touch other processes.

use std::error::Error;
use std::hint::black_box;
use std::io;

use aya::maps::{MapData, RingBuf};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use memwatch_common::plan::CapturePlan;
use memwatch_common::record::{CallRecord, RingRecord};

use super::check::{Barrier, Check, CheckState, Topic};
use super::permission::{security_module_line, ways};
use super::privilege::{BPF, PERFMON, Privilege, SYS_ADMIN};
use crate::frameworks::probes::load_all;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::load::{KernelHalf, LoadError, LoadOptions, Mechanism, uprobe};
use crate::sources::mappings::MappingRecords;

/// Ring size for the test's one record and concurrent events, on any page size, in bytes.
const RING_BYTES: u32 = 64 << 10;
/// Row id that is in no probe table: the kernel half passes it on without interpreting it.
const TEST_ROW: u16 = u16::MAX;
/// Argument of the probed function, which must come back in the record.
const TEST_ARGUMENT: u64 = 0x006D_656D_7761_7463;
/// Maximum length of a kernel message in the report, in characters: a verifier log can be
/// megabytes.
const ANSWER_CHARACTERS: usize = 300;

/// Result of the trial run.
pub(crate) struct TrialRun {
    /// Checks of the trial run.
    pub(crate) checks: Vec<Check>,
    /// The loaded kernel half, if the trial run succeeded: it can attach to libraries.
    pub(crate) kernel: Option<KernelHalf>,
}

/// Loads and tries the kernel half.
pub(crate) fn run(privilege: &Privilege) -> TrialRun {
    let options = LoadOptions {
        // In another pid namespace, this process does not know its id in the kernel half's
        // namespace.
        all_processes: privilege.initial_pid_namespace != Some(true),
        ring_bytes: RING_BYTES,
        classic_uprobes: false,
        diagnostics: false,
    };
    let mut kernel = match KernelHalf::load(options) {
        Ok(kernel) => kernel,
        Err(error) => {
            let rest =
                ["uprobe_multi", "test_call", "framework_programs"].map(|id| not_checked(id, "needs the kernel half"));
            let checks = [judge_load_error(&error, privilege)].into_iter().chain(rest);
            let checks = checks.chain([judge_mapping_records(MappingRecords::open())]).collect();
            return TrialRun { checks, kernel: None };
        }
    };
    let loaded = Check::new(Topic::Trial, "kernel_half", CheckState::Ok, "loaded: maps, probes and process events");
    let mechanism = kernel.mechanism;
    let call = try_call(&mut kernel);
    let worked = call.is_ok();
    let frameworks = judge_frameworks(load_all(&mut kernel), privilege);
    let moves = judge_moves(kernel.reports_moves);
    let mapping = judge_mapping_records(MappingRecords::open());
    let checks =
        vec![loaded, judge_mechanism(mechanism), judge_call(call, mechanism, privilege), frameworks, mapping, moves];
    TrialRun { checks, kernel: worked.then_some(kernel) }
}

fn not_checked(id: &'static str, fact: &str) -> Check {
    Check::new(Topic::Trial, id, CheckState::NotChecked, fact)
}

fn judge_mechanism(mechanism: Mechanism) -> Check {
    match mechanism {
        Mechanism::UprobeMulti => {
            Check::new(Topic::Trial, "uprobe_multi", CheckState::Ok, "supported: one link for all probes of a library")
        }
        Mechanism::Classic => Check::new(
            Topic::Trial,
            "uprobe_multi",
            CheckState::Degraded,
            "not supported: classic uprobes instead, which need cap_sys_admin and take seconds to detach",
        )
        .fix("boot a kernel of version 6.6 or later when there is one; until then watching works"),
    }
}

/// Checks whether the kernel loads the programs that trace framework allocators.
fn judge_frameworks(loaded: Result<(), LoadError>, privilege: &Privilege) -> Check {
    let check = |state, fact| Check::new(Topic::Trial, "framework_programs", state, fact);
    match loaded {
        Ok(()) => check(CheckState::Ok, "loaded: tensors of PyTorch and of other frameworks can be traced".to_owned()),
        Err(error) => {
            let fact = shortened(&chain(&error));
            check(
                CheckState::Degraded,
                format!("{fact}: what frameworks hold is read from their memory, tensors are not traced"),
            )
            .fix(report_line(privilege))
        }
    }
}

/// Checks whether a move of a process to another cgroup is noticed at once.
fn judge_moves(reported: bool) -> Check {
    let check = |state, fact| Check::new(Topic::Trial, "group_moves", state, fact);
    if reported {
        check(CheckState::Ok, "a move of a process to another cgroup is noticed within about 20 ms")
    } else {
        check(
            CheckState::Degraded,
            "this kernel does not report moves: control groups are read again with each reading of NVML",
        )
        .fix("boot a kernel with control groups (CONFIG_CGROUPS=y), if jobs and containers matter")
    }
}

/// Checks whether a library that a process maps later is noticed at once.
fn judge_mapping_records(records: io::Result<MappingRecords>) -> Check {
    let check = |state, fact| Check::new(Topic::Trial, "mapping_records", state, fact);
    match records {
        Ok(_) => check(CheckState::Ok, "a library that appears later is noticed within about 20 ms".to_owned()),
        Err(error) => check(
            CheckState::Degraded,
            format!("refused ({error}): a library that appears later is noticed within about 2 s"),
        )
        .fix(format!("grant {}, and let a seccomp filter pass perf_event_open", PERFMON.name)),
    }
}

fn judge_load_error(error: &LoadError, privilege: &Privilege) -> Check {
    let fact = shortened(&chain(error));
    let check = |barrier| Check::new(Topic::Trial, "kernel_half", CheckState::Missing(barrier), fact.clone());
    match error {
        LoadError::NoBtf(_) | LoadError::Btf(_) => {
            Check::new(Topic::Trial, "kernel_half", CheckState::NotChecked, "needs BTF: see above")
        }
        // The kernel fails with EACCES if its verifier rejects the program, and with EPERM if the
        // caller lacks permission.
        LoadError::Program { .. } if has_code(error, libc::EACCES) && may_load(privilege) => {
            check(Barrier::Machine).fix(report_line(privilege))
        }
        _ if error.is_permission() => check(Barrier::Permission).fixes(refusal_ways(privilege)),
        _ => check(Barrier::Machine).fix(report_line(privilege)),
    }
}

fn judge_call(call: Result<(), CallFailure>, mechanism: Mechanism, privilege: &Privilege) -> Check {
    let check = |state, fact: String| Check::new(Topic::Trial, "test_call", state, fact);
    let Err(failure) = call else {
        return check(CheckState::Ok, "a probe on memwatch itself fired and its record arrived".to_owned());
    };
    let fact = shortened(&failure.fact);
    if failure.permission {
        let refused = Privilege { classic: mechanism == Mechanism::Classic, ..privilege.clone() };
        check(CheckState::Missing(Barrier::Permission), fact).fixes(refusal_ways(&refused))
    } else {
        check(CheckState::Missing(Barrier::Machine), fact).fix(report_line(privilege))
    }
}

fn may_load(privilege: &Privilege) -> bool {
    privilege.has(BPF) && privilege.has(PERFMON)
}

/// Returns fixes for a refusal: the missing capabilities, or else mechanisms that refuse a caller
/// that has them.
fn refusal_ways(privilege: &Privilege) -> Vec<String> {
    if !may_load(privilege) || (privilege.classic && !privilege.has(SYS_ADMIN)) {
        return ways(privilege);
    }
    let mut ways = Vec::new();
    if privilege.seccomp_filter {
        ways.push("a seccomp filter is active: let it pass bpf and perf_event_open (docker run: add --security-opt seccomp=unconfined)".to_owned());
    }
    ways.push(security_module_line());
    ways
}

fn report_line(privilege: &Privilege) -> String {
    format!("please report it with the output of: {} doctor --json", privilege.program())
}

fn has_code(error: &(dyn Error + 'static), code: i32) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error() == Some(code);
        }
        cause = error.source();
    }
    false
}

/// Returns the first line of a kernel message, cut to the maximum length.
fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(ANSWER_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Why the test call produced no record.
struct CallFailure {
    fact: String,
    permission: bool,
}

impl CallFailure {
    fn new(fact: impl Into<String>) -> Self {
        Self { fact: fact.into(), permission: false }
    }
}

impl<E: Error + 'static> From<E> for CallFailure {
    fn from(error: E) -> Self {
        let permission = has_code(&error, libc::EACCES) || has_code(&error, libc::EPERM);
        Self { fact: format!("memwatch could not probe itself: {}", chain(&error)), permission }
    }
}

/// The probed function. It must not be inlined, and its argument must be in a register.
#[inline(never)]
extern "C" fn probed(argument: u64) -> u64 {
    black_box(argument)
}

fn try_call(kernel: &mut KernelHalf) -> Result<(), CallFailure> {
    let function: extern "C" fn(u64) -> u64 = black_box(probed);
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let offset = file_offset(&maps, function as usize as u64)
        .ok_or_else(|| CallFailure::new("memwatch's own code is not in /proc/self/maps"))?;
    kernel.watch(std::process::id())?;
    let cookie = CapturePlan::registers().cookie(TEST_ROW);
    let (entry, leave) = kernel.mechanism.programs();
    let mut links = Vec::new();
    for program in [entry, leave] {
        let point = UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(offset), cookie: Some(cookie) };
        let link = uprobe(&mut kernel.ebpf, program)?.attach([point], "/proc/self/exe", UProbeScope::AllProcesses)?;
        links.push((program, link));
    }
    let returned = function(black_box(TEST_ARGUMENT));
    for (program, link) in links {
        uprobe(&mut kernel.ebpf, program)?.detach(link)?;
    }
    if returned != TEST_ARGUMENT {
        return Err(CallFailure::new("the probed function returned another value"));
    }
    // Borrowed only: programs that are loaded later need the map.
    let map = kernel.ebpf.map_mut("RECORDS").ok_or(LoadError::Missing("RECORDS"))?;
    match test_record(&mut RingBuf::try_from(map)?) {
        Some(record) if record.args[0] == TEST_ARGUMENT => Ok(()),
        Some(_) => Err(CallFailure::new("a record arrived, but not with the registers of the call")),
        None => Err(CallFailure::new("the probes were accepted, but no record of the call arrived")),
    }
}

fn test_record(ring: &mut RingBuf<&mut MapData>) -> Option<CallRecord> {
    while let Some(bytes) = ring.next() {
        if let Ok(RingRecord::Call(call)) = RingRecord::from_bytes(&bytes)
            && call.probe == TEST_ROW
        {
            return Some(call);
        }
    }
    None
}

/// Returns the file offset of the code at `address`, according to a process's `maps`.
fn file_offset(maps: &str, address: u64) -> Option<u64> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        (start..end).contains(&address).then(|| address - start + offset)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        ANSWER_CHARACTERS, Barrier, CallFailure, CheckState, LoadError, Mechanism, Privilege, file_offset, judge_call,
        judge_load_error, refusal_ways, shortened,
    };
    use crate::commands::doctor::privilege::tests::{root, user};

    const MAPS: &str = "\
555500000000-555500010000 r--p 00000000 fe:00 42    /usr/bin/memwatch
555500010000-555500090000 r-xp 0000f000 fe:00 42    /usr/bin/memwatch
7fff00000000-7fff00001000 rw-p 00000000 00:00 0     [stack]
garbage
";

    #[test]
    fn an_address_is_turned_into_an_offset_of_its_file() {
        assert_eq!(file_offset(MAPS, 0x5555_0001_0010), Some(0xf010));
        assert_eq!(file_offset(MAPS, 0x5555_0009_0000), None);
        assert_eq!(file_offset("", 1), None);
    }

    #[test]
    fn a_refused_user_is_sent_to_sudo_and_a_refused_root_to_what_refuses_root() {
        assert!(refusal_ways(&user())[0].starts_with("sudo "));
        let filtered = refusal_ways(&Privilege { seccomp_filter: true, ..root() });
        assert!(filtered[0].contains("seccomp") && filtered[1].contains("security module"), "{filtered:?}");
        let two = Privilege { effective: 1 << 39 | 1 << 38, classic: true, ..user() };
        assert!(refusal_ways(&two)[1].contains("cap_sys_admin"));
    }

    #[test]
    fn doctor_trial_distinguishes_a_refused_call_from_a_missing_record() {
        let refused = CallFailure::from(std::io::Error::from_raw_os_error(libc::EACCES));
        let state = |failure| judge_call(Err(failure), Mechanism::UprobeMulti, &root()).state;
        assert_eq!(state(refused), CheckState::Missing(Barrier::Permission));
        assert_eq!(state(CallFailure::new("no record")), CheckState::Missing(Barrier::Machine));
        assert_eq!(judge_call(Ok(()), Mechanism::Classic, &root()).state, CheckState::Ok);
    }

    #[test]
    fn without_btf_the_kernel_half_is_not_to_blame() {
        let error = LoadError::NoBtf(std::io::ErrorKind::NotFound.into());
        assert_eq!(judge_load_error(&error, &root()).state, CheckState::NotChecked);
        let broken = LoadError::Missing("RECORDS");
        assert_eq!(judge_load_error(&broken, &root()).state, CheckState::Missing(Barrier::Machine));
    }

    #[test]
    fn a_verifier_log_is_cut_to_its_first_line() {
        assert_eq!(shortened("one\ntwo"), "one");
        assert_eq!(shortened(""), "");
        let long = "ä".repeat(ANSWER_CHARACTERS + 1);
        assert_eq!(shortened(&long).chars().count(), ANSWER_CHARACTERS + 1);
    }
}
