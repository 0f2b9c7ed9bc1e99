//! Finds framework libraries in the traced processes, and attaches the probes of each library once.

mod count;
mod library;
mod look;
mod request;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memwatch_common::python::{STACKS_BY_BYTES, STACKS_OF_ALL, STACKS_OF_RARE};
use memwatch_common::tensor::{FrameworkLibrary, Purpose, TENSOR_PROBES, TensorProbe};
use memwatch_core::input::Input;
use memwatch_core::words::{Framework, Tgid};

use self::count::{EventCount, EventRate};
use self::library::{ProbedLibrary, attach, take_out};
use self::look::{FoundLibrary, LookResult, Looker};
use self::request::BlockProbing;
use crate::frameworks::FRAMEWORKS;
use crate::frameworks::bfc::ArenaLayout;
use crate::frameworks::descriptor::{BlockPart, Keeps};
use crate::frameworks::probes as tensor_probes;
use crate::frameworks::probes::TensorProbes;
use crate::sources::kernel::load::KernelHalf;
use crate::sources::kernel::site::KernelVersion;

pub(crate) use self::request::TensorRequest;
pub(crate) use memwatch_core::input::{StackSelection, TensorLevel};

/// Polling of a process without a framework library: every [`EAGER_EVERY`] during the first
/// [`EAGER`], then every [`PATIENT_EVERY`]. One poll reads the process's mappings.
const EAGER: Duration = Duration::from_secs(60);
const EAGER_EVERY: Duration = Duration::from_millis(20);
const PATIENT_EVERY: Duration = Duration::from_millis(500);
/// Poll interval of a process that has all libraries of an allocator, to find other frameworks.
const COMPLETE_EVERY: Duration = Duration::from_secs(10);
/// How long the remaining libraries are awaited after the first one was found.
const COMPLETE: Duration = Duration::from_secs(5);

/// The processes traced for tensors, and the probes in each.
pub(crate) struct FrameworkWatch {
    /// `None` if tensors are not traced at all.
    looker: Option<Looker>,
    request: TensorRequest,
    processes: BTreeMap<u32, TracedProcess>,
}

/// When memwatch began to trace a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Since the process started: no event may be missed.
    Start,
    /// The process was running before memwatch.
    Late,
}

struct TracedProcess {
    since: Instant,
    /// The running count of tensor events, before any is traced.
    counting: Option<EventCount>,
    /// Trace level of the process, once decided.
    level: Option<TensorLevel>,
    /// Trace only what the allocator reports to the profiler.
    reports_only: bool,
    /// How blocks are traced: by call sites or by functions.
    sight: BlockProbing,
    /// Number of polls of this process.
    looks: u64,
    /// Time of the last poll. `waiting` is set until its result arrives.
    looked: Option<Instant>,
    waiting: bool,
    /// When the first framework library was found.
    found: Option<Instant>,
    /// Field offsets of the process's arenas by framework.
    arenas: BTreeMap<Framework, ArenaLayout>,
    libraries: BTreeMap<FrameworkLibrary, ProbedLibrary>,
    /// Extra counting probes that measure the overhead of tracing.
    load: Vec<TensorProbes>,
}

impl FrameworkWatch {
    /// Starts without any process.
    pub(crate) fn new(version: KernelVersion, request: TensorRequest) -> Self {
        let looker = (request.level != TensorLevel::Off).then(|| Looker::new(FRAMEWORKS, version));
        Self { looker, request, processes: BTreeMap::new() }
    }

    /// Returns the requested trace level.
    pub(crate) fn level(&self) -> TensorLevel {
        self.request.level
    }

    /// Polls the wanted processes for framework libraries and forgets all others. If a process used
    /// a framework before memwatch traced it, its tensor events are counted first; `decide` then
    /// returns the trace level, given the events per second and whether a tensor needs several
    /// probes. Returns processes whose allocators are now probed, with the ids of allocator probes
    /// that could not be placed.
    pub(crate) fn update(
        &mut self,
        kernel: &mut KernelHalf,
        wanted: &BTreeMap<u32, Arrival>,
        mut decide: impl FnMut(u32, (u64, bool)) -> TensorLevel,
    ) -> Vec<(u32, Vec<u16>)> {
        let Some(looker) = &self.looker else { return Vec::new() };
        let now = Instant::now();
        for (tgid, watched) in self.processes.extract_if(.., |tgid, _| !wanted.contains_key(tgid)) {
            watched.take_out(kernel, tgid);
        }
        for &tgid in wanted.keys() {
            let watched = self.processes.entry(tgid).or_insert_with(TracedProcess::new);
            if watched.next_look(now).is_some_and(|next| next <= now) {
                watched.looked = Some(now);
                watched.waiting = true;
                watched.looks += 1;
                looker.order(tgid);
            }
        }
        let mut new = Vec::new();
        let stated: Vec<LookResult> = looker.hear().collect();
        for stated in stated {
            match stated {
                LookResult::Done(tgid) => {
                    if let Some(watched) = self.processes.get_mut(&tgid) {
                        watched.waiting = false;
                    }
                }
                LookResult::Found(found) => {
                    let arrival = wanted.get(&found.tgid).copied().unwrap_or(Arrival::Start);
                    new.extend(self.meet(kernel, *found, arrival));
                }
            }
        }
        for (tgid, waiting, EventRate(rate)) in self.counted(kernel) {
            let points = || waiting.iter().flat_map(|found| found.points.iter().flatten());
            let several_probes =
                BlockProbing::of(points()) == BlockProbing::Functions && self.request.needs_several(points());
            self.set_level(tgid, rate.map_or(self.request.level, |rate| decide(tgid, (rate, several_probes))));
            new.extend(waiting.into_iter().filter_map(|found| self.take_in(kernel, found)));
        }
        new
    }

    /// Returns when the next poll is due or a pending result should be collected.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        self.looker.as_ref().and_then(|_| self.processes.values().filter_map(|watched| watched.due(now)).min())
    }

    /// Whether tracing a tensor of the process takes several probes instead of one.
    pub(crate) fn needs_several_probes(&self, tgid: u32) -> bool {
        self.processes.get(&tgid).is_some_and(|watched| {
            let points = watched.libraries.values().flat_map(|library| &library.points);
            watched.sight == BlockProbing::Functions && watched.request(self.request).needs_several(points)
        })
    }

    /// Returns the trace level of a process.
    pub(crate) fn level_of(&self, tgid: u32) -> TensorLevel {
        self.processes.get(&tgid).and_then(|watched| watched.level).unwrap_or(self.request.level)
    }

    /// Returns the field offsets of a process's arenas by framework.
    pub(crate) fn arenas_of(&self, tgid: u32) -> impl Iterator<Item = (Framework, ArenaLayout)> {
        let watched = self.processes.get(&tgid);
        watched.into_iter().flat_map(|watched| watched.arenas.iter().map(|(framework, layout)| (*framework, *layout)))
    }

    /// Returns the inputs about allocators without a list of their allocations that are probed in a
    /// process since a time.
    pub(crate) fn announcements(&self, tgid: u32, time_ns: u64) -> Vec<Input> {
        let libraries = || self.processes.get(&tgid).into_iter().flat_map(|watched| &watched.libraries);
        let probed = || libraries().filter(|(_, library)| !library.probes.is_empty()).map(|(library, _)| *library);
        let without_list =
            probed().filter(|library| FRAMEWORKS.keeps(*library).is_some_and(Keeps::has_no_allocator_state));
        let frameworks = without_list.filter_map(Framework::of_library);
        let watched = frameworks.map(|framework| Input::FrameworkWatched { tgid: Tgid(tgid), framework, time_ns });
        let own = probed().filter_map(|library| FRAMEWORKS.row_of(library)?.announce);
        watched.chain(own.map(|announce| announce(Tgid(tgid), time_ns))).collect()
    }

    /// Returns the frameworks with an allocator library in a process.
    pub(crate) fn frameworks_of(&self, tgid: u32) -> impl Iterator<Item = Framework> {
        let libraries = self.processes.get(&tgid).into_iter().flat_map(|watched| watched.libraries.keys());
        libraries.filter_map(|library| Framework::of_library(*library))
    }

    /// Returns the tensor request with another level.
    pub(crate) const fn request_at(&self, level: TensorLevel) -> TensorRequest {
        TensorRequest { level, ..self.request }
    }

    /// Returns the extra load [`Self::load`] can add to each event of a process, in hundredths of a
    /// counting probe; `None` if it cannot, because the functions are already probed or have no
    /// symbols.
    pub(crate) fn load_percent(&self, tgid: u32) -> Option<NonZeroU64> {
        let watched = self.processes.get(&tgid).filter(|watched| watched.sight == BlockProbing::Calls)?;
        NonZeroU64::new(watched.libraries.values().map(ProbedLibrary::load_percent).sum())
    }

    /// Attaches or detaches the extra counting probes of a process.
    pub(crate) fn load(&mut self, kernel: &mut KernelHalf, tgid: u32, is_on: bool) {
        let Some(watched) = self.processes.get_mut(&tgid) else { return };
        if is_on && watched.load.is_empty() {
            watched.load = watched.libraries.values().filter_map(|library| library.begin_load(kernel, tgid)).collect();
        } else if !is_on {
            let failed = |error: &std::io::Error| {
                log::warn!(
                    "process {tgid}: cannot start the detach thread ({error}); load probes are detached in this one"
                );
            };
            // Does not wait until the probes are detached.
            drop(tensor_probes::detach_beside(kernel, std::mem::take(&mut watched.load)).inspect_err(failed));
        }
    }

    /// Returns which stacks are wanted of a process:
    /// [`PythonLayout::stacks`](memwatch_common::python::PythonLayout::stacks).
    pub(crate) fn stacks_of(&self, tgid: u32) -> u32 {
        match (self.level_of(tgid), self.request.stacks) {
            (TensorLevel::Off | TensorLevel::Read | TensorLevel::Blocks, _) => STACKS_OF_RARE,
            (TensorLevel::Lines, StackSelection::ByBytes) => STACKS_BY_BYTES,
            _ => STACKS_OF_ALL,
        }
    }

    /// Changes what is traced of a process. Returns the ids of allocator probes that no library
    /// provides.
    pub(crate) fn change(&mut self, kernel: &mut KernelHalf, tgid: u32, request: TensorRequest) -> Vec<u16> {
        let Some(watched) = self.processes.get_mut(&tgid) else { return Vec::new() };
        (watched.level, watched.reports_only) = (Some(request.level), request.reports_only);
        watched.follow(kernel, tgid, request);
        watched.missing()
    }

    /// Stops tracing a process. The probes are detached once the returned thread ends.
    pub(crate) fn close(&mut self, kernel: &mut KernelHalf, tgid: u32) -> Option<JoinHandle<()>> {
        let watched = self.processes.get_mut(&tgid)?;
        (watched.level, watched.reports_only) = (Some(TensorLevel::Read), false);
        let probes = watched.libraries.values_mut().flat_map(ProbedLibrary::clear).collect();
        let failed = |error: &std::io::Error| {
            log::warn!("process {tgid}: cannot start the detach thread ({error}); probes are detached in this one");
        };
        tensor_probes::detach_beside(kernel, probes).inspect_err(failed).ok()
    }

    /// Ends the counts that have run long enough. Returns their processes, the libraries that waited
    /// for them and the event rates.
    fn counted(&mut self, kernel: &mut KernelHalf) -> Vec<(u32, Vec<FoundLibrary>, EventRate)> {
        let now = Instant::now();
        let over = |(tgid, watched): (&u32, &mut TracedProcess)| {
            let counting = watched.counting.as_mut().filter(|counting| counting.over() <= now)?;
            let rate = counting.advance(kernel, *tgid)?;
            Some((*tgid, watched.counting.take()?.waiting, rate))
        };
        self.processes.iter_mut().filter_map(over).collect()
    }

    fn set_level(&mut self, tgid: u32, level: TensorLevel) {
        if let Some(watched) = self.processes.get_mut(&tgid) {
            watched.level = Some(level);
        }
    }

    /// Handles a newly found library. If the process used it before memwatch traced the process, its
    /// events are counted first.
    fn meet(&mut self, kernel: &mut KernelHalf, found: FoundLibrary, arrival: Arrival) -> Option<(u32, Vec<u16>)> {
        let watched = self.processes.get_mut(&found.tgid)?;
        if let Some(counting) = &mut watched.counting {
            if counting.waiting.iter().all(|waiting| waiting.id != found.id) {
                counting.waiting.push(found);
            }
            return None;
        }
        let reports = FRAMEWORKS.keeps(found.id) == Some(Keeps::Blocks(BlockPart::Reports));
        let is_first = watched.level.is_none() && reports;
        // A library loaded later is traced from its first tensor.
        if !is_first || arrival == Arrival::Start || watched.looks > 1 {
            watched.level.get_or_insert(self.request.level);
            return self.take_in(kernel, found);
        }
        let Some(mut counting) = EventCount::begin(kernel, &found) else {
            watched.level = Some(self.request.level);
            return self.take_in(kernel, found);
        };
        counting.waiting.push(found);
        watched.counting = Some(counting);
        None
    }

    /// Whether all framework libraries in this process are probed, as far as is known.
    pub(crate) fn is_settled(&self, tgid: u32) -> bool {
        self.processes.get(&tgid).is_some_and(|watched| match watched.found {
            Some(found) => watched.has_all_of_blocks() || found.elapsed() >= COMPLETE,
            None => false,
        })
    }

    /// Attaches the probes for allocators without a trace of their own.
    pub(crate) fn do_without_trace(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        let Some(watched) = self.processes.get_mut(&tgid) else { return };
        if watched.sight == BlockProbing::Calls {
            let framework = watched.block_framework().map_or("a framework", Framework::title);
            log::warn!(
                "process {tgid}: {framework}'s blocks are not at the decoded offsets; using several probes per block"
            );
            watched.sight = BlockProbing::Functions;
            let request = watched.request(self.request);
            watched.follow(kernel, tgid, request);
            return;
        }
        for library in watched.libraries.values_mut() {
            let points = std::mem::take(&mut library.on_demand);
            library.probes.extend(attach(kernel, tgid, &library.file, &points));
        }
    }

    /// Detaches the probes that duplicate the allocators' own trace, which saves one probe per
    /// allocation. They are attached again if the trace ends, as some allocators only trace while
    /// they record.
    pub(crate) fn trust_trace(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        let Some(watched) = self.processes.get_mut(&tgid) else { return };
        for library in watched.libraries.values_mut() {
            if let Some((points, probes)) = library.until_trace.take() {
                take_out(kernel, tgid, probes);
                library.on_demand.extend(points);
            }
        }
    }

    /// Forgets a process after exec: its libraries are gone, and their probes with them.
    pub(crate) fn forget(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        if let Some(watched) = self.processes.remove(&tgid) {
            watched.take_out(kernel, tgid);
        }
    }

    /// Probes a library unless it is probed. Returns the process once its allocator is fully
    /// probed.
    fn take_in(&mut self, kernel: &mut KernelHalf, found: FoundLibrary) -> Option<(u32, Vec<u16>)> {
        let FoundLibrary { tgid, id: library, file, points, arenas } = found;
        // The process may have exited.
        let watched = self.processes.get_mut(&tgid)?;
        let request = watched.request(self.request);
        if request.level == TensorLevel::Off || watched.libraries.contains_key(&library) {
            return None;
        }
        let points = points.unwrap_or_else(|error| {
            log::warn!("process {tgid}: {}: its tensors are not traced: {error}", file.display);
            Vec::new()
        });
        let keeps = FRAMEWORKS.keeps(library);
        if keeps == Some(Keeps::Blocks(BlockPart::Allocator)) {
            watched.sight = BlockProbing::of(&points);
        }
        watched.libraries.insert(library, ProbedLibrary::new(file, points));
        watched.follow(kernel, tgid, request);
        watched.found.get_or_insert_with(Instant::now);
        if !keeps.is_some_and(Keeps::are_blocks) {
            watched.arenas.extend(Framework::of_library(library).zip(arenas));
            // This library starts no tracing of blocks.
            return Some((tgid, rows_of_block_libraries().collect()));
        }
        let is_complete = keeps.is_some_and(Keeps::sends_blocks)
            && FRAMEWORKS.block_libraries().all(|part| watched.libraries.contains_key(&part));
        is_complete.then(|| (tgid, watched.missing()))
    }
}

/// Ids of all probes in the libraries from which events of blocks come, including reports.
fn rows_of_block_libraries() -> impl Iterator<Item = u16> {
    let is_one =
        |TensorProbe { library, .. }: &&TensorProbe| FRAMEWORKS.keeps(*library).is_some_and(Keeps::sends_blocks);
    TENSOR_PROBES.iter().filter(is_one).map(|row| row.id)
}

/// Ids of the probes on allocators that span several libraries.
fn allocator_rows() -> impl Iterator<Item = u16> {
    let is_one = |row: &&TensorProbe| matches!(row.purpose, Purpose::Allocator | Purpose::AllocatorUntilTrace);
    TENSOR_PROBES.iter().filter(is_one).map(|row| row.id)
}

impl TracedProcess {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            counting: None,
            level: None,
            reports_only: false,
            sight: BlockProbing::default(),
            looks: 0,
            looked: None,
            waiting: false,
            found: None,
            arenas: BTreeMap::new(),
            libraries: BTreeMap::new(),
            load: Vec::new(),
        }
    }

    /// Returns the tensor request of this process.
    fn request(&self, of_all: TensorRequest) -> TensorRequest {
        let level = self.level.unwrap_or(of_all.level);
        TensorRequest { level, reports_only: self.reports_only || of_all.reports_only, ..of_all }
    }

    /// Attaches the probes of a request. The library with the trace comes before the one with
    /// reports: a report without a trace lacks the requested size.
    fn follow(&mut self, kernel: &mut KernelHalf, tgid: u32, request: TensorRequest) {
        for library in self.libraries.values_mut().rev() {
            // An unchanged library keeps its probes, so that no event is missed.
            if library.rows(request, self.sight) != library.wanted {
                library.take_out(kernel, tgid);
                library.put_in(kernel, tgid, (request, self.sight));
            }
        }
    }

    /// Whether all libraries of an allocator that spans several were found in the process.
    fn has_all_of_blocks(&self) -> bool {
        let mut all = FRAMEWORKS.libraries().filter(|row| row.keeps.are_blocks());
        all.all(|row| self.libraries.contains_key(&row.id))
    }

    /// Returns the framework of the process's allocator that spans several libraries.
    fn block_framework(&self) -> Option<Framework> {
        let keeps_blocks = |library: &&FrameworkLibrary| FRAMEWORKS.keeps(**library).is_some_and(Keeps::are_blocks);
        self.libraries.keys().find(keeps_blocks).copied().and_then(Framework::of_library)
    }

    /// Ids of the allocator probes that no library provides.
    fn missing(&self) -> Vec<u16> {
        let is_in_place = |id: &u16| self.libraries.values().any(|library| library.wanted.contains(id));
        allocator_rows().filter(|id| !is_in_place(id)).collect()
    }

    /// Returns when the next poll is due; `None` if tracing is off, a poll is pending or events are
    /// being counted.
    fn next_look(&self, now: Instant) -> Option<Instant> {
        if self.waiting || self.counting.is_some() || self.level == Some(TensorLevel::Off) {
            return None;
        }
        let every = match self.found {
            Some(_) if self.has_all_of_blocks() => COMPLETE_EVERY,
            Some(found) if now.duration_since(found) < COMPLETE => EAGER_EVERY,
            None if now.duration_since(self.since) < EAGER => EAGER_EVERY,
            _ => PATIENT_EVERY,
        };
        Some(self.looked.map_or(now, |looked| looked + every))
    }

    /// Returns when the process next needs work.
    fn due(&self, now: Instant) -> Option<Instant> {
        // The polling thread does not wake this one, so check for a result at once.
        let answer = self.waiting.then_some(now);
        answer.or_else(|| self.counting.as_ref().map(EventCount::over)).or_else(|| self.next_look(now))
    }

    fn take_out(self, kernel: &mut KernelHalf, tgid: u32) {
        self.load.into_iter().for_each(|probes| take_out(kernel, tgid, probes));
        for mut library in self.libraries.into_values() {
            library.take_out(kernel, tgid);
            library.follow_rare(kernel, tgid, &[]);
        }
        if let Some(counting) = self.counting {
            counting.abandon(kernel, tgid);
        }
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::allocators::is_pytorch_probed;

    use super::*;

    #[test]
    fn a_library_of_another_framework_begins_nothing_of_pytorchs() {
        let missing: Vec<u16> = rows_of_block_libraries().collect();
        assert!(!is_pytorch_probed(&missing));
        for row in TENSOR_PROBES.iter().filter(|row| row.purpose == Purpose::Allocator) {
            let with_it: Vec<u16> = missing.iter().copied().filter(|missing| *missing != row.id).collect();
            assert!(is_pytorch_probed(&with_it), "{}", row.id);
        }
    }
}
