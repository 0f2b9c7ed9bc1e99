//! Sentences that qualify the numbers. The table, the live view and the summary share them.

pub(crate) mod left_behind;
pub(crate) mod level;
mod overhead;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use memwatch_common::loss::Loss;
use memwatch_core::decode::BufferUsage;
use memwatch_core::input::{self, LibraryCoverage, NvmlState, ProbeCoverage};
use memwatch_core::snapshot::{
    AllocatorView, BuffersView, FailureView, GpuView, HostView, KindView, PoolView, PoolsView, ProcessGpuView,
    ProcessView, Snapshot,
};
use memwatch_core::words::{Framework, GpuUuid, Name};

use super::Tone;
use super::format::{bytes, count, known, percent, plural, printable, signed_bytes};
use super::wall_clock::WallClock;
use crate::backends::error_words;

/// Allocation kinds in screen order. Managed memory comes last: it is not part of any GPU's sum.
pub(crate) const KINDS: [&str; 5] = ["device", "pool", "physical", "array", MANAGED];
/// Kind of managed memory. The driver may place its pages on any device or on the host.
pub(crate) const MANAGED: &str = "managed";
/// Reason why the blocks of a pool are not all known.
pub(crate) const OLDER_BLOCKS: &str = "blocks from before the attach are not known: RAPIDS' pools keep no list of them";
/// Number of names to list. Further names are only counted.
const LISTED: usize = 3;

/// A piece of text and its severity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// The text, safe for a terminal.
    pub(crate) text: String,
    /// Severity, which selects the style.
    pub(crate) tone: Tone,
}

impl Sentence {
    pub(crate) fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone }
    }
}

/// Returns the parts of the last line: whether every event arrived, the overhead of tracing, and
/// the limits that apply to the numbers.
pub(crate) fn trust(snapshot: &Snapshot, clock: &WallClock) -> Vec<Sentence> {
    let mut parts = gaps(snapshot);
    parts.extend(unconfirmed(snapshot));
    parts.extend(overhead::sentences(snapshot));
    parts.extend(level::sentences(snapshot));
    if snapshot.from_agent {
        parts.push(Sentence::new(Tone::Faint, "from the agent"));
    }
    parts.extend(hidden(snapshot));
    parts.extend(older(snapshot, clock));
    parts.extend(nvml(&snapshot.nvml));
    parts.extend(coverage(&snapshot.coverage));
    parts
}

/// Returns `complete`, or whose numbers may be wrong because events were dropped or calls are not
/// traced.
pub(crate) fn gaps(snapshot: &Snapshot) -> Vec<Sentence> {
    [completeness(snapshot), unwatched(snapshot), unprobed(snapshot)].into_iter().flatten().collect()
}

/// `2 processes of other users use 3.00 GiB`; `None` if no process is hidden.
fn hidden(snapshot: &Snapshot) -> Option<Sentence> {
    let hidden = snapshot.hidden.as_ref().filter(|hidden| hidden.processes > 0)?;
    let held = hidden.gpus.iter().map(|gpu| gpu.used_bytes.unwrap_or(0).max(gpu.live_bytes));
    let processes = plural(hidden.processes, "process", "processes");
    let verb = if hidden.processes == 1 { "uses" } else { "use" };
    Some(Sentence::new(Tone::Faint, format!("{processes} of other users {verb} {}", bytes(held.sum()))))
}

/// Reports the processes whose calls are not seen; `None` if there are none.
fn unwatched(snapshot: &Snapshot) -> Option<Sentence> {
    let processes: Vec<_> = snapshot.processes.iter().filter(|process| is_unwatched(process)).collect();
    let whose = pids(&processes);
    let text = || {
        format!(
            "calls of {whose} are not traced, so their numbers may be wrong: restart programs that run on a replaced driver"
        )
    };
    (!processes.is_empty()).then(|| Sentence::new(Tone::Bad, text()))
}

/// `PID 7, 8 and 3 more`.
fn pids(processes: &[&ProcessView]) -> String {
    let names: Vec<_> = processes.iter().take(LISTED).map(|process| process.tgid.0.to_string()).collect();
    format!("PID {}{}", names.join(", "), and_more(processes.len()))
}

/// `46.00 TiB of PID 7 are not confirmed by NVML, and in no GPU's sum`; `None` if NVML confirms all
/// bytes.
fn unconfirmed(snapshot: &Snapshot) -> Option<Sentence> {
    let of =
        |process: &ProcessView| process.gpus.iter().fold(0, |sum: u64, gpu| sum.saturating_add(gpu.unconfirmed_bytes));
    let processes: Vec<_> = snapshot.processes.iter().filter(|process| of(process) > 0).collect();
    let whose = pids(&processes);
    let all = processes.iter().fold(0, |sum: u64, process| sum.saturating_add(of(process)));
    let text = || format!("{} of {whose} are not confirmed by NVML, and in no GPU's sum", bytes(all));
    (!processes.is_empty()).then(|| Sentence::new(Tone::Warning, text()))
}

/// Reports the processes whose driver libraries are not all probed so far; `None` if there are
/// none.
fn unprobed(snapshot: &Snapshot) -> Option<Sentence> {
    let processes: Vec<_> = snapshot.processes.iter().filter(|process| process.is_unprobed()).collect();
    let whose = pids(&processes);
    let text = || format!("calls of {whose} are not traced yet: some of their driver libraries have no probes");
    (!processes.is_empty()).then(|| Sentence::new(Tone::Bad, text()))
}

/// Returns whether the calls of the process are not seen because its driver library cannot be
/// opened and therefore cannot be probed.
fn is_unwatched(process: &ProcessView) -> bool {
    process.losses.contains_key(Loss::LibraryUnreadable.name())
}

/// `complete`, or the dropped events and the processes with wrong numbers. Returns `None` if
/// unwatched or unprobed processes are the only fault: they have sentences of their own.
fn completeness(snapshot: &Snapshot) -> Option<Sentence> {
    let mut losses = snapshot.losses.clone();
    let has_unprobed = snapshot.processes.iter().any(ProcessView::is_unprobed);
    let has_unwatched = losses.remove(Loss::LibraryUnreadable.name()).is_some() || has_unprobed;
    let inexact: Vec<_> = snapshot
        .processes
        .iter()
        .filter(|process| !process.exact && !is_unwatched(process) && !process.is_unprobed())
        .collect();
    let whose = match inexact.len() {
        0 if has_unwatched && losses.is_empty() => return None,
        0 if snapshot.complete && losses.is_empty() => return Some(Sentence::new(Tone::Good, "complete")),
        0 if snapshot.complete => "no number shown here depends on them".to_owned(),
        0 => "any number may be wrong".to_owned(),
        _ => format!("peak and totals of {} may be wrong", pids(&inexact)),
    };
    let dropped = if losses.is_empty() { "incomplete".to_owned() } else { dropped(&losses) };
    Some(Sentence::new(Tone::Warning, format!("{dropped}: {whose}")))
}

/// `13 events dropped (12 ring full, 1 nested too deep)`.
fn dropped(losses: &BTreeMap<Name, u64>) -> String {
    let all = losses.values().fold(0, |sum: u64, lost| sum.saturating_add(*lost));
    let cause = |(name, lost): (&Name, &u64)| match losses.len() {
        1 => name.replace('_', " "),
        _ => format!("{} {}", count(*lost), name.replace('_', " ")),
    };
    let causes: Vec<String> = losses.iter().map(cause).collect();
    format!("{} dropped ({})", plural(all, "event", "events"), causes.join(", "))
}

fn older(snapshot: &Snapshot, clock: &WallClock) -> Option<Sentence> {
    let older = snapshot.processes.iter().filter(|process| !process.from_start && process.ended_ns.is_none()).count();
    let older = u64::try_from(older).unwrap_or(u64::MAX);
    let attached = || clock.moment(snapshot.attached_ns, snapshot.time_ns);
    let text = || format!("{} started before attach ({})", plural(older, "process", "processes"), attached());
    (older > 0).then(|| Sentence::new(Tone::Warning, text()))
}

fn nvml(state: &NvmlState) -> Option<Sentence> {
    match state {
        NvmlState::Ok => None,
        NvmlState::Starting => Some(Sentence::new(Tone::Faint, "waiting for NVML")),
        NvmlState::Unavailable(reason) => Some(Sentence::new(Tone::Warning, format!("no NVML: {}", printable(reason)))),
    }
}

/// Compares NVML's number with the driver calls: for the whole GPU if all its processes are traced,
/// otherwise for the traced processes only.
///
/// `attributed 40.50 GiB (98.8 %) · unattributed 512.0 MiB`;
/// `1 process traced: NVML used 1.30 GiB · attributed 710.0 MiB (54.0 %)`.
pub(crate) fn attribution(snapshot: &Snapshot, gpu: &GpuView) -> Option<String> {
    if gpu.unwatched_processes == Some(0) {
        return Some(compared(gpu.used_bytes, gpu.attributed_bytes, gpu.unattributed_bytes));
    }
    let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let rows = living.flat_map(|process| &process.gpus).filter(|row| row.uuid.as_ref() == Some(&gpu.uuid));
    let rows: Vec<_> = rows.collect();
    let traced = u64::try_from(rows.len()).ok().filter(|rows| *rows > 0)?;
    let used = rows.iter().map(|row| row.used_bytes).sum::<Option<u64>>();
    let attributed = rows.iter().map(|row| row.attributed_bytes).fold(0, u64::saturating_add);
    let unattributed = rows.iter().map(|row| row.unattributed_bytes).sum::<Option<i64>>();
    let nvml = used.map(|used| format!("NVML used {} · ", bytes(used))).unwrap_or_default();
    let traced = plural(traced, "process", "processes");
    Some(format!("{traced} traced: {nvml}{}", compared(used, attributed, unattributed)))
}

fn compared(used: Option<u64>, attributed: u64, unattributed: Option<i64>) -> String {
    let share = used.map(|used| format!(" ({})", percent(attributed, used))).unwrap_or_default();
    let rest = unattributed.filter(|rest| *rest != 0).map(|rest| format!(" · unattributed {}", signed_bytes(rest)));
    format!("attributed {}{share}{}", bytes(attributed), rest.unwrap_or_default())
}

/// `PyTorch reserved 1.90 GiB, other libraries 128.2 MiB`: splits the driver allocations of a
/// process on a GPU by caller. Returns `None` if PyTorch's part is unknown or older than the last
/// driver change.
pub(crate) fn libraries(process: &ProcessView, gpu: &ProcessGpuView) -> Option<String> {
    let allocators = process.tensors.as_deref()?.allocators.iter().filter(|allocator| allocator.uuid == gpu.uuid);
    let now = |allocator: &AllocatorView| allocator.is_as_new_as(process.driver_changed_ns);
    let reserved: Vec<Option<u64>> =
        allocators.map(|allocator| allocator.reserved_bytes.filter(|_| now(allocator))).collect();
    let reserved = reserved.iter().copied().sum::<Option<u64>>().filter(|bytes| *bytes > 0)?;
    let others = gpu.live_bytes.checked_sub(reserved)?;
    Some(format!("PyTorch reserved {}, other libraries {}", bytes(reserved), bytes(others)))
}

/// Returns the gaps in the coverage of driver calls. Functions that an older driver lacks are not
/// reported, and neither are library files that no process uses.
fn coverage(coverage: &ProbeCoverage) -> Vec<Sentence> {
    let libraries = &coverage.libraries;
    if coverage.mechanism == ProbeCoverage::NOTHING {
        return vec![Sentence::new(Tone::Faint, "only read, nothing attached")];
    }
    if libraries.is_empty() {
        return vec![Sentence::new(Tone::Warning, "no libcuda found yet: nothing is traced")];
    }
    let mut parts = Vec::new();
    // If no library has probes, the reason is reported even before a process uses the file.
    let is_covered = libraries.iter().any(|library| library.error.is_none());
    let speaks = |library: &&LibraryCoverage| library.in_use || !is_covered;
    for library in libraries.iter().filter(speaks) {
        let path = printable(&library.path);
        if let Some(error) = &library.error {
            parts.push(Sentence::new(Tone::Bad, format!("no probes on {path}: {}", printable(error))));
        }
        if let Some(gap_ns) = library.gap_ns {
            let text = format!("probes were attached {} ms after {path} was mapped", gap_ns.div_ceil(1_000_000));
            parts.push(Sentence::new(Tone::Faint, text));
        }
    }
    parts.extend(unprobed_functions(libraries.iter().filter(speaks)));
    let over = coverage.libraries_over_limit;
    if over > 0 {
        let files = plural(over, "library file has", "library files have");
        parts
            .push(Sentence::new(Tone::Warning, format!("{files} no probes: the limit of libcuda.so files is reached")));
    }
    parts
}

/// Lists, without duplicates, the functions without probes in libraries that do have some.
fn unprobed_functions<'a>(libraries: impl Iterator<Item = &'a LibraryCoverage>) -> Option<Sentence> {
    let probed = libraries.filter(|library| library.error.is_none());
    let refused: BTreeSet<&str> = probed.flat_map(|library| &library.probes_refused).map(String::as_str).collect();
    let count = refused.len();
    let functions = plural(u64::try_from(count).unwrap_or(u64::MAX), "function has", "functions have");
    let names: Vec<&str> = refused.into_iter().take(LISTED).collect();
    let text = || format!("{functions} no probes ({}{})", printable(&names.join(", ")), and_more(count));
    (count > 0).then(|| Sentence::new(Tone::Warning, text()))
}

fn and_more(all: usize) -> String {
    if all > LISTED { format!(" and {} more", all - LISTED) } else { String::new() }
}

/// Returns a GPU's heading without its number: `NVIDIA H100 80GB HBM3  GPU-8f3c2a10`.
pub(crate) fn gpu_name(gpu: &GpuView) -> String {
    format!("{}  {}", printable(&gpu.name), short_uuid(&gpu.uuid))
}

/// Returns the first group of a UUID. It is enough to distinguish the GPUs of a machine, and
/// `--gpu` accepts it.
pub(crate) fn short_uuid(uuid: &GpuUuid) -> String {
    let groups: Vec<_> = uuid.as_str().splitn(3, '-').take(2).collect();
    printable(&groups.join("-")).into_owned()
}

/// Returns the number of a GPU or of a MIG instance.
pub(crate) fn place(gpu: &GpuView) -> String {
    input::place(gpu.nvml_index, gpu.mig.as_ref())
}

/// Returns a GPU's number, or the beginning of its UUID if NVML gives no number; `-` if the GPU is
/// unknown.
pub(crate) fn gpu_number(snapshot: &Snapshot, uuid: Option<&GpuUuid>) -> String {
    known(uuid, |uuid| {
        let gpu = snapshot.gpus.iter().find(|gpu| gpu.uuid == *uuid);
        gpu.map_or_else(|| short_uuid(uuid), place)
    })
}

/// Returns the command line of a process, or its name in brackets if it has no command line.
pub(crate) fn command(process: &ProcessView) -> String {
    match (process.command.trim(), process.comm.trim()) {
        ("", "") => "(name not known)".to_owned(),
        ("", comm) => format!("[{}]", printable(comm)),
        (command, _) => printable(command).into_owned(),
    }
}

/// Returns [`command`] without the program's directories, for narrow columns.
pub(crate) fn short_command(process: &ProcessView) -> String {
    let command = command(process);
    let (program, arguments) =
        command.split_once(' ').map_or((command.as_str(), None), |(program, rest)| (program, Some(rest)));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program);
    arguments.map_or_else(|| name.to_owned(), |arguments| format!("{name} {arguments}"))
}

/// Returns the bytes allocated before the attach, with `≤` if they may include the memory of the
/// CUDA context.
pub(crate) fn preexisting(gpu: &ProcessGpuView, ascii: bool) -> String {
    let at_most = match (gpu.preexisting_includes_context, ascii) {
        (false, _) => "",
        (true, false) => "≤",
        (true, true) => "<=",
    };
    known(gpu.preexisting_bytes, |before| format!("{at_most}{}", bytes(before)))
}

/// Returns live bytes by kind: `device 38.00 GiB, pool 2.50 GiB + managed 3.00 GiB`.
pub(crate) fn kinds(gpu: &ProcessGpuView) -> String {
    let mut text = String::new();
    for name in KINDS {
        let Some(kind) = gpu.kinds.get(name).filter(|kind| kind.live_bytes > 0) else { continue };
        let joint = match (text.is_empty(), name) {
            (true, _) => "",
            (false, MANAGED) => " + ",
            (false, _) => ", ",
        };
        let about = if kind.estimated { "~" } else { "" };
        write!(text, "{joint}{name} {about}{}", bytes(kind.live_bytes)).expect("a String takes any text");
    }
    if text.is_empty() { super::format::UNKNOWN.to_owned() } else { text }
}

/// `out of memory: cuMemAlloc_v2 requested 20.00 GiB on GPU 0 at 14:03:20`.
pub(crate) fn failure(snapshot: &Snapshot, failure: &FailureView, clock: &WallClock) -> Sentence {
    let on = match &failure.uuid {
        Some(uuid) => format!(" on GPU {}", gpu_number(snapshot, Some(uuid))),
        None => String::new(),
    };
    let asked = format!("{} requested {}{on}", failure.symbol, bytes(failure.requested_bytes));
    let time = clock.time_of_day(failure.time_ns);
    if failure.is_retried {
        return Sentence::new(Tone::Faint, format!("failed, then succeeded on retry: {asked} at {time}"));
    }
    Sentence::new(Tone::Bad, format!("{}: {asked} at {time}", error_words(failure.status)))
}

/// `pinned 2.00 GiB (peak 3.00 GiB), registered 1.00 GiB`; `None` if the process never pinned host
/// memory and has none registered or physical.
pub(crate) fn host(host: &HostView) -> Option<String> {
    let mut parts = Vec::new();
    if host.pinned_peak_bytes > 0 {
        parts.push(format!("pinned {} (peak {})", bytes(host.pinned_live_bytes), bytes(host.pinned_peak_bytes)));
    }
    for (name, live_bytes) in [("registered", host.registered_live_bytes), ("physical", host.physical_live_bytes)] {
        if live_bytes > 0 {
            parts.push(format!("{name} {}", bytes(live_bytes)));
        }
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `ended 14:03:05, peak 12.30 GiB on GPU 1`.
pub(crate) fn end(snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) -> Option<String> {
    // If the process ended before the attach, the time of its end is unknown: memwatch found only
    // the memory that it left behind.
    if process.left_behind.is_some() && process.ended_ns? < snapshot.attached_ns {
        return Some("ended before memwatch attached".to_owned());
    }
    let ended = clock.time_of_day(process.ended_ns?);
    let peak = |gpu: &ProcessGpuView| match &gpu.uuid {
        Some(uuid) => format!(", peak {} on GPU {}", bytes(gpu.peak_bytes), gpu_number(snapshot, Some(uuid))),
        None => format!(", peak {}", bytes(gpu.peak_bytes)),
    };
    let peaks: String = process.gpus.iter().map(peak).collect();
    Some(format!("ended {ended}{peaks}"))
}

/// Returns remarks on a process beyond its numbers: its end, left-behind memory, [`holdings`] and
/// [`doubts`]. Failures and host memory are reported elsewhere.
pub(crate) fn remarks(snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) -> Vec<Sentence> {
    let mut remarks = Vec::new();
    if let Some(text) = end(snapshot, process, clock) {
        remarks.push(Sentence::new(Tone::Faint, text));
        if process.implicit_frees > 0 {
            let allocations = plural(process.implicit_frees, "allocation", "allocations");
            remarks.push(Sentence::new(Tone::Plain, format!("{allocations} not freed by the program")));
        }
    }
    let left_behind = left_behind::remarks(snapshot, process);
    remarks.extend(left_behind.into_iter().map(|text| Sentence::new(Tone::Warning, text)));
    if process.main_thread_ended {
        let text = "its main thread has exited, but other threads still run and hold its memory (other tools show it as defunct)";
        remarks.push(Sentence::new(Tone::Warning, text));
    }
    remarks.extend(holdings(process));
    remarks.extend(doubts(process, clock));
    remarks
}

/// Returns memory that a process keeps or imports in addition to its live bytes.
pub(crate) fn holdings(process: &ProcessView) -> Vec<Sentence> {
    let mut texts = Vec::from_iter(super::kv_cache::last(process));
    for gpu in &process.gpus {
        if let Some(held) = gpu.checkpointed_bytes {
            texts.push(format!("checkpointed: {} moved from the GPU to host memory", bytes(held)));
        }
        texts.extend(gpu.kinds.get("pool").and_then(pool_cache));
        if let Some(graph) = gpu.kinds.get("graph").filter(|graph| graph.live_bytes > 0) {
            texts.push(format!("CUDA graphs hold about {}", bytes(graph.live_bytes)));
        }
    }
    texts.extend(process.tensors.as_ref().and_then(|tensors| buffers(tensors.buffers.as_ref()?)));
    texts.extend(process.tensors.iter().filter_map(|tensors| tensors.pools.as_ref()).flat_map(pools));
    for import in &process.imports {
        let orphaned = match import.orphaned_bytes {
            0 => String::new(),
            left => format!(", {} of it already freed by the owner", bytes(left)),
        };
        texts.push(format!("shares {} of PID {}{orphaned}", bytes(import.bytes), import.from_tgid.0));
    }
    texts.into_iter().map(|text| Sentence::new(Tone::Plain, text)).collect()
}

/// Returns the reason why not all buffers of a framework are known.
pub(crate) fn older_buffers(framework: Framework) -> String {
    format!("buffers from before the attach are not known: {} keeps no list of them", framework.title())
}

/// `ggml's buffers: weights 4.00 GiB, compute 300.0 MiB`, summed over all devices; `None` if there
/// are no buffers and no older ones can exist.
fn buffers(view: &BuffersView) -> Option<String> {
    let of = |usage: BufferUsage| {
        let sums = view.devices.iter().flat_map(|device| &device.usages).filter(|sum| sum.usage == usage);
        sums.map(|sum| sum.bytes).reduce(u64::saturating_add).map(|sum| format!("{} {}", usage.name(), bytes(sum)))
    };
    let known: Vec<String> = BufferUsage::ALL.into_iter().filter_map(of).collect();
    let known = (!known.is_empty()).then(|| format!("{}'s buffers: {}", view.framework.title(), known.join(", ")));
    let older = view.older_unknown.then(|| older_buffers(view.framework));
    known.into_iter().chain(older).reduce(|known, older| format!("{known}; {older}"))
}

/// `rmm's pools have 3.00 GiB, 1.00 GiB of it in use`: one sentence per framework, summed over all
/// devices; empty without pools.
fn pools(view: &PoolsView) -> Vec<String> {
    let of = |framework: Framework| {
        let pools = || view.pools.iter().filter(move |pool| pool.framework == framework);
        // Bytes that a pool passes on to another pool, to PyTorch or to an arena are counted there
        // only.
        let sum =
            |bytes: Vec<Option<u64>>| bytes.into_iter().try_fold(0_u64, |sum, one| Some(sum.saturating_add(one?)));
        let of_all = |one: fn(&PoolView) -> Option<u64>| {
            sum(pools().map(|pool| Some(one(pool)?.saturating_sub(pool.divided_bytes))).collect())
        };
        let (size, in_use) = (of_all(|pool| pool.pool_bytes), of_all(|pool| pool.bytes_in_use));
        let known_bytes = pools().map(|pool| pool.known_bytes.saturating_sub(pool.divided_bytes)).sum();
        let in_use = in_use.map_or_else(|| format!("at least {}", bytes(known_bytes)), bytes);
        let has = size.map_or_else(|| "are of unknown size".to_owned(), |size| format!("have {}", bytes(size)));
        pools().next().map(|_| format!("{}'s pools {has}, {in_use} of it in use", framework.name()))
    };
    Framework::ALL.into_iter().filter_map(of).collect()
}

/// `pools reserve 3.00 GiB, 512.0 MiB of it unused`; `None` if the reserve is unknown or all of it
/// is in use.
fn pool_cache(pool: &KindView) -> Option<String> {
    let backed = pool.backed_bytes.filter(|backed| *backed > pool.live_bytes)?;
    let about = if pool.backed_estimated { "about " } else { "" };
    let more = bytes(backed - pool.live_bytes);
    Some(format!("pools reserve {about}{}, {more} of it unused", bytes(backed)))
}

/// Returns the reasons why a process's numbers may be incomplete, and the start of its peaks if
/// they were reset.
pub(crate) fn doubts(process: &ProcessView, clock: &WallClock) -> Vec<Sentence> {
    let mut doubts = Vec::new();
    if let Some(begun_ns) = process.peaks_begun_ns {
        let text = format!("peaks since the reset at {}", clock.time_of_day(begun_ns));
        doubts.push(Sentence::new(Tone::Plain, text));
    }
    if !process.exact {
        let lost = if process.losses.is_empty() { String::new() } else { format!(": {}", dropped(&process.losses)) };
        let anchored = process.anchored_ns.map_or_else(String::new, |time_ns| {
            format!("; allocated bytes read back from the kernel at {}", clock.time_of_day(time_ns))
        });
        doubts.push(Sentence::new(Tone::Warning, format!("peak and totals may be wrong{lost}{anchored}")));
    }
    if process.mps_client {
        let text = "MPS client: NVML may not show all its memory";
        doubts.push(Sentence::new(Tone::Plain, text));
    }
    if process.unknown_frees > 0 {
        let frees = plural(process.unknown_frees, "free", "frees");
        doubts.push(Sentence::new(Tone::Plain, format!("{frees} of memory allocated before attach")));
    }
    doubts
}

#[cfg(test)]
mod tests;
