//! What the numbers do not say by themselves, in sentences that the table, the live view and the summary share.

pub(crate) mod level;
mod overhead;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use memwatch_core::input::{self, Coverage, LibraryCoverage, NvmlState};
use memwatch_core::snapshot::{FailureView, GpuView, HostView, KindView, ProcessGpuView, ProcessView, Snapshot};
use memwatch_core::words::{GpuUuid, Name};

use super::Tone;
use super::format::{bytes, count, known, percent, plural, printable, signed_bytes};
use super::status;
use super::wall_clock::WallClock;

/// The kinds in the order of the screen; managed memory is in no GPU's sum and stands apart.
pub(crate) const KINDS: [&str; 5] = ["device", "pool", "physical", "array", MANAGED];
/// The kind whose pages may be anywhere.
pub(crate) const MANAGED: &str = "managed";
/// So many names are listed before the rest is only counted.
const LISTED: usize = 3;

/// A piece of text and how much it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// The text, safe for a terminal.
    pub(crate) text: String,
    /// How much it matters.
    pub(crate) tone: Tone,
}

impl Sentence {
    pub(crate) fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone }
    }
}

/// The trust line in parts: since when, whether everything arrived, and what the driver says against it.
pub(crate) fn trust(snapshot: &Snapshot, clock: &WallClock) -> Vec<Sentence> {
    let since = clock.moment(snapshot.attached_ns, snapshot.time_ns);
    let since =
        if snapshot.from_agent { format!("from the agent, since {since}") } else { format!("observed since {since}") };
    let mut parts = vec![Sentence::new(Tone::Faint, since)];
    parts.extend(hidden(snapshot));
    parts.push(exactness(snapshot));
    parts.push(lost(snapshot));
    parts.extend(overhead::sentences(snapshot));
    parts.extend(level::sentences(snapshot));
    parts.extend(older(snapshot));
    parts.extend(driver(snapshot));
    parts.extend(coverage(&snapshot.coverage));
    parts
}

/// `2 processes of others hold 3.0 GiB`; nothing where there are none, or all are shown.
fn hidden(snapshot: &Snapshot) -> Option<Sentence> {
    let hidden = snapshot.hidden.as_ref().filter(|hidden| hidden.processes > 0)?;
    let held = hidden.gpus.iter().map(|gpu| gpu.used_bytes.unwrap_or(0).max(gpu.live_bytes));
    let processes = plural(hidden.processes, "process", "processes");
    let verb = if hidden.processes == 1 { "holds" } else { "hold" };
    Some(Sentence::new(Tone::Faint, format!("{processes} of others {verb} {}", bytes(held.sum()))))
}

fn exactness(snapshot: &Snapshot) -> Sentence {
    let inexact: Vec<_> = snapshot.processes.iter().filter(|process| !process.exact).collect();
    match inexact.len() {
        0 if snapshot.complete => Sentence::new(Tone::Good, "exact"),
        0 => Sentence::new(Tone::Warning, "inexact: it is not known whose records are missing"),
        all => {
            let names: Vec<_> = inexact.iter().take(LISTED).map(|process| process.tgid.0.to_string()).collect();
            Sentence::new(Tone::Warning, format!("inexact: PID {}{}", names.join(", "), and_more(all)))
        }
    }
}

fn lost(snapshot: &Snapshot) -> Sentence {
    if snapshot.losses.is_empty() {
        return Sentence::new(Tone::Good, "lost 0");
    }
    Sentence::new(Tone::Warning, format!("lost {}", causes(&snapshot.losses)))
}

/// `12 (ring full), 1 (nested too deep)`.
fn causes(losses: &BTreeMap<Name, u64>) -> String {
    let cause = |(name, lost): (&Name, &u64)| format!("{} ({})", count(*lost), name.replace('_', " "));
    losses.iter().map(cause).collect::<Vec<_>>().join(", ")
}

fn older(snapshot: &Snapshot) -> Option<Sentence> {
    let older = snapshot.processes.iter().filter(|process| !process.from_start && process.ended_ns.is_none()).count();
    let older = u64::try_from(older).unwrap_or(u64::MAX);
    let is_or_are = if older == 1 { "is" } else { "are" };
    let text = || format!("{} {is_or_are} older than this watch", plural(older, "process", "processes"));
    (older > 0).then(|| Sentence::new(Tone::Warning, text()))
}

fn driver(snapshot: &Snapshot) -> Vec<Sentence> {
    match &snapshot.nvml {
        NvmlState::Starting => vec![Sentence::new(Tone::Faint, "waiting for NVML")],
        NvmlState::Unavailable(reason) => {
            let text = format!("no NVML: {}", printable(reason));
            vec![Sentence::new(Tone::Warning, text)]
        }
        NvmlState::Ok => match snapshot.gpus.as_slice() {
            [only] => driver_says(only).into_iter().collect(),
            _ => Vec::new(),
        },
    }
}

fn driver_says(gpu: &GpuView) -> Option<Sentence> {
    let used = gpu.used_bytes?;
    let accounted = gpu.accounted_bytes;
    let text = format!("driver says {}, accounted {} ({})", bytes(used), bytes(accounted), percent(accounted, used));
    Some(Sentence::new(Tone::Faint, text))
}

/// What of the driver's calls is not seen. A function that the driver is too old to have is no limit, and neither is a file that nobody uses.
fn coverage(coverage: &Coverage) -> Vec<Sentence> {
    let libraries = &coverage.libraries;
    if libraries.is_empty() {
        return vec![Sentence::new(Tone::Warning, "no libcuda found yet: no call is watched")];
    }
    let mut parts = Vec::new();
    // Without any probes the reason counts, also before somebody uses the file.
    let is_covered = libraries.iter().any(|library| library.error.is_none());
    let speaks = |library: &&LibraryCoverage| library.in_use || !is_covered;
    for library in libraries.iter().filter(speaks) {
        let path = printable(&library.path);
        if let Some(error) = &library.error {
            parts.push(Sentence::new(Tone::Bad, format!("no probes on {path}: {}", printable(error))));
        }
        if let Some(gap_ns) = library.gap_ns {
            let text = format!("{path} was mapped {} ms before its probes", gap_ns.div_ceil(1_000_000));
            parts.push(Sentence::new(Tone::Faint, text));
        }
    }
    parts.extend(unprobed_functions(libraries.iter().filter(speaks)));
    let over = coverage.libraries_over_limit;
    if over > 0 {
        let files = plural(over, "library file has", "library files have");
        parts.push(Sentence::new(Tone::Warning, format!("{files} no probes: too many files are named libcuda.so")));
    }
    parts
}

/// The functions that got no probes in a file that has some, each once.
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

/// A GPU's header: `NVIDIA H100 80GB HBM3  GPU-8f3c2a10`, without its number.
pub(crate) fn gpu_name(gpu: &GpuView) -> String {
    format!("{}  {}", printable(&gpu.name), short_uuid(&gpu.uuid))
}

/// The first group of a UUID: enough to tell a machine's GPUs apart, and `--gpu` takes it.
pub(crate) fn short_uuid(uuid: &GpuUuid) -> String {
    let groups: Vec<_> = uuid.as_str().splitn(3, '-').take(2).collect();
    printable(&groups.join("-")).into_owned()
}

/// The number of a GPU, or of an instance of one.
pub(crate) fn place(gpu: &GpuView) -> String {
    input::place(gpu.nvml_index, gpu.mig.as_ref())
}

/// A GPU's number, or the beginning of its UUID where NVML gives no number; `-` where it cannot be told which it is.
pub(crate) fn gpu_number(snapshot: &Snapshot, uuid: Option<&GpuUuid>) -> String {
    known(uuid, |uuid| {
        let gpu = snapshot.gpus.iter().find(|gpu| gpu.uuid == *uuid);
        gpu.map_or_else(|| short_uuid(uuid), place)
    })
}

/// What stands for a process: its command line, or its name where it has none.
pub(crate) fn command(process: &ProcessView) -> String {
    match (process.command.trim(), process.comm.trim()) {
        ("", "") => "(name not known)".to_owned(),
        ("", comm) => format!("[{}]", printable(comm)),
        (command, _) => printable(command).into_owned(),
    }
}

/// [`command`] without the program's folders, for where there is little room.
pub(crate) fn short_command(process: &ProcessView) -> String {
    let command = command(process);
    let (program, arguments) =
        command.split_once(' ').map_or((command.as_str(), None), |(program, rest)| (program, Some(rest)));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program);
    arguments.map_or_else(|| name.to_owned(), |arguments| format!("{name} {arguments}"))
}

/// What is older than the attach; `≤` where the context's own memory may be part of it.
pub(crate) fn before_attach(gpu: &ProcessGpuView, ascii: bool) -> String {
    let at_most = match (gpu.before_attach_includes_context, ascii) {
        (false, _) => "",
        (true, false) => "≤",
        (true, true) => "<=",
    };
    known(gpu.before_attach_bytes, |before| format!("{at_most}{}", bytes(before)))
}

/// Live bytes by kind: `device 38.0 GiB, pool 2.5 GiB + managed 3.0 GiB`.
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

/// `out of memory: cuMemAlloc_v2 asked for 20.0 GiB on GPU 0 at 14:03:20`.
pub(crate) fn failure(snapshot: &Snapshot, failure: &FailureView, clock: &WallClock) -> Sentence {
    let on = match &failure.uuid {
        Some(uuid) => format!(" on GPU {}", gpu_number(snapshot, Some(uuid))),
        None => String::new(),
    };
    let asked = format!("{} asked for {}{on}", failure.symbol, bytes(failure.requested_bytes));
    let text = format!("{}: {asked} at {}", status::words(failure.status), clock.time_of_day(failure.time_ns));
    Sentence::new(Tone::Bad, text)
}

/// `pinned 2.0 GiB (peak 3.0 GiB), registered 1.0 GiB`; nothing where there never was any.
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

/// `ended 14:03:05, peak 12.3 GiB on GPU 1`.
pub(crate) fn end(snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) -> Option<String> {
    let ended = clock.time_of_day(process.ended_ns?);
    let peak = |gpu: &ProcessGpuView| match &gpu.uuid {
        Some(uuid) => format!(", peak {} on GPU {}", bytes(gpu.peak_bytes), gpu_number(snapshot, Some(uuid))),
        None => format!(", peak {}", bytes(gpu.peak_bytes)),
    };
    let peaks: String = process.gpus.iter().map(peak).collect();
    Some(format!("ended {ended}{peaks}"))
}

/// What is noteworthy of a process beside its numbers: its end and [`doubts`]. Failures and host memory are apart.
pub(crate) fn remarks(snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) -> Vec<Sentence> {
    let mut remarks = Vec::new();
    if let Some(text) = end(snapshot, process, clock) {
        remarks.push(Sentence::new(Tone::Faint, text));
        if process.implicit_frees > 0 {
            let allocations = plural(process.implicit_frees, "allocation", "allocations");
            remarks.push(Sentence::new(Tone::Plain, format!("left {allocations} for the driver to free")));
        }
    }
    remarks.extend(holdings(process));
    remarks.extend(doubts(process, clock));
    remarks
}

/// What a process holds or sees beside its live bytes.
pub(crate) fn holdings(process: &ProcessView) -> Vec<Sentence> {
    let mut texts = Vec::new();
    for gpu in &process.gpus {
        if let Some(held) = gpu.checkpointed_bytes {
            texts.push(format!("checkpointed: its {} are in host memory, and off the GPU", bytes(held)));
        }
        texts.extend(gpu.kinds.get("pool").and_then(pool_cache));
        if let Some(graph) = gpu.kinds.get("graph").filter(|graph| graph.live_bytes > 0) {
            texts.push(format!("its graphs hold about {}", bytes(graph.live_bytes)));
        }
    }
    for import in &process.imports {
        let orphaned = match import.orphaned_bytes {
            0 => String::new(),
            left => format!(", {} of it given up there", bytes(left)),
        };
        texts.push(format!("sees {} of PID {}{orphaned}", bytes(import.bytes), import.from_tgid.0));
    }
    texts.into_iter().map(|text| Sentence::new(Tone::Plain, text)).collect()
}

/// `its pools hold 3.0 GiB, 512.0 MiB more than is used`; nothing where they hold no more, or where that is not known.
fn pool_cache(pool: &KindView) -> Option<String> {
    let backed = pool.backed_bytes.filter(|backed| *backed > pool.live_bytes)?;
    let about = if pool.backed_estimated { "about " } else { "" };
    let more = bytes(backed - pool.live_bytes);
    Some(format!("its pools hold {about}{}, {more} more than is used", bytes(backed)))
}

/// Why a process's numbers may not be the whole truth, and since when its peaks are where that is not the whole watch.
pub(crate) fn doubts(process: &ProcessView, clock: &WallClock) -> Vec<Sentence> {
    let mut doubts = Vec::new();
    if let Some(begun_ns) = process.peaks_begun_ns {
        let text = format!("peaks are since {}, when they were reset", clock.time_of_day(begun_ns));
        doubts.push(Sentence::new(Tone::Plain, text));
    }
    if !process.exact {
        let lost =
            if process.losses.is_empty() { String::new() } else { format!(": lost {}", causes(&process.losses)) };
        let anchored = process.anchored_ns.map_or_else(String::new, |time_ns| {
            format!("; live bytes taken from the kernel half's books at {}", clock.time_of_day(time_ns))
        });
        doubts.push(Sentence::new(Tone::Warning, format!("its numbers are inexact{lost}{anchored}")));
    }
    if process.mps_client {
        let text = "a client of an MPS server: what the driver says of it may be incomplete";
        doubts.push(Sentence::new(Tone::Plain, text));
    }
    if process.unknown_frees > 0 {
        let frees = plural(process.unknown_frees, "free", "frees");
        doubts.push(Sentence::new(Tone::Plain, format!("{frees} of memory older than the watch")));
    }
    doubts
}

/// `unexplained 512.0 MiB`, with the context's size where it is known.
pub(crate) fn unexplained(gpu: &GpuView) -> String {
    let context = gpu.context_bytes.map(|context| format!(" (a context takes {})", bytes(context)));
    format!("unexplained {}{}", known(gpu.unexplained_bytes, signed_bytes), context.unwrap_or_default())
}

#[cfg(test)]
mod tests;
